"""Histogram of durations: an observation costs one binary search, and its size is fixed."""

from __future__ import annotations

from bisect import bisect_left

import msgspec


class Distribution(msgspec.Struct, frozen=True):
    """Counts of a histogram: up to each of its bounds, and beyond the last; and the sum."""

    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)


class Histogram:
    """Mutable histogram with one owner, which hands out `Distribution`s. `bounds`: growing upper bounds, without
    infinity."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count a value; one on a bound belongs to the bucket below it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def statistics(self) -> Distribution:
        """Counts so far."""
        return Distribution(tuple(self._counts), self._total)


def empty_distribution(bounds: tuple[float, ...]) -> Distribution:
    """Empty distribution of these bounds."""
    return Distribution((0,) * (len(bounds) + 1), 0.0)
