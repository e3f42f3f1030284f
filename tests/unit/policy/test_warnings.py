"""What people are told before a node ends: one world for each kind of caution, and the message in full."""

from __future__ import annotations

from typing import Any

import pytest
from support.builders import NOW, a_budget, a_pod, ending, owned_by

from gracectl.model import names
from gracectl.model.meta import Condition
from gracectl.model.pod import Pod, Toleration
from gracectl.policy.forecast import Assumptions, forecast
from gracectl.policy.settings import PolicySettings
from gracectl.policy.warnings import PlanWarning, WarningKind, by_importance, warnings_of
from gracectl.policy.waves import by_priority

OWNED = owned_by("ReplicaSet")
EVERYTHING = (Toleration(operator="Exists"),)
FOR_EVER = {"annotations": {names.DO_NOT_DISRUPT: "true"}}
RANGES = PolicySettings(order=by_priority([(0, 60.0), (1000, 300.0)]))
SPENT: dict[str, Any] = {"disruptions_allowed": 0, "current_healthy": 3, "desired_healthy": 3}


def a_replica(name: str = "web-1", **fields: Any) -> Pod:
    """A pod with a controller."""
    return a_pod(name, **{"owners": OWNED, **fields})


def cautions(*pods: Pod, **world: Any) -> tuple[PlanWarning, ...]:
    """Of a node that was deleted just now; `world` as in `ending`."""
    (prediction,) = forecast([ending("n1", *pods, **world)], NOW, Assumptions()).nodes
    return warnings_of(prediction)


def the_one(kind: WarningKind, warnings: tuple[PlanWarning, ...]) -> PlanWarning:
    (wanted,) = [caution for caution in warnings if caution.kind is kind]
    return wanted


