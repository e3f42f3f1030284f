"""Traces of all terminations in progress: opened and closed by the registries, fed by evictor and deleter.

Invariant: with tracing off, or a trace that is not sampled, a termination keeps the observer that does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import anyio

from gracectl.controllers.pipeline.state import AnyState, NodeClaimState, NodeState
from gracectl.controllers.tracing.pods import PodSpan, PriorProgress
from gracectl.controllers.tracing.trace import NodeClaimTrace, TerminationTrace
from gracectl.eviction.deleter import Deletion, ScheduledDeletion
from gracectl.eviction.pdb_queue import EvictionCandidate
from gracectl.kube.errors import ApiError
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.policy.explain import explain
from gracectl.policy.plan import Outcome
from gracectl.runtime.clock import Clock
from gracectl.telemetry.spans import SpanSink, Trace, Value, span_attributes


class Tracer:
    """Listener to the registries, the evictor and the deleter. `sink` None: tracing is off."""

    def __init__(self, sink: SpanSink | None, clock: Clock) -> None:
        self._sink = sink
        self._clock = clock
        self._nodes: dict[str, tuple[AnyState, TerminationTrace]] = {}
        self._claims: dict[str, tuple[AnyState, NodeClaimTrace]] = {}
        self._opened = anyio.Event()

    def opened(self, state: AnyState) -> None:
        """Give the termination its observer; the drain of a node that stays has none."""
        if self._sink is None or state.tracked.latest.deletion_timestamp is None:
            return
        if isinstance(state, NodeState):
            self._open_node(self._sink, state)
        elif isinstance(state, NodeClaimState):
            self._open_claim(self._sink, state)

    def _open_node(self, sink: SpanSink, state: NodeState) -> None:
        node, trace = state.node, _trace_of(state.node)
        if not sink.is_sampled(trace):
            return
        subject = span_attributes(k8s__node__name=node.name, k8s__node__uid=node.uid)
        prior = _prior_progress(node, self._clock.now())
        state.observer = opened = TerminationTrace(sink, trace, "terminate node", state.started, subject, prior)
        self._nodes[node.name] = (state, opened)
        self._opened.set()

    def _open_claim(self, sink: SpanSink, state: NodeClaimState) -> None:
        claim = state.claim
        subject = span_attributes(k8s__nodeclaim__name=claim.name, k8s__nodeclaim__uid=claim.uid)
        prior = _prior_progress(claim, self._clock.now())
        own = TerminationTrace(sink, _trace_of(claim), "terminate node claim", state.started, subject, prior)
        state.observer = opened = NodeClaimTrace(sink, own, lambda: _trace_of_node(state))
        self._claims[claim.name] = (state, opened)
        self._opened.set()

    def closed(self, state: AnyState) -> None:
        """The termination is over: write its last spans."""
        opened = self._forget(state)
        if opened is not None:
            error = state.left_behind if isinstance(state, NodeState) else ""
            opened.close(self._clock.now(), _root_attributes(state), error)

    def abandoned(self, state: AnyState) -> None:
        """The termination is no longer this controller's, and not over: another process may continue its trace."""
        self._forget(state)

    def trace_id(self, keys: Mapping[str, object]) -> str | None:
        """The trace to which a log line with these keys belongs."""
        found = self._nodes.get(str(keys.get("node", ""))) or self._claims.get(str(keys.get("nodeclaim", "")))
        is_sampled = found is not None and self._sink is not None and self._sink.is_sampled(found[1].trace)
        return found[1].trace.hex if found is not None and is_sampled else None

    async def run(self) -> None:
        """Write the spans `waiting` of the terminations that take long, until cancelled."""
        while True:
            now = self._clock.now()
            self._opened = opened = anyio.Event()
            traces: list[tuple[AnyState, TerminationTrace | NodeClaimTrace]]
            traces = [*self._nodes.values(), *self._claims.values()]
            for state, trace in traces:
                if trace.next_wait <= now:
                    trace.waits(now, _waiting_attributes(state, now))
            due = min((trace.next_wait for _, trace in traces), default=math.inf)
            with anyio.move_on_after(max(due - now, 0.0)):
                await opened.wait()

    def evicted(self, candidate: EvictionCandidate) -> None:
        """See EvictionListener."""
        if span := self._pod(candidate):
            span.evicted(self._clock.now())

    def refused(self, candidate: EvictionCandidate, refusal: ApiError) -> None:
        """See EvictionListener."""
        if span := self._pod(candidate):
            span.refused(refusal, self._clock.now())

    def deleted(self, deletion: Deletion) -> None:
        """See DeletionListener."""
        if span := self._pod(deletion.pod):
            span.deleted(deletion, self._clock.now())

    def not_deleted(self, pod: ScheduledDeletion, refusal: ApiError) -> None:
        """See DeletionListener."""
        if span := self._pod(pod):
            span.refused(refusal, self._clock.now())

    def _pod(self, pod: EvictionCandidate | ScheduledDeletion) -> PodSpan | None:
        found = self._nodes.get(pod.node)
        return None if found is None else found[1].drain.pod(pod.uid)

    def _forget(self, state: AnyState) -> TerminationTrace | NodeClaimTrace | None:
        traces = self._claims if isinstance(state, NodeClaimState) else self._nodes
        found = traces.get(state.tracked.name)
        if found is None or found[0] is not state:
            return None
        del traces[state.tracked.name]
        return found[1]


