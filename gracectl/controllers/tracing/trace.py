"""What the end of a node or claim tells of itself while it goes on: one trace, of which nobody keeps an open span.

A span is made when it is over, and sent then. What takes long is seen all the same: a span "waiting" is told for each
minute of it, later for each tenth of the time that it has taken so far (ADR 0017). The root goes last, with its true
beginning. Invariants: nothing here awaits or fails; whoever takes an end over tells its trace on, and every span that
was told before finds its parent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from gracectl.controllers.pipeline.observer import TerminationObserver
from gracectl.controllers.tracing.pods import DrainSpans
from gracectl.eviction.deleter import Deletion
from gracectl.eviction.pod_outcomes import PodOutcome
from gracectl.kube.errors import ApiError
from gracectl.policy.plan import Plan
from gracectl.telemetry.spans import Moment, Span, SpanSink, Trace, Value

DRAIN: Final = "drain"
"""The step that has children."""

FIRST_WAIT_SECONDS: Final = 60.0
WAIT_SHARE: Final = 0.1
"""How often somebody who looks at an open trace reads what it waits for: each minute, then each tenth of its age."""

RECHECK_SECONDS: Final = 1.0
"""A step that others have taken before is taken anew by each successor, which takes no time, and is not worth a span.
"""

MOMENTS: Final = 10
"""Failures of a step that are told one by one."""


class SpanObserver(TerminationObserver):
    """Observer that writes no trace."""

    @property
    def trace(self) -> Trace | None:
        """Which one; None: none."""
        return None

    @property
    def traceparent(self) -> str | None:
        """The trace context that is written on the object; None if the trace is not sampled."""
        trace = self.trace
        return None if trace is None or not self.is_sampled(trace) else trace.traceparent(is_sampled=True)

    def is_sampled(self, trace: Trace) -> bool:
        """Whether spans of this trace are exported."""
        return False

    def evicted(self, uid: str, now: float) -> None:
        """The server has agreed to the eviction of this pod."""

    def refused(self, uid: str, refusal: ApiError, now: float) -> None:
        """The server has not, this time."""

    def deleted(self, deletion: Deletion, now: float) -> None:
        """The server has agreed to delete this pod for the deadline."""

    def close(self, now: float, attributes: Mapping[str, Value], error: str = "") -> None:
        """The end is over."""


SILENT: Final = SpanObserver()


class Past(msgspec.Struct, frozen=True):
    """What the objects tell of a predecessor of ours that has begun this end. Instants are Unix seconds.

    `taken`: the steps that it has taken; `began`: since when it stood at some. `is_orderly`: it had time to tell all
    that was over.
    """

    taken: frozenset[str] = frozenset()
    began: Mapping[str, float] = {}
    drained_at: float | None = None
    is_orderly: bool = False


class TerminationTrace(SpanObserver):
    """Of one end. `name` and `subject` go onto the root; `past`: what a predecessor of ours has left."""

    def __init__(
        self, sink: SpanSink, trace: Trace, name: str, began: float, subject: Mapping[str, Value], past: Past | None
    ) -> None:
        self._trace = trace
        self._sink = sink
        self._name = name
        self._began = began
        self._subject = subject
        self._past = past
        self._drain = trace.span(DRAIN)
        # Somebody was killed before us, who may have told anything or nothing of what was over by then.
        self._is_resumed = past is not None and not past.is_orderly
        self._tales = DrainSpans(trace, self._drain, sink.emit, is_resumed=self._is_resumed)
        self._decision: Plan | None = None
        self._told: set[str] = set()  # steps
        self._moments: dict[str, list[Moment]] = {}
        self._failures: dict[str, int] = {}
        self._waits = 0
        self._waited_until = began

    @property
    def trace(self) -> Trace:
        """See Journal."""
        return self._trace

    def is_sampled(self, trace: Trace) -> bool:
        """See Journal."""
        return self._sink.samples(trace)

    def step_over(self, step: str, since: float, until: float, waits_for: str) -> None:
        """See Journal."""
        failures = self._failures.pop(step, 0)
        attributes: dict[str, Value] = {"gracectl.step": step}
        if waits_for:
            attributes["gracectl.waited_for"] = waits_for
        if failures:
            attributes["gracectl.failures"] = failures
        span = Span(
            trace=self.trace,
            parent=self.trace.root,
            name=step,
            start=since,
            end=until,
            attributes=attributes,
            moments=tuple(self._moments.pop(step, ())),
        )
        if step == DRAIN:
            self._tell_drain(span)
        elif failures or not self._is_recheck(step, until - since):
            self._sink.emit(msgspec.structs.replace(span, start=self._begun(step, since)))
        self._told.add(step)

    def _is_recheck(self, step: str, seconds: float) -> bool:
        """Whether it only was found out that a predecessor has taken the step."""
        past = self._past
        return past is not None and step in past.taken and step not in self._told and seconds < RECHECK_SECONDS

    def _begun(self, step: str, since: float) -> float:
        """When it was first stood at."""
        if self._past is None or step in self._told:
            return since
        return min(self._past.began.get(step, since), since)

    def _tell_drain(self, span: Span) -> None:
        """The ancestor of all pods is told once by each of us, unless a predecessor has surely told it. What there is
        to drain later (a late pod) is told beside it."""
        drained_at = None if self._past is None else self._past.drained_at
        is_first = DRAIN not in self._told
        if is_first and (drained_at is None or self._is_resumed):
            start, end = self._begun(DRAIN, span.start), span.end
            if drained_at is not None:
                start, end = self._began, max(drained_at, self._began)
            resumed = {"gracectl.resumed": True} if self._is_resumed else {}
            attributes = {**span.attributes, **resumed}
            ancestor = msgspec.structs.replace(span, id=self._drain, start=start, end=end, attributes=attributes)
            self._sink.emit(ancestor)
        if not (is_first and drained_at is None) and span.end - span.start >= RECHECK_SECONDS:
            self._sink.emit(span)

    def failed(self, step: str, error: Exception, now: float) -> None:
        """See Journal."""
        self._failures[step] = self._failures.get(step, 0) + 1
        told = self._moments.setdefault(step, [])
        if len(told) < MOMENTS:
            told.append(
                Moment("failed", now, {"exception.type": type(error).__name__, "exception.message": str(error)})
            )

    def planned(self, decision: Plan, now: float, departed: Mapping[str, PodOutcome]) -> None:
        """See Journal."""
        since = None
        if self._decision is None and self._past is not None:
            since = self._past.began.get(DRAIN, self._began)
            if self._is_resumed:
                self._tales.missed(decision, since)
        self._decision = decision
        self._tales.planned(decision, now, departed, since)

    def evicted(self, uid: str, now: float) -> None:
        """See Journal."""
        if tale := self._tales.pod(uid):
            tale.evicted(now)

    def refused(self, uid: str, refusal: ApiError, now: float) -> None:
        """See Journal."""
        if tale := self._tales.pod(uid):
            tale.refused(refusal, now)

    def deleted(self, deletion: Deletion, now: float) -> None:
        """See Journal."""
        if tale := self._tales.pod(deletion.pod.uid):
            tale.deleted(deletion, now)

    @property
    def next_wait(self) -> float:
        """When (Unix seconds) another span is due that tells what is waited for. The same for each successor."""
        return self._waited_until + max(FIRST_WAIT_SECONDS, WAIT_SHARE * (self._waited_until - self._began))

    def skip_waits(self, now: float) -> None:
        """Those that were due before are our predecessor's."""
        while self.next_wait <= now:
            self._waited_until = self.next_wait
            self._waits += 1

    def waits(self, now: float, attributes: Mapping[str, Value]) -> None:
        """It is still under way: tell what it waits for, if that is due."""
        if self.next_wait > now:
            return
        start, end = self._waited_until, self.next_wait
        self._waited_until = end
        self._waits += 1
        id_ = self.trace.span("waiting", str(self._waits))
        parent = self.trace.root
        self._sink.emit(
            Span(trace=self.trace, id=id_, parent=parent, name="waiting", start=start, end=end, attributes=attributes)
        )

    def close(self, now: float, attributes: Mapping[str, Value], error: str = "") -> None:
        """See Journal. Tells whatever has children and was not told, and the root."""
        self._tales.close(self._decision, now)
        if self._decision is not None and DRAIN not in self._told:
            self.step_over(DRAIN, self._began, now, "")
        span = Span(
            trace=self.trace,
            id=self.trace.root,
            name=self._name,
            start=self._began,
            end=now,
            attributes={**self._subject, **attributes, **self._counts()},
            error=error,
        )
        self._sink.emit(span)

    def _counts(self) -> dict[str, Value]:
        if self._decision is None:
            return {}
        return {"gracectl.pods": [f"{count} {left}" for left, count in sorted(self._tales.left.items())]}
