"""A scenario that runs: its cluster is filled, becomes ready, meets its faults, and runs its timeline.

Invariant: faults and timeline begin when the cluster is ready, never while it is being filled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import anyio
import msgspec
from anyio.abc import TaskStatus

from kubesim.clock import Clock
from kubesim.cluster import ClusterOptions, EmbeddedCluster
from kubesim.controllers.behaviour import Behaviours
from kubesim.controllers.daemonsets import placement
from kubesim.controllers.nodeclaims import NODE_CLAIM
from kubesim.controllers.objects import condition_of, is_finished, is_ready, is_terminating
from kubesim.controllers.paths import BUDGETS, NODES, PODS
from kubesim.scenarios.objects import create
from kubesim.scenarios.placement import when_well
from kubesim.scenarios.plan import plan_of
from kubesim.scenarios.prebuilt import prebuild
from kubesim.scenarios.scenario import Scenario
from kubesim.scenarios.timeline import FaultBook, Tell, Timeline
from kubesim.server.api import JsonObject

UNREADY = "restless"
UNCOUNTED = "uncounted"


class InitialState(msgspec.Struct, frozen=True):
    """The cluster when faults and timeline began: pods not Ready after `readyTimeout`, budgets without a status."""

    nodes: int
    pods: int
    unready: int
    uncounted: int

    @property
    def is_complete(self) -> bool:
        """Whether everything was as it should be."""
        return not self.unready and not self.uncounted


class Simulation:
    """One run of a scenario; `run` it once. `cluster` may be served before; `initial` says what it had become."""

    def __init__(
        self,
        clock: Clock,
        scenario: Scenario,
        *,
        definitions: Sequence[JsonObject] = (NODE_CLAIM,),
        adjust: Callable[[ClusterOptions], ClusterOptions] = lambda options: options,
        tell: Tell = lambda at, what: None,
    ) -> None:
        """`definitions`: served CustomResourceDefinitions; `adjust` overrides cluster options; `tell` gets every
        timeline step. Raises ScenarioError for an impossible cluster."""
        self.scenario = scenario
        self.plan = plan_of(scenario, definitions)
        self.cluster = EmbeddedCluster(clock, adjust(self.plan.options))
        self.faults = FaultBook(self.cluster)
        self.initial: InitialState | None = None
        self._clock = clock
        self._tell = tell
        behaviours = Behaviours(scenario.kubelet.behaviours, self.cluster.pace)
        self._pods = self.cluster.informers.of(PODS)
        self._nodes = self.cluster.informers.of(NODES)
        self._budgets = self.cluster.informers.of(BUDGETS)
        self._pods.index(UNREADY, lambda pod: ("",) if is_unready(pod, behaviours) else ())
        self._budgets.index(UNCOUNTED, lambda budget: ("",) if is_uncounted(budget) else ())

    async def run(self, *, task_status: TaskStatus[InitialState] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled; started once the cluster is ready. Raises ScenarioError, Refused while building."""
        cluster, plan = self.cluster, self.plan
        is_grown = self.scenario.start == "grown"
        later = () if is_grown else await prebuild(cluster, plan, self._clock)
        async with anyio.create_task_group() as group:
            await group.start(cluster.run)
            if is_grown:
                for spec in plan.nodes:
                    await cluster.add_node(spec)
                for static in plan.static_pods:
                    cluster.add_static_pod(static.node, static.manifest)
            for object_ in plan.objects if is_grown else later:
                await create(cluster, object_)
            self.initial = await self._until_ready()
            self.faults.add(self.scenario.faults)
            task_status.started(self.initial)
            await Timeline(cluster, self.scenario.timeline, self.faults, self._tell).run()

    async def _until_ready(self) -> InitialState:
        """Wait until the pods there are to be are there, and Ready, and budgets are counted; or nothing moves on."""
        expected, patience = self._expected(), self.cluster.pace.real(self.scenario.ready_timeout)
        counts_budgets = "disruption" in self.cluster.options.parts
        last, since = (-1, -1, -1), 0.0
        with self._news() as news:
            while True:
                uncounted = self._budgets.count(UNCOUNTED, "") if counts_budgets else 0
                now = (max(0, expected - len(self._pods)), self._pods.count(UNREADY, ""), uncounted)
                if now != last:
                    last, since = now, self._clock.monotonic()
                left = since + patience - self._clock.monotonic()
                if not any(now) or left <= 0:
                    return InitialState(len(self._nodes), len(self._pods), now[0] + now[1], now[2])
                with anyio.move_on_after(left):
                    await news()

    @contextmanager
    def _news(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Gives what waits for the next change of a pod, a node or a budget."""
        event = anyio.Event()

        def ring(old: JsonObject | None, new: JsonObject | None) -> None:
            event.set()

        async def wait() -> None:
            nonlocal event
            await event.wait()
            event = anyio.Event()

        informers = (self._pods, self._nodes, self._budgets)
        for view in informers:
            view.subscribe(ring)
        try:
            yield wait
        finally:
            for view in informers:
                view.unsubscribe(ring)

    def _expected(self) -> int:
        """How many pods there will be at least."""
        if not {"scheduler", "kubelet"} <= self.cluster.options.parts:
            return 0
        return len(self.plan.static_pods) + sum(map(self._pods_of, self.plan.objects))

    def _pods_of(self, object_: JsonObject) -> int:
        match object_["kind"]:
            case "Pod":
                return 1
            case "Deployment" | "StatefulSet":
                replicas: int = object_["spec"].get("replicas", 1)
                return replicas
            case "DaemonSet":
                return sum(placement(object_, when_well(node))[0] for node in self._nodes.values())
        return 0


def is_unready(pod: JsonObject, behaviours: Behaviours) -> bool:
    """Whether the pod is still to become Ready."""
    if is_ready(pod) or is_terminating(pod) or is_finished(pod):
        return False
    scheduled = condition_of(pod, "PodScheduled")
    if scheduled is not None and scheduled["status"] == "False":
        return False
    behaviour = behaviours.of(pod)
    return not behaviour.never_ready and behaviour.crashes_after is None


def is_uncounted(budget: JsonObject) -> bool:
    """Has the disruption controller still to look at the budget?"""
    metadata, status = budget["metadata"], budget.get("status") or {}
    return bool(status.get("observedGeneration") != metadata.get("generation", 1))