CASES: list[tuple[WarningKind, dict[str, Any], tuple[str, ...], str]] = [
    (WarningKind.NEVER_DRAINS, {"pods": [a_replica("job", **FOR_EVER), a_replica("last", priority=2_000_000_000)]},
     ("shop/job",), "this node never drains: shop/job stays indefinitely (protected by do-not-disrupt)"),
    (WarningKind.MAY_NEVER_DRAIN,
     {"pods": [a_replica()], "budgets": (a_budget(disruptions_allowed=0, current_healthy=2),)}, ("shop/web-1",),
     "this node drains only if something changes: shop/web-1 stays until then (budget shop/web allows no disruption "
     "now (2 of 3 healthy, 2 required)), and the node has no deadline"),
    (WarningKind.OVERDUE, {"pods": [a_replica()], "deadline": -5.0}, (),
     "its deadline 1970-01-12T13:46:35Z has passed: every pod on it gets one second, and its instance is terminated "
     "immediately"),
    (WarningKind.NOT_READY, {"conditions": (Condition("Ready", "Unknown"),)}, (),
     "the node is not Ready: without its kubelet no pod stops, and the drain waits for each removed pod until a "
     "minute after its grace"),
    (WarningKind.MULTIPLE_BUDGETS,
     {"pods": [a_replica("web-1"), a_replica("web-2")], "budgets": (a_budget("also"), a_budget("web"))},
     ("shop/web-1", "shop/web-2"),
     "2 budgets select shop/web-1, shop/web-2 (shop/also, shop/web), and the eviction API refuses the eviction"),
    (WarningKind.BUDGET_NOT_COUNTED, {
         "pods": [a_replica()],
         "budgets": (
             a_budget(
                 disruptions_allowed=0,
                 verdict=Condition("DisruptionAllowed", "False", reason="SyncFailed", message="found no controller"),
             ),
         ),
     }, ("shop/web",), "budget shop/web cannot be counted and allows nothing: found no controller"),
    (WarningKind.BUDGET_ALLOWS_NOTHING, {"pods": [a_replica()], "budgets": (a_budget(**SPENT),)}, ("shop/web",),
     "budget shop/web allows no disruption even when all of its pods are healthy (3 of 3 required)"),
    (WarningKind.BUDGET_UNHEALTHY,
     {"pods": [a_replica(ready=False)], "budgets": (a_budget(disruptions_allowed=0, current_healthy=0),)},
     ("shop/web",), "budget shop/web allows no disruption: 0 of 3 pods are Ready (2 required)"),
    (WarningKind.BUDGET_VIOLATED, {"pods": [a_replica()], "budgets": (a_budget(**SPENT),), "deadline": 900.0},
     ("shop/web-1",),
     "budget shop/web may be violated for the deadline: shop/web-1 is deleted whatever the budget says"),
    (WarningKind.BUDGET_VIOLATED, {
         "pods": [a_replica("web-1"), a_replica("web-2")],
         "budgets": (a_budget(disruptions_allowed=0, current_healthy=2),), "deadline": 900.0,
     }, ("shop/web-1", "shop/web-2"),
     "budget shop/web may be violated for the deadline: shop/web-1, shop/web-2 are deleted if they have "
     "not been evicted by then"),
    (WarningKind.GRACE_SHORTENED,
     {"pods": [a_replica("a", grace_seconds=1000), a_replica("b", grace_seconds=3600)], "deadline": 900.0},
     ("shop/a", "shop/b"),
     "shop/b has 3600 s of grace, but only 900 s are left: it is deleted immediately, with shortened grace "
     "(1 more lose grace, too)"),
    (WarningKind.GRACE_SHORTENED, {
         "pods": [a_replica(deletion_timestamp=NOW + 1000, deletion_grace_seconds=3600, grace_seconds=3600)],
         "deadline": 900.0,
     }, ("shop/web-1",), "shop/web-1 is terminating, and has more grace than time: shortened to end by the deadline "
     "1970-01-12T14:01:40Z"),
    (WarningKind.PROTECTION_OVERRIDDEN, {
         "pods": [
             a_replica("a", annotations={names.DO_NOT_DISRUPT: "2h"}),
             a_replica("b", annotations={names.DO_NOT_DISRUPT: "2h"}),
         ],
         "deadline": 900.0,
     }, ("shop/a", "shop/b"),
     'shop/a, shop/b are protected by do-not-disrupt "2h" until 1970-01-12T14:46:40Z, but the deadline comes '
     "first: they are deleted at 1970-01-12T14:01:10Z"),
    (WarningKind.INVALID_PROTECTION, {"pods": [a_replica(annotations={names.DO_NOT_DISRUPT: "4 hours"})]},
     ("shop/web-1",),
     'shop/web-1 is protected by do-not-disrupt "4 hours", which is not "true" or a duration, so it never ends'),
    (WarningKind.WAVES_TOO_LONG, {"pods": [a_replica()], "deadline": 90.0, "settings": RANGES}, (),
     "its waves want 360 s together, but it has 90 s from its deletion to its deadline: each gets 25% of its period"),
    (WarningKind.OUT_OF_ORDER, {
         "pods": [a_replica("low", **FOR_EVER), a_replica("high", priority=1000, grace_seconds=600)],
         "deadline": 900.0, "settings": RANGES,
     }, ("shop/high",),
     "shop/high has 600 s of grace, but the pods of priority 1000 and above have 300 s: to have all of it, it may "
     "be deleted before its turn"),
    (WarningKind.NOT_RECREATED, {"pods": [a_pod("alone"), a_replica()]}, ("shop/alone",),
     "shop/alone has no controller: it is not recreated elsewhere"),
    (WarningKind.DATA_LOSS, {
         "pods": [
             a_replica("a", empty_dir=True), a_replica("b", empty_dir=True), a_replica("c"),
             a_replica("daemon", empty_dir=True, owners=owned_by("DaemonSet")),
             a_replica("gone", empty_dir=True, deletion_timestamp=NOW + 5, deletion_grace_seconds=30),
         ],
         "is_maintenance": True,
     }, ("shop/a", "shop/b"),
     "shop/a, shop/b have data in an emptyDir: when they leave, the data is lost"),
    (WarningKind.STUCK_PODS,
     {"pods": [a_replica("a", deletion_timestamp=NOW - 60, deletion_grace_seconds=30), a_replica("b")]}, ("shop/a",),
     "shop/a may still run: terminating, more than a minute past its grace, and the kubelet is alive"),
    (WarningKind.PODS_STAY, {
         "pods": [
             a_replica("a", tolerations=EVERYTHING),
             a_replica("b", tolerations=EVERYTHING, owners=owned_by("DaemonSet")),
             a_replica("c"), a_replica("static", annotations={names.MIRROR_POD: "x"}),
         ],
         "budgets": (a_budget(),),
     }, ("shop/a", "shop/b"),
     "2 pods with a budget or protection stay on the node: shop/a (budget shop/web), shop/b (budget shop/web); the "
     "drain does not move them: they end when the node ends"),
    (WarningKind.PODS_STAY,
     {"pods": [a_replica("a", owners=owned_by("DaemonSet"), **FOR_EVER), a_replica("b")], "is_maintenance": True},
     ("shop/a",),
     "1 pod with a budget or protection stays on the node: shop/a (protected); the drain does not move it: it ends "
     "if you stop its machine"),
    (WarningKind.NEVER_DRAINS, {"pods": [a_replica("job", **FOR_EVER)], "is_maintenance": True}, ("shop/job",),
     "this node never drains: shop/job stays indefinitely (protected by do-not-disrupt)"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "world", "objects", "message"), CASES)
def test_every_kind_says_what_happens_to_which_pod_and_why(
    kind: WarningKind, world: dict[str, Any], objects: tuple[str, ...], message: str
) -> None:
    world = {**world}
    warning = the_one(kind, cautions(*world.pop("pods", []), **world))
    assert warning == PlanWarning(kind, message, objects, warning.remedy, warning.cause)
    assert bool(warning.cause) is (kind in (WarningKind.NEVER_DRAINS, WarningKind.MAY_NEVER_DRAIN))
    assert warning.cause in message
    has_none = kind in (WarningKind.OVERDUE, WarningKind.PODS_STAY, WarningKind.DATA_LOSS, WarningKind.NOT_RECREATED)
    assert bool(warning.remedy) is not has_none


