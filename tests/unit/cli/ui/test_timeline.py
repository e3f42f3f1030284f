"""What the board keeps of the past, and that it is bounded."""

from __future__ import annotations

from typing import Any

from support.boards import BoardStage
from support.builders import NOW, READY, a_budget, going, kept, replica

from gracectl.cli.ui.timeline import MOST_SPANS, Span, holds
from gracectl.model import names
from gracectl.model.meta import Condition
from gracectl.model.times import format_time
from gracectl.policy.waves import DEFAULT_ORDER

FIRST = DEFAULT_ORDER.waves[0].name


def timeline(stage: BoardStage) -> Any:
    (only_timeline,) = stage.board.state["timelines"].values()
    return only_timeline


def lasting(spans: list[dict[str, Any]], key: str) -> list[tuple[str, float, float | None]]:
    """Name, and from when to when, in seconds from NOW."""
    instants = {format_time(NOW + second)[:19]: second for second in range(-300, 300)}
    return [
        (each[key], instants[each["from"][:19]], None if each["to"] is None else instants[each["to"][:19]])
        for each in spans
    ]


async def test_a_step_lasts_from_the_request_and_pods_from_when_their_state_began() -> None:
    stage = BoardStage()
    stage.cluster.nodes.put(going(since=100))
    stage.cluster.budgets.put(a_budget(disruptions_allowed=0))
    stage.cluster.pods.put(replica())
    stage.frame()
    rows = timeline(stage)
    assert lasting(rows["steps"], "step") == [("drain", -100, None)]
    assert lasting(rows["waves"], "wave") == [(FIRST, -100, None)]
    assert lasting(rows["pods"]["uid-web-1"], "state") == [("blocked", -100, None)]

    stage.at += 20
    leaving = replica(resource_version="2", deletion_timestamp=NOW + 45, deletion_grace_seconds=30)
    stage.cluster.pods.put(leaving)
    stage.frame()
    stage.at += 10
    stage.cluster.pods.remove(leaving.key)
    stage.frame()
    rows = timeline(stage)
    assert lasting(rows["pods"]["uid-web-1"], "state") == [("blocked", -100, 20), ("terminating", 20, 30)]
    assert lasting(rows["waves"], "wave") == [(FIRST, -100, 30)]


def test_what_holds_a_node_is_what_its_pods_do_the_gravest_first() -> None:
    pods = [
        [Span("waiting", 0.0, 10.0), Span("blocked", 10.0, 30.0), Span("terminating", 30.0, 40.0)],
        [Span("protected", 5.0, 20.0), Span("undecodable", 20.0)],
        [Span("leaving", 60.0)],
    ]
    found = [(each.name, each.start, each.end) for each in holds(pods)]
    assert found == [
        ("waiting", 0.0, 5.0),
        ("protected", 5.0, 10.0),
        ("blocked", 10.0, 30.0),
        ("terminating", 30.0, 40.0),
        ("leaving", 60.0, None),
    ]


async def test_steps_before_the_first_frame_are_told_by_the_conditions_of_the_node() -> None:
    drained = Condition(names.DRAINED, "True", "Drained", "all pods are gone", NOW - 60)
    detached = Condition(names.VOLUMES_DETACHED, "True", "Detached", "", NOW - 40)
    stage = BoardStage()
    stage.cluster.nodes.put(going(since=100, conditions=(*READY, drained, detached)))
    stage.frame()
    assert lasting(timeline(stage)["steps"], "step") == [
        ("drain", -100, -60), ("volumes", -60, -40), ("instance", -40, None),
    ]  # fmt: skip


async def test_a_terminated_node_is_in_the_history_and_an_uncordoned_one_is_not() -> None:
    deadline = {names.TERMINATION_TIMESTAMP: format_time(NOW + 50)}
    stage = BoardStage()
    stage.cluster.nodes.put(going("n1", since=100, annotations=deadline))
    stage.cluster.nodes.put(kept("n2"))
    stage.frame()
    assert len(stage.board.state["timelines"]) == 2
    stage.at += 30
    stage.cluster.nodes.remove(("", "n1"))
    stage.cluster.nodes.put(kept("n2", annotations={}, unschedulable=False, taints=(), resource_version="2"))
    stage.frame()
    (ended,) = stage.board.state["history"]
    assert (ended["name"], ended["since"], ended["deadline"]) == ("n1", format_time(NOW - 100), format_time(NOW + 50))
    assert [each["step"] for each in ended["steps"]] == ["drain"]
    assert stage.board.state["timelines"] == {}


async def test_a_node_that_was_terminated_between_two_frames_is_in_the_history() -> None:
    stage = BoardStage()
    stage.frame()
    stage.cluster.nodes.put(going("n1", since=100))
    stage.cluster.nodes.remove(("", "n1"))
    stage.frame()
    assert [each["name"] for each in stage.board.state["history"]] == ["n1"]


async def test_what_is_kept_of_a_pod_that_changes_for_ever_is_bounded() -> None:
    stage = BoardStage()
    stage.cluster.nodes.put(going())
    stage.cluster.pods.put(replica())
    for number in range(50):
        stage.cluster.budgets.put(a_budget(resource_version=str(number), disruptions_allowed=number % 2))
        stage.at += 1
        stage.frame()
    spans = timeline(stage)["pods"]["uid-web-1"]
    assert len(spans) == MOST_SPANS
    assert spans[-1]["to"] is None


async def test_the_history_and_the_terminated_nodes_are_bounded() -> None:
    stage = BoardStage()
    for number in range(150):
        stage.cluster.nodes.put(going(f"n{number}"))
        stage.frame()
        stage.at += 1
        stage.cluster.nodes.remove(("", f"n{number}"))
        stage.frame()
    assert [each["name"] for each in stage.board.state["history"]] == [f"n{number}" for number in range(50, 150)]
    assert stage.board.state["timelines"] == {}
