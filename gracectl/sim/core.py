"""The API server without sockets: a request in, an answer out.

`ApiServer.handle` is the whole surface; HTTP is a thin face over it. Between reading an object and writing it nothing
awaits, so every request that changes something is atomic. Failures of a request are answers, never exceptions (the one
exception is an injected ConnectionLost).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import anyio.lowlevel

from gracectl.runtime.clock import Clock
from gracectl.sim.access.control import REVIEWS_GROUP, Access, Grant
from gracectl.sim.discovery import Discovery
from gracectl.sim.faults import Faults
from gracectl.sim.kinds.bindings import Bindings
from gracectl.sim.kinds.catalog import built_in
from gracectl.sim.kinds.evictions import Evictions
from gracectl.sim.server import bodies
from gracectl.sim.server.api import Handler, Json, Request, Response
from gracectl.sim.server.deletes import Deleter
from gracectl.sim.server.options import check_match, delete_options, integer, version_number
from gracectl.sim.server.reads import Reader
from gracectl.sim.server.resource import Registry
from gracectl.sim.server.routing import Route, find_route
from gracectl.sim.server.selectors import object_match
from gracectl.sim.server.stamps import Stamps
from gracectl.sim.server.status import Refusal, expired, method_not_allowed, no_such_path
from gracectl.sim.server.store import Store, TooOldError
from gracectl.sim.server.watch import Watched, WatchStream
from gracectl.sim.server.writes import Writer
from gracectl.sim.tables.representations import PLAIN, Shaper, accepted_shape

FIRST_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
JSON_HEADERS = {"content-type": "application/json"}
FAIRNESS = 64
"""After so many requests the event loop gets its turn, even if none of them waited."""

WATCH_SECONDS = 1800.0
"""A watch that names no timeoutSeconds is ended by the server after this and up to twice as long."""


class ApiServer:
    """An API server in memory. `registry`, `store` and `faults` are open to the world around it and to tests."""

    def __init__(
        self,
        clock: Clock,
        *,
        seed: int = 0,
        window: int = 10_000,
        tokens: Mapping[str, str] | None = None,
        grants: Mapping[str, Sequence[Grant]] | None = None,
    ) -> None:
        """`seed` makes uids, generated names and faults repeatable; `window` is how many changes per kind a watch can
        go back; `tokens` are user names by bearer token (None: no token is needed), `grants` what a user may do (all,
        if the user is not named)."""
        self.clock = clock
        self.store = Store(window=window)
        self.registry = Registry(built_in(self.store))
        self._random = random.Random(seed)
        self.faults = Faults(clock, random.Random(self._random.random()))
        self.stamps = Stamps(clock, random.Random(self._random.random()))
        self._access = Access(tokens, grants)
        self._discovery = Discovery(self.registry)
        self._reader = Reader(self.store, clock)
        self._writer = Writer(self.store, self.stamps)
        self._deleter = Deleter(self.store, self.stamps, self._reader)
        self._evictions = Evictions(self.store, self.stamps, self._deleter)
        self._bindings = Bindings(self.store, self.stamps)
        self._mounts: dict[str, Handler] = {}
        self._handled = 0

    def mount(self, prefix: str, handler: Handler) -> None:
        """Let `handler` answer every path that begins with `prefix` (the simulated cloud lives so)."""
        self._mounts[prefix] = handler

    async def handle(self, request: Request) -> Response:
        """Answer one request. Raises ConnectionLost where a fault breaks the connection."""
        if self._handled == 0:
            self._begin()
        self._handled += 1
        if self._handled % FAIRNESS == 0:
            # Requests that never wait would otherwise starve the watches of an in-process caller.
            await anyio.lowlevel.checkpoint()
        faults = self.faults.striking(request)
        if faults:
            refused = await self.faults.before(faults)
            return refused or self.faults.after(faults, await self._answered(request))
        return await self._answered(request)

    def _begin(self) -> None:
        namespaces = self.registry.find("", "v1", "namespaces")
        assert namespaces is not None
        for name in FIRST_NAMESPACES:
            self._writer.create(Route(namespaces, None, "", ""), {"metadata": {"name": name}}, {})

    async def _answered(self, request: Request) -> Response:
        for prefix, handler in self._mounts.items():
            if request.path.startswith(prefix):
                return await handler(request)
        try:
            self._access.check(request)
            return await self._routed(request)
        except Refusal as refusal:
            return refusal.response()

    async def _routed(self, request: Request) -> Response:
        route = find_route(self.registry, request.path)
        if route is None:
            return self._discovery.answer(request) or no_such_path()
        shape = accepted_shape(request.headers.get("accept", "*/*"))
        response = await self._answer(route, request)
        if shape == PLAIN:
            return response
        return Shaper(route.resource, shape, request.query, self.stamps).response(response)

    async def _answer(self, route: Route, request: Request) -> Response:
        match request.method:
            case "GET":
                return await self._get(route, request)
            case "POST":
                return self._post(route, request)
            case "PUT":
                self._allow(route, "update")
                body = bodies.read_object(request, route.resource.kind)
                return _ok(self._writer.put(route, body, request.query))
            case "PATCH":
                self._allow(route, "patch")
                patch = bodies.read_patch(request)
                return _ok(self._writer.patch(route, patch, bodies.content_type(request), request.query))
            case "DELETE":
                return await self._delete(route, request)
        raise method_not_allowed()

    @staticmethod
    def _allow(route: Route, verb: str) -> None:
        if verb not in route.resource.verbs or not route.name:
            raise method_not_allowed()
        if route.subresource in ("binding", "eviction"):
            raise method_not_allowed()

    async def _get(self, route: Route, request: Request) -> Response:
        if route.subresource in ("binding", "eviction") or "get" not in route.resource.verbs:
            raise method_not_allowed()
        if route.name and not route.watch:
            return _ok((200, await self._reader.get(route, request.query)))
        if route.watch or request.query.get("watch") in ("1", "true"):
            return self._watch(route, request.query)
        return _ok((200, await self._reader.list(route, request.query)))

    def _post(self, route: Route, request: Request) -> Response:
        resource = route.resource
        if route.subresource == "eviction":
            return _ok((201, self._evictions.evict(route, bodies.read_object(request, "Eviction"), request.query)))
        if route.subresource == "binding":
            return _ok((201, self._bindings.bind(route, bodies.read_object(request, "Binding"))))
        if resource.group == REVIEWS_GROUP:
            return _ok((201, self._access.review(request, bodies.read_object(request, resource.kind))))
        if route.name or "create" not in resource.verbs or (resource.namespaced and route.namespace is None):
            raise method_not_allowed()
        return _ok(self._writer.create(route, bodies.read_object(request, resource.kind), request.query))

    async def _delete(self, route: Route, request: Request) -> Response:
        if route.subresource or ("delete" if route.name else "deletecollection") not in route.resource.verbs:
            raise method_not_allowed()
        options = delete_options(request.query, bodies.read_options(request))
        if route.name:
            return _ok((200, self._deleter.delete(route, options)))
        return _ok((200, await self._deleter.delete_collection(route, request.query, options)))

    def _watch(self, route: Route, query: Mapping[str, str]) -> Response:
        check_match(query, watch=True)
        seconds = float(integer(query.get("timeoutSeconds") or "0"))
        revision = version_number(query.get("resourceVersion") or "0")
        table = self.store.table(route.resource.table)
        if route.name:
            query = {**query, "fieldSelector": f"metadata.name={route.name}"}
        watched = Watched(route.resource, route.namespace, object_match(query, route.resource))
        stream = WatchStream(
            self.store,
            table,
            watched,
            self.clock,
            seconds=seconds or WATCH_SECONDS * (1 + self._random.random()),
            bookmarks=query.get("allowWatchBookmarks") in ("1", "true"),
        )
        if not revision:
            stream.start_with([object_ for object_ in table.listed(route.namespace) if watched.matches(object_)])
        else:
            if not route.resource.watch_cached and revision < self.store.compacted:
                stream.fail(expired("The resourceVersion for the provided watch is too old.").body())
            try:
                stream.start_after(revision)
            except TooOldError as error:
                stream.fail(expired(f"too old resource version: {revision} ({error})").body())
        return Response(status=200, headers=JSON_HEADERS, stream=stream)


def _ok(written: tuple[int, Json]) -> Response:
    code, body = written
    return Response(status=code, headers=JSON_HEADERS, body=body)
