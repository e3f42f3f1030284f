"""Deltas: a page that applies them has the server's state, and the clock alone causes none."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.boards import applied

from gracectl.cli.ui.board import merged

examples = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
uids = st.sampled_from(["a", "b", "c", "7", "__proto__"])
leaves = st.none() | st.integers(0, 2) | st.sampled_from(["x", "y"])
numbers = st.floats(0, 100, allow_nan=False)


def keyed(entries: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    pairs = st.dictionaries(uids, entries, max_size=4).flatmap(lambda found: st.permutations(list(found.items())))
    return pairs.map(lambda found: [{"uid": uid} | entry for uid, entry in found])


pods = st.fixed_dictionaries(
    {"name": leaves, "until": leaves, "message": st.sampled_from(["in 0:01", "in 0:02"]), "sinceSeconds": numbers}
)
nodes = st.fixed_dictionaries({"name": leaves, "sinceSeconds": numbers, "pods": st.none() | keyed(pods)})
spans = st.lists(st.fixed_dictionaries({"state": leaves, "from": leaves, "to": leaves}), max_size=2)
timelines = st.fixed_dictionaries({"steps": spans, "pods": st.dictionaries(uids, spans, max_size=3)})
boards = st.fixed_dictionaries(
    {
        "status": st.fixed_dictionaries({"at": leaves, "cluster": st.just("c"), "nodes": keyed(nodes)}),
        "podBudgets": keyed(st.fixed_dictionaries({"allowed": leaves, "queue": keyed(st.just({"node": "n"}))})),
        "nodeDrains": st.none() | keyed(st.fixed_dictionaries({"state": leaves})),
        "nodeBudgets": st.none() | keyed(st.fixed_dictionaries({"allowed": leaves})),
        "timelines": st.dictionaries(uids, timelines, max_size=3),
        "pace": leaves,
    }
)


@examples
@given(st.lists(boards, min_size=2, max_size=4))
def test_a_snapshot_with_all_changes_is_the_next_snapshot(states: list[dict[str, Any]]) -> None:
    server: Any = states[0]
    page = json.loads(json.dumps(server))
    for new in states[1:]:
        server, delta = merged(server, new)
        page = applied(page, json.loads(json.dumps(delta)))
        assert page == json.loads(json.dumps(server))
        again, nothing = merged(server, new)
        assert not nothing
        assert again == server


@examples
@given(boards)
def test_what_is_equal_is_the_new_object_and_no_change(board: dict[str, Any]) -> None:
    new = json.loads(json.dumps(board))
    state, delta = merged(board, new)
    assert all(state[name] is value for name, value in new.items())
    assert delta == {}


def test_the_clock_alone_changes_nothing() -> None:
    pod = {"uid": "p", "until": "12:00", "message": "grace ends in 0:02", "sinceSeconds": 1.0}
    later = pod | {"message": "grace ends in 0:01", "sinceSeconds": 2.0}
    old = {"status": {"cluster": {}, "at": "1", "nodes": [{"uid": "n", "sinceSeconds": 1.0, "pods": [pod]}]}}
    new = {"status": {"cluster": {}, "at": "2", "nodes": [{"uid": "n", "sinceSeconds": 2.0, "pods": [later]}]}}
    assert merged(old, new)[1] == {}


def test_a_change_has_what_changed_and_the_clock_beside_it() -> None:
    others = [{"uid": str(number), "pods": []} for number in range(100)]
    pod = {"uid": "p", "name": "web-1", "state": "blocked", "sinceSeconds": 1.0}
    old = {"status": {"cluster": {}, "at": "1", "nodes": [*others, {"uid": "n", "since": "0", "pods": [pod]}]}}
    new_pod = pod | {"state": "terminating", "sinceSeconds": 0.0}
    new = {"status": {"cluster": {}, "at": "2", "nodes": [*others, {"uid": "n", "since": "0", "pods": [new_pod]}]}}
    change = {"uid": "p", "state": "terminating", "sinceSeconds": 0.0}
    assert merged(old, new)[1] == {"status": {"at": "2", "nodes": {"set": [{"uid": "n", "pods": {"set": [change]}}]}}}


def test_a_deadline_that_moves_is_a_change() -> None:
    old = {"uid": "n", "deadline": {"at": "1", "inSeconds": 5.0}}
    assert merged(old, {"uid": "n", "deadline": {"at": "2", "inSeconds": 4.0}})[1] == {
        "deadline": {"at": "2", "inSeconds": 4.0}
    }
