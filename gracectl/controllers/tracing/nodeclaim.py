"""What the end of a claim tells: within the trace of its node, whose end it is as well; in one of its own if it never
had one.

Which of both is known when its nodes were looked for. Of the node's trace the root is not the claim's to write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gracectl.controllers.tracing.trace import SpanObserver, TerminationTrace
from gracectl.telemetry.spans import Span, SpanSink, Trace, Value

BEFOREHAND: Final = frozenset({"rivals", "deadline"})
"""Steps that come before its nodes are looked for."""

ITS_OWN: Final = frozenset({"instance", "finalizer"})
"""What a claim still does when its node is gone; the rest of its end is that of the node."""

NOTABLE_SECONDS: Final = 1.0
"""Its node has ended the instance: that it is gone is found out in no time."""


class NodeClaimTrace(SpanObserver):
    """`own` is for a claim without a node; `find` says the trace of its node, if it has or has had one."""

    def __init__(self, sink: SpanSink, own: TerminationTrace, find: Callable[[], Trace | None]) -> None:
        self._sink = sink
        self._own = own
        self._find = find
        self._joined: Trace | None = None
        self._early: list[tuple[str, float, float, str]] = []

    @property
    def trace(self) -> Trace | None:
        """That of its node, or its own."""
        self._joined = self._joined or self._find()
        return self._joined or self._own.trace

    def is_sampled(self, trace: Trace) -> bool:
        """See Journal."""
        return self._sink.samples(trace)

    def step_over(self, step: str, since: float, until: float, waits_for: str) -> None:
        """See Journal."""
        if self._is_joined:
            if step in ITS_OWN and (step != "instance" or until - since >= NOTABLE_SECONDS):
                self._tell(step, since, until)
            return
        self._early.append((step, since, until, waits_for))
        if step not in BEFOREHAND:
            for early in self._early:
                self._own.step_over(*early)
            self._early = []

    def failed(self, step: str, error: Exception, now: float) -> None:
        """See Journal."""
        self._own.failed(step, error, now)

    @property
    def next_wait(self) -> float:
        """See TerminationTrace; while its node ends, that tells."""
        return float("inf") if self._is_joined else self._own.next_wait

    def waits(self, now: float, attributes: Mapping[str, Value]) -> None:
        """See TerminationTrace."""
        self._own.waits(now, attributes)

    def close(self, now: float, attributes: Mapping[str, Value], error: str = "") -> None:
        """See Journal."""
        if not self._is_joined:
            self._own.close(now, attributes, error)

    @property
    def _is_joined(self) -> bool:
        return self.trace is not self._own.trace

    def _tell(self, step: str, since: float, until: float) -> None:
        assert self._joined is not None
        span = Span(
            trace=self._joined,
            parent=self._joined.root,
            name=f"claim {step}",
            start=since,
            end=until,
            attributes={"gracectl.step": step},
        )
        self._sink.emit(span)
