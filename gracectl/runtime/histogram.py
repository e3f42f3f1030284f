"""Counts how often something took how long: as cheap as a look into a sorted list, and of a size that never grows."""

from __future__ import annotations

from bisect import bisect_left

import msgspec


class Distribution(msgspec.Struct, frozen=True):
    """What a histogram has seen: how often up to each of its bounds, and how often beyond the last; the sum."""

    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """How often at all."""
        return sum(self.counts)


class Histogram:
    """`bounds`: growing upper bounds, without infinity. Has one owner, who shows others the `Distribution`."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """It was so much; a value on a bound belongs to the bucket below it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def statistics(self) -> Distribution:
        """What it has seen so far."""
        return Distribution(tuple(self._counts), self._total)


def nothing_in(bounds: tuple[float, ...]) -> Distribution:
    """What a histogram of these bounds has seen before it has seen anything."""
    return Distribution((0,) * (len(bounds) + 1), 0.0)
