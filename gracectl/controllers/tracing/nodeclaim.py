"""Trace of a node claim's termination: part of its node's trace, or one of its own if it never had a node.

Which of the two is known once its nodes were looked up. In the node's trace only the steps that the node does not take
itself are written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from gracectl.controllers.pipeline.observer import TerminationObserver
from gracectl.controllers.tracing.trace import TerminationTrace
from gracectl.telemetry.spans import Span, SpanSink, Trace, Value

BEFORE_NODES: Final = frozenset({"rivals", "deadline"})
"""Steps before the nodes are looked up: their spans are kept until the trace is known."""

OF_CLAIM: Final = frozenset({"instance", "finalizer"})
"""Steps that a claim takes after its node is gone."""

NOTABLE_SECONDS: Final = 1.0
"""A shorter step `instance` only found that the node has terminated it."""


class NodeClaimTrace(TerminationObserver):
    """Observer of a claim. `own` is the trace of a claim without a node; `find` returns that of its node, if any."""

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