def _prior_progress(thing: Node | NodeClaim, now: float) -> PriorProgress | None:
    """What the object shows of the same termination in another process; None if none has written its trace there."""
    if _written(thing) != _trace_of(thing):
        return None
    assert thing.deletion_timestamp is not None
    drained = condition_of(thing.conditions, names.DRAINED)
    at = None if drained is None else drained.last_transition
    if drained is not None and drained.status == names.TRUE:
        return PriorProgress(resumed_at=now, drain_began=thing.deletion_timestamp, drain_ended=at)
    return PriorProgress(resumed_at=now, drain_began=thing.deletion_timestamp if at is None else at)


def _trace_of(thing: Node | NodeClaim) -> Trace:
    assert thing.deletion_timestamp is not None
    return Trace.of(thing.uid, thing.deletion_timestamp)


def _trace_of_node(state: NodeClaimState) -> Trace | None:
    """The trace of the claim's node, if one is, or was, being terminated."""
    for node in state.nodes:
        if node.deletion_timestamp is not None:
            return _trace_of(node)
    written = _written(state.claim)
    return None if written == _trace_of(state.claim) else written


def _written(thing: Node | NodeClaim) -> Trace | None:
    return Trace.read(thing.annotations.get(names.TRACEPARENT, ""))


def _waiting_attributes(state: AnyState, now: float) -> dict[str, Value]:
    """What a span `waiting` says: where the termination is, and what holds it."""
    progress = state.progress(now)
    found = span_attributes(
        gracectl__step=progress.step,
        gracectl__waited_for=progress.waits_for or None,
        gracectl__deadline=None if progress.deadline is None else format_time(progress.deadline),
    )
    plan = state.plan if isinstance(state, NodeState) else None
    if plan is not None and plan.left:
        outcomes = [entry.outcome for entry in plan.left]
        found["gracectl.pods.left"] = len(outcomes)
        found["gracectl.pods.held"] = [f"{outcomes.count(each)} {each}" for each in Outcome if each in outcomes]
        found["gracectl.explained"] = explain(plan)
    return found


def _root_attributes(state: AnyState) -> dict[str, Value]:
    claim = state.claim if isinstance(state, NodeState) else None
    return span_attributes(
        gracectl__instance=state.provider_id or None,
        gracectl__deadline=None if state.ends_by is None else format_time(state.ends_by),
        gracectl__deadline__passed=True if isinstance(state, NodeState) and state.left_behind else None,
        k8s__nodeclaim__name=claim.name if claim is not None else None,
    )
