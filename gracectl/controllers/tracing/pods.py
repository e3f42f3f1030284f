"""Spans of a drain's pods and waves, derived from one plan to the next.

A pod has a span from its turn until the server has accepted the request that it leaves, with its holds as children;
and another one, `pod terminating`, until it holds the node no longer, if that takes half a second. So a kill in between
loses neither. A wave's begins with the first of its pods and ends with the last. Invariants: a span lies inside its
parent, and ends before the next one begins (see `GAP`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from gracectl.controllers.tracing.holds import Hold, HoldTimer, HoldTotals, hold_of, listed_holds
from gracectl.eviction.deleter import Deletion
from gracectl.eviction.pod_outcomes import PodOutcome
from gracectl.kube.errors import ApiError, BudgetExhausted
from gracectl.model.times import format_time
from gracectl.policy.deadlines import asked_at, grace_of
from gracectl.policy.evictability import FINISHED
from gracectl.policy.plan import Outcome, Plan, PodPlan
from gracectl.telemetry.spans import GAP, Span, SpanEvent, Trace, Value, interval, span_attributes

LEAVING: Final = frozenset({Outcome.DELETE, Outcome.TERMINATING})
"""Outcomes of pods with a turn before that of their wave."""

QUEUED: Final = frozenset({Outcome.EVICT, Outcome.BLOCKED})
"""Outcomes during which a pod waits in the queue of its budget."""

LEFT: Final = "gracectl.pod.left"

EVICTED: Final = "evicted"
DELETED: Final = "deleted for the deadline"
LEFT_BEHIND: Final = "left behind"
ALREADY_TERMINATING: Final = "already terminating"

TERMINATING: Final = "pod terminating"
"""The span of a pod from the accepted request on."""

WORDS: Final = {
    PodOutcome.EVICTED: EVICTED,
    PodOutcome.DELETED: DELETED,
    PodOutcome.ABANDONED: LEFT_BEHIND,
}
"""Values of `gracectl.pod.left` for what gracectl did; PodOutcome.LEFT has several, see `PodSpan`."""

MOMENTS: Final = 20
"""Events of a pod's span; further ones are only counted."""

TERMINATING_SECONDS: Final = 0.5
"""A pod that terminates faster has no span `pod terminating`."""


EXPORT_SECONDS: Final = 2.0
"""Age after which a finished span was exported (see DELAY_MILLISECONDS of `telemetry.tracing`)."""


class PriorProgress(msgspec.Struct, frozen=True):
    """State that the node shows of a termination that another process began. Instants are Unix seconds."""

    resumed_at: float
    drain_began: float
    drain_ended: float | None = None
    led_until: float | None = None
    """When the last leader has last renewed its lease; None if unknown."""

    @property
    def is_drain_exported(self) -> bool:
        """Whether the last leader has surely exported the drain: it led for longer than an export takes."""
        if self.drain_ended is None or self.led_until is None:
            return False
        return self.drain_ended + EXPORT_SECONDS <= self.led_until


