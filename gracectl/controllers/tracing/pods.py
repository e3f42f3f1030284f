"""Spans of a drain's pods and waves, derived from one plan to the next.

A pod's span begins when its turn comes (its wave's, or its deadline's) and ends when it no longer holds the node; a
wave's begins with the first of its pods and ends with the last. Pods are children of their wave, waves of the drain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from gracectl.eviction.deleter import Deletion
from gracectl.eviction.pod_outcomes import PodOutcome
from gracectl.kube.errors import ApiError, BudgetExhausted
from gracectl.model.times import format_time
from gracectl.policy.deadlines import asked_at, grace_of
from gracectl.policy.evictability import FINISHED
from gracectl.policy.plan import Outcome, Plan, PodPlan
from gracectl.telemetry.spans import Span, SpanEvent, Trace, Value, span_attributes

LEAVING: Final = frozenset({Outcome.DELETE, Outcome.TERMINATING})
"""Outcomes of pods whose turn has come before that of their wave."""

QUEUED: Final = frozenset({Outcome.EVICT, Outcome.BLOCKED})
"""Outcomes during which a pod waits in the queue of its budget."""

LEFT: Final = "gracectl.pod.left"

WORDS: Final = {
    PodOutcome.EVICTED: "evicted",
    PodOutcome.DELETED: "deleted for the deadline",
    PodOutcome.ABANDONED: "left behind",
}
"""Values of `gracectl.pod.left` for what gracectl did; PodOutcome.LEFT has several, see `PodSpan`."""

MOMENTS: Final = 20
"""Events of a pod's span; further ones are only counted."""


class PriorProgress(msgspec.Struct, frozen=True):
    """What a node shows of a termination that another process began. Instants are Unix seconds."""

    resumed_at: float
    drain_began: float
    drain_ended: float | None = None


class PodSpan:
    """A pod that holds the node, from the first plan that lists it to the first that does not."""

    def __init__(self, entry: PodPlan, now: float, *, is_first: bool) -> None:
        self.entry = entry
        self.begun: float | None = None
        self._since = now
        self._seconds: dict[Outcome, float] = {}
        self._attempts = 0
        self._refusals: Counter[str] = Counter()
        self._events: list[SpanEvent] = []
        self._requested = grace_of(entry.pod)
        self._granted: int | None = None
        self._protection = entry.protection
        is_terminating = entry.pod.deletion_timestamp is not None
        self._external = "already terminating" if is_first and is_terminating else ""

    def update(self, entry: PodPlan, now: float) -> None:
        """Take over the pod's entry in a newer plan."""
        before = self.entry
        if entry.outcome is not before.outcome:
            self._count_time(now)
        if entry.pod.deletion_timestamp is not None and before.pod.deletion_timestamp is None:
            self._external = "terminated by another client"  # unless `end` learns that it was us
        self._protection = entry.protection or self._protection
        self.entry = entry

    def evicted(self, now: float) -> None:
        """The server has accepted the eviction, which grants the whole grace period."""
        self._attempts += 1
        self._granted = self._requested
        self._note(SpanEvent("evicted", now))

    def refused(self, refusal: ApiError, now: float) -> None:
        """The server has refused the eviction or the deletion."""
        self._attempts += 1
        kind = type(refusal).__name__
        self._refusals[kind] += 1
        if not isinstance(refusal, BudgetExhausted):  # the normal case, measured by gracectl.queue.wait_seconds
            self._note(SpanEvent("refused", now, {"gracectl.refusal": kind, "message": str(refusal)}))

    def deleted(self, deletion: Deletion, now: float) -> None:
        """The server has accepted the deletion for the deadline."""
        self._granted, self._requested = deletion.granted, deletion.requested
        late = {"gracectl.late_seconds": round(deletion.late, 3)}
        granted = {"gracectl.grace.granted_seconds": deletion.granted}
        self._note(SpanEvent("deleted for the deadline", now, {**granted, **late}))

    def end(self, trace: Trace, parent: int, now: float, outcome: PodOutcome, fallback: str) -> Span:
        """The finished span. `fallback`: how the pod has left if neither gracectl nor another client ended it."""
        self._count_time(now)
        pod = self.entry.pod
        left = WORDS.get(outcome) or self._external or fallback
        return Span(
            trace=trace,
            name=f"pod {left}",
            parent=parent,
            start=min(now if self.begun is None else self.begun, now),
            end=now,
            attributes={
                "k8s.namespace.name": pod.namespace,
                "k8s.pod.name": pod.name,
                "k8s.pod.uid": pod.uid,
                LEFT: left,
                **self._figures(),
            },
            events=tuple(self._events),
        )

    def _figures(self) -> dict[str, Value]:
        protection, queues = self._protection, [f"{namespace}/{name}" for namespace, name in self.entry.budgets]
        until = protection.until if protection else None
        return span_attributes(
            gracectl__queue=queues or None,
            gracectl__queue__wait_seconds=self._spent(*QUEUED) or 0.0 if queues else None,
            gracectl__eviction__attempts=self._attempts,
            gracectl__eviction__refusals=[f"{kind}: {count}" for kind, count in self._refusals.items()] or None,
            gracectl__blocked__seconds=self._spent(Outcome.BLOCKED),
            gracectl__protected__by=protection.kind if protection else None,
            gracectl__protected__until=format_time(until) if until is not None else None,
            gracectl__protected__seconds=self._spent(Outcome.PROTECTED),
            gracectl__terminating__seconds=self._spent(Outcome.TERMINATING),
            gracectl__grace__requested_seconds=self._requested,
            gracectl__grace__granted_seconds=self._granted,
        )

    def _spent(self, *outcomes: Outcome) -> float | None:
        spent = [self._seconds[outcome] for outcome in outcomes if outcome in self._seconds]
        return round(sum(spent), 3) if spent else None

    def _count_time(self, now: float) -> None:
        outcome = self.entry.outcome
        self._seconds[outcome] = self._seconds.get(outcome, 0.0) + max(now - self._since, 0.0)
        self._since = now

    def _note(self, event: SpanEvent) -> None:
        if len(self._events) < MOMENTS:
            self._events.append(event)


