"""NodeDrains as they are read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.builders import encoded

from gracectl.model import names
from gracectl.model.bounds import OverLimit
from gracectl.model.decode import decode_node
from gracectl.model.nodedrain import (
    MOST_GATES,
    MOST_NODES,
    Action,
    Blocker,
    NodeProgress,
    NodeState,
    OnTimeout,
    OnUndrainable,
    Order,
    Scope,
    decode_node_drain,
)
from gracectl.model.selectors import LabelSelector
from gracectl.model.windows import Window

META = {"name": "a", "uid": "u", "resourceVersion": "7", "generation": 3}
TIME = "2026-01-01T00:00:00Z"
NEW_YEAR = 1_767_225_600.0


def drain(spec: dict[str, Any] | None = None, **fields: Any) -> Any:
    return decode_node_drain(
        encoded(metadata=META, spec={"action": "Drain", "nodeName": "n1"} | (spec or {}), **fields)
    )


def test_a_whole_object() -> None:
    spec = {
        "action": "Terminate",
        "nodeName": None,
        "nodeSelector": {"matchLabels": {"pool": "a"}},
        "maxConcurrent": "10%",
        "waitForReplacement": False,
        "order": "OldestFirst",
        "onUndrainable": "Skip",
        "timeout": "1h30m",
        "onTimeout": "Uncordon",
        "windows": [{"schedule": "0 22 * * *", "duration": "6h"}],
        "reason": "image",
        "paused": True,
        "ttlSecondsAfterFinished": 60,
    }
    blocker = {"kind": "PodDisruptionBudget", "namespace": "shop", "name": "web", "message": "m", "until": TIME}
    node = {"name": "n1", "uid": "u1", "state": "Draining", "since": TIME, "podsLeft": 2, "blockedBy": [blocker]}
    status = {
        "observedGeneration": 2,
        "startTime": TIME,
        "counts": {"total": 2, "done": 1},
        "nodes": [node, {"name": "n2", "state": "of tomorrow"}],
        "scope": {"inProgress": ["n1/u1"], "retried": ["n1/u1"]},
        "conditions": [{"type": names.BLOCKED, "status": "True"}],
    }
    annotations = {names.REQUESTED_BY: "ana", f"{names.GATE}backup": ""}
    found = decode_node_drain(encoded(metadata={**META, "annotations": annotations}, spec=spec, status=status))
    assert (found.reference, found.generation, found.requested_by, found.gates) == ("a/u", 3, "ana", ("backup",))
    assert (found.action, found.selector) == (Action.TERMINATE, LabelSelector({"pool": "a"}))
    assert (found.max_concurrent, found.wait_for_replacement, found.order) == ("10%", False, Order.OLDEST_FIRST)
    assert (found.on_undrainable, found.timeout, found.on_timeout) == (OnUndrainable.SKIP, 5_400, OnTimeout.UNCORDON)
    assert found.windows == (Window("0 22 * * *", "6h", "UTC"),)
    assert (found.reason, found.paused, found.ttl) == ("image", True, 60)
    assert (found.observed_generation, found.start_time, found.counts.done) == (2, NEW_YEAR, 1)
    blockers = (Blocker("PodDisruptionBudget", "shop", "web", "m", NEW_YEAR),)
    assert found.nodes == (NodeProgress("n1", "u1", NodeState.DRAINING, NEW_YEAR, 2, blockers),)
    assert found.scope == Scope(in_progress=("n1/u1",), retried=("n1/u1",))
    assert [each.type for each in found.conditions] == [names.BLOCKED]


def test_what_is_left_out_has_the_defaults_of_the_definition() -> None:
    found = drain()
    assert (found.node_names, found.selector, found.max_concurrent) == (("n1",), None, 1)
    assert (found.wait_for_replacement, found.order, found.on_undrainable) == (True, Order.BY_FORECAST, "Wait")
    assert (found.timeout, found.on_timeout, found.paused, found.ttl) == (None, OnTimeout.KEEP_CORDONED, False, None)
    assert (found.start_time, found.nodes, found.scope) == (None, (), Scope())


def test_nulls_read_as_absent() -> None:
    nothing = dict.fromkeys(("maxConcurrent", "order", "onUndrainable", "timeout", "onTimeout", "paused", "windows"))
    status = dict.fromkeys(("startTime", "counts", "nodes", "scope", "conditions"))
    assert drain(nothing, status=status) == drain()


@pytest.mark.parametrize("spec", [{"action": "Explode"}, {"action": None}, {"order": "x"}, {"timeout": "soon"}])
def test_what_cannot_be_obeyed_is_set_aside(spec: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        drain(spec)


def test_more_nodes_than_one_may_have_are_not_kept() -> None:
    many = [f"n{number}" for number in range(MOST_NODES + 1)]
    assert len(drain({"nodeNames": many[1:]}).node_names) == MOST_NODES
    with pytest.raises(OverLimit, match="use several NodeDrains"):
        drain({"nodeNames": many})
    with pytest.raises(OverLimit, match=r"status\.scope\.pending"):
        drain(status={"scope": {"pending": many}})


def test_gates_of_nodes_are_read_and_few() -> None:
    def gates(**annotations: str) -> tuple[str, ...]:
        return decode_node(encoded(metadata={"name": "n", "annotations": annotations})).gates

    assert gates(a="b") == ()
    assert gates(**{f"{names.GATE}b": "", f"{names.GATE}a": "x", "other": names.GATE}) == ("a", "b")
    assert len(gates(**{f"{names.GATE}{number}": "" for number in range(100)})) == MOST_GATES
