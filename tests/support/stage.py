"""A whole controller against a whole embedded cluster in one process, on virtual time.

Everything that a story needs: nodes, workloads, budgets, a cloud whose moods the test decides, controllers that can be
started, killed and started again, and afterwards what the server has seen.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import anyio
import msgspec
from kubesim.admission.caller import WebhookCaller
from kubesim.cluster import ClusterOptions, EmbeddedCluster, NodeSpec
from kubesim.controllers.behaviour import PREFIX
from kubesim.controllers.cloud import Cloud
from kubesim.controllers.kubelet import KubeletSettings
from kubesim.controllers.nodeclaims import API_VERSION, NODE_CLASS
from kubesim.server import api
from kubesim.server.api import JsonObject
from kubesim.server.store import Table

from gracectl.app import controller as app
from gracectl.app.controller import Controller
from gracectl.app.dry_run import DryRunTransport
from gracectl.app.notifications import Send
from gracectl.cli.crds import shipped_definitions
from gracectl.cloud.provider import (
    InstanceGone,
    InstanceState,
    NodeIdentity,
    Provider,
    ProviderUnavailable,
)
from gracectl.cloud.simulated import STATES
from gracectl.config import Settings
from gracectl.controllers import karpenter
from gracectl.model import names
from gracectl.runtime.clock import Clock, LoopClock
from gracectl.telemetry.spans import SpanSink
from support.inprocess import Executed, InProcessTransport, Line, uid_of

NAMESPACE = "shop"
SILENT = KubeletSettings(heartbeat_seconds=100_000.0)
SELDOM = KubeletSettings(heartbeat_seconds=25.0)
"""Often enough for a node to stay Ready: it is given up after 40 s."""
NOT_READY = {"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}}
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
NO_GARBAGE = SimpleNamespace(collect=lambda: 0)
STOPS_AFTER_5 = {"behaviour": {"stop-seconds": 5}}


PROVIDING: ContextVar[bool] = ContextVar("PROVIDING", default=False)
"""Whether the cloud is called by a provider at this moment, in the task that calls it."""


class CloudProvider:
    """Ends the instances of the embedded cluster. `moods` are met call by call, `seconds` is what a call takes."""

    name = "stand-in"
    needs_provider_id = True

    def __init__(self, cloud: Cloud, clock: Clock) -> None:
        self.moods: deque[Exception | None] = deque()
        self.seconds = 0.0
        self.calls: list[tuple[float, str]] = []
        self.told: list[NodeIdentity | None] = []
        self.failures: dict[str, float] = {}
        """By provider ID, when (monotonic) a call for it failed last."""
        self.said_gone: dict[str, float] = {}
        """By provider ID, when (monotonic) it was said to be gone first."""
        self.is_closed = False
        self._cloud = cloud
        self._clock = clock

    def instance_key(self, provider_id: str) -> str:
        return provider_id.rsplit("/", 1)[-1]

    async def state(self, provider_id: str) -> InstanceState:
        status, body = await self._call("state", "GET", provider_id)
        if status == 404 or STATES[body["state"]] is InstanceState.GONE:
            self.said_gone.setdefault(provider_id, self._clock.monotonic())
        return InstanceState.GONE if status == 404 else STATES[body["state"]]

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        self.told.append(node)
        status, _ = await self._call("terminate", "DELETE", provider_id)
        if status == 404:
            self.said_gone.setdefault(provider_id, self._clock.monotonic())
            raise InstanceGone(provider_id)

    async def aclose(self) -> None:
        self.is_closed = True

    async def _call(self, verb: str, method: str, provider_id: str) -> tuple[int, JsonObject]:
        self.calls.append((round(self._clock.monotonic(), 3), verb))
        await self._clock.sleep(self.seconds)
        mood = self.moods.popleft() if self.moods else None
        if mood is not None:
            self.failures[provider_id] = self._clock.monotonic()
            raise mood
        path = f"/cloud/v1/instances/{provider_id.rsplit('/', 1)[-1]}"
        asking = PROVIDING.set(True)
        try:
            answer = await self._cloud(api.Request(method=method, path=path))
        finally:
            PROVIDING.reset(asking)
        if answer.status >= 500:
            self.failures[provider_id] = self._clock.monotonic()
            raise ProviderUnavailable(answer.body["message"])
        return answer.status, answer.body

    def instants_of(self, verb: str) -> list[float]:
        """When it was called for this."""
        return [instant for instant, called in self.calls if called == verb]


class Stage:
    """See the module. Instants are monotonic seconds, 0 when the test began."""

    def __init__(
        self, settings: Settings, options: ClusterOptions, seed: int, webhooks: WebhookCaller | None = None
    ) -> None:
        self.clock = LoopClock()
        self.cluster = EmbeddedCluster(self.clock, options, webhooks=webhooks)
        self.server = self.cluster.server
        self.transport = InProcessTransport(self.server, self.clock, seed=seed)
        self.provider = CloudProvider(self.cluster.cloud, self.clock)
        self.provider_of_controllers: Provider | None = None
        """The provider of the next controllers, instead."""
        self.settings = settings
        self.instances: dict[str, str] = {}
        self.spans: Callable[[], SpanSink] | None = None
        """Where the next controllers send their traces: each makes one of its own."""
        self.checks: list[Callable[[], None]] = []
        """What must hold when all is over; each raises AssertionError if it does not."""
        self.reread: Callable[[], Settings] | None = None
        """What the next controllers follow while they run, as if it were their settings file."""
        self.notifies_by: Send | None = None
        """How the next controllers notify people."""
        self.is_dry_run = False
        """Whether the next controllers only observe."""
        self.living: list[Controller] = []
        """The controllers that run."""
        self._seed = seed
        self._lives = 0

    async def add_nodes(self, *nodes: str, **spec: Any) -> None:
        """Nodes with their instances, Ready."""
        for name in nodes:
            self.instances[name] = await self.cluster.add_node(NodeSpec(name=name, **spec))

    async def create(self, *manifests: JsonObject) -> None:
        """Create objects; waits until all pods are Ready or finished."""
        for manifest in manifests:
            await self.cluster.create(manifest)
        await self.cluster.until_ready()

    @asynccontextmanager
    async def controller(self) -> AsyncIterator[Controller]:
        """A controller that runs; on leaving it is told to stop, as by SIGTERM."""
        async with self._life() as (controller, _, stop):
            yield controller
            stop.set()

    @asynccontextmanager
    async def mortal(self) -> AsyncIterator[Controller]:
        """A controller that runs; on leaving it is killed: what it has not sent is never sent."""
        async with self._life() as (controller, line, stop):
            yield controller
            line.cut()
            stop.set()

    @asynccontextmanager
    async def _life(self) -> AsyncIterator[tuple[Controller, Line, anyio.Event]]:
        self._lives += 1
        rng = random.Random(f"controller/{self._seed}/{self._lives}")
        line = self.transport.line()
        spans = self.spans() if self.spans else None
        provider = self.provider_of_controllers or self.provider
        transport = DryRunTransport(line, self.clock) if self.is_dry_run else line
        controller = Controller(self.settings, transport, self.clock, provider, rng=rng, spans=spans)
        if self.notifies_by:
            controller.notify_by(self.notifies_by)
        if self.reread:
            controller.reload_from(self.reread)
        stop = anyio.Event()
        self.living.append(controller)
        async with anyio.create_task_group() as group:
            group.start_soon(controller.run, stop)
            yield controller, line, stop
            self.living.remove(controller)

    @asynccontextmanager
    async def settled(self, mortal: bool = False) -> AsyncIterator[Controller]:
        """A controller after `settle`; on leaving it is told to stop, or killed if `mortal`."""
        async with self.mortal() if mortal else self.controller() as controller:
            await self.settle(controller)
            yield controller

    async def settle(self, controller: Controller) -> None:
        """Wait until the controller sees everything and every node and claim has its finalizer."""
        await controller.wait_live()
        await self.cluster.until(lambda: all(is_held(node) for node in self.nodes()))
        await self.until_claims(lambda: all(is_held(claim) for claim in self.claims()))

    # -- doing things to the cluster -----------------------------------------------------------------------------------

    async def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """A request of another client, and its answer; AssertionError when it is refused."""
        status, answer = await self.cluster.api.call(method, path, body, content_type=content_type)
        assert status < 300, f"{method} {path}: {status} {answer}"
        return answer

    async def delete_node(self, name: str) -> float:
        """What a person does; returns the instant."""
        await self.call("DELETE", f"/api/v1/nodes/{name}")
        return self.clock.monotonic()

    async def patch_node(self, name: str, patch: JsonObject, subresource: str = "") -> None:
        """A merge patch of another client."""
        path = f"/api/v1/nodes/{name}{subresource}"
        await self.call("PATCH", path, patch, "application/merge-patch+json")

    async def create_claim(self, name: str, status: JsonObject | None = None, **more: Any) -> None:
        """A claim of another client with this status; `labels` and `annotations` go to the metadata, the rest to the
        spec."""
        metadata = {"name": name, "labels": more.pop("labels", {}), "annotations": more.pop("annotations", {})}
        spec = {"nodeClassRef": NODE_CLASS, "requirements": [], **more}
        await self.call(
            "POST", CLAIMS, {"apiVersion": API_VERSION, "kind": "NodeClaim", "metadata": metadata, "spec": spec}
        )
        if status:
            await self.patch_claim(name, {"status": status}, "/status")

    async def delete_claim(self, name: str) -> float:
        """What a person does; returns the instant."""
        await self.call("DELETE", f"{CLAIMS}/{name}")
        return self.clock.monotonic()

    async def patch_claim(self, name: str, patch: JsonObject, subresource: str = "") -> None:
        """A merge patch of another client."""
        await self.call("PATCH", f"{CLAIMS}/{name}{subresource}", patch, "application/merge-patch+json")

    async def until_claims(self, condition: Callable[[], bool]) -> float:
        """Wait until a condition on claims holds; returns the instant."""
        while not condition():
            await self._claims.wait()
        return self.clock.monotonic()

    async def until_claims_gone(self, *claims: str) -> float:
        """Wait until none of these claims is left; returns the instant."""
        return await self.until_claims(lambda: all(self.claim(name) is None for name in claims))

    async def until_gone(self, *nodes: str) -> float:
        """Wait until none of these nodes is left; returns the instant."""
        await self.cluster.until(lambda: all(self.node(name) is None for name in nodes))
        return self.clock.monotonic()

    async def until(self, condition: Callable[[], bool]) -> float:
        """Wait until a condition on pods and nodes holds; returns the instant."""
        await self.cluster.until(condition)
        return self.clock.monotonic()

    # -- what the server has -------------------------------------------------------------------------------------------

    def nodes(self) -> list[JsonObject]:
        return list(self.server.store.table("nodes"))

    def node(self, name: str) -> JsonObject | None:
        return self.server.store.table("nodes").get("", name)

    def claims(self) -> list[JsonObject]:
        return list(self._claims)

    def claim(self, name: str) -> JsonObject | None:
        return self._claims.get("", name)

    @property
    def _claims(self) -> Table:
        return self.server.store.table("nodeclaims.karpenter.sh")

    def pods_on(self, name: str) -> list[JsonObject]:
        return [pod for pod in self.server.store.table("pods") if pod["spec"].get("nodeName") == name]

    def condition(self, node: str, type_: str) -> JsonObject | None:
        return _condition(self.node(node), type_)

    def claim_condition(self, claim: str, type_: str) -> JsonObject | None:
        return _condition(self.claim(claim), type_)

    async def events(self) -> list[tuple[str, str, str]]:
        """(object, reason, message) of all Events of ours, oldest first."""
        messages = (await self.call("GET", "/api/v1/events"))["items"]
        ours = [each for each in messages if each["source"].get("component") == names.EVENT_COMPONENT]
        # A repeated Event is patched, so its version says nothing; its name ends with the instant of the first one.
        ours.sort(key=lambda each: int(each["metadata"]["name"].rpartition(".")[2], 16))
        return [(each["involvedObject"]["name"], each["reason"], each["message"]) for each in ours]

    def instance_state(self, node: str) -> str:
        return next(each.state for each in self.cluster.cloud.instances if each.id == self.instances[node])

    # -- what was asked of the server ----------------------------------------------------------------------------------

    @property
    def evictions(self) -> list[Executed]:
        """The evictions that the server was asked for, whatever it answered."""
        return self.transport.of("create", "pods/eviction")

    def agreed(self) -> Counter[str]:
        """By pod uid, how often the server has agreed to an eviction."""
        return Counter(uid_of(each.request) for each in self.evictions if each.status == 201)

    def status_writes(self, node: str) -> list[float]:
        """The instants at which we wrote conditions of a node."""
        writes = self.transport.of("patch", "nodes/status")
        return [each.instant for each in writes if each.operation.name == node]


@asynccontextmanager
async def staged(
    *nodes: str,
    settings: Settings | None = None,
    seed: int = 0,
    webhooks: WebhookCaller | None = None,
    looks_for_karpenter: bool = False,
    objects: Sequence[JsonObject] = (),
    **options: Any,
) -> AsyncIterator[Stage]:
    """A cluster that runs, with these nodes (with this `claim` and these `labels`), then with these objects, all of
    whose pods are Ready or finished. It has the definitions that gracectl ships, unless told otherwise.

    Its controllers contend for no Lease, unless the settings say so, and look for a Karpenter only when they start,
    unless `looks_for_karpenter`. `webhooks`: how the server reaches those. Kubelets give few signs of life.
    """
    options.setdefault("definitions", shipped_definitions())
    options.setdefault("kubelet", SELDOM)
    spec = {key: options.pop(key) for key in ("claim", "labels") if key in options}
    stage = Stage(settings or the_settings(), ClusterOptions(seed=seed, **options), seed, webhooks)
    async with anyio.create_task_group() as group:
        await group.start(stage.cluster.run)
        await stage.add_nodes(*nodes, **spec)
        if objects:
            await stage.create(*objects)
        with (
            nullcontext() if looks_for_karpenter else patch.object(karpenter, "POLL_SECONDS", 1e9),
            # Whenever a term ends, all that this process of tests has would be looked through.
            patch.object(app, "gc", NO_GARBAGE),
        ):
            yield stage
        group.cancel_scope.cancel()
    for check in stage.checks:
        check()


def a_pod_manifest(name: str, node: str = "", **more: Any) -> JsonObject:
    """A pod of `shop`; `annotations`, `labels`, `owners` go to the metadata, `behaviour` to the kubelet, the rest to
    the spec."""
    behaviour = {f"{PREFIX}{key}": str(value) for key, value in more.pop("behaviour", {}).items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": more.pop("labels", {"app": name}),
            "annotations": {**behaviour, **more.pop("annotations", {})},
            "ownerReferences": more.pop("owners", []),
        },
        "spec": {"containers": [{"name": "c", "image": "i"}], **({"nodeName": node} if node else {}), **more},
    }


def a_workload(kind: str, name: str, replicas: int, **more: Any) -> JsonObject:
    """A Deployment or StatefulSet of `shop`; `behaviour` is what its pods do, the rest goes to its spec."""
    pod = a_pod_manifest(name, behaviour=more.pop("behaviour", {}), **more.pop("pod", {}))
    template = {"metadata": {key: pod["metadata"][key] for key in ("labels", "annotations")}, "spec": pod["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template, **more},
    }


def unregistered(**status: str) -> JsonObject:
    """The status of a claim whose instance has not become a node."""
    condition = {"type": "Registered", "status": "Unknown", "reason": "NodeNotFound", "message": ""}
    return {**status, "conditions": [{**condition, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}


def without_v1() -> JsonObject:
    """The definition of NodeClaims as an older cluster has it."""
    (claims,) = (each for each in shipped_definitions() if each["metadata"]["name"] == "nodeclaims.karpenter.sh")
    for version in claims["spec"]["versions"]:
        version["served"] = version["name"] == "v1beta1"
    return claims


def a_budget_manifest(name: str, **bound: Any) -> JsonObject:
    """A budget over `app: <name>`; `bound` is maxUnavailable or minAvailable."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"selector": {"matchLabels": {"app": name}}, **bound},
    }


def the_settings(**fields: Any) -> Settings:
    """Settings as a file would have them, in Python's words of the file (`nodeSelector`, `drain`); no
    leader election."""
    provider = {"name": CloudProvider.name}
    return msgspec.convert({"leaderElection": {"enabled": False}, "provider": provider, **fields}, Settings)


def _condition(thing: JsonObject | None, type_: str) -> JsonObject | None:
    conditions = (thing or {}).get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == type_), None)


def finalizers_of(thing: JsonObject) -> list[str]:
    finalizers: list[str] = thing["metadata"].get("finalizers", [])
    return finalizers


def is_held(thing: JsonObject) -> bool:
    """Whether it has a finalizer of ours."""
    return not set(names.FINALIZERS).isdisjoint(finalizers_of(thing))


def instants(stage: Stage, verb: str, resource: str, start: float) -> list[float]:
    """When the server carried these out, counted from `start`."""
    return [round(each.instant - start, 3) for each in stage.transport.of(verb, resource) if each.instant >= start]


async def reasons(stage: Stage, name: str) -> list[str]:
    return [reason for object_, reason, _ in await stage.events() if object_ == name]
