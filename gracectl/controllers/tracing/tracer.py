"""Traces of all terminations in progress: opened and closed by the registries, fed by evictor and deleter.

Invariant: with tracing off, or a trace that is not sampled, a termination keeps the observer that does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import anyio
import msgspec

from gracectl.controllers.termination.nodeclaim import NodeClaimState
from gracectl.controllers.termination.state import AnyState, NodeState
from gracectl.controllers.tracing.pods import DrainSpans, PriorProgress
from gracectl.controllers.tracing.trace import NodeClaimTrace, TerminationTrace
from gracectl.eviction.deleter import Deletion
from gracectl.eviction.deletions import ScheduledDeletion
from gracectl.eviction.pdb_queue import EvictionCandidate
from gracectl.kube.errors import ApiError
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.policy.explain import explain
from gracectl.policy.plan import Outcome
from gracectl.policy.settings import PolicySettings
from gracectl.runtime.clock import Clock
from gracectl.telemetry.spans import SpanSink, Trace, Value, span_attributes


class RootSpan(msgspec.Struct, frozen=True):
    """A root that is written later: the trace ends with the node's claim."""

    trace: TerminationTrace
    ended: float
    attributes: Mapping[str, Value]
    error: str


class Tracer:
    """Listener to the registries, the evictor and the deleter. `sink` None: tracing is off.

    `policy` returns the current settings. `led_until`: when the leader before has last renewed its lease (Unix
    seconds); None if unknown.
    """

    def __init__(
        self, sink: SpanSink | None, clock: Clock, policy: Callable[[], PolicySettings], led_until: float | None
    ) -> None:
        self._sink = sink
        self._clock = clock
        self._policy = policy
        self._led_until = led_until
        self._nodes: dict[str, tuple[AnyState, TerminationTrace]] = {}
        self._claims: dict[str, tuple[AnyState, NodeClaimTrace]] = {}
        self._roots: dict[str, list[RootSpan]] = {}  # by name of the claim that they wait for
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
        prior = self._prior_progress(node)
        state.observer = opened = TerminationTrace(
            sink, trace, "terminate node", state.started, lambda: _labels_of_node(state), prior
        )
        self._nodes[node.name] = (state, opened)
        self._opened.set()

    def _open_claim(self, sink: SpanSink, state: NodeClaimState) -> None:
        claim = state.claim
        prior = self._prior_progress(claim)
        own = TerminationTrace(
            sink, _trace_of(claim), "terminate node claim", state.started, lambda: _labels_of_claim(state), prior
        )
        state.observer = opened = NodeClaimTrace(
            own, lambda: _trace_of_node(state), lambda trace: self._is_open(state, trace)
        )
        self._claims[claim.name] = (state, opened)
        self._opened.set()

    def _is_open(self, state: NodeClaimState, trace: Trace) -> bool:
        """Whether the root of a node of this claim is not written yet."""
        nodes = (self._nodes[node.name][1] for node in state.nodes if node.name in self._nodes)
        roots = (root.trace for root in self._roots.get(state.claim.name, ()))
        return any(each.trace == trace for each in (*nodes, *roots))

    def closed(self, state: AnyState) -> None:
        """End the termination: write its last spans. The end of a claim also writes the roots of its nodes."""
        opened = self._forget(state)
        if opened is None:
            return
        now, attributes = self._clock.now(), self._root_attributes(state)
        if isinstance(state, NodeState) and isinstance(opened, TerminationTrace):
            root = RootSpan(opened, now, attributes, state.drain.left_behind)
            opened.drain.close(now)
            if state.claim is not None and state.claim.name in self._claims:
                self._roots.setdefault(state.claim.name, []).append(root)
            else:
                opened.close(now, attributes, state.drain.left_behind)
        elif isinstance(opened, NodeClaimTrace):
            opened.close(now, attributes)
            self._close_roots(state.tracked.name, opened.last)

    def _close_roots(self, claim: str, last: float) -> None:
        """Write the roots that wait for the claim; its last span ends at `last`."""
        for root in self._roots.pop(claim, ()):
            root.trace.close(max(root.ended, last), root.attributes, root.error)

    def abandoned(self, state: AnyState) -> None:
        """The termination is no longer this controller's, and not over: another process may continue its trace."""
        opened = self._forget(state)
        if isinstance(opened, NodeClaimTrace):
            self._close_roots(state.tracked.name, opened.last)

    def trace_id(self, keys: Mapping[str, object]) -> str | None:
        """Trace of a log line with these keys; None without one, or if it is unknown yet."""
        found = self._nodes.get(str(keys.get("node", ""))) or self._claims.get(str(keys.get("nodeclaim", "")))
        trace = None if found is None else found[1].trace
        is_sampled = trace is not None and self._sink is not None and self._sink.is_sampled(trace)
        return trace.hex if trace is not None and is_sampled else None

    async def run(self) -> None:
        """Write the spans `waiting` of the terminations that take long, until cancelled."""
        try:
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
        finally:
            for claim in list(self._roots):  # their nodes are gone: no other process could write them
                self._close_roots(claim, self._claims[claim][1].last if claim in self._claims else 0.0)

    def evicted(self, candidate: EvictionCandidate) -> None:
        """See EvictionListener."""
        if (drain := self._drain_of(candidate)) is not None:
            drain.evicted(candidate.uid, self._clock.now())

    def refused(self, candidate: EvictionCandidate, refusal: ApiError) -> None:
        """See EvictionListener."""
        if (drain := self._drain_of(candidate)) is not None:
            drain.refused(candidate.uid, refusal, self._clock.now())

    def deleted(self, deletion: Deletion) -> None:
        """See DeletionListener."""
        if (drain := self._drain_of(deletion.pod)) is not None:
            drain.deleted(deletion.pod.uid, deletion, self._clock.now())

    def not_deleted(self, pod: ScheduledDeletion, refusal: ApiError) -> None:
        """See DeletionListener."""
        if (drain := self._drain_of(pod)) is not None:
            drain.refused(pod.uid, refusal, self._clock.now())

    def _drain_of(self, pod: EvictionCandidate | ScheduledDeletion) -> DrainSpans | None:
        found = self._nodes.get(pod.node)
        return None if found is None else found[1].drain

    def _forget(self, state: AnyState) -> TerminationTrace | NodeClaimTrace | None:
        traces = self._claims if isinstance(state, NodeClaimState) else self._nodes
        found = traces.get(state.tracked.name)
        if found is None or found[0] is not state:
            return None
        del traces[state.tracked.name]
        return found[1]

    def _prior_progress(self, thing: Node | NodeClaim) -> PriorProgress | None:
        """State of the termination in another process, as the object shows it; None if that process wrote no trace."""
        if _written(thing) != _trace_of(thing):
            return None
        assert thing.deletion_timestamp is not None
        began, now = thing.deletion_timestamp, self._clock.now()
        led_until = None if self._led_until is None else max(self._led_until, began)
        drained = condition_of(thing.conditions, names.DRAINED)
        at = None if drained is None else drained.last_transition
        if drained is not None and drained.status == names.TRUE:
            return PriorProgress(now, began, at, led_until)
        return PriorProgress(now, began if at is None else at, None, led_until)

    def _root_attributes(self, state: AnyState) -> dict[str, Value]:
        other = state.other if isinstance(state, NodeState) else None
        return span_attributes(
            gracectl__reason=state.reason(self._policy()),
            gracectl__owner=None if other is None else other.owner.value,
            gracectl__assisted=None if other is None else other.is_assisted,
            gracectl__instance=state.provider_id or None,
            gracectl__deadline=None if state.ends_by is None else format_time(state.ends_by),
            gracectl__deadline__passed=True if isinstance(state, NodeState) and state.drain.left_behind else None,
        )


