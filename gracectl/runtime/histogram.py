"""Histogram of durations: an observation costs one binary search, and its size is fixed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

import msgspec


class SpanRef(msgspec.Struct, frozen=True):
    """Span that explains an observation made at `at` (Unix seconds); ids are hexadecimal."""

    trace_id: str
    span_id: str
    at: float


class Example(msgspec.Struct, frozen=True):
    """An observation of a bucket, and the span that explains it."""

    span: SpanRef
    value: float


class Distribution(msgspec.Struct, frozen=True):
    """Counts of a histogram: up to each of its bounds, and beyond the last; and the sum.

    `examples`: the last observation of each bucket that has a trace, by index.
    """

    counts: tuple[int, ...]
    total: float
    examples: Mapping[int, Example] = {}

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)


class Histogram:
    """Mutable histogram with one owner, which hands out `Distribution`s. `bounds`: growing upper bounds, without
    infinity."""

    __slots__ = ("_bounds", "_counts", "_examples", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self._examples: dict[int, Example] = {}

    def observe(self, value: float, span: SpanRef | None = None) -> None:
        """Count a value; one on a bound belongs to the bucket below it. `span`: explains it."""
        bucket = bisect_left(self._bounds, value)
        self._counts[bucket] += 1
        self._total += value
        if span is not None:
            self._examples[bucket] = Example(span, value)

    def statistics(self) -> Distribution:
        """Counts so far."""
        return Distribution(tuple(self._counts), self._total, dict(self._examples))


def empty_distribution(bounds: tuple[float, ...]) -> Distribution:
    """Empty distribution of these bounds."""
    return Distribution((0,) * (len(bounds) + 1), 0.0)
