"""Progress over several frames: what is done, what is left, what blocks it, and how much of it a terminal shows."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from itertools import count

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console
from support.builders import (
    NEVER_ALLOWS,
    NOW,
    TAINTED,
    a_budget,
    a_node,
    a_scene,
    cluster,
    ending,
    going,
    kept,
    replica,
)

from gracectl.cli.console import Row, Screen, Table, text_of
from gracectl.cli.progress import FEW_REMEDIES, cause_text, left_text, progress_text
from gracectl.cli.status.follow import StatusFrame
from gracectl.cli.status.view import StatusView, status_table
from gracectl.inspect import progress
from gracectl.inspect.progress import Forecaster, Progress, ProgressTracker, forecast_of
from gracectl.model import names
from gracectl.model.meta import Condition
from gracectl.model.pod import Pod
from gracectl.model.selectors import LabelSelector
from gracectl.policy.answers import Answer, Never, Sightings, Unknown, Window
from gracectl.policy.forecast import Assumptions, Forecast
from gracectl.policy.observations import ObservationLog
from gracectl.policy.scenario import DrainingNode
from gracectl.runtime.clock import LoopClock

DONE = (Condition(names.DRAINED, "True", "Maintenance", "all pods are gone"),)


def progress_of(frame: StatusFrame) -> Progress:
    assert frame.progress is not None
    return frame.progress


def causes_of(frame: StatusFrame) -> list[str]:
    return [cause_text(cause, frame.at) for cause in progress_of(frame).causes]


def scene_of(*pods: Pod, nodes: int = 2, allowed: int = 1, healthy: int = 3) -> StatusFrame:
    statuses = [going(f"n{number}") for number in range(1, nodes + 1)]
    budget = a_budget(disruptions_allowed=allowed, current_healthy=healthy)
    return a_scene(cluster(*statuses, pods=pods, budgets=(budget,)))


# -- how much is done --------------------------------------------------------------------------------------------------


def updated(tracker: ProgressTracker, frame: StatusFrame, *terminated: str) -> Progress | None:
    return tracker.update(frame.nodes, terminated, lambda namespace, name: None, frame.at)


def test_what_was_to_be_done_in_any_frame_counts() -> None:
    tracker = ProgressTracker()
    pods = (replica("a", node_name="n1"), replica("b", node_name="n1"), replica("c", node_name="n2"))
    first = updated(tracker, a_scene(cluster(going("n1"), going("n2", since=300), pods=pods)))
    assert first is not None
    assert (first.nodes_done, first.nodes, first.pods_done, first.pods, first.began) == (0, 2, 0, 3, NOW - 300)
    later = replica("late", node_name="n1")
    second = updated(tracker, a_scene(cluster(going("n1"), pods=(pods[0], later))), "uid-n2")
    assert second is not None
    assert (second.nodes_done, second.nodes, second.pods_done, second.pods) == (1, 2, 2, 4)
    last = updated(tracker, a_scene(cluster()), "uid-n2", "uid-n1")
    assert last is not None
    assert last.is_over
    assert progress_text(last, NOW) == "2 of 2 nodes, 4 of 4 pods; 5:00 elapsed"


def test_nodes_that_were_drained_before_or_are_uncordoned_do_not_count() -> None:
    tracker = ProgressTracker()
    assert updated(tracker, a_scene(cluster(kept("n1", conditions=DONE), a_node("n2")))) is None
    begun = updated(tracker, a_scene(cluster(kept("n1", conditions=DONE), kept("n3"), kept("n4"))))
    assert begun is not None
    assert (begun.nodes_done, begun.nodes) == (0, 2)
    after = updated(tracker, a_scene(cluster(kept("n3", conditions=DONE), a_node("n4"))))
    assert after is not None
    assert (after.nodes_done, after.nodes, after.is_over) == (1, 1, True)


@pytest.mark.parametrize(("window", "text"), [
    (None, ""),
    (Window(NOW + 40, NOW + 40), "about 0:40 left"),
    (Window(NOW + 5, NOW + 40), "about 0:05-0:40 left"),
    (Unknown(("when it ends",), NOW + 5), "unknown when it ends"),
    (Window(NOW, NOW + 400, NOW + 90), "about 1:30 (0:00-6:40) left"),
    (Never(()), "never"),
    (Window(NOW - 9, NOW - 5), "about 0:00 left"),
])  # fmt: skip
def test_what_is_left(window: Answer | None, text: str) -> None:
    assert left_text(window, NOW) == text


def test_for_thousands_of_pods_no_forecast_is_made() -> None:
    assert forecast_of((), NOW, Assumptions()) is None


class Enough(Exception):
    """The test has seen enough."""


class CostlyClock(LoopClock):
    """Time passes only in sleeps, which end the test after `until` seconds, and in forecasts: `cost` seconds each."""

    def __init__(self, cost: float, until: float, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.forecasts: list[float] = []
        self._cost, self._until, self._passed = cost, until, 0.0
        monkeypatch.setattr(progress, "_confirmed_forecast", self._forecast)

    def _forecast(self, nodes: Sequence[DrainingNode], now: float, *_: object) -> tuple[Forecast, Sightings]:
        self.forecasts.append(round(self._passed, 6))
        self._passed += self._cost
        return Forecast(now, (), {}, Assumptions()), {}

    def monotonic(self) -> float:
        return self._passed

    async def sleep(self, seconds: float) -> None:
        self._passed += seconds
        if self._passed > self._until:
            raise Enough


@pytest.mark.parametrize(
    ("cost", "changes", "forecasts"),
    [
        (0.1, True, [0, 1.1, 2.2, 3.3, 4.4, 5.5, 6.6, 7.7, 8.8]),
        (0.5, True, [0, 1.5, 3, 4.5, 6, 7.5, 9]),
        (1.0, True, [0, 3, 6, 9]),  # half of a processor
        (0.01, False, [0, 5.01]),  # soon enough for a second reading that confirms the first one
        (0.9, False, [0]),  # a tenth
    ],
)
async def test_forecasts_are_as_new_as_their_cost_allows(
    cost: float, changes: bool, forecasts: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = CostlyClock(cost, 9.0, monkeypatch)
    names_of_nodes = (f"n{number if changes else 0}" for number in count())
    forecaster = Forecaster(clock, Assumptions(), lambda: ((ending(next(names_of_nodes)),), NOW), ObservationLog())
    with pytest.raises(Enough):
        await forecaster.run()
    assert clock.forecasts == forecasts


# -- causes ------------------------------------------------------------------------------------------------------------


def test_pods_under_one_budget_are_one_cause_with_how_many_leave_at_a_time() -> None:
    pods = [replica(f"w{number}", node_name=f"n{1 + number % 2}") for number in range(5)]
    (cause,) = causes_of(scene_of(*pods))
    assert re.fullmatch(r"budget shop/web: 5 pods on 2 nodes, 1 at a time, about 0:00-\d:\d\d left", cause)


def test_each_cause_has_a_line_and_what_never_ends_comes_first() -> None:
    timed = {names.DO_NOT_DISRUPT: "4h"}
    frame = scene_of(
        *(replica(f"w{number}", node_name="n1") for number in range(3)),
        replica("t1", node_name="n1", labels={}, annotations=timed),
        replica("t2", node_name="n2", labels={}, annotations=timed),
        replica("ever", node_name="n2", labels={}, annotations={names.DO_NOT_DISRUPT: "true"}),
        replica("free", node_name="n2", labels={}),
    )
    causes = causes_of(frame)
    assert causes[0] == "protected indefinitely: shop/ever on n2, never"
    assert causes[1].startswith("budget shop/web: 3 pods on 1 node, 1 at a time")
    assert causes[2].startswith("protected until 16:46 UTC: 2 pods on 2 nodes, about 3:00:00")
    assert len(causes) == 3
    assert progress_of(frame).total.never == ("n2",)
    text = progress_text(progress_of(frame), frame.at)
    assert re.search(r" elapsed, left: never for 1 node, 3:00:00-[\d:]+ for the others$", text)


def test_a_budget_that_never_allows_anything_says_so() -> None:
    budget = a_budget(**NEVER_ALLOWS)
    frame = a_scene(cluster(going(), pods=(replica(),), budgets=(budget,)))
    assert causes_of(frame) == ["budget shop/web, which never allows a disruption: shop/web-1 on n1, never"]
    (node,) = frame.nodes
    assert node.is_never_drained
    assert "n1: terminating" in text_of(Console(width=400), status_table(frame))
    assert "! this node never drains" in text_of(Console(width=400), status_table(frame))


def test_nodes_without_pods_are_counted_by_step() -> None:
    drained = (Condition(names.DRAINED, "True"), Condition(names.INSTANCE_TERMINATING, "True", message="aws: i-1"))
    frame = a_scene(cluster(going("n1", conditions=drained), going("n2", conditions=drained), going("n3", taints=())))
    assert causes_of(frame) == ["step instance: 2 nodes", "step cordon: 1 node: not cordoned yet"]


# -- on a terminal -----------------------------------------------------------------------------------------------------


def fifty() -> StatusFrame:
    """Fifty nodes; the last one is blocked for ever."""
    nodes = [going(f"worker-{number}", taints=TAINTED) for number in range(1, 51)]
    pods = [replica(f"web-{number}", node_name=f"worker-{number}") for number in range(1, 50)]
    pods.append(replica("alone", node_name="worker-50", labels={}, annotations={names.DO_NOT_EVICT: "true"}))
    return a_scene(cluster(*nodes, pods=tuple(pods), budgets=(a_budget(),)))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 24), (160, 60)])
def test_fifty_nodes_fit_a_terminal_progress_first_and_the_urgent_ones_next(width: int, height: int) -> None:
    console = Console(width=width, height=height)
    picture = Screen(console, "more").fitted(status_table(fifty(), is_live=True))
    lines = text_of(console, picture).splitlines()
    assert len(lines) <= height - 2
    assert all(cell_len(line) <= width for line in lines)
    assert re.match(r"nodes  ░{20} +0 of 50", lines[2])
    assert re.match(r"pods   ░{20} +0 of 50  left: never for 1 node, 0:00-24:", lines[3])
    assert any(line.startswith("  ! protected indefinitely: shop/alone on worker-50, never") for line in lines)
    header = next(number for number, line in enumerate(lines) if line.startswith("NODE"))
    assert lines[header + 1].startswith("worker-50")
    shown = [line for line in lines[header + 1 :] if line.startswith("worker-")]
    if height < 50:
        assert lines[-1] == f"… and {50 - len(shown)} more: gracectl status"
        assert len(shown) > 8
    else:
        assert len(shown) == 50
    assert ("DEADLINE" in lines[header]) is (width > 80)


@pytest.mark.parametrize(("height", "causes", "helps"), [(24, 2, 1), (60, 5, FEW_REMEDIES)])
def test_causes_take_a_third_of_a_terminal_at_most(height: int, causes: int, helps: int) -> None:
    label = {"app": "a-name-that-is-long-enough-for-lines-to-be-wrapped"}
    pods, budgets = [], []
    for number in range(20):
        name = f"{label['app']}-{number}"
        pods.append(replica(f"p{number}", node_name=f"w{number}", labels={"app": name, "team": "payments"}))
        selector = LabelSelector({"app": name})
        budgets.append(a_budget(name, selector=selector, **NEVER_ALLOWS))
    frame = a_scene(cluster(*(going(f"w{n}") for n in range(20)), pods=tuple(pods), budgets=tuple(budgets)))
    console = Console(width=100, height=height)
    lines = text_of(console, Screen(console, "more").fitted(status_table(frame, is_live=True))).splitlines()
    assert sum(line.startswith("  ! ") for line in lines) == causes
    assert sum(line.startswith("    -> ask payments") for line in lines) == helps
    assert f"  … and {20 - causes} more causes: gracectl status -o json" in lines
    header = next(number for number, line in enumerate(lines) if line.startswith("NODE"))
    assert header <= height // 3 + 7
    assert lines[-1].startswith("… and ") or height == 60


def test_columns_are_dropped_and_names_stay_in_one_piece() -> None:
    name = "ip-10-0-1-17.eu-central-1.compute.internal"
    table = Table(("a", "b", "c"), [Row([name, "b" * 30, "c" * 30])], droppable=("b", "c"))
    assert text_of(Console(width=120), table).splitlines()[0].split() == ["A", "B", "C"]
    assert text_of(Console(width=80), table).splitlines()[0].split() == ["A", "C"]
    assert text_of(Console(width=50), table).splitlines() == ["A", name]
    with_messages = Table(("a", "b"), [Row(["a" * 30, f"after {name}"])], has_message=True)
    assert any(name in line for line in text_of(Console(width=60), with_messages).splitlines())


def test_without_a_terminal_progress_is_a_line_when_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    view = StatusView(Console(file=io.StringIO()))
    pods = [replica(name, node_name=node) for name, node in (("a", "n1"), ("b", "n1"), ("c", "n2"), ("d", "n2"))]
    tracker = ProgressTracker()

    def lines(seconds: float, left: list[Pod], *terminated: str) -> list[str]:
        nodes = [going(name) for name in ("n1", "n2") if f"uid-{name}" not in terminated]
        seen = cluster(*nodes, pods=tuple(left), budgets=(a_budget(),))
        frame = a_scene(seen, at=NOW + seconds)
        progress = tracker.update(frame.nodes, terminated, seen.budgets.get, frame.at)
        view.show(msgspec.structs.replace(frame, progress=progress))
        texts = [line.partition("  ")[2] for line in capsys.readouterr().out.splitlines()]
        return [line for line in texts if not line.startswith(("n1:", "n2:"))]

    cause, first = lines(0, pods)
    assert cause.startswith("budget shop/web: 4 pods on 2 nodes, 1 at a time, ")
    assert first.startswith("0 of 2 nodes, 0 of 4 pods; 1:40 elapsed, about ")
    assert lines(1, pods[1:]) == []
    (second,) = lines(11, pods[1:])
    assert second.startswith("0 of 2 nodes, 1 of 4 pods; 1:51 elapsed, about ")
    (third,) = lines(12, pods[2:], "uid-n1")
    assert third.startswith("1 of 2 nodes, 2 of 4 pods; 1:52 elapsed")
    assert lines(13, [], "uid-n1", "uid-n2") == ["2 of 2 nodes, 4 of 4 pods; 1:53 elapsed"]


def test_on_a_terminal_the_end_of_several_nodes_leaves_a_line() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, height=24, _environ={"TERM": "xterm"})
    view, tracker = StatusView(console, drops_empty=True), ProgressTracker()
    with view.showing():
        for nodes, terminated in ((["n1", "n2"], ()), (["n2"], ("uid-n1",)), ([], ("uid-n1", "uid-n2"))):
            frame = a_scene(cluster(*map(going, nodes)))
            view.show(msgspec.structs.replace(frame, progress=updated(tracker, frame, *terminated)))
    assert file.getvalue().count("2 of 2 nodes, 0 of 0 pods; 1:40 elapsed\n") == 1