class PodSpan:
    """A pod that blocks the node, from the first plan that lists it to the first that does not."""

    def __init__(self, entry: PodPlan, now: float, *, is_first: bool) -> None:
        self.entry = entry
        self.begun: float | None = None
        self.asked_at: float | None = None
        """When the server has accepted the request of this process."""
        self.hold: str | None = None
        self._timer = HoldTimer()
        self._refusal: str | None = None
        self._since = now
        self._seconds: dict[Outcome, float] = {}
        self._attempts = 0
        self._refusals: Counter[str] = Counter()
        self._events: list[SpanEvent] = []
        self._requested = grace_of(entry.pod)
        self._granted: int | None = None
        self._protection = entry.protection
        is_terminating = entry.pod.deletion_timestamp is not None
        self._external = ALREADY_TERMINATING if is_first and is_terminating else ""

    def update(self, entry: PodPlan, now: float) -> None:
        """Take over the pod's entry in a newer plan."""
        before = self.entry
        if entry.outcome is not before.outcome:
            self._count_time(now)
        if entry.pod.deletion_timestamp is not None and before.pod.deletion_timestamp is None:
            self.terminates()
        self._protection = entry.protection or self._protection
        self.entry = entry

    def terminates(self) -> None:
        """Note that the pod was seen terminating."""
        self._external = self._external or "terminated by another client"  # unless it turns out that it was us

    def held(self, hold: str | None, now: float) -> None:
        """Record its blocker in the newest plan."""
        self.hold = hold or self._refusal
        self._timer.update(self.hold, now)

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
        if not isinstance(refusal, BudgetExhausted):  # the normal case, a hold
            self._refusal = f"refused by the server: {kind}"
            self._note(SpanEvent("refused", now, {"gracectl.refusal": kind, "message": str(refusal)}))
            if self.hold is None:
                self.held(None, now)

    def deleted(self, deletion: Deletion, now: float) -> None:
        """The server has accepted the deletion for the deadline."""
        self._granted, self._requested = deletion.granted, deletion.requested
        late = {"gracectl.late_seconds": round(deletion.late, 3)}
        granted = {"gracectl.grace.granted_seconds": deletion.granted}
        self._note(SpanEvent(DELETED, now, {**granted, **late}))

    def left(self, outcome: PodOutcome, fallback: str) -> str:
        """How it has left. `fallback`: if no client removed it."""
        return WORDS.get(outcome) or self._external or fallback

    def removal_spans(self, trace: Trace, parent: int, end: float, left: str) -> list[Span]:
        """The finished span, after the spans of its holds."""
        self._count_time(end)
        start, end = interval(end if self.begun is None else self.begun, end)
        # A wait for its wave ends where the span begins: the drain has it.
        held = (Hold(hold.name, max(hold.start, start), hold.end) for hold in self._timer.end(end))
        holds = [hold for hold in held if hold.lasted]
        id_ = trace.span("pod", self.entry.pod.uid, f"{start:.6f}") if holds else None
        span = Span(
            trace=trace,
            id=id_,
            name=TERMINATING if left == ALREADY_TERMINATING else f"pod {left}",
            parent=parent,
            start=start,
            end=end,
            attributes={**self._identity(), LEFT: left, **self._figures()},
            events=tuple(self._events),
            error=self.entry.reason or "still there" if left == LEFT_BEHIND else "",
        )
        self._events, self._refusal, self.hold = [], None, None
        return [*(_span_of(trace, id_, hold, start, end, self._identity()) for hold in holds if id_), span]

    def terminating(self, trace: Trace, parent: int, end: float, left: str) -> Span | None:
        """The span from the accepted request to the end; None if that was short."""
        assert self.asked_at is not None
        is_over = left != LEFT_BEHIND
        if is_over and not self._events and end - self.asked_at < TERMINATING_SECONDS:
            return None
        start, end = interval(self.asked_at, end)
        return Span(
            trace=trace,
            name=TERMINATING if is_over else f"pod {left}",
            parent=parent,
            start=start,
            end=end,
            attributes={
                **self._identity(),
                LEFT: left,
                **span_attributes(
                    gracectl__grace__requested_seconds=self._requested, gracectl__grace__granted_seconds=self._granted
                ),
            },
            events=tuple(self._events),
            error="" if is_over else "still there",
        )

    def _identity(self) -> dict[str, Value]:
        pod = self.entry.pod
        return {"k8s.namespace.name": pod.namespace, "k8s.pod.name": pod.name, "k8s.pod.uid": pod.uid}

    def _figures(self) -> dict[str, Value]:
        protection, queues = self._protection, [f"{namespace}/{name}" for namespace, name in self.entry.budgets]
        until = protection.until if protection else None
        return span_attributes(
            gracectl__queue=(queues[0] if len(queues) == 1 else queues) or None,
            gracectl__queue__wait_seconds=self._spent(*QUEUED) or 0.0 if queues else None,
            gracectl__eviction__attempts=self._attempts,
            gracectl__eviction__refusals=[f"{kind}: {count}" for kind, count in self._refusals.items()] or None,
            gracectl__blocked__seconds=self._spent(Outcome.BLOCKED),
            gracectl__protected__by=protection.kind if protection else None,
            gracectl__protected__until=format_time(until) if until is not None else None,
            gracectl__protected__seconds=self._spent(Outcome.PROTECTED),
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
    """A wave, from the turn of its first pod (Unix seconds). `pods` None: unknown, another process has seen them."""

    name: str
    begun: float
    pods: int | None = 0
    last: float = 0.0
    """The end of its last span."""


class DrainSpans:
    """Waves and pods of one drain, and the drain itself.

    Invariant: every wave that has children is written, once per process. A pod that arrives after the drain is a child
    of the root: nothing would write another parent if this process were killed.
    """

    def __init__(self, trace: Trace, emit: Callable[[Span], None], prior: PriorProgress | None) -> None:
        self._trace = trace
        self._emit_span = emit
        self._prior = prior
        self._id = trace.span("drain")
        self._start = 0.0
        self._last = 0.0
        self._span: Span | None = None  # the drain's, when its step is over and pods are left
        self._is_written = False
        self._plan: Plan | None = None
        self._current = -1  # the wave whose turn it was in that plan
        self._pods: dict[str, PodSpan] = {}
        self._waves: dict[int, WaveSpan] = {}
        self._wave_ids: dict[int, int] = {}
        self._written: set[int] = set()
        self.totals = HoldTotals()
        self.outcomes: Counter[str] = Counter()
        """Pods that have left, by `gracectl.pod.left`."""

    def planned(self, plan: Plan, now: float, departed: Mapping[str, PodOutcome], earliest: float) -> None:
        """Take over the node's newest plan.

        `departed`: outcomes, by UID, of the pods that it no longer lists. `earliest`: no span begins before.
        """
        is_first, self._plan = self._plan is None, plan
        current = min((entry.wave for entry in plan.left), default=len(plan.order.waves))
        if is_first:
            self._start = self._last = earliest if self._prior is None else self._prior.drain_began
            self._take_over(plan, current)
        for entry in plan.left:
            span = self._pods.get(entry.pod.uid)
            is_news = span is None or current != self._current or not _is_held_alike(span.entry, entry)
            if span is None:
                span = self._pods[entry.pod.uid] = PodSpan(entry, now, is_first=is_first)
            else:
                span.update(entry, now)
            if is_news:
                span.held(hold_of(entry, plan, current), now)
            if span.begun is None and (entry.wave == current or entry.outcome in LEAVING):
                self._begin(span, plan, now)
        self._current = current
        if departed:
            self._end(departed, plan, now)
        self._count_holds(now)

    def pod_left(self, uid: str, outcome: PodOutcome, now: float) -> None:
        """A pod that was terminating has departed before the next plan; it may have begun after the last one."""
        if (span := self._pods.get(uid)) is not None and self._plan is not None:
            span.terminates()
            self._end({uid: outcome}, self._plan, now)
            self._count_holds(now)

    def _count_holds(self, now: float) -> None:
        """The totals, and a span for each wave that others have waited for."""
        for hold in self.totals.update((span.hold for span in self._pods.values() if span.hold is not None), now):
            if hold.lasted and hold.name.startswith("waiting for wave "):
                start, end = interval(hold.start, hold.end, self._start)
                self._emit(_span_of(self._trace, self._parent, hold, start, end, {}))

    def evicted(self, uid: str, now: float) -> None:
        """The server has accepted an eviction."""
        if (span := self._pods.get(uid)) is not None:
            span.evicted(now)
            self._asked(span, now, EVICTED)

    def refused(self, uid: str, refusal: ApiError, now: float) -> None:
        """The server has refused an eviction or a deletion."""
        if (span := self._pods.get(uid)) is not None:
            span.refused(refusal, now)

    def deleted(self, uid: str, deletion: Deletion, now: float) -> None:
        """The server has accepted a deletion for the deadline."""
        if (span := self._pods.get(uid)) is not None:
            span.deleted(deletion, now)
            self._asked(span, now, DELETED)

    def _asked(self, span: PodSpan, now: float, left: str) -> None:
        if span.asked_at is not None or self._plan is None:
            return
        if span.begun is None:
            self._begin(span, self._plan, now)
        was_held = span.hold is not None
        spans = span.removal_spans(self._trace, self._parent_of(span), now, left)
        self._emit_pods(span, spans)
        span.asked_at = max(now, spans[-1].end + GAP)
        if was_held:
            self._count_holds(now)

    def over(self, span: Span) -> bool:
        """Write the span of the ended step, now or with the last of its pods. False: this was not the first drain."""
        if self._is_written or self._span is not None:
            return False
        start, end = max(span.start, self._start), span.end
        if self._prior is not None:
            start, ended = min(self._prior.drain_began, start), self._prior.drain_ended
            start, end = (start, end) if ended is None else interval(start, ended)
        attributes = {**span.attributes, **held_attribute(self.totals.seconds())}
        self._span = msgspec.structs.replace(span, id=self._id, start=start, end=end, attributes=attributes)
        if not self._pods:
            self._write_drain()
        return True

    def close(self, now: float) -> None:
        """End the termination: the remaining pods count as left behind."""
        if self._plan is not None:
            self._end(dict.fromkeys(self._pods, PodOutcome.ABANDONED), self._plan, now)
            self._count_holds(now)
        self._write_drain()

    def _write_drain(self) -> None:
        if self._span is not None:
            span, self._span, self._is_written = self._span, None, True
            self._emit(msgspec.structs.replace(span, end=max(span.end, self._last)))

    def _take_over(self, plan: Plan, current: int) -> None:
        """Write what was over before this process looked first, unless its predecessor surely has: the pods need their
        parents."""
        prior = self._prior
        if prior is None:
            return
        if prior.is_drain_exported:
            self._is_written = True
            return
        if current < len(plan.order.waves) and prior.drain_ended is None:
            # It may have begun at any time since the drain has, and has pods from then.
            self._waves[current] = WaveSpan(plan.order.waves[current].name, self._start)
        # No object shows when a wave ended; time that no process has seen is not part of it.
        seen = prior.resumed_at if prior.led_until is None else min(prior.led_until, prior.resumed_at)
        for index in range(current):
            end = seen if prior.drain_ended is None else prior.drain_ended
            start, end = interval(self._start, end, self._start)
            self._write(index, WaveSpan(plan.order.waves[index].name, start, None), end)

    def _begin(self, span: PodSpan, plan: Plan, now: float) -> None:
        """Begin with the request to leave, if that came before the first look."""
        pod, index = span.entry.pod, span.entry.wave
        begun = asked_at(pod) if pod.deletion_timestamp is not None else now
        span.begun = max(min(begun, now), self._start)
        if index not in self._written and not self._is_written:
            wave = self._waves.setdefault(index, WaveSpan(plan.order.waves[index].name, span.begun))
            wave.begun = min(wave.begun, span.begun)
            wave.pods = (wave.pods or 0) + 1

    def _end(self, departed: Mapping[str, PodOutcome], plan: Plan, now: float) -> None:
        """Write the pods that have left, and the waves that ended with them."""
        entries = {entry.pod.uid: entry for entry in plan.pods if entry.pod.uid in departed}
        for uid in [uid for uid in self._pods if uid in departed]:
            span = self._pods.pop(uid)
            if span.begun is None:
                self._begin(span, plan, now)
            left = span.left(departed[uid], _left(entries.get(uid)))
            self.outcomes[left] += 1
            parent = self._parent_of(span)
            if span.asked_at is None:
                self._emit_pods(span, span.removal_spans(self._trace, parent, now, left))
            elif (terminating := span.terminating(self._trace, parent, now, left)) is not None:
                self._emit_pods(span, [terminating])
        busy = {span.entry.wave for span in self._pods.values() if span.begun is not None}
        for index in [index for index in self._waves if index not in busy]:
            wave = self._waves.pop(index)
            self._write(index, wave, max(now - GAP, wave.last))
        if not self._pods:
            self._write_drain()

    def _emit_pods(self, pod: PodSpan, spans: list[Span]) -> None:
        wave = self._waves.get(pod.entry.wave)
        for span in spans:
            if wave is not None:
                wave.last = max(wave.last, span.end)
            self._emit(span)

    def _write(self, index: int, wave: WaveSpan, end: float) -> None:
        self._written.add(index)
        self._emit(
            Span(
                trace=self._trace,
                id=self._wave_id(index),
                parent=self._id,
                name=f"wave {wave.name}",
                start=wave.begun,
                end=max(end, wave.begun + GAP),
                attributes=span_attributes(
                    gracectl__wave=index,
                    gracectl__wave__pods=wave.pods,
                    gracectl__resumed=True if self._prior is not None else None,
                ),
            )
        )

    def _emit(self, span: Span) -> None:
        self._last = max(self._last, span.end)
        self._emit_span(span)

    @property
    def _parent(self) -> int:
        return self._trace.root if self._is_written else self._id

    def _parent_of(self, span: PodSpan) -> int:
        """Span of the pod's wave; the root if the pod arrived after the drain, or its wave, had ended."""
        return self._wave_id(span.entry.wave) if span.entry.wave in self._waves else self._parent

    def _wave_id(self, wave: int) -> int:
        if (known := self._wave_ids.get(wave)) is None:
            known = self._wave_ids[wave] = self._trace.span("wave", str(wave))
        return known


def held_attribute(seconds: Mapping[str, float]) -> dict[str, Value]:
    """The attribute for these seconds by cause; none if nothing has held a pod for long."""
    return span_attributes(gracectl__held=listed_holds(seconds) or None)


def _is_held_alike(one: PodPlan, other: PodPlan) -> bool:
    """Whether `hold_of` is equal for both; called for every pod of every plan."""
    return (
        one.outcome is other.outcome
        and one.blocker is other.blocker
        and one.budgets == other.budgets
        and one.protection == other.protection
    )


def _span_of(trace: Trace, parent: int, hold: Hold, start: float, end: float, identity: Mapping[str, Value]) -> Span:
    """The span of a hold, within `start` and `end` of its parent."""
    start, end = interval(hold.start, min(hold.end, end), start)
    return Span(trace=trace, name=hold.name, parent=parent, start=start, end=end, attributes={**identity})


def _left(entry: PodPlan | None) -> str:
    """How a pod has left on its own; `entry`: its entry in the plan, None if the pod is gone."""
    if entry is None:
        return "gone"
    return "finished" if entry.pod.phase in FINISHED else "ignored"
