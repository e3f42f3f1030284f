"""The catalogue of metrics: dashboards and alerts are made of these names, labels and types."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gracectl.telemetry.histogram import Histogram
from gracectl.telemetry.metrics import CATALOGUE, PROTECTION_HELD, Metric

PINNED = {
    "gracectl_protected_pods": ("gauge", ("kind", "until")),
    "gracectl_protected_pods_terminating": ("gauge", ("kind", "until")),
    "gracectl_protection_remaining_seconds_max": ("gauge", ("kind",)),
    "gracectl_protection_held_seconds": ("histogram", ("kind", "ended")),
}


def test_names_types_and_labels_are_pinned() -> None:
    assert {metric.name: (metric.type, metric.labels) for metric in CATALOGUE} == PINNED
    assert len(CATALOGUE) == len(PINNED)


def test_the_buckets_of_protection_reach_from_a_second_to_three_days() -> None:
    hour = 3600.0
    assert PROTECTION_HELD.buckets == (
        *(1.0, 10.0, 60.0, 300.0, 900.0, 1800.0),
        *(hour, 2 * hour, 4 * hour, 8 * hour, 24 * hour, 72 * hour),
    )


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_a_metric_is_named_as_prometheus_advises_and_says_what_it_is(metric: Metric) -> None:
    assert re.fullmatch(r"gracectl(_[a-z]+)+", metric.name)
    assert metric.help.endswith(".")
    assert "\n" not in metric.help
    assert (metric.type == "histogram") == bool(metric.buckets)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert not {"le", "quantile", "job", "instance"} & set(metric.labels)


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_a_metric_is_in_the_documentation_with_its_labels(metric: Metric) -> None:
    pages = [page.read_text() for page in (Path(__file__).parents[2] / "docs").glob("*.md")]
    assert any(f"`{metric.name}{{{','.join(metric.labels)}}}`" in page for page in pages)


def test_a_histogram_puts_a_value_on_a_bound_into_the_bucket_below_it() -> None:
    histogram = Histogram(Metric("gracectl_x", "histogram", "X.", buckets=(1.0, 2.0)))
    for value in (0.0, 1.0, 1.1, 2.0, 2.1, 100.0):
        histogram.observe(value)
    seen = histogram.statistics()
    assert seen.counts == (2, 2, 2)
    assert seen.total == pytest.approx(106.2)
