"""The agent of one node: holds logind's lock while the machine is up, and empties the node when it shuts down.

It is told three things: by logind that the machine shuts down or does not after all, by the API server what its node
and the pods on it are, by the settings which order holds. From these follows what it does, each time anew. Invariants:
the machine waits for no longer than the periods of its ranges; what a shutdown has put on the node comes off when the
lock is held again, which logind does not grant while a shutdown is under way; nothing here needs the API server to hold
the lock or to let it go.
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

from gracectl.agent.announcer import AgentAnnouncer
from gracectl.agent.bulletin import Bulletin
from gracectl.agent.journal import ShutdownJournal
from gracectl.agent.machine import Machine
from gracectl.agent.marks import Marks
from gracectl.agent.samples import AgentStatistics, Outcome
from gracectl.agent.sequence import ShutdownSequence
from gracectl.agent.shutdown import Shutdown, ShutdownMeans
from gracectl.agent.watch import Watched
from gracectl.eviction.deleter import Deletion, PodDeleter, ScheduledDeletion
from gracectl.eviction.settings import EvictionSettings
from gracectl.kube.cache import Cache, T
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError
from gracectl.kube.events import EventRecorder
from gracectl.kube.reflector import Reflector, ReflectorSettings
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
from gracectl.policy.waves import Order
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock
from gracectl.runtime.supervise import Component
from gracectl.telemetry.health import Check
from gracectl.telemetry.spans import SpanSink

logger = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS: Final = 2.0
"""Between two tries to delete a pod: a shutdown has no time to wait for a server that is back already."""

RETRY_SECONDS: Final = (0.5, 30.0)
"""Of a write that has failed: the first wait and the longest."""

PATIENCE_SECONDS: Final = 5.0
"""What is amiss with logind for less than this is in the log only: a message bus that is started anew is no news."""


class AgentMeans(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent of a machine works with. `deleting` must not repeat requests (see PodDeleter). `spans` None:
    nobody wants traces."""

    machine: Machine
    client: KubeClient
    deleting: KubeClient
    recorder: EventRecorder
    clock: Clock
    eviction: EvictionSettings
    spans: SpanSink | None
    rng: random.Random


