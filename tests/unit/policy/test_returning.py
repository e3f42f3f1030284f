"""Pods that were made on a node after its cordon: evicted less and less often, and named with how they came."""

from __future__ import annotations

from typing import Any

import pytest
from support.builders import NOW, a_node, a_pod, decide, entry, outcomes, owned_by, tolerating

from gracectl.model import names
from gracectl.model.node import DISRUPTED_TAINT
from gracectl.model.pod import Pod
from gracectl.policy.explain import explain
from gracectl.policy.plan import Blocker, Outcome
from gracectl.policy.returning import returned

TAINTED = a_node(taints=(DISRUPTED_TAINT,), unschedulable=True)
CORDONED = a_node(unschedulable=True)
BY_NAME = "its pods are bound to this node by name; change spec.nodeName"
UNKNOWN = "how it was bound to this node is unknown"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
OWN = "its pods are bound to this node by name, or by scheduler own\\x1b[2J against its taints"


def made(after: float, **fields: Any) -> Pod:
    """A pod of a Deployment that was made so many seconds after the cordon."""
    labels = {"app": "web", "pod-template-hash": "5c9"}
    defaults = {"owners": owned_by("ReplicaSet", "web-5c9", "apps"), "labels": labels, "created": NOW + after}
    return a_pod(**{**defaults, **fields})


@pytest.mark.parametrize(("after", "waits"), [
    (-1.0, None), (0.0, None), (0.3, 2.0), (1.0, 2.0), (2.0, 2.0), (3.0, 3.0), (16.0, 16.0), (60.0, 60.0),
    (999.0, 60.0),
])  # fmt: skip
def test_a_pod_waits_until_it_is_as_old_as_the_cordon_was_within_bounds(after: float, waits: float | None) -> None:
    came = returned(made(after), TAINTED, NOW)
    assert (None if came is None else came.until - NOW - after) == (None if waits is None else pytest.approx(waits))


@pytest.mark.parametrize("fields", [
    {"owners": ()}, {"owners": owned_by("DaemonSet")}, {"owners": owned_by("Node")},
    {"annotations": {names.MIRROR_POD: "x"}},
])  # fmt: skip
def test_a_pod_that_is_not_made_again_does_not_wait(fields: dict[str, Any]) -> None:
    assert returned(made(100.0, **fields), TAINTED, NOW) is None


def test_before_the_cordon_every_pod_is_an_old_one() -> None:
    assert returned(made(100.0), TAINTED, None) is None


@pytest.mark.parametrize(("after", "node", "fields", "cause"), [
    (10.0, TAINTED, {}, BY_NAME), (10.0, CORDONED, {}, BY_NAME), (9.9, TAINTED, {}, UNKNOWN),
    (10.0, CORDONED, tolerating("Exists", key=UNSCHEDULABLE), UNKNOWN),
    (10.0, TAINTED, tolerating("Exists", key=UNSCHEDULABLE), BY_NAME),
    (10.0, a_node(), {}, UNKNOWN),
    (10.0, TAINTED, {"scheduler": "own\x1b[2J"}, OWN),
])  # fmt: skip
def test_the_cause_is_named_where_it_is_certain(after: float, node: Any, fields: dict[str, Any], cause: str) -> None:
    came = returned(made(after, **fields), node, NOW)
    assert came is not None
    assert came.cause == cause


@pytest.mark.parametrize(("fields", "workload"), [
    ({}, "Deployment shop/web"), ({"labels": {}}, "ReplicaSet shop/web-5c9"),
    ({"owners": owned_by("StatefulSet", "db")}, "StatefulSet shop/db"),
    ({"owners": owned_by("Rollout", "x\n")}, "Rollout shop/x\\n"),
])  # fmt: skip
def test_the_workload_is_named_as_a_person_knows_it(fields: dict[str, Any], workload: str) -> None:
    came = returned(made(10.0, **fields), TAINTED, NOW)
    assert came is not None
    assert came.workload == workload


def test_a_plan_waits_names_it_first_and_wakes_when_it_is_due() -> None:
    late = made(-20.0)
    decision = decide(a_pod("old"), late, cordoned_at=NOW - 100)
    assert outcomes(decision) == {"old": Outcome.EVICT, "web-1": Outcome.WAITING}
    assert entry(decision, "web-1").blocker is Blocker.RETURNED
    assert decision.next_change == NOW + 40
    assert explain(decision).startswith("2 pods left: shop/web-1 (Deployment shop/web made it after the cordon: ")
    assert outcomes(decide(made(-60.0), cordoned_at=NOW - 200)) == {"web-1": Outcome.EVICT}


def test_the_deadline_does_not_wait() -> None:
    assert outcomes(decide(made(-1.0), cordoned_at=NOW - 100, deadline=NOW + 30)) == {"web-1": Outcome.DELETE}
