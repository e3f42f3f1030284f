"""The API server without sockets: `ApiServer.handle` takes a request and returns a response.

Nothing awaits between reading an object and writing it, so every write is atomic. A failed request is a response, never
an exception, except for an injected ConnectionLost.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial

import anyio.lowlevel
import msgspec

from kubesim.admission.caller import WebhookCaller
from kubesim.admission.configurations import webhook_configurations
from kubesim.admission.dispatch import WebhookAdmission
from kubesim.admission.https import HttpsCaller
from kubesim.admission.index import Index
from kubesim.admission.matching import Matcher
from kubesim.admission.services import Services
from kubesim.apiextensions.bodies import CustomBodies
from kubesim.apiextensions.customresources import custom_type
from kubesim.apiextensions.definition import GROUP, PLURAL
from kubesim.apiextensions.lifecycle import DefinitionController
from kubesim.auth import bootstrap
from kubesim.auth.access import Access
from kubesim.clock import Clock
from kubesim.discovery import VERSION, Discovery
from kubesim.faults import Faults
from kubesim.faults.revisions import Revisions
from kubesim.kinds.bindings import Bindings
from kubesim.kinds.catalog import built_in
from kubesim.kinds.eventttl import Expiry
from kubesim.kinds.evictions import Evictions
from kubesim.kinds.rbac import review_kinds
from kubesim.kinds.scales import Scales
from kubesim.managedfields.fieldmanager import Owners
from kubesim.openapi.openapi import OpenApi
from kubesim.printers.representations import PLAIN, Shaper, accepted_shape
from kubesim.server.api import Handler, JsonObject, Request, Response
from kubesim.server.bodies import Bodies
from kubesim.server.calls import Call, User
from kubesim.server.deletes import Deleter
from kubesim.server.reads import Reader
from kubesim.server.resource import Registry
from kubesim.server.routing import Route, find_route
from kubesim.server.stamps import Stamps
from kubesim.server.status import Refusal, bad_request, no_such_path
from kubesim.server.store import Store
from kubesim.server.timers import Timers
from kubesim.server.verbs import Verbs
from kubesim.server.watch import Watches
from kubesim.server.writes import Writer
from kubesim.types import protobuf
from kubesim.types.bodies import TypedBodies
from kubesim.types.transient import DELETE_OPTIONS, transient

FIRST_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
FAIRNESS = 64
"""After so many requests the event loop gets its turn, even if none of them waited."""


class ApiServer:
    """An API server in memory. `registry`, `store` and `faults` are open to the controllers and to tests."""

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
        self.timers = Timers(clock, self.store.wake)
        self.event_expiry = Expiry(self.store, clock, self.timers)
        self.registry = Registry(
            (
                *built_in(self.store, self.event_expiry, service_accounts=service_accounts),
                *webhook_configurations(),
            )
        )
        self._random = random.Random(seed)
        self.faults = Faults(clock, random.Random(self._random.random()))
        self._revisions = Revisions(clock)
        self.stamps = Stamps(clock, random.Random(self._random.random()))
        self._bodies = Bodies({protobuf.MEDIA_TYPE: protobuf.decoded}, typed_options=partial(transient, DELETE_OPTIONS))
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
        self._extensions = DefinitionController(self.registry, self.store, self.stamps, self.timers)
        watches = Watches(self.store, self.timers, self._random)
        self._verbs = Verbs(self._reader, self._writer, self._deleter, watches, self._bodies)
        self._mounts: dict[str, Handler] = {}
        self._first_definitions: tuple[JsonObject, ...] = ()
        self._handled = 0
        self._compose()

    def _compose(self) -> None:
        """Connect the handlers of what is not simply stored."""
        evictions = Evictions(self.store, self.stamps, self._deleter, self._admission, self._bodies)
        self._verbs.answer_at("pods", "eviction", POST=evictions)
        self._verbs.answer_at("pods", "binding", POST=Bindings(self.store, self.stamps, self._bodies, self._admission))
        scales = Scales(self.store, self._writer, self._bodies)
        for resource in self.registry:
            if "scale" in resource.subresources:
                self._verbs.answer_at(resource.table, "scale", GET=scales, PUT=scales, PATCH=scales)
        self._extensions.connect(self._deleter)
        self._verbs.answer_at("serviceaccounts", "token", POST=self._access.token_requests)
        for review in review_kinds():
            self._verbs.answer_at(review.table, POST=self._access.reviews)

    def mount(self, prefix: str, handler: Handler) -> None:
        """Let `handler` answer every path that begins with `prefix` (the simulated cloud lives so)."""
        self._mounts[prefix] = handler

    def predefine(self, *definitions: JsonObject) -> None:
        """Let these CustomResourceDefinitions be there, and served, from the first request on. One that is wrong lets
        that request raise Refusal."""
        self._first_definitions = definitions

    async def handle(self, request: Request) -> Response:
        """Answer one request. Raises ConnectionLost where a fault breaks the connection."""
        if self._handled == 0:
            await self._begin()
        self._handled += 1
        self.timers.catch_up()
        if self._handled % FAIRNESS == 0:
            # Requests that never wait would otherwise starve the watches of an in-process caller.
            await anyio.lowlevel.checkpoint()
        if self.faults.remember_seconds:
            self._revisions.note(self.store.revision, keep=self.faults.remember_seconds)
        rules = self.faults.striking(request)
        if rules:
            refused = await self.faults.before(rules, request)
            if refused is not None:
                return refused
        lag = self.faults.looks_back(rules)
        past = self._revisions.before(lag) if lag else 0
        return self.faults.after(rules, request, await self._answered(request, past))

    async def _begin(self) -> None:
        self._handled = 1
        for name in FIRST_NAMESPACES:
            await self._put_in("", "v1", "namespaces", {"metadata": {"name": name}})
        bootstrap.put_in(self.store, self.stamps.now)
        for definition in self._first_definitions:
            await self._put_in(GROUP, "v1", PLURAL, definition)
            self._extensions.serve_now(definition["metadata"]["name"])

    async def _put_in(self, group: str, version: str, plural: str, body: JsonObject) -> None:
        resource = self.registry.find(group, version, plural)
        assert resource is not None
        path = f"/apis/{group}/{version}/{plural}" if group else f"/api/{version}/{plural}"
        call = Call(Request(method="POST", path=path, body=body), Route(resource, None, "", ""))
        await self._writer.create(call, body)

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
        except RecursionError:
            # Everything is looked at before anything is stored, so nothing has happened.
            return bad_request("the body is nested deeper than this server can look").response()

    async def _routed(self, request: Request, user: User, past: int) -> Response:
        route = find_route(self.registry, request.path)
        if route is None:
            return self._openapi.answer(request) or self._discovery.answer(request) or no_such_path()
        shape = accepted_shape(request.headers.get("accept", "*/*"))
        call = Call(request, route, user, past=past)
        if route.resource.warning:
            call.warnings.append(route.resource.warning)
        try:
            response = await self._verbs.answer(call)
        except Refusal as refusal:
            if not call.warnings:
                raise
            response = refusal.response()
        if call.warnings:
            response = msgspec.structs.replace(response, headers={**response.headers, "warning": call.warning})
        if shape == PLAIN:
            return response
        return Shaper(route.resource, shape, request.query, self.stamps).response(response)