class Agent:
    """See the module. `disabled` is called with the reason when the settings have no order for this node (any more)."""

    def __init__(self, means: AgentMeans, policy: PolicySettings, disabled: Callable[[str], None]) -> None:
        self._means = means
        self._name = means.machine.node
        self._policy = policy
        self._disabled = disabled
        self.nodes: Cache[Node] = Cache("nodes")
        self.pods: Cache[Pod] = Cache("pods")
        sharing = Sharing()
        self.reflectors: tuple[Reflector[Any], ...] = (
            self._reflector(NODES.read_by(NodeDecoder(sharing)), self.nodes, named(self._name)),
            # Of 5,000 agents that begin at once each would have etcd read all pods for the few of its own.
            self._reflector(PODS.read_by(PodDecoder(sharing)), self.pods, bound_to(self._name), cached=True),
        )
        self._deleter = PodDeleter(means.deleting, self.pods, means.clock, means.eviction, self._deletion_backoff)
        self._announcer = AgentAnnouncer(means.recorder, self._name, self.node)
        self._bulletin = Bulletin(means.client, means.clock, self.node, self._backoff)
        self._marks = Marks(means.client, self.node, lambda: self._is_up, self._backoff)
        self._of_shutdowns = ShutdownMeans(
            name=self._name,
            node=self.node,
            clock=means.clock,
            announcer=self._announcer,
            bulletin=self._bulletin,
            backoff=self._backoff,
            is_writing=self._is_writing,
            marks=self._marks,
        )
        self._watch = means.machine.watcher(self)
        self._watched = Watched()
        self._order: Order | None = None
        self._wanted: tuple[float, str] | None = None
        self._shutdown: Shutdown | None = None
        self._outcomes: Counter[Outcome] = Counter()
        self._began: float | None = None
        self._ended: float | None = None
        self._complain_at = math.inf
        self._is_missing = False
        self._news = anyio.Event()
        self._settled = anyio.Event()
        self._settled.set()
        self._deleter.listen(self._announcer)
        self._deleter.listen(self)
        self.nodes.subscribe(lambda old, new: self._node_changed())
        self.pods.subscribe(self._pod_changed)

    def _reflector(
        self, resource: Resource[T], into: Cache[T], selection: Selection, *, cached: bool = False
    ) -> Reflector[T]:
        # A server that is not there yet, or that does not know our rights yet, is waited for: machines boot.
        settings = ReflectorSettings(selection=selection, proven=True, cached=cached)
        means = self._means
        return Reflector(means.client, resource, into, means.clock, settings=settings, rng=means.rng)

    def _deletion_backoff(self) -> Backoff:
        eviction = self._means.eviction
        longest = min(eviction.backoff_maximum_seconds, LONGEST_PAUSE_SECONDS)
        return Backoff(min(eviction.backoff_initial_seconds, longest), longest, rng=self._means.rng)

    def _backoff(self) -> Backoff:
        return Backoff(*RETRY_SECONDS, rng=self._means.rng)

    @property
    def parts(self) -> Mapping[str, Component]:
        """What has to run, those first that the others need."""
        return {
            **{f"watch of {each.statistics().resource}": each.run for each in self.reflectors},
            "condition": self._bulletin.run,
            "marks": self._marks.run,
            "deleter": self._deleter.run,
            "logind": self._watch.run,
            "agent": self.run,
        }

    def node(self) -> Node | None:
        """Our node, if the API server has shown it."""
        return self.nodes.get("", self._name)

    def configure(self, policy: PolicySettings) -> None:
        """Other settings count from now on; for a shutdown that is under way those of its beginning do."""
        self._policy = policy
        self._news.set()

    async def settled(self) -> None:
        """Return when no shutdown is under way: it is finished even if we are told to stop."""
        while not self._settled.is_set():  # the next one has an event of its own
            await self._settled.wait()

    # What logind says.

    def shutting_down(self, delay: float) -> None:
        """See ShutdownListener."""
        order = self._order
        if order is None:
            self._watch.release()  # nobody leaves, so nobody is waited for
            return
        if self._shutdown is not None:
            return
        # Of the first second a part has passed by now, and no range is to lose a whole one for that.
        seconds = min(order.total, math.ceil(delay) if math.isfinite(delay) else delay)
        self._shutdown = Shutdown(self._of_shutdowns, self._policy, order, seconds)
        self._began, self._ended = self._means.clock.now(), None
        self._settled = anyio.Event()
        self._announcer.begin()
        self._marks.make_way()
        self._news.set()

    def cancelled(self) -> None:
        """See ShutdownListener."""
        shutdown, self._shutdown = self._shutdown, None
        if shutdown is None:
            return
        if self._ended is None and shutdown.outcome is not None:
            self._outcomes[shutdown.outcome] += 1  # called off during its last words
        self._outcomes[Outcome.CANCELLED] += 1
        self._ended = self._means.clock.now()
        shutdown.cancel()
        self._bulletin.unsay()
        self._settled.set()
        self._announcer.say(
            EventReason.NODE_SHUTDOWN_CANCELLED,
            f"the machine does not shut down after all, {shutdown.elapsed:.0f} s after it had begun to: no other pod "
            "is asked to leave, and the node takes pods again",
        )
        self._news.set()

    def watched(self, state: Watched) -> None:
        """See ShutdownListener."""
        before, self._watched = self._watched, state
        if state.is_locked and (not before.is_locked or _patience(state) != _patience(before)):
            logger.info("the machine waits up to %g s when it shuts down", _patience(state), extra={"node": self._name})
        if state.problem != before.problem:
            self._complain_at = self._means.clock.monotonic() + PATIENCE_SECONDS if state.problem else math.inf
        if state.kubelet is not None and before.kubelet is None:
            self._announcer.say(
                EventReason.SHUTDOWN_HANDLED_TWICE,
                f"the kubelet (process {state.kubelet}) ends pods of this node as well when the machine shuts down; "
                "switch one off, this agent or the kubelet's shutdownGracePeriod and shutdownGracePeriodByPodPriority",
                "Warning",
            )
        self._news.set()

    def _complain(self) -> None:
        """What is amiss with logind has been so for a while: people hear of it."""
        self._complain_at = math.inf
        state = self._watched
        reason = EventReason.SHUTDOWN_DELAY_TOO_SHORT if _is_short(state) else EventReason.SHUTDOWN_UNWATCHED
        self._announcer.tell(reason, state.problem, "Warning", news=state.problem)

    # What the API server says.

    def _node_changed(self) -> None:
        self._announcer.catch_up()
        self._news.set()

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

    # What follows from it.

    async def run(self) -> None:
        """A part: do what has to be done, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._hear_of_nothing)
            await self._attend(group)

    async def _hear_of_nothing(self) -> None:
        """A first list without our node is news that no subscriber hears of."""
        await self.nodes.wait_live()
        self._news.set()

    async def _attend(self, group: TaskGroup) -> None:
        begun: Shutdown | None = None
        while True:
            self._news = anyio.Event()
            shutdown = self._shutdown
            if shutdown is not None and shutdown is not begun:
                # In a task of its own: one that is called off may have a write to finish, and the next one no time.
                begun = shutdown
                group.start_soon(self._shut_down, shutdown)
            is_busy = shutdown is not None and shutdown.outcome is None
            wait = math.inf if is_busy else max(self._complain_at - self._means.clock.monotonic(), 0.0)
            if wait <= 0:
                self._complain()
                continue
            if shutdown is None:
                self._rest()
            with anyio.move_on_after(wait):
                await self._news.wait()

    async def _shut_down(self, shutdown: Shutdown) -> None:
        means = self._means
        journal = ShutdownJournal(means.spans, self.node(), self._name, shutdown.began)
        sequence = ShutdownSequence(self._name, self.pods, self._deleter, means.clock, shutdown, means.machine.own_uid)
        stop_looking = self.nodes.subscribe(lambda old, new: sequence.look())
        try:
            await shutdown.run(journal, sequence, self._watch.release)
        finally:
            stop_looking()
        if self._shutdown is shutdown and shutdown.outcome is not None:
            self._outcomes[shutdown.outcome] += 1
            self._ended = means.clock.now()
            self._settled.set()
            self._news.set()

    def _rest(self) -> None:
        """The machine is up."""
        node = self.node()
        self._look_for(node)
        self._choose()
        if node is not None and self._is_up and _says_so(node):
            self._bulletin.unsay()
        self._marks.look()

    @property
    def _is_up(self) -> bool:
        """Whether the machine stays: what a shutdown has left on the node comes off."""
        return self._shutdown is None and self._watched.is_locked

    def _look_for(self, node: Node | None) -> None:
        """Whoever has misspelt its name is to hear of it before the machine shuts down."""
        is_missing = node is None and self.nodes.live
        if is_missing and not self._is_missing:
            logger.error(
                "there is no node %s on the cluster, so no pod of this machine is known; --node-name, or $NODE_NAME, "
                "must be its name there",
                self._name,
            )
        self._is_missing = is_missing

    def _choose(self) -> None:
        """Which order holds, and with it how long the machine is to wait."""
        node = self.node()
        if node is None and self._policy.node_groups and not self._policy.order.is_timed:
            return  # its labels say whether there is one
        order = self._policy.order if node is None else self._policy.order_of(node.labels)
        if not order.is_timed:
            self._order = None
            if node is not None and self._is_up and (_says_so(node) or self._marks.remain):
                return  # nobody comes after us who would take it off
            self._disabled(f"node {self._name} has no shutdownGracePeriod or shutdownGracePeriodByPodPriority")
            return
        self._order = order
        wanted = (order.total, f"pods of node {self._name} leave by priority, in up to {order.total:g} s")
        if wanted != self._wanted:
            self._wanted = wanted
            self._watch.want(*wanted)

    def _is_writing(self) -> bool:
        spans = self._means.spans
        return self._means.recorder.is_busy or (spans is not None and spans.statistics().waiting > 0)

    # What others want to know.

    def statistics(self) -> AgentStatistics:
        """How it stands."""
        watched, shutdown = self._watched, self._shutdown
        return AgentStatistics(
            is_locked=watched.is_locked and (not watched.problem or _is_short(watched)),
            granted=watched.delay,
            wanted=watched.wanted,
            outcomes=dict(self._outcomes),
            began=self._began,
            ended=self._ended,
            awaited=0 if shutdown is None else shutdown.awaited,
        )

    def readiness(self) -> tuple[Check, ...]:
        """Whether the machine would wait for its pods, and long enough."""
        watched = self._watched
        held = f"the machine waits up to {_patience(watched):g} s" if watched.is_locked else "logind is awaited"
        checks = [Check("lock", watched.is_locked, held)]
        if self._is_missing:
            checks.append(Check("node", False, f"there is no node {self._name}"))
        if watched.problem:
            checks.append(Check("logind", False, watched.problem))
        return tuple(checks)

    def trace_id(self, keys: Mapping[str, object]) -> str | None:
        """The trace that a line of the log with these keys belongs to; None if there is none."""
        return self._shutdown.trace_id if self._shutdown is not None and keys.get("node") == self._name else None


def _says_so(node: Node) -> bool:
    """Whether its condition says that its machine shuts down."""
    return condition_of(node.conditions, names.SHUTTING_DOWN) is not None


def _is_short(state: Watched) -> bool:
    """Whether a shutdown would not wait long enough; another problem is that nobody would hear of it."""
    return state.delay is not None and state.wanted is not None and state.delay < state.wanted


def _patience(state: Watched) -> float:
    """Seconds that a shutdown waits for us: what is granted, and no more than what is wanted."""
    return min(state.delay or 0.0, state.wanted or 0.0)