class WaveSpan(msgspec.Struct):
    """A wave whose first pod's turn has come (Unix seconds)."""

    name: str
    begun: float
    pods: int = 0


class DrainSpans:
    """Waves and pods of one drain. Invariant: every wave that has children is written, once per process.

    `drain` is the id of the parent of all waves. Pods that come after their wave are its children all the same.
    """

    def __init__(self, trace: Trace, drain: int, emit: Callable[[Span], None], prior: PriorProgress | None) -> None:
        self._trace = trace
        self._drain = drain
        self._emit = emit
        self._prior = prior
        self._plan: Plan | None = None
        self._pods: dict[str, PodSpan] = {}
        self._waves: dict[int, WaveSpan] = {}
        self._written: set[int] = set()
        self.outcomes: Counter[str] = Counter()
        """Pods that have left, by `gracectl.pod.left`."""

    @property
    def has_begun(self) -> bool:
        """Whether the drain was planned by this process."""
        return self._plan is not None

    def pod(self, uid: str) -> PodSpan | None:
        """The open span of a pod."""
        return self._pods.get(uid)

    def planned(self, plan: Plan, now: float, departed: Mapping[str, PodOutcome]) -> None:
        """Take over the node's newest plan; `departed`: outcomes, by UID, of the pods that it no longer lists."""
        is_first, self._plan = self._plan is None, plan
        current = min((entry.wave for entry in plan.left), default=len(plan.order.waves))
        if is_first and self._prior is not None:
            # Over before this process looked first: their pods need parents, and another process may not have sent any.
            for index in range(current):
                start = self._prior.drain_began
                self._write(index, WaveSpan(plan.order.waves[index].name, start), start)
        for entry in plan.left:
            span = self._pods.get(entry.pod.uid)
            if span is None:
                span = self._pods[entry.pod.uid] = PodSpan(entry, now, is_first=is_first)
            else:
                span.update(entry, now)
            if span.begun is None and (entry.wave == current or entry.outcome in LEAVING):
                self._begin(span, plan, now)
        if departed:
            self._end(departed, plan, now)

    def close(self, now: float) -> None:
        """The termination is over: the pods that are left are left behind."""
        if self._plan is not None:
            self._end(dict.fromkeys(self._pods, PodOutcome.ABANDONED), self._plan, now)

    def _begin(self, span: PodSpan, plan: Plan, now: float) -> None:
        """Begin with the request to leave, if that came before the first look."""
        pod, index = span.entry.pod, span.entry.wave
        span.begun = min(asked_at(pod) if pod.deletion_timestamp is not None else now, now)
        if index not in self._written:
            wave = self._waves.setdefault(index, WaveSpan(plan.order.waves[index].name, span.begun))
            wave.begun = min(wave.begun, span.begun)
            wave.pods += 1

    def _end(self, departed: Mapping[str, PodOutcome], plan: Plan, now: float) -> None:
        """Write the pods that have departed, and the waves that are over with them."""
        entries = {entry.pod.uid: entry for entry in plan.pods if entry.pod.uid in departed}
        for uid in [uid for uid in self._pods if uid in departed]:
            span = self._pods.pop(uid)
            if span.begun is None:
                self._begin(span, plan, now)
            finished = span.end(self._trace, self._id(span.entry.wave), now, departed[uid], _left(entries.get(uid)))
            self.outcomes[str(finished.attributes[LEFT])] += 1
            self._emit(finished)
        busy = {span.entry.wave for span in self._pods.values() if span.begun is not None}
        for index in [index for index in self._waves if index not in busy]:
            self._write(index, self._waves.pop(index), now)

    def _write(self, index: int, wave: WaveSpan, now: float) -> None:
        self._written.add(index)
        span = Span(
            trace=self._trace,
            id=self._id(index),
            parent=self._drain,
            name=f"wave {wave.name}",
            start=min(wave.begun, now),
            end=now,
            attributes=span_attributes(
                gracectl__wave=index,
                gracectl__wave__pods=wave.pods,
                gracectl__resumed=True if self._prior is not None else None,
            ),
        )
        self._emit(span)

    def _id(self, wave: int) -> int:
        return self._trace.span("wave", str(wave))


def _left(entry: PodPlan | None) -> str:
    """How a pod has left on its own; `entry`: its entry in the plan, None if the pod is gone."""
    if entry is None:
        return "gone"
    return "finished" if entry.pod.phase in FINISHED else "ignored"
