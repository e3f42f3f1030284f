"""The journals of all ends that are under way, by the names of their objects: who tells them what, and when.

Invariant: with tracing off there is none, and every end has the silent one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import anyio

from gracectl.controllers.pipeline.state import AnyState, NodeClaimState, NodeState
from gracectl.controllers.tracing.nodeclaim import NodeClaimTrace
from gracectl.controllers.tracing.trace import SILENT, Past, SpanObserver, TerminationTrace
from gracectl.eviction.deleter import Deletion, ScheduledDeletion
from gracectl.eviction.pdb_queue import Candidate
from gracectl.kube.errors import ApiError
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.policy.evictability import is_disrupted
from gracectl.policy.explain import explain
from gracectl.policy.plan import Outcome
from gracectl.runtime.clock import Clock
from gracectl.telemetry.spans import SpanSink, Trace, Value, known

_Open = tuple[AnyState, TerminationTrace | NodeClaimTrace]

BEFORE_DRAIN = ("claim", "deadline", "notice", "cordon")
"""Steps that have been taken when a node bears the taint of the cordon."""


class Tracer:
    """See the module. `sink` None: nobody wants traces. `is_orderly`: whether our predecessor, if there was one, has
    had time to tell all that was over."""

    def __init__(self, sink: SpanSink | None, clock: Clock, is_orderly: Callable[[], bool]) -> None:
        self._sink = sink
        self._clock = clock
        self._is_orderly = is_orderly
        self._nodes: dict[str, _Open] = {}
        self._claims: dict[str, _Open] = {}
        self._news = anyio.Event()

    def opened(self, state: AnyState) -> None:
        """It begins, or is taken up again: give it its journal. Of a node that is only drained nobody tells."""
        if isinstance(state, NodeState):
            state.observer = self._open_node(state)
        elif isinstance(state, NodeClaimState):
            state.observer = self._open_claim(state)

    def _open_node(self, state: NodeState) -> SpanObserver:
        node = state.node
        if self._sink is None or node.deletion_timestamp is None:
            return SILENT
        trace = Trace.of(node.uid, node.deletion_timestamp)
        if not self._sink.samples(trace):
            return SILENT
        past = _past_of(node, trace, is_orderly=self._is_orderly())
        subject = known(k8s__node__name=node.name, k8s__node__uid=node.uid)
        journal = TerminationTrace(self._sink, trace, "terminate node", state.started, subject, past)
        journal.skip_waits(self._clock.now())
        self._nodes[node.name] = (state, journal)
        self._news.set()
        return journal

    def _open_claim(self, state: NodeClaimState) -> SpanObserver:
        claim = state.claim
        if self._sink is None or claim.deletion_timestamp is None:
            return SILENT
        trace = Trace.of(claim.uid, claim.deletion_timestamp)
        subject = known(k8s__nodeclaim__name=claim.name, k8s__nodeclaim__uid=claim.uid)
        own = TerminationTrace(self._sink, trace, "terminate node claim", state.started, subject, None)
        own.skip_waits(self._clock.now())
        journal = NodeClaimTrace(self._sink, own, lambda: _trace_of_node(state))
        self._claims[claim.name] = (state, journal)
        self._news.set()
        return journal

    def closed(self, state: AnyState) -> None:
        """The termination is over: write its last spans."""
        journal = self._forget(state)
        if journal is not None:
            error = state.left_behind if isinstance(state, NodeState) else ""
            journal.close(self._clock.now(), _last_words(state), error)

    def abandoned(self, state: AnyState) -> None:
        """The termination is no longer this controller's, and not over: another process may continue its trace."""
        self._forget(state)

    def trace_id(self, keys: Mapping[str, object]) -> str | None:
        """The trace that a line of the log belongs to which has these keys."""
        for known_as, journals in (("node", self._nodes), ("nodeclaim", self._claims)):
            found = journals.get(str(keys.get(known_as, "")))
            trace = None if found is None else found[1].trace
            if found is not None and trace is not None and found[1].is_sampled(trace):
                return trace.hex
        return None

    async def run(self) -> None:
        """Tell of each end that takes long what it waits for, until cancelled."""
        while True:
            now = self._clock.now()
            self._news = news = anyio.Event()
            waiting = (*self._nodes.values(), *self._claims.values())
            for state, journal in waiting:
                if journal.next_wait <= now:
                    journal.waits(now, _standing(state, now))
            due = min((journal.next_wait for _, journal in waiting), default=math.inf)
            with anyio.move_on_after(max(due - now, 0.0)):
                await news.wait()

    # What evictor and deleter say.

    def evicted(self, candidate: Candidate) -> None:
        """See EvictionListener."""
        self._of(candidate.node).evicted(candidate.uid, self._clock.now())

    def refused(self, candidate: Candidate, refusal: ApiError) -> None:
        """See EvictionListener."""
        self._of(candidate.node).refused(candidate.uid, refusal, self._clock.now())

    def deleted(self, deletion: Deletion) -> None:
        """See DeletionListener."""
        self._of(deletion.pod.node).deleted(deletion, self._clock.now())

    def not_deleted(self, pod: ScheduledDeletion, refusal: ApiError) -> None:
        """See DeletionListener."""
        self._of(pod.node).refused(pod.uid, refusal, self._clock.now())

    def _of(self, node: str) -> SpanObserver:
        found = self._nodes.get(node)
        return SILENT if found is None else found[1]

    def _forget(self, state: AnyState) -> SpanObserver | None:
        for journals in (self._nodes, self._claims):
            found = journals.get(state.tracked.name)
            if found is not None and found[0] is state:
                del journals[state.tracked.name]
                return found[1]
        return None


