"""A forecast as a chart: the time spans of each pod, for every renderer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.builders import NOW, a_budget, a_pod, ending
from support.forecasts import CRITICAL, FOR_EVER, REPLICA, WORLDS, a_day, crowd, empty, never, predicted, three_replicas

from gracectl.cli.plan.chart import BarKind, PodRow, chart_of
from gracectl.cli.plan.text import Detail, plan_text
from gracectl.inspect.forecast import DrainForecast
from gracectl.model import names
from gracectl.model.pod import Pod

Drawn = list[tuple[str, float, float | None]]


def drawn(row: PodRow) -> Drawn:
    return [(bar.kind.name, bar.start, bar.end) for bar in row.bars]


def row_of(pod: Pod, *others: Pod, **world: Any) -> PodRow:
    (panel,) = chart_of(predicted(ending("n1", pod, *others, **world))).panels
    return next(row for row in panel.rows if row.name == f"shop/{pod.name}")


def a_replica(name: str = "web-1", **fields: Any) -> Pod:
    return a_pod(name, owners=REPLICA, **fields)


LACKING: dict[str, Any] = {"disruptions_allowed": 0, "current_healthy": 2}
SPENT: dict[str, Any] = {"disruptions_allowed": 0, "desired_healthy": 3}
HOUR: dict[str, Any] = {"created": NOW, "annotations": {names.DO_NOT_DISRUPT: "1h"}}

CASES: list[tuple[Pod, dict[str, Any], Drawn, float | None]] = [
    (a_replica(), {}, [("GRACE", 0, 30)], None),
    (a_replica(**FOR_EVER), {}, [("PROTECTED", 0, None)], None),
    (a_replica(**FOR_EVER), {"deadline": 900}, [("PROTECTED", 0, 870), ("GRACE", 870, 900)], 870),
    (a_replica(**HOUR), {}, [("PROTECTED", 0, 3600), ("GRACE", 3600, 3630)], None),
    (a_replica(**HOUR), {"budgets": (a_budget(**SPENT),)}, [("PROTECTED", 0, 3600), ("BLOCKED", 3600, None)], None),
    (a_replica(), {"budgets": (a_budget(**SPENT),)}, [("BLOCKED", 0, None)], None),
    (a_replica(), {"budgets": (a_budget("a"), a_budget("b"))}, [("BLOCKED", 0, None)], None),
    (a_replica(), {"budgets": (a_budget(**LACKING),)}, [("REMOVABLE", 0, None)], None),
    (a_replica(), {"budgets": (a_budget(**LACKING),), "deadline": 900}, [("REMOVABLE", 0, 870), ("GRACE", 870, 900)],
     870),
    (a_replica(grace_seconds=3600), {"deadline": 900}, [("GRACE", 0, 900)], 0),
    (a_replica(deletion_timestamp=NOW + 20, deletion_grace_seconds=30), {}, [("GRACE", 0, 20)], None),
    (a_replica(deletion_timestamp=NOW - 20, deletion_grace_seconds=30), {}, [("GRACE", 0, None)], None),
]  # fmt: skip


@pytest.mark.parametrize(("pod", "world", "bars", "deleted_at"), CASES)
def test_a_pod_is_a_row_of_time_spans(pod: Pod, world: dict[str, Any], bars: Drawn, deleted_at: float | None) -> None:
    row = row_of(pod, **world)
    assert drawn(row) == bars
    assert row.deleted_at == deleted_at
    assert all(bar.reason for bar in row.bars)


def test_a_pod_of_a_later_wave_waits_until_it_may_leave() -> None:
    first, last = a_replica(created=NOW, annotations={names.DO_NOT_DISRUPT: "60s"}), a_replica("dns", priority=CRITICAL)
    assert drawn(row_of(last, first)) == [("WAITING", 0, 60), ("REMOVABLE", 60, 90), ("GRACE", 90, 120)]
    assert [bar.reason for bar in row_of(last, first).bars] == [
        "waiting for the non-critical pods",
        "removed at 1:00-1:30: waiting for the non-critical pods, then evicted",
        "removed by 1:30, terminated by 2:00",
    ]


def test_the_nodes_share_one_axis_and_a_legend_of_what_occurs() -> None:
    chart = chart_of(three_replicas())
    assert [(panel.name, panel.deadline, len(panel.rows)) for panel in chart.panels] == [
        (f"node-{n}", 900.0, 1) for n in (1, 2, 3)
    ]
    assert [drawn(panel.rows[0]) for panel in chart.panels] == [[("REMOVABLE", 0, 300), ("GRACE", 300, 900)]] * 3
    assert chart.axis.unit is None
    assert chart.axis.end > 900
    assert (chart.kinds, chart.has_deadline, chart.has_deletion) == ((BarKind.REMOVABLE, BarKind.GRACE), True, True)


def test_seconds_beside_a_day_are_drawn_on_a_logarithmic_axis() -> None:
    chart = chart_of(a_day())
    assert chart.axis.unit is not None
    assert [block.title for block in chart.panels[0].blocks] == ["non-critical", "critical"]


def test_without_pods_to_wait_for_there_is_nothing_to_draw() -> None:
    chart = chart_of(empty())
    assert (chart.panels[0].blocks, chart.kinds) == ((), ())


def test_pods_that_never_leave_are_drawn_beyond_the_end() -> None:
    (panel,) = chart_of(never()).panels
    ends = {row.name: row.bars[-1].end for row in panel.rows}
    assert ends == {"shop/quick": 5.0, "shop/notebook": None, "shop/odd": None, "shop/twice": None, "shop/dns": None}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
@pytest.mark.parametrize("verbose", [False, True])
def test_the_rows_are_those_of_the_telling(world: Callable[[], DrainForecast], verbose: bool) -> None:
    forecast = world()
    telling, chart = plan_text(forecast, Detail(verbose=verbose)), chart_of(forecast, verbose=verbose)
    for node, panel in zip(telling.nodes, chart.panels, strict=True):
        said = [(line.when, line.name, line.text) for wave in node.waves for line in wave.lines if line.when != "stays"]
        assert [(row.when, row.name, row.text) for row in panel.rows] == said


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_stretches_follow_each_other_without_a_gap_and_lie_on_the_axis(world: Callable[[], DrainForecast]) -> None:
    chart = chart_of(world(), verbose=True)
    for row in (row for panel in chart.panels for row in panel.rows):
        assert row.bars[0].start == 0
        for one, other in zip(row.bars, row.bars[1:], strict=False):
            assert one.end == other.start
        ends = [bar.end for bar in row.bars if bar.end is not None]
        assert all(0 <= end <= chart.axis.end for end in ends)


def test_a_crowd_is_drawn_in_few_rows() -> None:
    assert [len(panel.rows) for panel in chart_of(crowd()).panels] == [2, 2, 2]
    assert [len(panel.rows) for panel in chart_of(crowd(), verbose=True).panels] == [110, 110, 110]
