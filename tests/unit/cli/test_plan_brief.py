"""A forecast on a terminal: few lines, what matters most first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.builders import a_budget, a_pod, ending
from support.forecasts import FOR_EVER, REPLICA, crowd, never, predicted, three_replicas

from gracectl.cli.console import VisibleConsole, text_of
from gracectl.cli.plan.brief import MOST_LINES, BriefPlan
from gracectl.cli.plan.command import SLOW_PODS, PlanInput, computing
from gracectl.cli.plan.table import plan_table
from gracectl.cli.plan.text import Detail, plan_text
from gracectl.cli.settings import EffectiveSettings
from gracectl.config import Settings
from gracectl.inspect.forecast import DrainForecast
from gracectl.policy.scenario import DrainingNode


def shown(forecast: DrainForecast, width: int = 80) -> list[str]:
    console = VisibleConsole(width=width, force_terminal=False)
    return text_of(console, BriefPlan(plan_text(forecast, Detail()), forecast)).splitlines()


def whole(forecast: DrainForecast, width: int = 80) -> list[str]:
    console = VisibleConsole(width=width, force_terminal=False)
    return text_of(console, plan_table(plan_text(forecast, Detail()))).splitlines()


def fifty() -> DrainForecast:
    """Fifty nodes with pods under twenty budgets; the last node is never drained."""

    def node(number: int) -> DrainingNode:
        name = f"web-{number % 20}"
        pods = [a_pod(f"{name}-{number}", owners=REPLICA)]
        budget = a_budget(name, disruptions_allowed=1, current_healthy=6, expected_pods=6, desired_healthy=5)
        return ending(f"node-{number}", *pods, budgets=(budget,))

    last = ending("node-50", a_pod("notebook", owners=REPLICA, **FOR_EVER))
    return predicted(*map(node, range(1, 50)), last)


@pytest.mark.parametrize("width", [80, 160])
def test_fifty_nodes_take_forty_lines_with_that_of_the_cluster(width: int) -> None:
    lines = shown(fifty(), width)
    assert len(lines) <= MOST_LINES - 1
    assert max(map(len, lines)) <= width
    rows = [line.split()[0] for line in lines if line.startswith("node-")]
    assert rows[:2] == ["node-50", "node-1"]
    text = "\n".join(lines)
    assert f"… and {50 - len(rows)} more nodes" in text
    assert "Drained: never for 1 node (node-50), " in text
    assert "never ends: shop/notebook on node-50" in text
    assert "… and 12 more budgets" in text
    assert lines[-1] == "Nothing was changed. -o wide shows everything, -v also every pod and budget."


@pytest.mark.parametrize("width", [80, 160])
def test_one_node_with_many_pods_takes_as_few(width: int) -> None:
    pods = [a_pod(f"pod-{number}", owners=REPLICA, grace_seconds=number) for number in range(60)]
    protected = [a_pod(f"batch-{number}", **FOR_EVER) for number in range(4)]
    forecast = predicted(ending("worker-1", *pods, *protected, budgets=(a_budget("one"), a_budget("two"))))
    lines = shown(forecast, width)
    assert len(lines) <= MOST_LINES - 1
    assert any(line.startswith("worker-1: never drained") for line in lines)
    assert any(line.startswith("  never  shop/pod-0 and 59 more") for line in lines)


@pytest.mark.parametrize("forecast", [three_replicas(), never()], ids=["three replicas", "never"])
def test_what_is_short_is_whole(forecast: DrainForecast) -> None:
    if len(whole(forecast)) < MOST_LINES:
        assert shown(forecast) == whole(forecast)


def test_a_crowd_is_cut() -> None:
    assert len(whole(crowd(), 160)) > MOST_LINES - 1
    assert len(shown(crowd(), 160)) <= MOST_LINES - 1


@pytest.mark.parametrize(
    ("pods", "line"), [(SLOW_PODS, ""), (1500, "computing the forecast of 2 nodes and 1,500 pods …\n")]
)
def test_a_forecast_of_many_pods_is_announced(pods: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    cluster: Any = SimpleNamespace(pods=range(pods))
    with computing(PlanInput(EffectiveSettings(Settings(), "defaults"), cluster, ("node-1", "node-2"), 0.0)):
        assert capsys.readouterr() == ("", line)
    assert capsys.readouterr() == ("", "")
