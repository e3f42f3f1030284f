"""Validation of written NodeClaims: grammar of changed fields, and deadlines that may not be loosened."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.admission import StandInGate, a_node_object, a_review, ask, status_in

from gracectl.admission.nodeclaims import NodeClaimDeletionValidator, NodeClaimValidator
from gracectl.admission.reviews import ALLOWED, InvalidReview, Undecided
from gracectl.model import names
from gracectl.model.decode import decode_node
from gracectl.model.encoding import encode
from gracectl.model.node import Node
from gracectl.nodebudgets.admitter import Refusal
from gracectl.policy.budgets import Allowance

DEADLINE = names.TERMINATION_TIMESTAMP
FIELD = f"metadata.annotations[{DEADLINE}]"
NOON, ONE = "2026-01-01T12:00:00Z", "2026-01-01T13:00:00Z"
GOING = {"deletionTimestamp": "2026-01-01T11:00:00Z"}
handler = NodeClaimValidator()


def a_claim(spec: Any = None, deadline: Any = None, **metadata: Any) -> dict[str, Any]:
    annotations = {"annotations": {DEADLINE: deadline}} if deadline is not None else {}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": "c1", "uid": "u", "creationTimestamp": None, **annotations, **metadata},
        "spec": spec or {},
    }


@pytest.mark.parametrize(("claim", "fault"), [
    (a_claim({"terminationGracePeriod": "1d"}),
     "spec.terminationGracePeriod: '1d' is no termination grace period such as 30s, 15m or 1h30m"),
    (a_claim({"terminationGracePeriod": "-5m"}),
     "spec.terminationGracePeriod: '-5m' is no termination grace period such as 30s, 15m or 1h30m"),
    (a_claim({"terminationGracePeriod": ""}),
     "spec.terminationGracePeriod: '' is no termination grace period such as 30s, 15m or 1h30m"),
    (a_claim({"terminationGracePeriod": 5}), "spec.terminationGracePeriod: Expected `str | null`, got `int`"),
    (a_claim({"expireAfter": "-1h"}), "spec.expireAfter: '-1h' is negative; set a duration such as 720h, or Never"),
    (a_claim(deadline="noon"), f"{FIELD}: 'noon' is not an RFC 3339 time such as 2026-01-01T00:00:00Z"),
    (a_claim(deadline=""), f"{FIELD}: '' is not an RFC 3339 time such as 2026-01-01T00:00:00Z"),
])  # fmt: skip
async def test_an_unreadable_value_is_refused_only_when_written(claim: dict[str, Any], fault: str) -> None:
    for operation, old in (("CREATE", None), ("UPDATE", a_claim())):
        status = status_in(await ask(handler, a_review(operation, "nodeclaims", claim, old)))
        assert (status["code"], status["reason"]) == (422, "Invalid")
        assert status["message"] == f"NodeClaim c1 is invalid: {fault}"
        [cause] = status["details"]["causes"]
        assert f"{cause['field']}: {cause['message']}" == fault
    touched = {**claim, "metadata": {**claim["metadata"], "labels": {"a": "b"}}, "status": {"nodeName": "n1"}}
    assert await ask(handler, a_review("UPDATE", "nodeclaims", touched, claim)) == ALLOWED


@pytest.mark.parametrize("fields", [{"expireAfter": "soon"}, {"terminationGracePeriod": "soon"}])
async def test_a_terminating_claim_cannot_be_given_an_unreadable_value(fields: dict[str, Any]) -> None:
    before = a_claim(deletionTimestamp="2026-01-01T00:00:00Z")
    after = a_claim(fields, deletionTimestamp="2026-01-01T00:00:00Z")
    status = status_in(await ask(handler, a_review("UPDATE", "nodeclaims", after, before)))
    [cause] = status["details"]["causes"]
    assert (status["code"], cause["field"]) == (422, f"spec.{next(iter(fields))}")


DURATIONS = st.none() | st.sampled_from(["Never", "0", "1h", "-1h", "soon", "9" * 40 + "h"]) | st.text(max_size=8)
ENDS = st.sampled_from([{}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}])


@given(st.tuples(DURATIONS, DURATIONS, ENDS), st.tuples(DURATIONS, DURATIONS, ENDS))
def test_whatever_is_written_has_an_answer(old: Any, new: Any) -> None:
    claims = [
        a_claim({"expireAfter": expiry, "terminationGracePeriod": grace}, **ends) for expiry, grace, ends in (old, new)
    ]
    anyio.run(ask, handler, a_review("UPDATE", "nodeclaims", claims[1], claims[0]))


async def test_all_faults_are_told_at_once() -> None:
    claim = a_claim({"terminationGracePeriod": "x", "expireAfter": "y"}, deadline="z")
    status = status_in(await ask(handler, a_review("CREATE", "nodeclaims", claim)))
    fields = [cause["field"] for cause in status["details"]["causes"]]
    assert fields == ["spec.terminationGracePeriod", "spec.expireAfter", FIELD]


@pytest.mark.parametrize("spec", [
    {},
    {"terminationGracePeriod": "15m", "expireAfter": "Never"},
    {"terminationGracePeriod": "1h30m", "expireAfter": "720h"},
    {"terminationGracePeriod": None, "expireAfter": None},
])  # fmt: skip
@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_what_karpenter_takes_passes(spec: dict[str, Any], version: str) -> None:
    claim = {**a_claim(spec, deadline=NOON), "apiVersion": f"karpenter.sh/{version}"}
    resource = {"group": "karpenter.sh", "version": version, "resource": "nodeclaims"}
    assert await ask(handler, a_review("CREATE", "nodeclaims", claim, resource=resource)) == ALLOWED


@pytest.mark.parametrize(("spec", "warning"), [
    ({"terminationGracePeriod": "0s"},
     "spec.terminationGracePeriod: 0s deletes all pods immediately with the claim, including protected ones"),
    ({"expireAfter": "0s"}, "spec.expireAfter: 0s expires the claim at its creation; to disable expiry, set Never"),
])  # fmt: skip
async def test_what_is_perhaps_not_meant_is_allowed_with_a_warning(spec: dict[str, Any], warning: str) -> None:
    answer = await ask(handler, a_review("CREATE", "nodeclaims", a_claim(spec)))
    assert (answer.denial, answer.warnings) == (None, (warning,))
    assert await ask(handler, a_review("UPDATE", "nodeclaims", a_claim(spec), a_claim(spec))) == ALLOWED


@pytest.mark.parametrize(("before", "after", "why"), [
    (NOON, ONE, "2026-01-01T13:00:00Z is later than 2026-01-01T12:00:00Z"),
    (NOON, None, "removed"),
    (NOON, "whenever", "'whenever' is not an RFC 3339 time"),
])  # fmt: skip
async def test_a_deadline_of_a_claim_that_ends_is_not_moved_later(before: str, after: str | None, why: str) -> None:
    old, new = a_claim(deadline=before, **GOING), a_claim(deadline=after, **GOING)
    status = status_in(await ask(handler, a_review("UPDATE", "nodeclaims", new, old)))
    remedy = "the deadline of a claim being deleted may only be moved earlier; keep its value"
    assert status["message"] == f"NodeClaim c1 is invalid: {FIELD}: {why}: {remedy}"
    assert status["details"]["causes"][0]["reason"] == "FieldValueForbidden"


@pytest.mark.parametrize(("before", "after"), [
    (ONE, NOON), (NOON, NOON), (None, NOON), ("nonsense", None), ("nonsense", ONE),
    (NOON, "2026-01-01T13:00:00+01:00"),
])  # fmt: skip
async def test_it_may_be_moved_earlier_or_set(before: str | None, after: str | None) -> None:
    old, new = a_claim(deadline=before, **GOING), a_claim(deadline=after, **GOING)
    assert await ask(handler, a_review("UPDATE", "nodeclaims", new, old)) == ALLOWED


async def test_before_the_end_a_deadline_goes_wherever_people_want_it() -> None:
    for after in (ONE, None):
        assert (
            await ask(handler, a_review("UPDATE", "nodeclaims", a_claim(deadline=after), a_claim(deadline=NOON)))
            == ALLOWED
        )


async def test_finalizers_and_other_fields_of_a_claim_that_ends_come_and_go() -> None:
    old = a_claim({"terminationGracePeriod": "bad"}, deadline=NOON, finalizers=["a/b"], **GOING)
    new = a_claim({"terminationGracePeriod": "bad"}, deadline=NOON, finalizers=[], **GOING)
    assert await ask(handler, a_review("UPDATE", "nodeclaims", new, old)) == ALLOWED


async def test_what_cannot_be_read_as_it_was_is_not_judged() -> None:
    old = a_claim({"terminationGracePeriod": 5})
    assert await ask(handler, a_review("UPDATE", "nodeclaims", a_claim({"terminationGracePeriod": 6}), old)) == ALLOWED
    with pytest.raises(InvalidReview, match="is not a NodeClaim"):
        await ask(handler, a_review("CREATE", "nodeclaims", {"metadata": {"name": 3}}, name=""))


# -- deletions ---------------------------------------------------------------------------------------------------------

REASON = "node disruption budget pool-a allows no termination now (8 of 10 available, 8 required by minAvailable 80%)"
SPENT = Refusal("pool-a", Allowance.EXHAUSTED, REASON, "wait until more of its nodes are Ready")
READY = decode_node(encode(a_node_object("n1")))
SILENT = decode_node(encode(a_node_object("n2", ready="Unknown")))


def deletion(gate: StandInGate, *nodes: Node, is_urgent: bool = False) -> NodeClaimDeletionValidator:
    return NodeClaimDeletionValidator(gate, lambda claim: nodes, lambda node: is_urgent)


async def test_a_claim_is_deleted_when_the_budgets_of_its_nodes_allow_it() -> None:
    gate = StandInGate()
    for nodes in ((READY, SILENT), (SILENT,), ()):
        assert await ask(deletion(gate, *nodes), a_review("DELETE", "nodeclaims", None, a_claim())) == ALLOWED
    assert await ask(deletion(gate, READY), a_review("DELETE", "nodeclaims", None, a_claim(), dryRun=True)) == ALLOWED
    assert gate.asked == [("n1", False), ("n1", True)]


async def test_a_claim_with_a_node_of_a_spent_budget_is_denied_with_the_name_of_both() -> None:
    handler = deletion(StandInGate(SPENT), SILENT, READY)
    assert status_in(await ask(handler, a_review("DELETE", "nodeclaims", None, a_claim()))) == {
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 429, "reason": "TooManyRequests",
        "message": f"node claim c1: deletion denied: node n1: {REASON}; wait until more of its nodes are Ready",
        "details": {
            "name": "c1", "group": "karpenter.sh", "kind": "nodeclaims",
            "causes": [{"reason": "NodeDisruptionBudget", "message": REASON, "field": "pool-a"}],
        },
    }  # fmt: skip


async def test_a_claim_with_a_machine_that_goes_anyway_is_only_counted() -> None:
    gate = StandInGate()
    handler = deletion(gate, READY, is_urgent=True)
    assert await ask(handler, a_review("DELETE", "nodeclaims", None, a_claim())) == ALLOWED
    assert gate.forced == [True]


async def test_a_claim_that_is_being_deleted_is_not_counted_again() -> None:
    gate = StandInGate(SPENT)
    assert await ask(deletion(gate, READY), a_review("DELETE", "nodeclaims", None, a_claim(**GOING))) == ALLOWED
    assert gate.asked == []


async def test_before_the_first_list_a_deletion_is_undecided() -> None:
    handler = NodeClaimDeletionValidator(StandInGate(), lambda claim: None)
    with pytest.raises(Undecided) as caught:
        await ask(handler, a_review("DELETE", "nodeclaims", None, a_claim()))
    assert caught.value.status == 503


@pytest.mark.parametrize("old", [None, {"metadata": {}}, {"metadata": {"name": "../nodes"}}])
async def test_a_deletion_of_what_is_no_claim_is_no_question(old: object) -> None:
    with pytest.raises(InvalidReview, match="oldObject"):
        await ask(deletion(StandInGate(), READY), a_review("DELETE", "nodeclaims", None, old, name=""))
