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

from gracectl.controllers.pipeline.state import TerminationObserver
from gracectl.controllers.tracing.pods import DrainSpans, PriorProgress
from gracectl.eviction.pod_outcomes import PodOutcome
from gracectl.policy.plan import Plan
from gracectl.telemetry.spans import Span, SpanEvent, SpanSink, Trace, Value, span_attributes

DRAIN: Final = "drain"
"""The step whose span has children."""

FIRST_WAIT_SECONDS: Final = 60.0
WAIT_SHARE: Final = 0.1
"""Interval of the spans `waiting`: a minute, or this share of the termination's age if that is longer."""

MOMENTS: Final = 10
"""Failures of a step that become events of its span; all are counted."""


class TerminationTrace(TerminationObserver):
    """Observer that writes the spans of one termination.

    `name` and `subject` go onto the root, which begins at `began`. `prior`: set if another process began it.
    """

    def __init__(
        self,
        sink: SpanSink,
        trace: Trace,
        name: str,
        began: float,
        subject: Mapping[str, Value],
        prior: PriorProgress | None = None,
    ) -> None:
        self.trace = trace
        self._sink = sink
        self._name = name
        self._began = began
        self._subject = subject
        self._prior = prior
        self._marks = span_attributes(gracectl__resumed=True if prior is not None else None)
        self.drain = DrainSpans(trace, trace.span(DRAIN), sink.emit, prior)
        self._is_drain_written = False
        self._events: dict[str, list[SpanEvent]] = {}
        self._failures: dict[str, int] = {}
        self._waited_until = began if prior is None else prior.resumed_at

    @property
    def traceparent(self) -> str | None:
        """See TerminationObserver."""
        return self.trace.traceparent(is_sampled=True) if self._sink.is_sampled(self.trace) else None

    def step_over(self, step: str, since: float, until: float, waits_for: str) -> None:
        """Write the span of the step."""
        attributes = span_attributes(
            gracectl__step=step,
            gracectl__waited_for=waits_for or None,
            gracectl__failures=self._failures.pop(step, None),
        )
        span = Span(
            trace=self.trace,
            parent=self.trace.root,
            name=step,
            start=since,
            end=until,
            attributes={**attributes, **self._marks},
            events=tuple(self._events.pop(step, ())),
        )
        self._sink.emit(self._as_parent(span) if step == DRAIN else span)

    def _as_parent(self, span: Span) -> Span:
        """The first span of the drain is the parent of all waves; a later one, for a late pod, stands beside it."""
        if self._is_drain_written:
            return span
        self._is_drain_written = True
        start, end = span.start, span.end
        if self._prior is not None:
            start, end = min(self._prior.drain_began, start), self._prior.drain_ended or end
        return msgspec.structs.replace(span, id=self.trace.span(DRAIN), start=start, end=end)

    def failed(self, step: str, error: Exception, now: float) -> None:
        """Note an event of the step's span."""
        self._failures[step] = self._failures.get(step, 0) + 1
        events = self._events.setdefault(step, [])
        if len(events) < MOMENTS:
            exception = {"exception.type": type(error).__name__, "exception.message": str(error)}
            events.append(SpanEvent("failed", now, exception))

    def planned(self, plan: Plan, now: float, departed: Mapping[str, PodOutcome]) -> None:
        """See TerminationObserver."""
        self.drain.planned(plan, now, departed)

    @property
    def next_wait(self) -> float:
        """When (Unix seconds) the next span `waiting` is due."""
        return self._waited_until + max(FIRST_WAIT_SECONDS, WAIT_SHARE * (self._waited_until - self._began))

    def waits(self, now: float, attributes: Mapping[str, Value]) -> None:
        """Write a span `waiting` if it is due: what the termination waits for."""
        end = self.next_wait
        if end > now:
            return
        start, self._waited_until = self._waited_until, end
        self._sink.emit(
            Span(
                trace=self.trace,
                parent=self.trace.root,
                name="waiting",
                start=start,
                end=end,
                attributes=attributes,
            )
        )

    def close(self, now: float, attributes: Mapping[str, Value], error: str = "") -> None:
        """The termination is over: write the spans of its drain that are left, and the root."""
        self.drain.close(now)
        outcomes = [f"{count} {outcome}" for outcome, count in sorted(self.drain.outcomes.items())]
        pods = span_attributes(gracectl__pods=outcomes if self.drain.has_begun else None)
        span = Span(
            trace=self.trace,
            id=self.trace.root,
            name=self._name,
            start=self._began,
            end=now,
            attributes={**self._subject, **attributes, **pods, **self._marks},
            error=error,
        )
        self._sink.emit(span)


BEFORE_NODES: Final = frozenset({"rivals", "deadline"})
"""Steps before the nodes are looked up: their spans are kept until the trace is known."""

OF_CLAIM: Final = frozenset({"instance", "finalizer"})
"""Steps that a claim takes after its node is gone."""

NOTABLE_SECONDS: Final = 1.0
"""A shorter step `instance` only found that the node has terminated it."""


class NodeClaimTrace(TerminationObserver):
    """Observer of a claim: writes into its node's trace, or one of its own if it never had a node.

    Which of the two is known once its nodes were looked up. In the node's trace only the steps that the node does not
    take itself are written. `own` is the trace of a claim without a node; `find` returns that of its node, if
    any.
    """

    def __init__(self, sink: SpanSink, own: TerminationTrace, find: Callable[[], Trace | None]) -> None:
        self._sink = sink
        self._own = own
        self._find = find
        self._joined: Trace | None = None
        self._early: list[tuple[str, float, float, str]] = []

    @property
    def trace(self) -> Trace:
        """The trace of its node, or its own."""
        return self._node_trace or self._own.trace

    @property
    def traceparent(self) -> str | None:
        """See TerminationObserver."""
        return self.trace.traceparent(is_sampled=True) if self._sink.is_sampled(self.trace) else None

    @property
    def _node_trace(self) -> Trace | None:
        self._joined = self._joined or self._find()
        return self._joined

    def step_over(self, step: str, since: float, until: float, waits_for: str) -> None:
        """Write the span of the step into the trace to which it belongs."""
        if (trace := self._node_trace) is not None:
            if step in OF_CLAIM and (step != "instance" or until - since >= NOTABLE_SECONDS):
                attributes = {"gracectl.step": step}
                name = f"claim {step}"
                self._sink.emit(
                    Span(trace=trace, parent=trace.root, name=name, start=since, end=until, attributes=attributes)
                )
            return
        self._early.append((step, since, until, waits_for))
        if step not in BEFORE_NODES:
            for early in self._early:
                self._own.step_over(*early)
            self._early = []

    def failed(self, step: str, error: Exception, now: float) -> None:
        """See TerminationTrace."""
        self._own.failed(step, error, now)

    @property
    def next_wait(self) -> float:
        """See TerminationTrace; in the node's trace the node writes what is waited for."""
        return math.inf if self._node_trace is not None else self._own.next_wait

    def waits(self, now: float, attributes: Mapping[str, Value]) -> None:
        """See TerminationTrace."""
        self._own.waits(now, attributes)

    def close(self, now: float, attributes: Mapping[str, Value], error: str = "") -> None:
        """See TerminationTrace; the root of the node's trace is the node's to write."""
        if self._node_trace is None:
            self._own.close(now, attributes, error)
