"""Trace of one termination: its root, its steps, the drain with its waves and pods, and what it waits for.

A span is exported when it ends, the root last; a termination that takes long exports a child `waiting` every minute,
later at every tenth of its age (ADR 0017). Invariants: nothing here awaits or fails; the id of a span that has children
follows from its place in the trace, so children written by several processes share a parent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from gracectl.controllers.termination.state import TerminationObserver
from gracectl.controllers.tracing.holds import Hold, HoldTotals
from gracectl.controllers.tracing.pods import DrainSpans, PriorProgress, held_attribute
from gracectl.eviction.pod_outcomes import PodOutcome
from gracectl.policy.plan import Plan
from gracectl.telemetry.spans import GAP, Span, SpanEvent, SpanSink, Trace, Value, interval, span_attributes

DRAIN: Final = "drain"
"""The step with a span that has children."""

FIRST_WAIT_SECONDS: Final = 60.0
WAIT_SHARE: Final = 0.1
"""Interval of the spans `waiting`: a minute, or this share of the termination's age if that is longer."""

MOMENTS: Final = 10
"""Failures of a step that become events of its span; all are counted."""

NO_LEADER: Final = "no leader"
"""Between the last renewal of the lease and the takeover."""

COUNTED: Final = {
    "evicted": "gracectl.pods.evicted",
    "deleted for the deadline": "gracectl.pods.deleted",
    "left behind": "gracectl.pods.left_behind",
    "terminated by another client": "gracectl.pods.terminated_by_others",
    "already terminating": "gracectl.pods.already_terminating",
    "finished": "gracectl.pods.finished",
    "ignored": "gracectl.pods.ignored",
    "gone": "gracectl.pods.gone",
}
"""Attribute of the root that counts pods, by value of `gracectl.pod.left`."""


