"""How punctual preemptive deletes are: ten thousand armed deadlines, and a drain of 500 pods beside them.

Every armed pod is protected, so that only its deadline can end it: its grace before the end of its node. Deadlines and
graces have whole seconds, so the instants of the run are seconds, in each of which some fifty pods are due at once.
Meanwhile nodes with 500 pods under a tight budget are drained by the same process. What is measured is when the
body of a DELETE is handed to the socket, against an instant that is computed here from the node's annotation.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Self

import aiohttp
import anyio
import msgspec

from benchmarks.ground.cluster import ClusterSpec
from benchmarks.ground.stage import NAMESPACES, Stage, cluster, watched
from benchmarks.report import Figure, Outcome
from gracectl.app.controller import Controller
from gracectl.cloud.none import NoneProvider
from gracectl.config import Settings
from gracectl.kube.client import KubeClient
from gracectl.kube.credentials import Credentials
from gracectl.kube.http import HttpTransport
from gracectl.kube.resources import NODES, Resource, verbatim
from gracectl.kube.tokens import FixedToken
from gracectl.model import names
from gracectl.model.times import parse_time
from gracectl.runtime.clock import SystemClock
from gracectl.sim.cluster import NodeSpec

ARMED, DRAINED = "armed", "drained"
PODS_OF_A_NODE = 100
PODS: Resource[bytes] = Resource(group="", version="v1", plural="pods", kind="Pod", namespaced=True, decode=verbatim)


class Scale(msgspec.Struct, frozen=True):
    """`armed` pods whose instants are spread over `seconds`, of which the first `watched` are waited for; they begin
    `lead` seconds after the deletion of their nodes. Meanwhile `drained` pods leave, `at_once` at a time."""

    armed: int = 10_000
    drained: int = 500
    at_once: int = 5
    seconds: int = 200
    watched: int = 40
    lead: int = 12

    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """As many as the armed pods fill; and twice as many as the drained ones fill, for their replacements."""
        pools = {ARMED: self.armed // PODS_OF_A_NODE, DRAINED: 2 * self.drained // PODS_OF_A_NODE}
        return tuple(
            NodeSpec(name=f"{pool}-{number}", labels={"pool": pool})
            for pool, count in pools.items()
            for number in range(count)
        )

    def of(self, pool: str) -> tuple[str, ...]:
        """The nodes of this pool that are deleted."""
        found = tuple(node.name for node in self.nodes if node.labels["pool"] == pool)
        return found if pool == ARMED else found[: len(found) // 2]

    @property
    def settings(self) -> Settings:
        """Of the controller."""
        group = {"selector": {"matchLabels": {"pool": ARMED}}, "terminationGracePeriod": f"{self.seconds + self.lead}s"}
        return msgspec.convert({"nodeGroups": [group]}, Settings)


class Witness(HttpTransport):
    """Notes when each DELETE of a pod leaves: by name the first instant, Unix seconds."""

    def __init__(self, url: str, clock: SystemClock) -> None:
        super().__init__(Credentials(url, FixedToken("")), clock)
        self.left: dict[str, float] = {}
        self._today = clock.now

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        assert self._session is not None
        config = aiohttp.TraceConfig()
        config.on_request_chunk_sent.append(self._note)
        config.freeze()
        self._session.trace_configs.append(config)
        return self

    async def _note(
        self, session: aiohttp.ClientSession, context: SimpleNamespace, sent: aiohttp.TraceRequestChunkSentParams
    ) -> None:
        if sent.method == "DELETE" and "/pods/" in sent.url.path:
            self.left.setdefault(sent.url.name, self._today())


async def run(scale: Scale | None = None) -> Outcome:
    """Measure once; the drain has to last as long as the deadlines do."""
    scale = scale or Scale()
    async with cluster(ClusterSpec(nodes=scale.nodes)) as url:
        async with watched(url) as one:
            graces = await _prepare(one, scale)
        clock = SystemClock()
        async with Witness(url, clock) as transport:
            return await _measure(scale, transport, clock, graces)


async def _prepare(one: Stage, scale: Scale) -> dict[str, int]:
    """Create all pods; returns the graces of the armed ones by name."""
    destinations = [node.name for node in scale.nodes if node.name not in scale.of(DRAINED)]
    for node in destinations:
        await one.set_schedulable(node, False)
    await one.deploy(DRAINED, scale.drained, bound={"maxUnavailable": scale.at_once})
    for node in destinations:
        if node.startswith(DRAINED):
            await one.set_schedulable(node, True)
    await one.client.create(NAMESPACES, "", {"metadata": {"name": ARMED}})
    chance = random.Random(1)
    graces = {f"pod-{number}": chance.randint(1, scale.seconds) for number in range(scale.armed)}
    waiting = iter(enumerate(graces.items()))

    async def create() -> None:
        for number, (name, grace) in waiting:
            await one.client.create(PODS, ARMED, _armed(name, f"{ARMED}-{number // PODS_OF_A_NODE}", grace))

    async with anyio.create_task_group() as group:
        for _ in range(16):
            group.start_soon(create)
    return graces


def _armed(name: str, node: str, grace: int) -> dict[str, Any]:
    # They take some time to end, as pods do; all at once they would keep the server busy that has to answer the others.
    behaviour = {"sim.gracectl.dev/stop-seconds": "0.5", "sim.gracectl.dev/jitter": "0.6"}
    annotations = {names.DO_NOT_DISRUPT: "true", **behaviour}
    containers = [{"name": "c", "image": "pause"}]
    spec = {"nodeName": node, "terminationGracePeriodSeconds": grace, "containers": containers}
    return {"metadata": {"name": name, "labels": {"app": ARMED}, "annotations": annotations}, "spec": spec}


async def _measure(scale: Scale, transport: Witness, clock: SystemClock, graces: Mapping[str, int]) -> Outcome:
    gc.collect()
    gc.freeze()  # the modules, as the controller's command does it, and what this benchmark has left behind
    program = Controller(scale.settings, transport, clock, NoneProvider(NoneProvider.Options()))
    client, stop = KubeClient(transport, clock), anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(program.run, stop)
        await program.wait_live()
        await _held(client, clock, scale.of(ARMED)[-1], scale.of(DRAINED)[-1])
        for node in scale.of(ARMED):
            await client.delete(NODES, ("", node))
        deadlines = [await _deadline(client, clock, node) for node in scale.of(ARMED)]
        await clock.sleep(min(deadlines) - scale.seconds - 1 - clock.now())
        first = min(deadlines) - scale.seconds
        armed, began = program.statistics().deleter.armed, clock.monotonic()
        for node in scale.of(DRAINED):
            await client.delete(NODES, ("", node))
        drain = await _drained(program, clock, scale, began)
        await clock.sleep(first + scale.watched + 2 - clock.now())
        statistics = program.statistics()
        stop.set()
    due = {name: deadlines[n // PODS_OF_A_NODE] - grace for n, (name, grace) in enumerate(graces.items())}
    due = {name: at for name, at in due.items() if at <= first + scale.watched}
    late = sorted(transport.left[name] - at for name, at in due.items() if name in transport.left)
    return Outcome(
        scenario="deadlines",
        about="preemptive deletes leave the process at their instants, while it drains other nodes",
        figures=(
            Figure("lateness p99", 1000 * late[int(0.99 * len(late))], " ms", 100),
            Figure("lateness p50", 1000 * late[len(late) // 2], " ms"),
            Figure("lateness max", 1000 * late[-1], " ms"),
            Figure("earliest", 1000 * late[0], " ms", at_least=0),
            Figure("deletes that were due", len(due)),
            Figure("of these never sent", len(due) - len(late), "", 0),
            Figure("armed at the beginning", armed, "", at_least=scale.armed),
            Figure("most that were due in the same instant", _most(due)),
            Figure("the drain beside it took", drain, " s"),
            Figure("evictions beside it", statistics.evictor.answers.get("Evicted", 0), "", at_least=scale.drained),
        ),
        parameters=msgspec.to_builtins(scale),
    )


def _most(due: Mapping[str, float]) -> int:
    instants = list(due.values())
    return max(instants.count(at) for at in set(instants))


async def _held(client: KubeClient, clock: SystemClock, *nodes: str) -> None:
    """Wait until the controller has put its finalizer on these."""
    with anyio.fail_after(60):
        for node in nodes:
            while names.FINALIZER not in (await client.get(NODES, ("", node))).finalizers:
                await clock.sleep(0.1)


async def _deadline(client: KubeClient, clock: SystemClock, node: str) -> float:
    """The deadline that the controller has written on a node."""
    with anyio.fail_after(30):
        while names.TERMINATION_TIMESTAMP not in (found := await client.get(NODES, ("", node))).annotations:
            await clock.sleep(0.1)
        return parse_time(found.annotations[names.TERMINATION_TIMESTAMP])


async def _drained(program: Controller, clock: SystemClock, scale: Scale, began: float) -> float:
    """Wait until the drained nodes are terminated; returns the seconds it took."""
    with anyio.fail_after(300):
        while not set(scale.of(DRAINED)) <= {progress.name for progress in program.finished()}:
            await clock.sleep(0.25)
    return clock.monotonic() - began
