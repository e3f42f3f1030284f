"""Histograms: which bucket a value belongs to, and what one has seen before it has seen anything."""

from __future__ import annotations

import pytest

from gracectl.runtime.histogram import Histogram, empty_distribution


def test_a_value_on_a_bound_belongs_to_the_bucket_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.1, 2.0, 2.1, 100.0):
        histogram.observe(value)
    seen = histogram.statistics()
    assert seen.counts == (2, 2, 2)
    assert seen.count == 6
    assert seen.total == pytest.approx(106.2)


def test_what_was_seen_does_not_change_afterwards() -> None:
    histogram = Histogram((1.0, 2.0))
    before = histogram.statistics()
    histogram.observe(1.5)
    assert before == empty_distribution((1.0, 2.0))
    assert before != histogram.statistics()
