"""Counts how often something took how long, in the buckets of its metric."""

from __future__ import annotations

from bisect import bisect_left

from gracectl.telemetry.metrics import Distribution, Metric


class Histogram:
    """One series of a metric of type histogram; has one owner, who shows others the `Distribution`."""

    def __init__(self, metric: Metric) -> None:
        self._bounds = metric.buckets
        self._counts = [0] * (len(metric.buckets) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """It took so long; a value on a bound belongs to the bucket below it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def statistics(self) -> Distribution:
        """What it has seen so far."""
        return Distribution(tuple(self._counts), self._total)
