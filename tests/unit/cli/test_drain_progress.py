"""What a command says of nodes that it waits for, scene by scene, and of those that are left in the end."""

from __future__ import annotations

from typing import Any

import msgspec
from support.builders import NOW, a_node

from gracectl.cli.drain.progress import DrainProgress
from gracectl.cli.progress import progress_text
from gracectl.cli.status.follow import StatusFrame, TerminatedNode
from gracectl.inspect.leadership import Leadership, LeaderState
from gracectl.inspect.progress import Progress
from gracectl.inspect.status import NodePhase, NodeStatus
from gracectl.policy.answers import Window, total_of

A, B = a_node("a"), a_node("b")
WATCH = "gracectl status -w"
LED = Leadership(LeaderState.ACTIVE, "gracectl/gracectl", "gracectl-0", NOW)
LEADERLESS = Leadership(LeaderState.NONE, "gracectl/gracectl", "", NOW - 60)


def status_of(node: Any, state: NodePhase = NodePhase.TERMINATING, **more: Any) -> NodeStatus:
    return NodeStatus(node=node, state=state, since=NOW, **more)


def frame(*nodes: NodeStatus, terminated: tuple[TerminatedNode, ...] = (), leadership: Leadership = LED) -> StatusFrame:
    return StatusFrame(at=NOW, nodes=nodes, terminated=terminated, leadership=leadership)


def said(awaited: DrainProgress, *nodes: NodeStatus, terminated: tuple[TerminatedNode, ...] = ()) -> list[str]:
    return list(awaited.update(frame(*nodes, terminated=terminated)))


def test_each_node_that_goes_is_told_once() -> None:
    awaited = DrainProgress([A, B], NOW - 7, for_maintenance=False)
    assert awaited.expected == {"a": "uid-a", "b": "uid-b"}
    assert said(awaited, status_of(A), status_of(B)) == []
    gone = (TerminatedNode("a", "uid-a", 303.0),)
    assert said(awaited, status_of(B), terminated=gone) == ["a: terminated after 5:03"]
    assert (awaited.left, said(awaited, status_of(B), terminated=gone)) == (("b",), [])
    assert said(awaited, terminated=(*gone, TerminatedNode("b", "uid-b", None))) == ["b: terminated after 0:07"]
    assert (awaited.left, awaited.has_failed) == ((), False)


def test_of_one_that_goes_unseen_the_time_counts_from_its_deletion() -> None:
    before = a_node("a", deletion_timestamp=NOW - 60)
    gone = (TerminatedNode("a", "uid-a", None), TerminatedNode("b", "uid-b", None))
    awaited = DrainProgress([before, B], NOW - 7, for_maintenance=False)
    assert said(awaited, terminated=gone) == ["a: terminated after 1:00", "b: terminated after 0:07"]


def test_another_node_of_the_same_name_is_ignored() -> None:
    awaited = DrainProgress([A], NOW - 7, for_maintenance=False)
    other = msgspec.structs.replace(A, uid="another")
    assert awaited.has(A)
    assert not awaited.has(other)
    assert said(awaited, status_of(other, NodePhase.IDLE), terminated=(TerminatedNode("a", "another", 1.0),)) == []
    assert awaited.left == ("a",)


def test_what_is_shown_is_what_is_left() -> None:
    awaited = DrainProgress([A, B], NOW - 7, for_maintenance=False)
    whole = frame(status_of(B), terminated=(TerminatedNode("a", "uid-a", 1.0),))
    list(awaited.update(whole))
    assert awaited.rest_of(whole) == frame(status_of(B))
    kept = DrainProgress([A, B], NOW - 7, for_maintenance=True)
    whole = frame(
        status_of(A, NodePhase.MAINTENANCE, step="drained"), status_of(B, NodePhase.MAINTENANCE, step="drain")
    )
    list(kept.update(whole))
    assert kept.rest_of(whole).nodes == (status_of(B, NodePhase.MAINTENANCE, step="drain"),)


def test_nodes_that_have_not_begun_count_and_nobody_knows_how_long_they_take() -> None:
    awaited = DrainProgress([A, B], NOW - 7, for_maintenance=False)
    progress = Progress(
        nodes_done=0,
        nodes=1,
        pods_done=1,
        pods=2,
        began=NOW - 7,
        causes=(),
        total=total_of([("a", Window(NOW, NOW + 5))]),
    )
    shown = msgspec.structs.replace(frame(status_of(A)), progress=progress)
    assert awaited.rest_of(shown).progress == progress
    awaited.unrequested = {"uid-b"}
    left = awaited.rest_of(shown).progress
    assert left is not None
    assert progress_text(left, NOW) == "0 of 2 nodes, 1 of 2 pods; 0:07 elapsed, left: unknown for 1 node"


def test_a_node_that_stays_is_done_when_it_is_empty() -> None:
    awaited = DrainProgress([A], NOW - 7, for_maintenance=True)
    assert said(awaited, status_of(A, NodePhase.MAINTENANCE, step="drain")) == []
    assert "a" in awaited.left
    done = status_of(A, NodePhase.MAINTENANCE, step="drained")
    assert said(awaited, done) == ["a: drained for maintenance; to undo: gracectl uncordon a"]
    assert said(awaited, done) == []
    assert (awaited.left, awaited.has_failed) == ((), False)


STUCK = "shop/db-0 may still run: terminating, more than a minute past its grace, and the kubelet is alive"


