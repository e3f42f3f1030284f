"""Nodes that come get the finalizer, and nodes that go are counted: tables of both."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.server.jsonpatch import patched
from support.admission import StandInGate, a_node_object, a_review, ask, patch_of, status_in

from gracectl.admission.freeze import DELETION, FreezeWarner
from gracectl.admission.nodes import NodeDeletionValidator, NodeFinalizerInjector
from gracectl.admission.reviews import ALLOWED, InvalidReview, Undecided
from gracectl.model import names
from gracectl.model.selectors import LabelSelector, Requirement
from gracectl.nodebudgets.admitter import Refusal
from gracectl.policy.budgets import Allowance
from gracectl.policy.freeze import Freeze
from gracectl.policy.interruption import is_urgent
from gracectl.policy.owners import ManagedNodes

WORKERS = LabelSelector({}, (Requirement(names.CONTROL_PLANE_ROLE, "DoesNotExist"),))
creation = NodeFinalizerInjector(ManagedNodes(WORKERS))
REASON = "node disruption budget pool-a allows no termination now (8 of 10 available, 8 required by minAvailable 80%)"
SPENT = Refusal("pool-a", Allowance.EXHAUSTED, REASON, "wait until more of its nodes are Ready, or change the budget")


def born(**metadata: Any) -> dict[str, Any]:
    return {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1", "creationTimestamp": None, **metadata}}


@pytest.mark.parametrize(("metadata", "after"), [
    ({}, [names.FINALIZER]), ({"finalizers": None}, [names.FINALIZER]), ({"finalizers": []}, [names.FINALIZER]),
    ({"finalizers": ["a/b"]}, ["a/b", names.FINALIZER]),
    ({"name": None, "generateName": "n-"}, [names.FINALIZER]),
    ({"finalizers": [names.FINALIZER, "a/b"]}, None),
    ({"labels": {names.CONTROL_PLANE_ROLE: ""}}, None),
])  # fmt: skip
async def test_a_managed_node_has_the_finalizer_from_birth(metadata: dict[str, Any], after: list[str] | None) -> None:
    node = born(**metadata)
    answer = await ask(creation, a_review("CREATE", "nodes", node))
    assert answer.denial is None
    if after is None:
        assert patch_of(answer) is None
        return
    [operation] = patch_of(answer)
    assert operation["op"] == "add"
    made = patched(node, [operation])
    assert made["metadata"]["finalizers"] == after
    # Asked once more about what has become of it, there is nothing left to do.
    assert patch_of(await ask(creation, a_review("CREATE", "nodes", made))) is None


async def test_an_unreadable_deadline_is_warned_of_and_the_node_is_admitted() -> None:
    node = born(annotations={names.TERMINATION_TIMESTAMP: "soon"})
    answer = await ask(creation, a_review("CREATE", "nodes", node))
    assert patch_of(answer) is not None
    assert answer.warnings == (
        "annotation karpenter.sh/nodeclaim-termination-timestamp: 'soon' is no RFC 3339 time such as "
        "2026-01-01T00:00:00Z; no deadline is set",
    )


@pytest.mark.parametrize("node", [None, [], {"metadata": {"labels": 3}}])
async def test_what_is_no_node_is_no_question(node: object) -> None:
    with pytest.raises(InvalidReview, match=r"request\.object"):
        await ask(creation, a_review("CREATE", "nodes", object=node))


async def test_a_node_goes_when_its_budgets_let_it() -> None:
    gate = StandInGate()
    deletion = NodeDeletionValidator(gate, lambda: True)
    assert await ask(deletion, a_review("DELETE", "nodes", None, a_node_object())) == ALLOWED
    assert await ask(deletion, a_review("DELETE", "nodes", None, a_node_object(), dryRun=True)) == ALLOWED
    assert gate.asked == [("n1", False), ("n1", True)]


async def test_a_freeze_warns_who_deletes_a_node_and_denies_nothing() -> None:
    freeze = Freeze(0.0, "release", "jane")
    allowing, denying = (NodeDeletionValidator(StandInGate(each), lambda: True) for each in (None, SPENT))
    review = a_review("DELETE", "nodes", None, a_node_object())
    answer = await ask(FreezeWarner(allowing, lambda: freeze, DELETION), review)
    assert answer.denial is None
    assert answer.warnings == (f"frozen until 1970-01-01T00:00:00Z by jane (release): {DELETION}",)
    denied = await ask(FreezeWarner(denying, lambda: freeze, DELETION), review)
    assert denied.denial is not None
    assert denied.warnings == ()
    assert await ask(FreezeWarner(allowing, lambda: None, DELETION), review) == ALLOWED


async def test_a_node_whose_machine_goes_anyway_is_only_counted() -> None:
    gate = StandInGate()
    deletion = NodeDeletionValidator(gate, lambda: True, lambda node: is_urgent(node, 0.0, 900.0))
    interrupted = a_node_object(annotations={names.INTERRUPTION: "spot unknown aws"})
    paced = a_node_object(annotations={names.INTERRUPTION: "rebalance unknown aws"})
    for node in (interrupted, paced, a_node_object()):
        assert await ask(deletion, a_review("DELETE", "nodes", None, node)) == ALLOWED
    assert gate.forced == [True, False, False]


@pytest.mark.parametrize("node", [
    a_node_object(ready="False"), a_node_object(ready="Unknown"), a_node_object(ready=""),
    a_node_object(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=[names.FINALIZER]),
])  # fmt: skip
async def test_a_node_that_changes_no_count_is_deleted_without_a_request(node: dict[str, Any]) -> None:
    gate = StandInGate(SPENT)
    assert await ask(NodeDeletionValidator(gate, lambda: False), a_review("DELETE", "nodes", None, node)) == ALLOWED
    assert gate.asked == []


async def test_a_node_that_the_cluster_has_not_is_counted_nowhere() -> None:
    gate = StandInGate(SPENT)
    gate.has = False
    assert (
        await ask(NodeDeletionValidator(gate, lambda: True), a_review("DELETE", "nodes", None, a_node_object()))
        == ALLOWED
    )
    assert gate.asked == []


async def test_a_node_that_the_cache_lacks_is_undecided_when_the_server_was_just_read() -> None:
    gate = StandInGate()
    gate.is_asked_too_often = True
    with pytest.raises(Undecided, match="node n1: not seen yet in this state; retry in a second") as raised:
        await ask(NodeDeletionValidator(gate, lambda: True), a_review("DELETE", "nodes", None, a_node_object()))
    assert raised.value.status == 503


@pytest.mark.parametrize("name", ["n1\x1b[2J", "N1", "../pods", "n 1", "", "a" * 254, "n1\n"])
async def test_what_no_node_can_be_called_is_no_question(name: str) -> None:
    gate = StandInGate()
    with pytest.raises(InvalidReview, match=r"oldObject\.metadata\.name: is not a DNS-1123 subdomain"):
        await ask(NodeDeletionValidator(gate, lambda: True), a_review("DELETE", "nodes", None, a_node_object(name)))
    assert gate.asked == []


async def test_a_spent_budget_is_named_with_its_figures_and_what_to_do_and_no_time() -> None:
    answer = await ask(
        NodeDeletionValidator(StandInGate(SPENT), lambda: True), a_review("DELETE", "nodes", None, a_node_object())
    )
    assert status_in(answer) == {
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 429, "reason": "TooManyRequests",
        "message": f"node n1: deletion denied: {REASON}; wait until more of its nodes are Ready, or change the budget",
        "details": {
            "name": "n1", "kind": "nodes",
            "causes": [{"reason": "NodeDisruptionBudget", "message": REASON, "field": "pool-a"}],
        },
    }  # fmt: skip


async def test_a_budget_that_is_being_counted_says_when_to_come_again() -> None:
    refusal = Refusal("pool-a", Allowance.NOT_OBSERVED, "it has just changed", "try again in a moment", retry_after=1)
    answer = await ask(
        NodeDeletionValidator(StandInGate(refusal), lambda: True), a_review("DELETE", "nodes", None, a_node_object())
    )
    assert status_in(answer)["details"]["retryAfterSeconds"] == 1


async def test_of_a_collection_each_node_is_asked_about_by_the_name_that_it_has() -> None:
    gate = StandInGate(SPENT)
    answer = await ask(
        NodeDeletionValidator(gate, lambda: True), a_review("DELETE", "nodes", None, a_node_object("n7"), name="")
    )
    assert gate.asked == [("n7", False)]
    assert answer.denial is not None
    assert answer.denial.name == "n7"


async def test_before_the_first_list_the_verdict_is_unknown() -> None:
    with pytest.raises(Undecided) as caught:
        await ask(
            NodeDeletionValidator(StandInGate(), lambda: False), a_review("DELETE", "nodes", None, a_node_object())
        )
    assert caught.value.status == 503


async def test_without_the_node_the_verdict_is_unknown() -> None:
    with pytest.raises(InvalidReview, match="oldObject: missing"):
        await ask(NodeDeletionValidator(StandInGate(), lambda: True), a_review("DELETE", "nodes"))
    with pytest.raises(InvalidReview, match="oldObject is not a Node"):
        await ask(
            NodeDeletionValidator(StandInGate(), lambda: True), a_review("DELETE", "nodes", None, {"metadata": {}})
        )
