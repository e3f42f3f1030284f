"""Agent of one node: takes an inhibitor lock of logind while the machine is up, and drains the node at its shutdown.

Its inputs are logind (shutdown, or cancelled), the API server (the node and its pods) and the settings (the order).
Invariants: a shutdown waits no longer than the periods of its ranges; what a shutdown has put on the node is removed
once the lock is held again, which logind does not grant during a shutdown; neither taking nor releasing the lock needs
the API server.
"""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskGroup

from gracectl.agent.cordon import ShutdownCordon
from gracectl.agent.reporting import ShutdownCondition, ShutdownReporter, ShutdownTrace, disruption_target
from gracectl.agent.sequence import ShutdownSequence
from gracectl.agent.shutdown import AgentStatistics, MachineShutdown, ShutdownDependencies, ShutdownOutcome
from gracectl.agent.watch import Machine, WatchState
from gracectl.eviction.deleter import Deletion, PodDeleter
from gracectl.eviction.deletions import ScheduledDeletion
from gracectl.eviction.settings import EvictionSettings
from gracectl.kube.cache import Cache, T
from gracectl.kube.cache.reflector import Reflector, ReflectorSettings
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError
from gracectl.kube.events import EventRecorder
from gracectl.kube.rbac import READS, Permission
from gracectl.kube.requests import Selection, bound_to, named
from gracectl.kube.resources import NODES, PODS, Resource
from gracectl.model import names
from gracectl.model.decode import NodeDecoder, PodDecoder
from gracectl.model.meta import condition_of
from gracectl.model.names import EventReason
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.sharing import Sharing
from gracectl.policy.settings import PolicySettings
from gracectl.policy.waves import DrainOrder
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock
from gracectl.runtime.notifier import Wakeup
from gracectl.runtime.supervise import Component
from gracectl.telemetry.health import Check
from gracectl.telemetry.spans import SpanSink

logger = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS: Final = 2.0
"""Longest pause between two tries to delete a pod: a shutdown has no time to wait for a server that is back already."""

RETRY_SECONDS: Final = (0.5, 30.0)
"""First and longest wait after a failed write."""

PROBLEM_SECONDS: Final = 5.0
"""Problems with logind that last less are only logged: a restart of the message bus is no news."""


class AgentDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies of the agent. `deleting` must not repeat requests (see PodDeleter). `spans` None: no traces."""

    machine: Machine
    client: KubeClient
    deleting: KubeClient
    recorder: EventRecorder
    clock: Clock
    eviction: EvictionSettings
    spans: SpanSink | None
    rng: random.Random


class Agent:
    """Agent of one node. `disabled` is called with the reason when the settings have no order for this node."""

    def __init__(self, deps: AgentDependencies, policy: PolicySettings, disabled: Callable[[str], None]) -> None:
        self._deps = deps
        self._name = deps.machine.node
        self._policy = policy
        self._disabled = disabled
        self.nodes: Cache[Node] = Cache("nodes")
        self.pods: Cache[Pod] = Cache("pods")
        sharing = Sharing()
        self.reflectors: tuple[Reflector[Any], ...] = (
            self._reflector(NODES.read_by(NodeDecoder(sharing)), self.nodes, named(self._name)),
            # Uncached, 5,000 agents that start at the same time would each make etcd read all pods for a few.
            self._reflector(PODS.read_by(PodDecoder(sharing)), self.pods, bound_to(self._name), cached=True),
        )
        self._deleter = PodDeleter(
            deps.deleting, self.pods, deps.clock, deps.eviction, self._deletion_backoff, disruption_target
        )
        self._reporter = ShutdownReporter(deps.recorder, self._name, self.node)
        self._condition = ShutdownCondition(deps.client, deps.clock, self.node, self._backoff)
        self._cordon = ShutdownCordon(deps.client, self.node, lambda: self._is_up, self._backoff)
        self._shutdown_dependencies = ShutdownDependencies(
            name=self._name,
            node=self.node,
            clock=deps.clock,
            reporter=self._reporter,
            condition=self._condition,
            backoff=self._backoff,
            is_writing=self._is_writing,
            cordon=self._cordon,
        )
        self._watch = deps.machine.watcher(self)
        self._watch_state = WatchState()
        self._order: DrainOrder | None = None
        self._wanted: tuple[float, str] | None = None
        self._shutdown: MachineShutdown | None = None
        self._outcomes: Counter[ShutdownOutcome] = Counter()
        self._began: float | None = None
        self._ended: float | None = None
        self._report_at = math.inf
        self._is_missing = False
        self._changed = Wakeup()
        self._settled = anyio.Event()
        self._settled.set()
        self._deleter.listen(self._reporter)
        self._deleter.listen(self)
        self.nodes.subscribe(lambda old, new: self._node_changed())
        self.pods.subscribe(self._pod_changed)

    def _reflector(
        self, resource: Resource[T], into: Cache[T], selection: Selection, *, cached: bool = False
    ) -> Reflector[T]:
        # A machine boots before its API server, or its permissions, may be there: both are waited for.
        settings = ReflectorSettings(selection=selection, proven=True, cached=cached)
        deps = self._deps
        return Reflector(deps.client, resource, into, deps.clock, settings=settings, rng=deps.rng)

    def _deletion_backoff(self) -> Backoff:
        eviction = self._deps.eviction
        longest = min(eviction.backoff_maximum_seconds, LONGEST_PAUSE_SECONDS)
        return Backoff(min(eviction.backoff_initial_seconds, longest), longest, rng=self._deps.rng)

    def _backoff(self) -> Backoff:
        return Backoff(*RETRY_SECONDS, rng=self._deps.rng)

    @property
    def components(self) -> Mapping[str, Component]:
        """Components to run; a component needs only those before it."""
        return {
            **{f"watch of {each.statistics().resource}": each.run for each in self.reflectors},
            "condition": self._condition.run,
            "cordon": self._cordon.run,
            "deleter": self._deleter.run,
            "logind": self._watch.run,
            "agent": self.run,
        }

    def node(self) -> Node | None:
        """Node object of this machine, once the API server has shown it."""
        return self.nodes.get("", self._name)

    def configure(self, policy: PolicySettings) -> None:
        """Use other settings from now on; a shutdown in progress keeps its settings."""
        self._policy = policy
        self._changed.set()

    async def settled(self) -> None:
        """Wait until no shutdown is in progress: it completes even if the process is stopped."""
        while not self._settled.is_set():  # the next shutdown has a new event
            await self._settled.wait()

    # Calls of logind's watch.

    def shutting_down(self, delay: float) -> None:
        """See ShutdownListener."""
        order = self._order
        if order is None:
            self._watch.release()  # no pod to wait for
            return
        if self._shutdown is not None:
            return
        # Part of the first second has passed; no range must lose a whole second for that.
        seconds = min(order.total, math.ceil(delay) if math.isfinite(delay) else delay)
        self._shutdown = MachineShutdown(self._shutdown_dependencies, self._policy, order, seconds)
        self._began, self._ended = self._deps.clock.now(), None
        self._settled = anyio.Event()
        self._reporter.reset()
        self._cordon.interrupt()
        self._changed.set()

    def cancelled(self) -> None:
        """See ShutdownListener."""
        shutdown, self._shutdown = self._shutdown, None
        if shutdown is None:
            return
        if self._ended is None and shutdown.outcome is not None:
            self._outcomes[shutdown.outcome] += 1  # cancelled while flushing
        self._outcomes[ShutdownOutcome.CANCELLED] += 1
        self._ended = self._deps.clock.now()
        shutdown.cancel()
        self._condition.clear()
        self._settled.set()
        self._reporter.emit(
            EventReason.NODE_SHUTDOWN_CANCELLED,
            f"shutdown cancelled after {shutdown.elapsed:.0f} s: no further pods are deleted; the node is uncordoned",
        )
        self._changed.set()

    def state_changed(self, state: WatchState) -> None:
        """See ShutdownListener."""
        before, self._watch_state = self._watch_state, state
        if state.is_locked and (not before.is_locked or _effective_delay(state) != _effective_delay(before)):
            delay = _effective_delay(state)
            logger.info("inhibitor lock held: a shutdown waits up to %g s", delay, extra={"node": self._name})
        if state.problem != before.problem:
            self._report_at = self._deps.clock.monotonic() + PROBLEM_SECONDS if state.problem else math.inf
        if state.kubelet is not None and before.kubelet is None:
            self._reporter.emit(
                EventReason.SHUTDOWN_HANDLED_TWICE,
                f"the kubelet (process {state.kubelet}) also terminates pods of this node at shutdown; disable "
                "this agent, or the kubelet's shutdownGracePeriod and shutdownGracePeriodByPodPriority",
                "Warning",
            )
        self._changed.set()

    def _report_problem(self) -> None:
        """Emit an Event about a problem with logind that has lasted PROBLEM_SECONDS."""
        self._report_at = math.inf
        state = self._watch_state
        reason = EventReason.SHUTDOWN_DELAY_TOO_SHORT if _is_short(state) else EventReason.SHUTDOWN_UNWATCHED
        self._reporter.record(reason, state.problem, "Warning", dedup_key=state.problem)

    # Changes on the API server.

    def _node_changed(self) -> None:
        self._reporter.flush()
        self._changed.set()

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and new is None and self._shutdown is not None:
            self._shutdown.pod_gone(old.uid)

    def deleted(self, deletion: Deletion) -> None:
        """See DeletionListener."""
        if self._shutdown is not None:
            self._shutdown.deleted(deletion, self.pods.get(*deletion.pod.key))

    def not_deleted(self, pod: ScheduledDeletion, refusal: ApiError) -> None:
        """See DeletionListener."""
        if self._shutdown is not None:
            self._shutdown.not_deleted(pod, refusal)

    # Consequences.

    async def run(self) -> None:
        """Component: act on every change, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._wait_for_first_list)
            await self._act_on_changes(group)

    async def _wait_for_first_list(self) -> None:
        """An empty first list notifies no subscriber."""
        await self.nodes.wait_live()
        self._changed.set()

    async def _act_on_changes(self, group: TaskGroup) -> None:
        started: MachineShutdown | None = None
        while True:
            shutdown = self._shutdown
            if shutdown is not None and shutdown is not started:
                # In its own task: a cancelled one may have to finish a write, and the next cannot wait for it.
                started = shutdown
                group.start_soon(self._shut_down, shutdown)
            is_busy = shutdown is not None and shutdown.outcome is None
            wait = math.inf if is_busy else max(self._report_at - self._deps.clock.monotonic(), 0.0)
            if wait <= 0:
                self._report_problem()
                continue
            if shutdown is None:
                self._maintain()
            await self._changed.wait(wait)

    async def _shut_down(self, shutdown: MachineShutdown) -> None:
        deps = self._deps
        trace = ShutdownTrace(deps.spans, self.node(), self._name, shutdown.began)
        sequence = ShutdownSequence(self._name, self.pods, self._deleter, deps.clock, shutdown, deps.machine.own_uid)
        stop_looking = self.nodes.subscribe(lambda old, new: sequence.wake())
        try:
            await shutdown.run(trace, sequence, self._watch.release)
        finally:
            stop_looking()
        if self._shutdown is shutdown and shutdown.outcome is not None:
            self._outcomes[shutdown.outcome] += 1
            self._ended = deps.clock.now()
            self._settled.set()
            self._changed.set()

    def _maintain(self) -> None:
        """While the machine is up: choose the order, remove what a shutdown has left."""
        node = self.node()
        self._check_node(node)
        self._choose_order()
        if node is not None and self._is_up and _has_condition(node):
            self._condition.clear()
        self._cordon.wake()

    @property
    def _is_up(self) -> bool:
        """Whether the machine stays up: what a shutdown has left on the node is removed then."""
        return self._shutdown is None and self._watch_state.is_locked

    def _check_node(self, node: Node | None) -> None:
        """Log a wrong node name before the machine shuts down."""
        is_missing = node is None and self.nodes.live
        if is_missing and not self._is_missing:
            logger.error("node %s: not found; set --node-name or $NODE_NAME to its name in the cluster", self._name)
        self._is_missing = is_missing

    def _choose_order(self) -> None:
        """Choose the applicable order, and with it the delay of a shutdown."""
        node = self.node()
        if node is None and self._policy.node_groups and not self._policy.order.is_timed:
            return  # the order depends on its labels
        order = self._policy.order if node is None else self._policy.order_of(node.labels)
        if not order.is_timed:
            self._order = None
            if node is not None and self._is_up and (_has_condition(node) or self._cordon.is_left):
                return  # this process is the last to remove it
            self._disabled(f"node {self._name} has no shutdownGracePeriod or shutdownGracePeriodByPodPriority")
            return
        self._order = order
        wanted = (order.total, f"terminate pods of node {self._name} by priority, in up to {order.total:g} s")
        if wanted != self._wanted:
            self._wanted = wanted
            self._watch.want(*wanted)

    def _is_writing(self) -> bool:
        spans = self._deps.spans
        return self._deps.recorder.is_busy or (spans is not None and spans.statistics().waiting > 0)

    # Statistics, health and logs.

    def statistics(self) -> AgentStatistics:
        """Snapshot of the agent."""
        state, shutdown = self._watch_state, self._shutdown
        return AgentStatistics(
            is_locked=state.is_locked and (not state.problem or _is_short(state)),
            granted=state.delay,
            wanted=state.wanted,
            outcomes=dict(self._outcomes),
            began=self._began,
            ended=self._ended,
            waiting_pods=0 if shutdown is None else shutdown.waiting_pods,
        )

    def readiness(self) -> tuple[Check, ...]:
        """Whether a shutdown would wait for the pods, and long enough."""
        state = self._watch_state
        held = f"a shutdown waits up to {_effective_delay(state):g} s" if state.is_locked else "waiting for logind"
        checks = [Check("lock", state.is_locked, held)]
        if self._is_missing:
            checks.append(Check("node", False, f"{self._name}: not found"))
        if state.problem:
            checks.append(Check("logind", False, state.problem))
        return tuple(checks)

    def trace_id(self, keys: Mapping[str, object]) -> str | None:
        """Trace id for a log line with these keys; None if there is none."""
        return self._shutdown.trace_id if self._shutdown is not None and keys.get("node") == self._name else None