def test_every_kind_that_concerns_pods_is_in_the_table() -> None:
    of_the_node = {
        WarningKind.NOT_MANAGED, WarningKind.FINALIZER_MISSING, WarningKind.NO_CONTROLLER,
        WarningKind.NODE_BUDGET_BLOCKS, WarningKind.NODE_BUDGET_SPENT, WarningKind.MACHINE_KEEPS_RUNNING,
        WarningKind.MACHINE_SHUTS_DOWN, WarningKind.SEVERAL_CLAIMS, WarningKind.INVALID_DEADLINE,
        WarningKind.EVICTION_REFUSED, WarningKind.VOLUMES_STILL_ATTACHED, WarningKind.BUDGET_SETTLING,
            WarningKind.REPLACING,
        WarningKind.OWNER_WAITS, WarningKind.OWNER_HOLDS, WarningKind.OWNER_REPORTS,
    }  # fmt: skip
    surrounding = {
        WarningKind.LOCAL_VOLUME, WarningKind.REPLACEMENT_PENDING, WarningKind.NO_OTHER_NODE,
        WarningKind.LOCAL_TRAFFIC, WarningKind.NO_BUDGET,
    }  # fmt: skip
    assert {kind for kind, *_ in CASES} | of_the_node | surrounding == set(WarningKind)


def test_where_all_goes_well_there_is_nothing_to_say() -> None:
    assert cautions(a_replica(), budgets=(a_budget(),), deadline=900.0) == ()


def test_several_reasons_are_several_cautions_with_their_remedies() -> None:
    odd = {"annotations": {names.DO_NOT_DISRUPT: "odd"}}
    remedies = [
        caution
        for caution in cautions(a_replica("a", **FOR_EVER), a_replica("b", **FOR_EVER), a_replica("c", **odd))
        if caution.kind is WarningKind.NEVER_DRAINS
    ]
    assert [caution.objects for caution in remedies] == [("shop/a", "shop/b"), ("shop/c",)]
    assert [" pod -n shop a " in remedies[0].remedy, " pod -n shop c " in remedies[1].remedy] == [True, True]


def test_of_many_pods_the_first_three_are_named_and_all_are_listed() -> None:
    caution = the_one(WarningKind.NOT_RECREATED, cautions(*(a_pod(f"p{n}") for n in range(5))))
    assert caution.message.startswith(
        "shop/p0, shop/p1, shop/p2, and 2 more have no controller: they are not recreated"
    )
    assert len(caution.objects) == 5


@pytest.mark.parametrize("pod", [
    a_pod("static", owners=owned_by("Node")), a_pod("done", phase="Succeeded"),
    a_pod("going", deletion_timestamp=NOW + 5, deletion_grace_seconds=30),
    a_pod("kept", **FOR_EVER),
])  # fmt: skip
def test_a_pod_that_stays_or_terminates_is_not_warned_of_as_not_recreated(pod: Pod) -> None:
    assert not [caution for caution in cautions(pod) if caution.kind is WarningKind.NOT_RECREATED]


def test_of_a_terminating_node_no_disks_are_expected_back() -> None:
    assert not cautions(a_replica(empty_dir=True))


def test_a_pod_that_is_not_ready_oversteps_no_budget() -> None:
    sick = a_replica(ready=False)
    warnings = cautions(sick, budgets=(a_budget(**{**SPENT, "current_healthy": 1}),), deadline=900.0)
    assert WarningKind.BUDGET_VIOLATED not in {caution.kind for caution in warnings}


def test_what_matters_most_comes_first() -> None:
    warnings = [PlanWarning(kind, kind.value) for kind in WarningKind]
    assert by_importance(reversed(warnings)) == tuple(warnings)
    assert [kind for kind in WarningKind if kind.is_blocking] == [
        WarningKind.NOT_MANAGED, WarningKind.FINALIZER_MISSING, WarningKind.NO_CONTROLLER,
        WarningKind.OWNER_WAITS, WarningKind.NODE_BUDGET_BLOCKS, WarningKind.NEVER_DRAINS,
        WarningKind.MAY_NEVER_DRAIN, WarningKind.OVERDUE,
    ]  # fmt: skip
    kinds = [caution.kind for caution in cautions(a_pod("alone"), a_replica("kept", **FOR_EVER))]
    assert kinds == [WarningKind.NEVER_DRAINS, WarningKind.NOT_RECREATED]


def test_the_reason_is_the_one_that_keeps_it_in_the_end() -> None:
    first, last = a_replica("first", phase="Pending", ready=False), a_replica("last", priority=2_000_000_000)
    budget = a_budget(disruptions_allowed=0, current_healthy=3, desired_healthy=4, expected_pods=4)
    caution = the_one(WarningKind.NEVER_DRAINS, cautions(first, last, budgets=(budget,)))
    assert caution.objects == ("shop/last",)
    reason = "budget shop/web allows no disruption now (4 of 4 healthy, 4 required)"
    assert f"stays indefinitely ({reason})" in caution.message
