"""The verbs of a route: get, list, watch, create, update, patch, delete, deletecollection.

Invariant: an unsupported verb is refused (405) before anything is read. Handlers of subresources and of kinds that are
never stored are registered here and come first.
"""

from __future__ import annotations

from kubesim.server.api import JSON_HEADERS, Json, Response
from kubesim.server.bodies import Bodies, content_type
from kubesim.server.calls import Call
from kubesim.server.deletes import Deleter
from kubesim.server.hooks import Subresource
from kubesim.server.options import delete_options, is_true
from kubesim.server.reads import Reader
from kubesim.server.routing import Route
from kubesim.server.status import method_not_allowed
from kubesim.server.watch import Watches
from kubesim.server.writes import Writer


class Verbs:
    """Carries requests out."""

    def __init__(self, reader: Reader, writer: Writer, deleter: Deleter, watches: Watches, bodies: Bodies) -> None:
        self._reader = reader
        self._writer = writer
        self._deleter = deleter
        self._watches = watches
        self._bodies = bodies
        self._elsewhere: dict[tuple[str, str], dict[str, Subresource]] = {}

    def answer_at(self, table: str, subresource: str = "", **methods: Subresource) -> None:
        """Let these answer requests to a subresource (or to a whole kind that is never stored), by HTTP method; other
        methods are 405. `table`: the plural with its group, `pods`, `leases.coordination.k8s.io`."""
        self._elsewhere[table, subresource] = methods

    async def answer(self, call: Call) -> Response:
        """Do what is asked. Raises Refusal."""
        route, request = call.route, call.request
        if route.watch and request.method != "GET":
            raise method_not_allowed()  # such a path can be watched only
        elsewhere = self._elsewhere.get((route.resource.table, route.subresource))
        if elsewhere is not None:
            if request.method not in elsewhere:
                raise method_not_allowed()
            return _ok(await elsewhere[request.method].answer(call))
        match request.method:
            case "GET":
                return await self._get(call)
            case "POST":
                return await self._post(call)
            case "PUT":
                _allow(route, "update")
                return _ok(await self._writer.put(call, self._bodies.object(request, route.resource.kind)))
            case "PATCH":
                _allow(route, "patch")
                patch = self._bodies.patch(request)
                return _ok(await self._writer.patch(call, patch, content_type(request)))
            case "DELETE":
                return await self._delete(call)
        raise method_not_allowed()

    async def _get(self, call: Call) -> Response:
        route, query = call.route, call.query
        if "get" not in route.resource.verbs:
            raise method_not_allowed()
        if route.name and not route.watch:
            return _ok((200, await self._reader.get(call)))
        if route.watch or is_true(query, "watch"):
            return Response(status=200, headers=JSON_HEADERS, stream=self._watches.open(route, query))
        return _ok((200, await self._reader.list(call)))

    async def _post(self, call: Call) -> Response:
        route, resource = call.route, call.route.resource
        if route.name or "create" not in resource.verbs or (resource.namespaced and route.namespace is None):
            raise method_not_allowed()
        return _ok(await self._writer.create(call, self._bodies.object(call.request, resource.kind)))

    async def _delete(self, call: Call) -> Response:
        route, query = call.route, call.query
        if route.subresource or ("delete" if route.name else "deletecollection") not in route.resource.verbs:
            raise method_not_allowed()
        if route.resource.namespaced and route.namespace is None:
            raise method_not_allowed()  # there is no way to delete a collection in all namespaces
        options = delete_options(query, self._bodies.options(call.request))
        if route.name:
            return _ok((200, await self._deleter.delete(call, options)))
        return _ok((200, await self._deleter.delete_collection(call, options)))


def _allow(route: Route, verb: str) -> None:
    if verb not in route.resource.verbs or not route.name:
        raise method_not_allowed()


def _ok(written: tuple[int, Json]) -> Response:
    code, body = written
    return Response(status=code, headers=JSON_HEADERS, body=body)
