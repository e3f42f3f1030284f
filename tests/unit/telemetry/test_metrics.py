"""The catalogue of metrics: dashboards and alerts are made of these names, labels and types."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gracectl.telemetry.metrics import CATALOGUE, PROTECTION_HELD, Metric

PAGE = (Path(__file__).parents[3] / "docs/metrics.md").read_text()


def test_the_buckets_of_protection_reach_from_a_second_to_three_days() -> None:
    hour = 3600.0
    assert PROTECTION_HELD.buckets == (
        *(1.0, 10.0, 60.0, 300.0, 900.0, 1800.0),
        *(hour, 2 * hour, 4 * hour, 8 * hour, 24 * hour, 72 * hour),
    )


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_a_metric_is_named_as_prometheus_advises_and_says_what_it_is(metric: Metric) -> None:
    assert re.fullmatch(r"gracectl(_[a-z]+)+", metric.name)
    assert (metric.type == "counter") == metric.name.endswith("_total")
    assert metric.type != "histogram" or metric.name.endswith("_seconds")
    assert not re.search(r"_(ms|milliseconds|minutes|hours|kib|percent|count|sum|bucket)$", metric.name)
    assert metric.help.endswith(".")
    assert "\n" not in metric.help
    assert (metric.type == "histogram") == bool(metric.buckets)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert not {"le", "quantile", "job", "instance"} & set(metric.labels)


def test_the_documentation_pins_names_types_and_labels() -> None:
    """The tables are generated (`make chart`): a name that changes, changes them, too."""
    rows = re.findall(
        r"^\| `(gracectl_[a-z_]+)(?:\{([a-z_,]+)\})?` \| (gauge|counter|histogram) \|", PAGE, re.MULTILINE
    )
    expected = [(metric.name, ",".join(metric.labels), metric.type) for metric in CATALOGUE]
    assert rows == expected


def test_the_documentation_knows_no_other_metrics() -> None:
    shown = {re.sub(r"_(bucket|sum)$", "", name) for name in re.findall(r"\bgracectl_[a-z_]+", PAGE)}
    assert shown == {metric.name for metric in CATALOGUE}