def stuck(node: Any) -> NodeStatus:
    return status_of(node, NodePhase.MAINTENANCE, step="drain", waits_for=f"not drained: {STUCK}", stuck=STUCK)


def test_a_node_on_which_only_stuck_pods_are_left_is_not_drained() -> None:
    awaited = DrainProgress([A, B], NOW - 7, for_maintenance=True)
    assert said(awaited, stuck(A), status_of(B, NodePhase.MAINTENANCE, step="drain")) == [
        f"a: not drained: {STUCK}; the controller continues to wait for it; to undo: gracectl uncordon a"
    ]
    assert (awaited.left, awaited.has_stuck, awaited.has_failed) == (("b",), True, False)
    assert said(awaited, stuck(A), status_of(B, NodePhase.MAINTENANCE, step="drained")) == [
        "b: drained for maintenance; to undo: gracectl uncordon b"
    ]


def test_stuck_pods_are_waited_for_until_a_limit_that_was_given() -> None:
    awaited = DrainProgress([A], NOW - 7, for_maintenance=True, waits_for_stuck=True)
    assert said(awaited, stuck(A)) == [f"a: not drained yet: {STUCK}"]
    assert (said(awaited, stuck(A)), awaited.left) == ([], ("a",))
    assert f"a (not drained: {STUCK})" in awaited.unfinished("10m")
    assert said(awaited, status_of(A, NodePhase.MAINTENANCE, step="drained")) == [
        "a: drained for maintenance; to undo: gracectl uncordon a"
    ]
    assert (awaited.left, awaited.has_stuck) == ((), False)


def test_stuck_pods_are_ignored_on_request_and_named_all_the_same() -> None:
    awaited = DrainProgress([A], NOW - 7, for_maintenance=True, ignore_stuck=True, waits_for_stuck=True)
    assert said(awaited, stuck(A)) == [f"a: drained for maintenance, but {STUCK}; to undo: gracectl uncordon a"]
    assert (awaited.left, awaited.has_stuck, awaited.has_failed) == ((), False, False)


def test_a_node_that_is_given_back_before_has_failed() -> None:
    for state in (NodePhase.UNCORDONING, NodePhase.IDLE):
        awaited = DrainProgress([A], NOW - 7, for_maintenance=True)
        assert said(awaited, status_of(A, state)) == ["a: uncordoned meanwhile, before it was drained"]
        assert (awaited.left, awaited.has_failed) == ((), True)


def test_a_node_that_was_to_stay_and_is_deleted_is_watched_to_its_end() -> None:
    awaited = DrainProgress([A], NOW - 7, for_maintenance=True)
    (line,) = said(awaited, status_of(A))
    assert line == "a: deleted meanwhile; waiting for its termination"
    assert (said(awaited, status_of(A)), awaited.left) == ([], ("a",))
    assert said(awaited, terminated=(TerminatedNode("a", "uid-a", 3.0),)) == ["a: terminated after 0:03"]
    assert awaited.has_failed


def test_nodes_that_are_left_are_named_with_what_each_waits_for() -> None:
    awaited = DrainProgress([A, B], NOW - 7, for_maintenance=False)
    list(awaited.update(frame()))
    assert awaited.unfinished("10m0s") == (
        f"2 of 2 nodes are not terminated after 10m0s: a, b; the controller continues; to watch: {WATCH} a b"
    )
    list(
        awaited.update(
            frame(status_of(B, step="drain", waits_for="budget x"), terminated=(TerminatedNode("a", "uid-a", 1.0),))
        )
    )
    assert awaited.unfinished("10m0s") == (
        f"1 of 2 nodes is not terminated after 10m0s: b (budget x); the controller continues; to watch: {WATCH} b"
    )


def test_what_continues_depends_on_who_leads() -> None:
    awaited = DrainProgress([A], NOW - 7, for_maintenance=True)
    assert awaited.unfinished("5s") == (
        f"the node is not drained after 5s: a; unknown whether a controller runs and continues; to watch: {WATCH} a"
    )
    list(awaited.update(frame(status_of(A, NodePhase.MAINTENANCE, step="cordon"), leadership=LEADERLESS)))
    assert awaited.unfinished("5s") == (
        "the node is not drained after 5s: a; nothing continues until a controller leads; "
        f"see whether a controller runs: gracectl doctor; to watch: {WATCH} a"
    )
    list(awaited.update(frame(status_of(A, NodePhase.MAINTENANCE, step="drain"))))
    assert awaited.unfinished("5s") == (
        f"the node is not drained after 5s: a; the controller continues; to watch: {WATCH} a"
    )


def test_a_stopped_watch_says_what_continues() -> None:
    terminated = DrainProgress([A, B], NOW - 7, for_maintenance=False)
    list(terminated.update(frame(status_of(A), status_of(B))))
    assert terminated.unwatched() == (
        f"interrupted; the controller continues to terminate a, b; the deletion cannot be undone; to watch: {WATCH} a b"
    )
    kept = DrainProgress([A], NOW - 7, for_maintenance=True)
    list(kept.update(frame(leadership=LEADERLESS)))
    assert kept.unwatched() == (
        "interrupted; nothing continues to drain a until a controller leads; "
        "see whether a controller runs: gracectl doctor; "
        f"to watch: {WATCH} a; to undo: gracectl uncordon a"
    )
    assert DrainProgress([], NOW - 7, for_maintenance=False).unwatched() == "interrupted"