def _has_condition(node: Node) -> bool:
    """Whether the condition ShuttingDown is on the node."""
    return condition_of(node.conditions, names.SHUTTING_DOWN) is not None


def _is_short(state: WatchState) -> bool:
    """Whether the delay is too short; any other problem means that a shutdown would not be noticed."""
    return state.delay is not None and state.wanted is not None and state.delay < state.wanted


def _effective_delay(state: WatchState) -> float:
    """Seconds that a shutdown waits for this lock: as granted, at most as wanted."""
    return min(state.delay or 0.0, state.wanted or 0.0)


def rights(*, impersonates: bool) -> tuple[Permission, ...]:
    """All requests that the agent makes; `impersonates`: it reads as its own node (KEP-5284).

    RBAC cannot limit them to the agent's own node. The Node authorizer limits impersonated reads, an admission policy
    limits writes.
    """
    on = "impersonate-on:associated-node:" if impersonates else ""
    impersonation = (Permission("impersonate:associated-node", "nodes", "authentication.k8s.io"),)
    return (
        *(impersonation if impersonates else ()),
        *(Permission(f"{on}{verb}", plural) for plural in ("nodes", "pods") for verb in READS),
        Permission("patch", "nodes"),
        Permission("patch", "nodes", subresource="status"),
        Permission("delete", "pods"),
        Permission("patch", "pods", subresource="status"),
        *(Permission(verb, "events") for verb in ("create", "patch")),
    )