def _claim_of(state: AnyState) -> NodeClaim | None:
    if isinstance(state, NodeClaimState):
        return state.claim
    return state.claim.latest if isinstance(state, NodeState) and state.claim is not None else None


def _labels_of_node(state: NodeState) -> dict[str, Value]:
    """Attributes of every span of a node's termination."""
    claim = _claim_of(state)
    return span_attributes(
        k8s__node__name=state.node.name,
        k8s__node__uid=state.uid,
        k8s__nodeclaim__name=None if claim is None else claim.name,
    )


def _labels_of_claim(state: NodeClaimState) -> dict[str, Value]:
    """Attributes of every span of a claim's termination."""
    claim = state.claim
    return span_attributes(
        k8s__node__name=claim.node_name or None, k8s__nodeclaim__name=claim.name, k8s__nodeclaim__uid=state.uid
    )


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
    """Attributes of a span `waiting`: current step and blocker."""
    progress = state.progress(now)
    found = span_attributes(
        gracectl__step=progress.step,
        gracectl__waited_for=progress.waits_for or None,
        gracectl__deadline=None if progress.deadline is None else format_time(progress.deadline),
    )
    plan = state.drain.plan if isinstance(state, NodeState) else None
    if plan is not None and plan.left:
        outcomes = [entry.outcome for entry in plan.left]
        found["gracectl.pods.left"] = len(outcomes)
        found["gracectl.pods.held"] = [f"{outcomes.count(each)} {each}" for each in Outcome if each in outcomes]
        found["gracectl.explained"] = explain(plan)
    return found
