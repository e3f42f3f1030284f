"""What the board shows of budgets, Events and the connection, and which changes it makes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import anyio
import msgspec
import pytest
from support.boards import BoardStage
from support.builders import NOW, a_budget, going, replica
from support.servers import ScriptedTransport, page, refusal

from gracectl.cli.budgets.report import BudgetUsages, budgets_report
from gracectl.cli.status.report import status_report
from gracectl.cli.ui import board
from gracectl.cli.ui.events import MOST_EVENTS, EventLog, decode_event
from gracectl.inspect.budget_status import node_budget_usages, pod_budget_usages
from gracectl.inspect.progress import ProgressTracker
from gracectl.inspect.watcher import ConnectionLoss
from gracectl.kube.client import KubeClient
from gracectl.model import names
from gracectl.model.foreign import visible
from gracectl.model.times import format_time
from gracectl.runtime.clock import LoopClock

HOSTILE = "</script><script>alert(1)</script>\u202e\x1b]8;;http://evil\x07 __proto__"


def a_stage(pods: int = 3) -> BoardStage:
    """Two nodes whose pods wait for a spent budget."""
    stage = BoardStage()
    for name in ("n1", "n2"):
        stage.cluster.nodes.put(going(name))
    stage.cluster.budgets.put(a_budget(disruptions_allowed=0))
    for number in range(pods):
        stage.cluster.pods.put(replica(f"web-{number}", node_name=f"n{number % 2 + 1}"))
    stage.frame()
    return stage


async def test_it_has_exactly_what_the_commands_print() -> None:
    stage = a_stage()
    state, settings = stage.board.state, stage.settings.termination
    expected = msgspec.to_builtins(status_report(stage.last))
    assert msgspec.json.encode(state["status"]) == msgspec.json.encode(expected)
    usages = BudgetUsages(
        at=NOW,
        nodes=node_budget_usages(stage.cluster, (), settings, NOW),
        pods=pod_budget_usages(stage.cluster, settings, NOW),
    )
    budgets = msgspec.to_builtins(budgets_report(usages))
    without_queues = [
        {name: each[name] for name in each if name not in ("queue", "queued")} for each in state["podBudgets"]
    ]
    assert msgspec.json.encode(without_queues) == msgspec.json.encode(budgets["podBudgets"])
    assert state["nodeBudgets"] == []


async def test_the_queue_of_a_budget_is_in_the_order_in_which_its_pods_go() -> None:
    stage = a_stage()
    (budget,) = stage.board.state["podBudgets"]
    pods = [pod for node in stage.board.state["status"]["nodes"] for pod in node["pods"]]
    positions = {pod["uid"]: pod["queuePosition"]["number"] for pod in pods}
    assert [positions[each["uid"]] for each in budget["queue"]] == [1, 2, 3]
    assert budget["queue"][0] == {
        "namespace": "shop", "name": "web-0", "uid": "uid-web-0", "node": "n1", "since": format_time(NOW - 100),
    }  # fmt: skip


async def test_with_many_pods_the_board_has_those_of_the_open_node_only(monkeypatch: pytest.MonkeyPatch) -> None:
    few = a_stage(pods=30)
    monkeypatch.setattr(board, "MOST_PODS", 25)
    monkeypatch.setattr(board, "MOST_NAMED", 4)
    many = a_stage(pods=30)

    state, whole = many.board.state, few.board.state
    assert (whole["withPods"], state["withPods"]) == (True, False)
    assert [(node["podsLeft"], node["pods"]) for node in state["status"]["nodes"]] == [(15, None), (15, None)]
    for uid, past in whole["timelines"].items():
        assert state["timelines"][uid] == past | {"pods": {}}
    (budget,) = state["podBudgets"]
    assert (budget["queued"], len(budget["queue"]), len(budget["blocks"])) == (30, 4, 4)
    assert budget["queue"] == whole["podBudgets"][0]["queue"][:4]

    for node in whole["status"]["nodes"]:
        found = many.board.node_pods(node["uid"])
        assert found == {
            "uid": node["uid"],
            "pods": node["pods"],
            "timeline": whole["timelines"][node["uid"]]["pods"],
        }
    assert many.board.node_pods("uid-unknown") is None

    # Enough of them are gone: all are on the board again.
    for number in range(12):
        many.cluster.pods.remove(("shop", f"web-{number}"))
    many.frame()
    assert [len(node["pods"]) for node in many.board.state["status"]["nodes"]] == [9, 9]


async def test_a_change_with_many_pods_is_about_its_node_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "MOST_PODS", 25)
    stage = a_stage(pods=40)
    stage.cluster.pods.put(replica("alone", node_name="n2", labels={"app": "alone"}))
    stage.frame()
    stage.at += 1
    stage.cluster.pods.remove(("shop", "alone"))
    stage.frame()
    changes = stage.board.ring.after(stage.board.ring.latest - 1)
    assert changes is not None
    (change,) = changes
    delta = msgspec.json.decode(change.split(b"data: ")[1])
    (node,) = delta["status"]["nodes"]["set"]
    assert (node["uid"], node["podsLeft"]) == ("uid-n2", 20)


async def test_a_node_says_when_its_deadline_deletes_the_first_pod_that_is_held() -> None:
    stage = BoardStage()
    stage.cluster.budgets.put(a_budget(disruptions_allowed=0))
    stage.cluster.nodes.put(going("n1", annotations={names.TERMINATION_TIMESTAMP: format_time(NOW + 120)}))
    stage.cluster.nodes.put(going("n2"))
    stage.cluster.pods.put(replica("web-1", node_name="n1", grace_seconds=30))
    stage.cluster.pods.put(replica("web-2", node_name="n2"))
    stage.frame()
    nodes = {node["name"]: node for node in stage.board.state["status"]["nodes"]}
    assert nodes["n1"]["firstCutAt"] == nodes["n1"]["pods"][0]["deleteAt"] is not None
    assert nodes["n2"]["firstCutAt"] is None


async def test_a_quiet_cluster_makes_no_changes() -> None:
    stage = a_stage()
    before = stage.board.ring.latest
    for _ in range(5):
        stage.at += 30
        stage.frame()
    assert stage.board.ring.latest == before


async def test_a_change_is_about_its_node_and_no_other() -> None:
    stage = a_stage(pods=40)
    stage.cluster.pods.put(replica("alone", node_name="n2", labels={"app": "alone"}))
    stage.frame()
    stage.at += 1
    stage.cluster.pods.remove(("shop", "alone"))
    stage.frame()
    changes = stage.board.ring.after(stage.board.ring.latest - 1)
    assert changes is not None
    (change,) = changes
    delta = msgspec.json.decode(change.split(b"data: ")[1])
    (node,) = delta["status"]["nodes"]["set"]
    assert (node["uid"], node["pods"]) == ("uid-n2", {"remove": ["uid-alone"]})
    assert set(delta["timelines"]["set"]) == {"uid-n2"}
    assert len(change) < 2_000


async def test_a_lost_connection_is_a_change_and_so_is_its_return() -> None:
    stage = a_stage()
    stage.frame(connection_loss=ConnectionLoss(NOW - 5, "watch pods: connection refused", NOW - 5))
    assert stage.board.state["connection"] == {
        "state": "lost", "since": format_time(NOW - 5), "error": "watch pods: connection refused",
    }  # fmt: skip
    stage.frame()
    assert stage.board.state["connection"]["state"] == "live"


async def test_before_the_cluster_is_read_it_says_so() -> None:
    stage = BoardStage()
    stage.frame(nodes=(), is_complete=False)
    assert (stage.board.state["connection"]["state"], stage.board.state["timelines"]) == ("starting", {})


async def test_while_clients_read_a_large_change_no_other_is_made() -> None:
    stage = a_stage(pods=2000)
    stage.clock.step = 0.001
    stage.cluster.pods.remove(("shop", "web-0"))
    stage.frame()
    large = stage.board.ring.latest
    stage.cluster.pods.remove(("shop", "web-1"))
    stage.frame()
    assert stage.board.ring.latest == large
    stage.clock.step = 60.0
    stage.frame()
    assert stage.board.ring.latest == large + 1


# -- progress ----------------------------------------------------------------------------------------------------------


async def test_progress_counts_runs_and_keeps_nothing_of_what_is_over() -> None:
    stage, tracker = BoardStage(), ProgressTracker(by_runs=True)
    for number in range(5):
        stage.cluster.nodes.put(going(f"n{number}"))
        stage.cluster.pods.put(replica(f"p{number}", node_name=f"n{number}"))
        stage.frame()
        running = tracker.update(stage.last.nodes, (), stage.cluster.budgets.get, NOW)
        assert running is not None
        assert (running.nodes_done, running.nodes, running.pods) == (0, 1, 1)
        stage.cluster.pods.remove(("shop", f"p{number}"))
        stage.cluster.nodes.remove(("", f"n{number}"))
        stage.frame()
        over = tracker.update((), [f"uid-n{number}"], stage.cluster.budgets.get, NOW)
        assert over is not None
        assert (over.nodes_done, over.nodes, over.pods_done, over.is_over) == (1, 1, 1, True)
    assert not tracker._pods
    assert not tracker._began


# -- Events ------------------------------------------------------------------------------------------------------------


def an_event(name: str, second: int = 0, *, kind: str = "Node", **fields: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"},
        "involvedObject": {"kind": kind, "name": "n1", "uid": "uid-n1"}, "type": "Normal", "reason": "Draining",
        "message": "5 pods left", "lastTimestamp": format_time(NOW + second), **fields,
    }  # fmt: skip


def decoded(event: dict[str, Any]) -> Any:
    return decode_event(msgspec.json.encode(event))


async def test_events_are_in_order_about_our_kinds_and_bounded() -> None:
    log = EventLog()
    log.replace([decoded(an_event(f"e{number}", number)) for number in reversed(range(MOST_EVENTS + 50))])
    log.put(decoded(an_event("deployment", kind="Deployment")))
    log.put(decoded(an_event("e60", 999, count=7)))
    log.remove(("default", "e61"))
    assert log.json is not None
    assert len(log) == len(log.json) == MOST_EVENTS
    assert [each["uid"] for each in log.json[:2]] == ["uid-e50", "uid-e51"]
    assert (log.json[-1]["uid"], log.json[-1]["count"]) == ("uid-e60", 7)
    assert "uid-e61" in [each["uid"] for each in log.json]


@pytest.mark.parametrize("fields", [
    {"message": HOSTILE, "reason": HOSTILE, "type": HOSTILE},
    {"message": None, "reason": None, "type": None, "lastTimestamp": None, "involvedObject": {"kind": "Pod"}},
    {"involvedObject": {"kind": "Node", "name": HOSTILE, "namespace": HOSTILE, "uid": "__proto__"}},
])  # fmt: skip
async def test_a_hostile_event_is_data(fields: dict[str, Any]) -> None:
    stage = BoardStage()
    stage.board.events.put(decoded(an_event("e") | fields))
    stage.frame()
    (shown,) = msgspec.json.decode(stage.board.encode(stage.board.state, "x-1"))["events"]
    message = fields.get("message", "5 pods left")
    assert shown["message"] == (message and visible(message))
    assert_visible(shown)


def assert_visible(value: object) -> None:
    """Nothing in the values, which a page or a terminal shows, hides or reorders text."""
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202e]", " ".join(texts_of(value)))


def texts_of(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in (*value, *value.values()):
            yield from texts_of(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts_of(each)


async def test_events_of_a_megabyte_make_a_small_snapshot() -> None:
    stage = BoardStage()
    before = len(stage.board.encode(stage.board.state, "x-1"))
    large = "\U000e0041" * 250_000  # a megabyte; escaped, each is ten characters
    about = {"kind": "Node", "name": large, "namespace": large, "uid": large}
    for number in range(40):
        event = an_event(f"e{number}", message=large, reason=large, type=large, involvedObject=about)
        stage.board.events.put(decoded(event))
    stage.frame()
    assert len(stage.board.encode(stage.board.state, "x-1")) - before < 40 * 4_000


async def test_changes_are_as_visible_as_snapshots() -> None:
    stage = BoardStage()
    stage.frame()
    stage.cluster.nodes.put(going("n1"))
    stage.cluster.pods.put(replica(HOSTILE, node_name="n1", uid=HOSTILE))
    stage.board.events.put(decoded(an_event("e", message=HOSTILE)))
    stage.frame(connection_loss=ConnectionLoss(NOW - 5, HOSTILE, NOW - 5))
    changes = stage.board.ring.after(0)
    assert changes
    for change in changes:
        delta = msgspec.json.decode(change.split(b"data: ")[1])
        assert_visible(delta)
    assert visible(HOSTILE) in set(texts_of(delta))


async def test_names_that_are_no_names_arrive_as_visible_text() -> None:
    stage = BoardStage()
    stage.cluster.nodes.put(going(HOSTILE))
    stage.cluster.pods.put(replica(HOSTILE, node_name=HOSTILE, uid="__proto__"))
    stage.frame()
    stage.cluster.pods.put(replica("constructor", node_name=HOSTILE, uid="constructor"))
    stage.frame()
    whole = msgspec.json.decode(stage.board.encode(stage.board.state, "x-1"))
    (node,) = whole["status"]["nodes"]
    assert node["name"] == visible(HOSTILE)
    assert {pod["uid"] for pod in node["pods"]} == {"__proto__", "constructor"}


async def test_without_the_right_to_events_there_are_none_and_all_else_goes_on() -> None:
    clock, log = LoopClock(), EventLog()
    transport = ScriptedTransport(clock)
    transport.answers.append(refusal(403, "Forbidden"))
    with anyio.fail_after(100):
        await log.follow(KubeClient(transport, clock), clock)
    assert log.json is None


async def test_events_are_asked_for_by_their_reporter() -> None:
    clock, log = LoopClock(), EventLog()
    transport = ScriptedTransport(clock)
    transport.answers.append(page(7, an_event("e")))
    async with anyio.create_task_group() as group:
        group.start_soon(log.follow, KubeClient(transport, clock), clock)
        await clock.sleep(1)
        group.cancel_scope.cancel()
    assert dict(transport.asked[0][1].query)["fieldSelector"] == "reportingComponent=gracectl"
    assert [each["uid"] for each in log.json or ()] == ["uid-e"]


@pytest.mark.parametrize(("pages", "read", "is_cut"), [(1, 1, False), (20, 20, False), (500, 20, True)])
async def test_a_long_list_of_events_is_read_in_part(pages: int, read: int, is_cut: bool) -> None:
    """A client that may create Events makes as many as it likes in gracectl's name."""
    clock, log = LoopClock(), EventLog()
    transport = ScriptedTransport(clock)
    for number in range(pages):
        token = "" if number == pages - 1 else f"t{number}"
        transport.answers.append(page(7, an_event(f"e{number}", number), token=token))
    async with anyio.create_task_group() as group:
        group.start_soon(log.follow, KubeClient(transport, clock), clock)
        await clock.sleep(1)
        group.cancel_scope.cancel()
    assert (len(log), log.is_cut) == (read, is_cut)
    asked = [request for _, request in transport.asked if ("watch", "1") not in request.query]
    assert len(asked) <= read + 1  # one is read ahead