class TerminationTrace(TerminationObserver):
    """Observer that writes the spans of one termination.

    `name` is the root's, which begins at `began`; `labels` returns the attributes of every span. `prior`: set if
    another process began it.
    """

    def __init__(
        self,
        sink: SpanSink,
        trace: Trace,
        name: str,
        began: float,
        labels: Callable[[], Mapping[str, Value]],
        prior: PriorProgress | None = None,
    ) -> None:
        self.trace = trace
        self._sink = sink
        self._name = name
        self._began = began
        self._labels = labels
        self._prior = prior
        self._marks = span_attributes(gracectl__resumed=True if prior is not None else None)
        self.drain = DrainSpans(trace, self.emit, prior)
        self._free = began if prior is None else prior.resumed_at  # no step begins before
        self._last = self._free  # the end of the last span
        self._failing: dict[str, StepFailures] = {}
        self._totals = HoldTotals()
        self._waited_until = self._free
        if prior is not None:
            self._write_gap(prior)

    def emit(self, span: Span) -> None:
        """Write a span, with what every span has."""
        self._last = max(self._last, span.end)
        self._sink.emit(msgspec.structs.replace(span, attributes={**self._labels(), **span.attributes}))

    def _write_gap(self, prior: PriorProgress) -> None:
        """The time in which no process led belongs to no step: nothing was observed then."""
        if prior.led_until is None:
            return
        gap = Hold(NO_LEADER, max(prior.led_until, self._began), prior.resumed_at)
        if gap.lasted:
            self._totals.add(gap)
            start, end = interval(gap.start, gap.end, self._began)
            self.emit(Span(trace=self.trace, parent=self.trace.root, name=gap.name, start=start, end=end))

    @property
    def traceparent(self) -> str | None:
        """See TerminationObserver."""
        return self.trace.traceparent(is_sampled=True) if self._sink.is_sampled(self.trace) else None

    def is_sampled(self, trace: Trace) -> bool:
        """See SpanSink."""
        return self._sink.is_sampled(trace)

    def step_over(self, step: str, since: float, until: float, waits_for: str) -> None:
        """Write the span of the step, and its failures."""
        failures = self._failing.pop(step, None)
        start, end = interval(since, until, self._free)
        span = Span(
            trace=self.trace,
            id=None if failures is None else self.trace.span("step", step, f"{start:.6f}"),
            parent=self.trace.root,
            name=step,
            start=start,
            end=end,
            attributes={
                **span_attributes(
                    gracectl__step=step,
                    gracectl__waited_for=waits_for or None,
                    gracectl__failures=None if failures is None else failures.count,
                ),
                **self._marks,
            },
            events=() if failures is None else tuple(failures.events),
        )
        is_drain = step == DRAIN and self.drain.over(span)
        if step == DRAIN and not is_drain and failures is None:
            return  # looked at again: its pods, if there were any, are children of the root
        if failures is not None and span.id is not None:
            self._write_failing(failures, self.trace.span(DRAIN) if is_drain else span.id, start, until)
        if not is_drain:
            self.emit(span)
        self._free = end + GAP

    def _write_failing(self, failures: StepFailures, step: int, earliest: float, until: float) -> None:
        failures.recovered(until)
        for hold, error in failures.over:
            self._totals.add(hold)
            if hold.lasted:
                start, end = interval(hold.start, min(hold.end, until - GAP), earliest)
                self.emit(Span(trace=self.trace, parent=step, name=hold.name, start=start, end=end, error=error))

    def failed(self, step: str, error: Exception, now: float) -> None:
        """Note an event of the step's span, which fails from now on."""
        self._failing.setdefault(step, StepFailures(step)).failed(error, now)

    def recovered(self, step: str, now: float) -> None:
        """The step fails no longer."""
        if (failures := self._failing.get(step)) is not None:
            failures.recovered(now)

    def planned(self, plan: Plan, now: float, departed: Mapping[str, PodOutcome]) -> None:
        """See TerminationObserver."""
        self.drain.planned(plan, now, departed, self._free)

    def pod_left(self, uid: str, outcome: PodOutcome, now: float) -> None:
        """See TerminationObserver."""
        self.drain.pod_left(uid, outcome, now)

    @property
    def next_wait(self) -> float:
        """When (Unix seconds) the next span `waiting` is due."""
        return self._waited_until + max(FIRST_WAIT_SECONDS, WAIT_SHARE * (self._waited_until - self._began))

    def waits(self, now: float, attributes: Mapping[str, Value]) -> None:
        """Write a span `waiting` if it is due: what the termination waits for, an error while that fails."""
        end = self.next_wait
        if end > now:
            return
        start, self._waited_until = self._waited_until, end
        failing = self._failing.get(str(attributes.get("gracectl.step")))
        self.emit(
            Span(
                trace=self.trace,
                parent=self.trace.root,
                name="waiting",
                start=start,
                end=end - GAP,
                attributes={**attributes, **held_attribute(self.drain.totals.seconds(end))},
                error="" if failing is None else failing.error,
            )
        )

    def close(self, now: float, attributes: Mapping[str, Value], error: str = "") -> None:
        """End the termination: write the remaining spans of its drain, and the root."""
        self.drain.close(now)
        pods = {COUNTED[left]: count for left, count in sorted(self.drain.outcomes.items())}
        span = Span(
            trace=self.trace,
            id=self.trace.root,
            name=self._name,
            start=self._began,
            end=max(now, self._last),
            attributes={
                **attributes,
                **pods,
                **held_attribute({**self.drain.totals.seconds(), **self._totals.seconds()}),
                **self._marks,
            },
            error=error,
        )
        self.emit(span)