def _past_of(node: Node, trace: Trace, *, is_orderly: bool) -> Past | None:
    """What the node shows of somebody who has begun its end before us; None when nobody has."""
    drained = condition_of(node.conditions, names.DRAINED)
    # A machine that shuts down is cordoned in the same way, by its agent.
    is_cordoned = is_disrupted(node) and names.SHUTDOWN_CORDONED not in node.annotations
    if not is_cordoned and drained is None and _written(node) != trace:
        return None
    began: dict[str, float] = {}
    taken = {*BEFORE_DRAIN} if is_cordoned else set()
    detached = condition_of(node.conditions, names.VOLUMES_DETACHED)
    state = condition_of(node.conditions, names.INSTANCE_TERMINATING)
    is_drained = drained is not None and drained.status == names.TRUE
    if is_drained:
        taken.add("drain")
    elif drained is not None and drained.last_transition is not None:
        began["drain"] = drained.last_transition
    if detached is not None and detached.status == names.TRUE:
        taken.add("volumes")
    if state is not None and state.last_transition is not None:
        began["instance"] = state.last_transition
    at = drained.last_transition if is_drained and drained is not None else None
    return Past(taken=frozenset(taken), began=began, drained_at=at, is_orderly=is_orderly)


def _trace_of_node(state: NodeClaimState) -> Trace | None:
    """The trace of the end of the claim's node, if it has, or has had, one that ends."""
    for node in state.nodes:
        if node.deletion_timestamp is not None:
            return Trace.of(node.uid, node.deletion_timestamp)
    return _written(state.claim)


def _written(thing: Node | NodeClaim) -> Trace | None:
    return Trace.read(thing.annotations.get(names.TRACEPARENT, ""))


def _standing(state: AnyState, now: float) -> dict[str, Value]:
    """What somebody reads who looks at a trace that is still open."""
    progress = state.progress(now)
    found = known(
        gracectl__step=progress.step,
        gracectl__waited_for=progress.waits_for or None,
        gracectl__deadline=None if progress.deadline is None else format_time(progress.deadline),
    )
    decision = state.plan if isinstance(state, NodeState) else None
    if decision is not None and decision.left:
        outcomes = [entry.outcome for entry in decision.left]
        found["gracectl.pods.left"] = len(outcomes)
        found["gracectl.pods.held"] = [f"{outcomes.count(each)} {each}" for each in Outcome if each in outcomes]
        found["gracectl.explained"] = explain(decision)
    return found


def _last_words(state: AnyState) -> dict[str, Value]:
    claim = state.claim if isinstance(state, NodeState) else None
    return known(
        gracectl__instance=state.provider_id or None,
        gracectl__deadline=None if state.ends_by is None else format_time(state.ends_by),
        gracectl__deadline__passed=True if isinstance(state, NodeState) and state.left_behind else None,
        k8s__nodeclaim__name=claim.name if claim is not None else None,
    )
