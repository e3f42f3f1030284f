"""Spans as gracectl makes them: values, whose ids follow from what they are about.

The ids of a trace and of its root follow from the UID and the deletionTimestamp of the object that ends, and those of
the spans that have children from the trace and their place in it. So whoever continues a termination, after a restart
or on another machine, continues its trace, and every child finds its parent. This module knows no OpenTelemetry.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from gracectl.model.times import format_time

Value = str | bool | int | float | Sequence[str]
"""Of an attribute; None is none (see `known`)."""

TRACE_BYTES, SPAN_BYTES = 16, 8
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")
_SAMPLED, _NOT_SAMPLED = "01", "00"


class Trace(msgspec.Struct, frozen=True):
    """A trace, and the id of its root. Neither is ever 0, which stands for none."""

    id: int
    root: int

    @classmethod
    def of(cls, uid: str, began: float) -> Trace:
        """The trace of the end of the object of that uid, for which somebody asked at `began` (Unix seconds).

        The first 24 bytes of SHA-256 over `gracectl/termination/<uid>/<deletionTimestamp>`: trace id, root's span id.
        """
        digest = hashlib.sha256(f"gracectl/termination/{uid}/{format_time(began)}".encode()).digest()
        return cls(_number(digest[:TRACE_BYTES]), _number(digest[TRACE_BYTES : TRACE_BYTES + SPAN_BYTES]))

    @classmethod
    def read(cls, traceparent: str) -> Trace | None:
        """The trace that a W3C traceparent names, its span taken for the root; None if it is none."""
        found = _TRACEPARENT.fullmatch(traceparent)
        return None if found is None else cls(int(found[1], 16), int(found[2], 16))

    @property
    def hex(self) -> str:
        """The trace id as logs and viewers show it."""
        return f"{self.id:0{2 * TRACE_BYTES}x}"

    def span(self, *place: str) -> int:
        """The id of the span at this place of the trace: `("drain",)`, `("wave", "0")`."""
        digest = hashlib.sha256("/".join((self.hex, *place)).encode()).digest()
        return _number(digest[:SPAN_BYTES])

    def traceparent(self, *, is_sampled: bool) -> str:
        """The W3C trace context of the root (https://www.w3.org/TR/trace-context/)."""
        return f"00-{self.hex}-{self.root:0{2 * SPAN_BYTES}x}-{_SAMPLED if is_sampled else _NOT_SAMPLED}"


class Moment(msgspec.Struct, frozen=True):
    """Something that happened during a span, at `at` (Unix seconds)."""

    name: str
    at: float
    attributes: Mapping[str, Value] = {}


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A span that is over. Times are Unix seconds; `id` None: any. `parent` None: it is the root."""

    trace: Trace
    name: str
    start: float
    end: float
    id: int | None = None
    parent: int | None = None
    attributes: Mapping[str, Value] = {}
    moments: tuple[Moment, ...] = ()
    error: str = ""
    """What went wrong; empty if nothing did."""


class SpanStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Spans so far: those that were exported, could not be, and found no room in the queue; those that wait in it."""

    exported: int
    failed: int
    dropped: int
    waiting: int


class SpanSink(Protocol):
    """Takes spans that are over. Never blocks, never fails."""

    def emit(self, span: Span) -> None:
        """This one is over. It goes nowhere if its trace is not sampled."""

    def samples(self, trace: Trace) -> bool:
        """Whether anybody wants the spans of this trace."""

    def statistics(self) -> SpanStatistics:
        """What has become of all spans so far."""


def known(**attributes: Value | None) -> dict[str, Value]:
    """Attributes without those that are None; `k8s__pod__name` is spelt `k8s.pod.name`."""
    return {key.replace("__", "."): value for key, value in attributes.items() if value is not None}


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "big") or 1