class StepFailures:
    """Failures of one step: their events, and the times in which it failed."""

    def __init__(self, step: str) -> None:
        self.count = 0
        self.events: list[SpanEvent] = []
        self.over: list[tuple[Hold, str]] = []
        """Times that have ended, each with its last error."""
        self.error = ""
        """The last error while the step fails; else empty."""
        self._step = step
        self._kind = ""
        self._since = 0.0

    def failed(self, error: Exception, now: float) -> None:
        """The step has failed."""
        self.count += 1
        kind = type(error).__name__
        if len(self.events) < MOMENTS:
            self.events.append(SpanEvent("exception", now, {"exception.type": kind, "exception.message": str(error)}))
        if kind != self._kind:
            self.recovered(now)
            self._kind, self._since = kind, now
        self.error = str(error) or kind

    def recovered(self, now: float) -> None:
        """The step fails no longer."""
        if self._kind:
            self.over.append((Hold(f"{self._step} fails: {self._kind}", self._since, now), self.error))
            self._kind = self.error = ""


BEFORE_NODES: Final = frozenset({"rivals", "deadline"})
"""Steps before the nodes are looked up: their spans are kept until the trace is known."""

OF_CLAIM: Final = frozenset({"instance", "finalizer"})
"""Steps that a claim takes after its node is gone."""

NOTABLE_SECONDS: Final = 1.0
"""A shorter step `instance` only found that the node has terminated it."""


class NodeClaimTrace(TerminationObserver):
    """Observer of a claim: writes into its node's trace, or one of its own if it never had a node.

    Which of the two is known once its nodes were looked up. In the node's trace only the steps that the node does not
    take itself are written, while `is_open` says that its root is still to be written by this process. `own` is the
    trace of a claim without a node; `find` returns that of its node, if any.
    """

    def __init__(
        self, own: TerminationTrace, find: Callable[[], Trace | None], is_open: Callable[[Trace], bool]
    ) -> None:
        self._own = own
        self._find = find
        self._is_open = is_open
        self._joined: Trace | None = None
        self._early: list[tuple[str, float, float, str]] = []
        self._has_own = False
        self.last = 0.0
        """The end of its last span in the node's trace (Unix seconds)."""

    @property
    def trace(self) -> Trace | None:
        """The trace of its node, or its own; None until it is known which."""
        return self._node_trace or (self._own.trace if self._has_own else None)

    @property
    def traceparent(self) -> str | None:
        """See TerminationObserver."""
        trace = self._node_trace or self._own.trace
        return trace.traceparent(is_sampled=True) if self._own.is_sampled(trace) else None

    @property
    def _node_trace(self) -> Trace | None:
        if not self._has_own:  # a node that is deleted later has its own trace
            self._joined = self._joined or self._find()
        return self._joined

    def step_over(self, step: str, since: float, until: float, waits_for: str) -> None:
        """Write the span of the step into the trace to which it belongs."""
        if (trace := self._node_trace) is not None:
            is_notable = step in OF_CLAIM and (step != "instance" or until - since >= NOTABLE_SECONDS)
            if is_notable and self._is_open(trace):
                start, self.last = interval(since, until, self.last + GAP)
                attributes = {"gracectl.step": step}
                name = f"claim {step}"
                self._own.emit(
                    Span(trace=trace, parent=trace.root, name=name, start=start, end=self.last, attributes=attributes)
                )
            return
        self._early.append((step, since, until, waits_for))
        if step not in BEFORE_NODES:
            self._has_own = True
            for early in self._early:
                self._own.step_over(*early)
            self._early = []

    def failed(self, step: str, error: Exception, now: float) -> None:
        """See TerminationTrace."""
        self._own.failed(step, error, now)

    def recovered(self, step: str, now: float) -> None:
        """See TerminationTrace."""
        self._own.recovered(step, now)

    @property
    def next_wait(self) -> float:
        """See TerminationTrace; in the node's trace the node writes the waits."""
        return math.inf if self._node_trace is not None else self._own.next_wait

    def waits(self, now: float, attributes: Mapping[str, Value]) -> None:
        """See TerminationTrace."""
        self._own.waits(now, attributes)

    def close(self, now: float, attributes: Mapping[str, Value], error: str = "") -> None:
        """See TerminationTrace; the root of the node's trace is the node's to write."""
        if self._node_trace is None:
            self._own.close(now, attributes, error)
