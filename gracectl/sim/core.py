"""The API server without sockets: a request in, an answer out.

`ApiServer.handle` is the whole surface; HTTP is a thin face over it. Between reading an object and writing it nothing
awaits, so every request that changes something is atomic. Failures of a request are answers, never exceptions (the one
exception is an injected ConnectionLost).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import anyio.lowlevel
import msgspec

from gracectl.runtime.clock import Clock
from gracectl.sim.access import bootstrap
from gracectl.sim.access.control import Access
from gracectl.sim.admission.calling import WebhookCaller
from gracectl.sim.admission.configurations import webhook_configurations
from gracectl.sim.admission.dispatch import WebhookAdmission
from gracectl.sim.admission.https import HttpsCaller
from gracectl.sim.admission.index import Index
from gracectl.sim.admission.matching import Matcher
from gracectl.sim.admission.services import Services
from gracectl.sim.apply.owners import Owners
from gracectl.sim.discovery import VERSION, Discovery
from gracectl.sim.extensions.bodies import CustomBodies
from gracectl.sim.extensions.customs import custom_type
from gracectl.sim.extensions.extensions import Extensions
from gracectl.sim.faults import Faults
from gracectl.sim.faults.chronicle import Chronicle
from gracectl.sim.kinds.bindings import Bindings
from gracectl.sim.kinds.catalog import built_in
from gracectl.sim.kinds.evictions import Evictions
from gracectl.sim.kinds.expiry import Expiry
from gracectl.sim.kinds.rbac import review_kinds
from gracectl.sim.kinds.scales import SCALABLE, Scales
from gracectl.sim.openapi.openapi import OpenApi
from gracectl.sim.server.agenda import Agenda
from gracectl.sim.server.api import Handler, Json, Request, Response
from gracectl.sim.server.bodies import Bodies, content_type
from gracectl.sim.server.calls import Call, User
from gracectl.sim.server.deletes import Deleter
from gracectl.sim.server.hooks import Subresource
from gracectl.sim.server.options import check_match, delete_options, integer, is_true, version_number
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
from gracectl.sim.types import protobuf
from gracectl.sim.types.bodies import TypedBodies

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
        tokens: Mapping[str, str | User] | None = None,
        service_accounts: bool = False,
        webhooks: WebhookCaller | None = None,
    ) -> None:
        """`seed` makes uids, generated names and faults repeatable; `window` is how many changes per kind a watch can
        go back; `tokens` are users by bearer token (a bare name is a superuser; None: no token is needed);
        `service_accounts`: every pod needs one that is there; `webhooks`: how admission webhooks are reached (None:
        over HTTPS)."""
        self.clock = clock
        self.store = Store(window=window)
        self.agenda = Agenda(clock, self.store.wake)
        self.event_expiry = Expiry(self.store, clock, self.agenda)
        self.registry = Registry(
            (
                *built_in(self.store, self.event_expiry, service_accounts=service_accounts),
                *webhook_configurations(),
            )
        )
        self._random = random.Random(seed)
        self.faults = Faults(clock, random.Random(self._random.random()))
        self._chronicle = Chronicle(clock)
        self.stamps = Stamps(clock, random.Random(self._random.random()))
        self._bodies = Bodies({protobuf.MEDIA_TYPE: protobuf.decoded})
        self._access = Access(self.store, self.stamps, self._bodies, tokens=tokens, seed=seed)
        self._discovery = Discovery(self.registry)
        self._openapi = OpenApi(self.registry, f"{VERSION['major']}.{VERSION['minor']}")
        self._reader = Reader(self.store, clock)
        checks = TypedBodies(CustomBodies())
        self._admission = WebhookAdmission(
            Index(self.store),
            Matcher(self.store, self.registry),
            self.stamps,
            webhooks or HttpsCaller(Services(self.store)),
            pause=self.faults.before_webhook,
            decode=checks.sent,
        )
        owners = Owners(self.store, self.stamps, custom_type)
        self._writer = Writer(self.store, self.stamps, self._admission, owners, checks, self._access.permission)
        self._deleter = Deleter(self.store, self.stamps, self._reader, self._admission)
        self._extensions = Extensions(self.registry, self.store, self.stamps, self.agenda)
        self._elsewhere: dict[tuple[str, str], dict[str, Subresource]] = {}
        self._mounts: dict[str, Handler] = {}
        self._handled = 0
        self._compose()

    def _compose(self) -> None:
        """Say who answers what is not simply stored."""
        evictions = Evictions(self.store, self.stamps, self._deleter, self._admission, self._bodies)
        self.answer_at("pods", "eviction", POST=evictions)
        self.answer_at("pods", "binding", POST=Bindings(self.store, self.stamps, self._bodies, self._admission))
        scales = Scales(self.store, self._writer, self._bodies)
        for table in SCALABLE:
            self.answer_at(table, "scale", GET=scales, PUT=scales, PATCH=scales)
        self._extensions.connect(self._deleter, self._writer, self._bodies, self.answer_at)
        self.answer_at("serviceaccounts", "token", POST=self._access.token_requests)
        for review in review_kinds():
            self.answer_at(review.table, POST=self._access.reviews)

    def answer_at(self, table: str, subresource: str = "", **methods: Subresource) -> None:
        """Let these answer requests to a subresource (or to a whole kind that is never stored), by HTTP method; other
        methods are 405. `table`: the plural with its group, `pods`, `leases.coordination.k8s.io`."""
        self._elsewhere[table, subresource] = methods

    def mount(self, prefix: str, handler: Handler) -> None:
        """Let `handler` answer every path that begins with `prefix` (the simulated cloud lives so)."""
        self._mounts[prefix] = handler

    async def handle(self, request: Request) -> Response:
        """Answer one request. Raises ConnectionLost where a fault breaks the connection."""
        if self._handled == 0:
            await self._begin()
        self._handled += 1
        self.agenda.catch_up()
        if self._handled % FAIRNESS == 0:
            # Requests that never wait would otherwise starve the watches of an in-process caller.
            await anyio.lowlevel.checkpoint()
        if self.faults.remember_seconds:
            self._chronicle.note(self.store.revision, keep=self.faults.remember_seconds)
        rules = self.faults.striking(request)
        if rules:
            refused = await self.faults.before(rules, request)
            if refused is not None:
                return refused
        lag = self.faults.looks_back(rules)
        past = self._chronicle.before(lag) if lag else 0
        return self.faults.after(rules, request, await self._answered(request, past))

    async def _begin(self) -> None:
        self._handled = 1
        namespaces = self.registry.find("", "v1", "namespaces")
        assert namespaces is not None
        call = Call(Request(method="POST", path="/api/v1/namespaces"), Route(namespaces, None, "", ""))
        for name in FIRST_NAMESPACES:
            await self._writer.create(call, {"metadata": {"name": name}})
        bootstrap.put_in(self.store, self.stamps.now)

    async def aclose(self) -> None:
        """Let go of what the server holds outside itself. It may still be asked afterwards."""
        await self._admission.aclose()

    async def _answered(self, request: Request, past: int) -> Response:
        for prefix, handler in self._mounts.items():
            if request.path.startswith(prefix):
                return await handler(request)
        try:
            return await self._routed(request, self._access.check(request), past)
        except Refusal as refusal:
            return refusal.response()

    async def _routed(self, request: Request, user: User, past: int) -> Response:
        route = find_route(self.registry, request.path)
        if route is None:
            return self._openapi.answer(request) or self._discovery.answer(request) or no_such_path()
        shape = accepted_shape(request.headers.get("accept", "*/*"))
        call = Call(request, route, user, past=past)
        if route.resource.warning:
            call.warnings.append(route.resource.warning)
        try:
            response = await self._answer(call)
        except Refusal as refusal:
            if not call.warnings:
                raise
            response = refusal.response()
        if call.warnings:
            response = msgspec.structs.replace(response, headers={**response.headers, "warning": warned(call.warnings)})
        if shape == PLAIN:
            return response
        return Shaper(route.resource, shape, request.query, self.stamps).response(response)

    async def _answer(self, call: Call) -> Response:
        route, request = call.route, call.request
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
                self._allow(route, "update")
                return _ok(await self._writer.put(call, self._bodies.object(request, route.resource.kind)))
            case "PATCH":
                self._allow(route, "patch")
                patch = self._bodies.patch(request)
                return _ok(await self._writer.patch(call, patch, content_type(request)))
            case "DELETE":
                return await self._delete(call)
        raise method_not_allowed()

    @staticmethod
    def _allow(route: Route, verb: str) -> None:
        if verb not in route.resource.verbs or not route.name:
            raise method_not_allowed()

    async def _get(self, call: Call) -> Response:
        route, query = call.route, call.query
        if "get" not in route.resource.verbs:
            raise method_not_allowed()
        if route.name and not route.watch:
            return _ok((200, await self._reader.get(call)))
        if route.watch or is_true(query, "watch"):
            return self._watch(route, query)
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
        options = delete_options(query, self._bodies.options(call.request))
        if route.name:
            return _ok((200, await self._deleter.delete(call, options)))
        return _ok((200, await self._deleter.delete_collection(call, options)))

    def _watch(self, route: Route, query: Mapping[str, str]) -> Response:
        check_match(query, watch=True)
        seconds = float(integer(query.get("timeoutSeconds") or "0"))
        revision = version_number(query.get("resourceVersion") or "0", watch=True)
        table = self.store.table(route.resource.table)
        if route.name:
            query = {**query, "fieldSelector": f"metadata.name={route.name}"}
        watched = Watched(route.resource, route.namespace, object_match(query, route.resource))
        stream = WatchStream(
            self.store,
            table,
            watched,
            self.agenda,
            seconds=seconds or WATCH_SECONDS * (1 + self._random.random()),
            bookmarks=is_true(query, "allowWatchBookmarks"),
        )
        wants_initial = is_true(query, "sendInitialEvents")
        if wants_initial or not (revision or "sendInitialEvents" in query):
            stream.start_with([object_ for object_ in table.listed(route.namespace) if watched.matches(object_)])
            if wants_initial:
                stream.end_initial_events()
        elif revision:
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


def warned(warnings: Sequence[str]) -> str:
    """The value of a Warning header (RFC 7234): one `299 - "…"` for each."""
    return ", ".join(
        '299 - "' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in dict.fromkeys(warnings)
    )
