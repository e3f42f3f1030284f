"""The bars of each pod in a forecast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.builders import NOW, a_budget, a_pod, ending
from support.forecasts import CRITICAL, FOR_EVER, REPLICA, WORLDS, never, predicted

from gracectl.cli.plan.text import Detail, NodeText, PodLine, plan_text
from gracectl.inspect.forecast import DrainForecast
from gracectl.model import names
from gracectl.model.pod import Pod

Drawn = list[tuple[str, float, float | None]]


def drawn(line: PodLine) -> Drawn:
    return [(bar.kind.name, bar.start, bar.end) for bar in line.bars]


def lines_of(node: NodeText) -> list[PodLine]:
    return [line for wave in node.waves for line in wave.lines]


def line_of(pod: Pod, *others: Pod, **world: Any) -> PodLine:
    (node,) = plan_text(predicted(ending("n1", pod, *others, **world)), Detail()).nodes
    return next(line for line in lines_of(node) if line.name == f"shop/{pod.name}")


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
    line = line_of(pod, **world)
    assert (drawn(line), line.deleted_at) == (bars, deleted_at)


def test_a_pod_of_a_later_wave_waits_until_it_may_leave() -> None:
    first, last = a_replica(created=NOW, annotations={names.DO_NOT_DISRUPT: "60s"}), a_replica("dns", priority=CRITICAL)
    assert drawn(line_of(last, first)) == [("WAITING", 0, 60), ("REMOVABLE", 60, 90), ("GRACE", 90, 120)]


def test_pods_that_never_leave_are_drawn_beyond_the_end() -> None:
    (node,) = plan_text(never(), Detail()).nodes
    ends = {line.name: line.bars[-1].end for line in lines_of(node)}
    assert ends == {"shop/quick": 5.0, "shop/notebook": None, "shop/odd": None, "shop/twice": None, "shop/dns": None}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_bars_of_a_pod_that_is_waited_for_have_no_gap(world: Callable[[], DrainForecast]) -> None:
    for line in (line for node in plan_text(world(), Detail(verbose=True)).nodes for line in lines_of(node)):
        assert bool(line.bars) == (line.when != "stays")
        assert not line.bars or line.bars[0].start == 0
        for one, other in zip(line.bars, line.bars[1:], strict=False):
            assert one.end == other.start
