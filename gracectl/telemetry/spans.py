"""Spans as values, independent of OpenTelemetry, with reproducible ids.

The ids of a trace and of its root follow from UID and deletionTimestamp of the terminated object; the ids of spans with
children follow from the trace and their place in it. So a restarted controller continues the trace of a
termination, and every child finds its parent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from gracectl.model.times import format_time

GAP: Final = 2e-6
"""Seconds between a span and the next one, and the shortest span. Jaeger counts microseconds; its critical path skips
spans that touch, and it warns of those without a length."""

Value = str | bool | int | float | Sequence[str]
"""Value of an attribute; None is omitted (see `span_attributes`)."""

TRACE_BYTES, SPAN_BYTES = 16, 8
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")
_SAMPLED, _NOT_SAMPLED = "01", "00"


class Trace(msgspec.Struct, frozen=True):
    """A trace, and the id of its root span. Neither is 0, which means none."""

    id: int
    root: int

    @classmethod
    def of(cls, uid: str, began: float) -> Trace:
        """Trace of the termination of the object of this UID, requested at `began` (Unix seconds).

        The first 24 bytes of SHA-256 over `gracectl/termination/<uid>/<deletionTimestamp>`: trace id, root's span id.
        """
        digest = hashlib.sha256(f"gracectl/termination/{uid}/{format_time(began)}".encode()).digest()
        return cls(_number(digest[:TRACE_BYTES]), _number(digest[TRACE_BYTES : TRACE_BYTES + SPAN_BYTES]))

    @classmethod
    def read(cls, traceparent: str) -> Trace | None:
        """Trace of a W3C traceparent, with its span as the root; None if it is invalid."""
        found = _TRACEPARENT.fullmatch(traceparent)
        return None if found is None else cls(int(found[1], 16), int(found[2], 16))

    @property
    def hex(self) -> str:
        """The trace id as logs and viewers show it."""
        return f"{self.id:0{2 * TRACE_BYTES}x}"

    @property
    def root_hex(self) -> str:
        """The id of the root span, as traceparent has it."""
        return f"{self.root:0{2 * SPAN_BYTES}x}"

    def span(self, *place: str) -> int:
        """Id of the span at this place of the trace: `("drain",)`, `("wave", "0")`."""
        digest = hashlib.sha256("/".join((self.hex, *place)).encode()).digest()
        return _number(digest[:SPAN_BYTES])

    def traceparent(self, *, is_sampled: bool) -> str:
        """W3C trace context of the root (https://www.w3.org/TR/trace-context/)."""
        return f"00-{self.hex}-{self.root_hex}-{_SAMPLED if is_sampled else _NOT_SAMPLED}"


class SpanEvent(msgspec.Struct, frozen=True):
    """Event of a span, at `at` (Unix seconds)."""

    name: str
    at: float
    attributes: Mapping[str, Value] = {}


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Finished span. Times are Unix seconds; `id` None: random; `parent` None: the root."""

    trace: Trace
    name: str
    start: float
    end: float
    id: int | None = None
    parent: int | None = None
    attributes: Mapping[str, Value] = {}
    events: tuple[SpanEvent, ...] = ()
    error: str = ""
    """Description of an error; "" if there was none."""


class SpanStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of spans: exported, failed to export, and dropped because the queue was full; and those waiting in it."""

    exported: int
    failed: int
    dropped: int
    waiting: int


class SpanSink(Protocol):
    """Consumer of finished spans. Never blocks, never fails."""

    def emit(self, span: Span) -> None:
        """Take a finished span. It is dropped if its trace is not sampled."""

    def is_sampled(self, trace: Trace) -> bool:
        """Whether spans of this trace are exported."""

    def statistics(self) -> SpanStatistics:
        """Counts so far."""


def interval(start: float, end: float, earliest: float = 0.0) -> tuple[float, float]:
    """An interval that begins at `earliest` at the earliest, ends GAP before `end`, and has a length."""
    start = max(start, earliest)
    return start, max(end - GAP, start + GAP)


def span_attributes(**attributes: Value | None) -> dict[str, Value]:
    """Attributes without None values; `k8s__pod__name` becomes `k8s.pod.name`."""
    return {key.replace("__", "."): value for key, value in attributes.items() if value is not None}


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "big") or 1
