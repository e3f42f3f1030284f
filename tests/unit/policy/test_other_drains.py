"""Drains of other owners: what they evict and delete now, and that a plan never evicts or deletes more."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import NOW, a_node, a_pod, entry, outcomes, owned_by, reason, tolerating, view

from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.encoding import encode
from gracectl.model.machine import Machine, decode_machine
from gracectl.model.meta import Condition, OwnerReference
from gracectl.model.node import Node, Taint
from gracectl.model.pod import Pod, UnknownPod
from gracectl.model.times import format_time
from gracectl.policy.other_drains import (
    DELAY_SECONDS,
    RETRY_SECONDS,
    AutoscalerDrain,
    ClusterApiDrain,
    KarpenterDrain,
    OtherDrain,
    autoscaler_drain,
    cluster_api_drain,
    karpenter_drain,
)
from gracectl.policy.owners import DrainOwner
from gracectl.policy.plan import Blocker, Outcome, Plan
from gracectl.policy.planner import plan
from gracectl.policy.protection import protection_of
from gracectl.policy.settings import PolicySettings, ProtectionSettings

CLUSTER_CRITICAL: dict[str, Any] = {"priority_class": names.SYSTEM_CLUSTER_CRITICAL, "priority": 2_000_000_000}
DAEMON: dict[str, Any] = {"owners": owned_by("DaemonSet", group="apps")}
KARPENTER = KarpenterDrain()


def decide(
    *pods: Pod, other: OtherDrain = KARPENTER, at: float = NOW, protection: ProtectionSettings | None = None
) -> Plan:
    settings = PolicySettings(protection=protection or ProtectionSettings())
    return plan(view(*pods, cordoned_at=None, deadline=other.deadline, settings=settings, other=other), at)


# -- who drains the node -----------------------------------------------------------------------------------------------

DISRUPTED = Taint(names.DISRUPTED_TAINT_KEY, "", names.NO_SCHEDULE)
OF_KARPENTER: dict[str, Any] = {
    "labels": {names.NODE_POOL: "default"}, "deletion_timestamp": NOW, "provider_id": "kwok://n1",
    "finalizers": ("example.com/other", "karpenter.sh/termination"), "taints": (DISRUPTED,),
}  # fmt: skip


def a_claim(name: str = "c1", until: str | None = None, provider_id: str = "kwok://n1") -> NodeClaim:
    annotations = {} if until is None else {names.TERMINATION_TIMESTAMP: until}
    return NodeClaim(name=name, uid=name, provider_id=provider_id, annotations=annotations)


@pytest.mark.parametrize(("fields", "is_draining"), [
    ({}, True), ({"deletion_timestamp": None}, False), ({"finalizers": ("example.com/other",)}, False),
    ({"taints": ()}, False), ({"taints": (Taint(names.DISRUPTED_TAINT_KEY, "", names.NO_EXECUTE),)}, False),
    ({"labels": {}}, False), ({"labels": {"karpenter.k8s.aws/ec2nodeclass": "x"}}, True),
])  # fmt: skip
def test_karpenter_drains_a_deleted_node_of_its_own_with_its_finalizer_and_taint(
    fields: dict[str, Any], is_draining: bool
) -> None:
    assert (karpenter_drain(a_node(**OF_KARPENTER | fields), ()) is not None) == is_draining


LATER = format_time(NOW + 60)


@pytest.mark.parametrize(("claims", "found"), [
    ([], KarpenterDrain()), ([a_claim()], KarpenterDrain()), ([a_claim(until=LATER)], KarpenterDrain(NOW + 60)),
    # It looks for the claim by the providerID, and of several uses none.
    ([a_claim(until=LATER, provider_id="kwok://other")], KarpenterDrain()),
    ([a_claim(until=LATER), a_claim("c2")], KarpenterDrain()),
    # It fails before it drains.
    ([a_claim(until="tomorrow")], None),
])  # fmt: skip
def test_the_deadline_of_karpenter_is_the_annotation_of_the_claim(
    claims: list[NodeClaim], found: KarpenterDrain | None
) -> None:
    drain = karpenter_drain(a_node(**OF_KARPENTER), claims)
    assert drain == found if drain is None else msgspec.structs.replace(drain, claim="") == found
    annotated = a_node(**OF_KARPENTER | {"annotations": {names.TERMINATION_TIMESTAMP: LATER}})
    assert karpenter_drain(annotated, ()) == KARPENTER


# -- Karpenter: which pods ---------------------------------------------------------------------------------------------

GROUPS = [
    a_pod("web"),
    a_pod("agent", **DAEMON),
    a_pod("dns", **CLUSTER_CRITICAL),
    a_pod("cni", **CLUSTER_CRITICAL | DAEMON),
]


def test_only_the_first_group_leaves_and_the_others_name_it() -> None:
    for first, pod in enumerate(GROUPS):
        decision = decide(*GROUPS[first:])
        assert [each.pod.name for each in decision.leaving] == [pod.name]
    assert reason(decide(*GROUPS), "cni") == "waiting for the non-critical pods"


@pytest.mark.parametrize(("fields", "is_first"), [
    ({}, True), (tolerating("Exists"), False), ({"phase": "Failed"}, False), ({"owners": owned_by("Node")}, False),
    ({"annotations": {names.DO_NOT_DISRUPT: "true"}}, True), ({"annotations": {names.DO_NOT_DISRUPT: "1s"}}, True),
    ({"deletion_timestamp": NOW + 5}, True), ({"deletion_timestamp": NOW - 60.5}, True),
    ({"deletion_timestamp": NOW - 61}, False),
    # Not of ours, but of Karpenter's pods that it waits for: no Node owns it.
    ({"annotations": {names.MIRROR_POD: "x"}}, True),
])  # fmt: skip
def test_the_pods_that_karpenter_waits_for_block_the_next_group(fields: dict[str, Any], is_first: bool) -> None:
    decision = decide(a_pod("first", **fields), a_pod("dns", **CLUSTER_CRITICAL))
    assert outcomes(decision)["dns"] is (Outcome.WAITING if is_first else Outcome.EVICT)


def test_a_group_is_left_a_second_after_its_last_pod_is_stuck() -> None:
    decision = decide(a_pod("old", deletion_timestamp=NOW - 60), a_pod("dns", **CLUSTER_CRITICAL))
    assert entry(decision, "dns").blocker is Blocker.OWNER
    assert reason(decision, "dns") == "Karpenter waits for the non-critical pods"
    assert decision.next_change == entry(decision, "dns").until == NOW + 1
    assert outcomes(decide(*(each.pod for each in decision.pods), at=NOW + 1))["dns"] is Outcome.EVICT


def test_a_critical_priority_without_its_class_waits_for_both_readings() -> None:
    only_number = a_pod("number", priority=2_000_000_000)
    assert outcomes(decide(a_pod("web"), only_number)) == {"web": Outcome.EVICT, "number": Outcome.WAITING}
    assert outcomes(decide(only_number, a_pod("dns", **CLUSTER_CRITICAL)))["dns"] is Outcome.WAITING


def test_a_daemon_set_owns_without_being_the_controller() -> None:
    owned = a_pod("agent", owners=(OwnerReference("DaemonSet", "agent", "u", group="apps"),))
    assert outcomes(decide(a_pod("web"), owned))["agent"] is Outcome.WAITING


def test_an_undecodable_pod_may_be_of_the_first_group() -> None:
    unknown = UnknownPod("shop", "unknown", "u", node_name="n1", error="no `int`")
    assert outcomes(decide(unknown, a_pod("dns", **CLUSTER_CRITICAL)))["dns"] is Outcome.WAITING


@pytest.mark.parametrize(("value", "created", "started", "maximum", "until"), [
    ("2h", -3600, -1800, None, 5400),  # from the start, which is later
    ("2h", -3600, -4000, None, 3600),  # from the creation, which is later by the clock of the kubelet
    ("2h", -3600, -1800, 60, 5400),  # Karpenter knows no maximum
    ("2h", -3600, None, None, None), ("true", -3600, -1800, 60, None), ("soon", -3600, -1800, None, None),
    ("1h", -3600, -1800, None, 1800), ("30m", -3600, -1800, None, 0),
])  # fmt: skip
def test_the_stricter_reading_of_do_not_disrupt_counts(
    value: str, created: int, started: int | None, maximum: float | None, until: float | None
) -> None:
    pod = a_pod(
        created=NOW + created, started=None if started is None else NOW + started,
        annotations={names.DO_NOT_DISRUPT: value},
    )  # fmt: skip
    only = entry(decide(pod, protection=ProtectionSettings(maximum_seconds=maximum)), "web-1")
    assert only.outcome is (Outcome.EVICT if until == 0 else Outcome.PROTECTED)
    assert only.until == (None if until in (None, 0) else NOW + until)


def test_the_order_of_the_settings_does_not_count() -> None:
    of_settings = PolicySettings(order=msgspec.structs.replace(PolicySettings().order, lowest_priorities=(0, 5, 6, 7)))
    decision = plan(view(*GROUPS, cordoned_at=None, settings=of_settings, other=KARPENTER), NOW)
    assert [each.pod.name for each in decision.leaving] == ["web"]


def test_no_taint_is_asked_for_and_no_end_is_seen() -> None:
    """Both are for the owner to write."""
    decision = decide(a_pod("agent", **DAEMON))
    assert (decision.excludes_daemon_sets, decision.drained, decision.awaited) == (False, False, frozenset())
    assert not decide().drained


# -- Karpenter: by when ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fields", "at"), [
    ({}, 30), ({"annotations": {names.DO_NOT_DISRUPT: "true"}}, 30), ({"grace_seconds": 0}, 60), (CLUSTER_CRITICAL, 30),
    ({"deletion_timestamp": NOW + 60, "deletion_grace_seconds": 80}, None),  # ours would be deleted again at 60
    ({"deletion_timestamp": NOW + 90, "deletion_grace_seconds": 90, "grace_seconds": 90}, -29),
    ({"grace_seconds": None}, None), ({"grace_seconds": -1}, None),
])  # fmt: skip
def test_pods_are_deleted_a_grace_before_the_deadline(fields: dict[str, Any], at: int | None) -> None:
    only = entry(decide(a_pod(**fields), other=KarpenterDrain(NOW + 60)), "web-1")
    assert only.delete_at == (None if at is None else NOW + at)


# -- whatever a plan does, Karpenter would do too ----------------------------------------------------------------------


def waits(pod: Pod, now: float) -> bool:
    """IsWaitingEviction of Karpenter 1.15, as its source has it."""
    is_stuck = pod.deletion_timestamp is not None and now - pod.deletion_timestamp > 60
    is_of_node = any(owner.kind == "Node" and not owner.group for owner in pod.owners)
    return not (pod.phase in ("Succeeded", "Failed") or tolerates(pod) or is_stuck or is_of_node)


def tolerates(pod: Pod) -> bool:
    return any(
        each.effect in ("", "NoSchedule")
        and each.key in ("", "karpenter.sh/disrupted")
        and (each.operator == "Exists" or (each.operator in ("", "Equal") and not each.value))
        for each in pod.tolerations
    )


SECONDS = {"30m": 1800, "2h": 7200, "61m": 3660}


def is_protected(pod: Pod, now: float) -> bool:
    """IsDoNotDisruptActive."""
    value = pod.annotations.get(names.DO_NOT_DISRUPT)
    if value == "true":
        return True
    if value not in SECONDS:
        return False
    return pod.started is None or now - pod.started < SECONDS[value]


def needs_force(pod: Pod, deadline: float | None, now: float) -> bool:
    """needsForceDelete."""
    if deadline is None:
        return False
    if pod.deletion_timestamp is not None:
        return pod.deletion_timestamp > deadline
    return pod.grace_seconds is not None and now > deadline - pod.grace_seconds


def group_of(pod: Pod) -> int:
    is_daemon = any(owner.kind == "DaemonSet" and owner.group == "apps" for owner in pod.owners)
    is_critical = pod.priority_class in ("system-cluster-critical", "system-node-critical")
    return 2 * is_critical + is_daemon


def evicted_by_karpenter(pods: list[Pod], deadline: float | None, now: float, *, is_old: bool) -> set[str]:
    """The pods that a drain puts into the queue, and that the queue evicts. `is_old`: before 1.15."""
    graceful = [pod for pod in pods if waits(pod, now) and (is_old or not needs_force(pod, deadline, now))]
    first = min(map(group_of, graceful), default=0)
    return {
        pod.uid
        for pod in graceful
        if group_of(pod) == first and pod.deletion_timestamp is None and not is_protected(pod, now)
    }


def deleted_by_karpenter(pods: list[Pod], deadline: float | None, now: float) -> set[str]:
    return {pod.uid for pod in pods if waits(pod, now) and needs_force(pod, deadline, now)}


TOLERATIONS = [tolerating("Exists")["tolerations"], tolerating("Equal", "x")["tolerations"]]


def pods_of(names_of: Collection[str]) -> st.SearchStrategy[list[Pod]]:
    owners = [owned_by("ReplicaSet", group="apps"), *(owned_by("DaemonSet", group=group) for group in ("apps", "x.io"))]
    pod = st.builds(
        a_pod,
        st.sampled_from(sorted(names_of)),
        phase=st.sampled_from(["Running", "Running", "Pending", "Succeeded"]),
        owners=st.sampled_from([*owners, owned_by("Node"), owned_by("Node", group="x.io")]),
        priority=st.sampled_from([None, 0, 5, 2_000_000_000]),
        priority_class=st.sampled_from(["", "", "gold", "system-cluster-critical", "system-node-critical"]),
        tolerations=st.sampled_from([(), (), *TOLERATIONS]),
        created=st.just(NOW - 3600),
        started=st.sampled_from([None, NOW - 4000, NOW - 3590, NOW - 1800, NOW - 1]),
        annotations=st.sampled_from([{}, {}, *({names.DO_NOT_DISRUPT: each} for each in ("true", "soon", *SECONDS))]),
        grace_seconds=st.sampled_from([None, -1, 0, 1, 30, 600]),
        deletion_timestamp=st.sampled_from([None, None, None, NOW - 61, NOW - 60.5, NOW - 60, NOW + 5, NOW + 100]),
        deletion_grace_seconds=st.sampled_from([None, 1, 30, 200]),
    )  # fmt: skip
    return st.lists(pod, max_size=8, unique_by=lambda pod: pod.uid)


@given(
    pods_of("abcdefgh"),
    st.one_of(st.none(), st.integers(-100, 700)),
    st.sampled_from(["creation", "start"]),
    st.one_of(st.none(), st.integers(0, 4000)),
)
def test_whatever_a_plan_evicts_or_deletes_karpenter_would_too(
    pods: list[Pod], period: int | None, reference: Any, maximum: float | None
) -> None:
    deadline = None if period is None else NOW + period
    decision = decide(*pods, other=KarpenterDrain(deadline), protection=ProtectionSettings(reference, maximum))
    evicted = {each.pod.uid for each in decision.leaving}
    deleted = {each.pod.uid for each in decision.pods if each.outcome is Outcome.DELETE}
    at_the_next_instant = deleted_by_karpenter(pods, deadline, NOW + 0.001)
    assert deleted <= at_the_next_instant
    for is_old in (True, False):
        assert evicted <= evicted_by_karpenter(pods, deadline, NOW, is_old=is_old)
    for each in decision.pods:
        if each.delete_at is not None:
            due = max(each.delete_at, NOW) + 0.001
            assert each.pod.uid in deleted_by_karpenter([each.pod], deadline, due)


@given(pods_of("abcdefgh"), st.integers(-100, 700), st.floats(0, 200, allow_nan=False), st.booleans())
def test_between_two_instants_that_it_names_a_plan_does_not_change(
    pods: list[Pod], period: int, ahead: float, is_karpenters: bool
) -> None:
    other: OtherDrain = KarpenterDrain(NOW + period) if is_karpenters else AutoscalerDrain(tainted_at=NOW - period)

    def shape(decision: Plan) -> object:
        return [(each.pod.uid, each.outcome) for each in decision.pods], decision.overdue

    decision = decide(*pods, other=other)
    if decision.next_change is None or NOW + ahead < decision.next_change:
        assert shape(decide(*pods, other=other, at=NOW + ahead)) == shape(decision)


# -- Cluster Autoscaler ------------------------------------------------------------------------------------------------


def tainted(value: str = str(int(NOW)), effect: str = names.NO_SCHEDULE, **fields: Any) -> Node:
    return a_node(taints=(Taint("ToBeDeletedByClusterAutoscaler", value, effect),), **fields)


@pytest.mark.parametrize(("node", "found"), [
    (tainted(), AutoscalerDrain(tainted_at=NOW)), (a_node(), None), (tainted("soon"), None), (tainted(""), None),
    (tainted("9" * 400), None), (tainted(effect=names.NO_EXECUTE), None), (tainted(deletion_timestamp=NOW), None),
])  # fmt: skip
def test_cluster_autoscaler_drains_a_node_with_its_taint(node: Node, found: AutoscalerDrain | None) -> None:
    assert autoscaler_drain(node) == found


EVICTING = AutoscalerDrain(tainted_at=NOW - DELAY_SECONDS)


def test_cluster_autoscaler_evicts_from_its_delay_on_until_it_gives_up() -> None:
    pod = a_pod()
    for before, change, outcome in [
        (0.0, NOW + DELAY_SECONDS, Outcome.WAITING), (DELAY_SECONDS, NOW + RETRY_SECONDS, Outcome.EVICT),
        (DELAY_SECONDS + RETRY_SECONDS, None, Outcome.WAITING),
    ]:  # fmt: skip
        decision = decide(pod, other=AutoscalerDrain(tainted_at=NOW - before))
        assert (outcomes(decision)["web-1"], decision.next_change) == (outcome, change)


@pytest.mark.parametrize(("fields", "outcome"), [
    ({}, Outcome.EVICT), (DAEMON, Outcome.IGNORED), ({"owners": owned_by("Node")}, Outcome.IGNORED),
    ({"annotations": {names.AUTOSCALER_DAEMON_POD: "true"}}, Outcome.WAITING),
    ({"annotations": {names.DO_NOT_DISRUPT: "true"}}, Outcome.PROTECTED),
    ({"annotations": {names.DO_NOT_DISRUPT: "1h"}, "created": NOW - 3601, "started": NOW}, Outcome.EVICT),
])  # fmt: skip
def test_cluster_autoscaler_leaves_daemon_sets_and_our_protection_counts(
    fields: dict[str, Any], outcome: Outcome
) -> None:
    assert outcomes(decide(a_pod(**fields), other=EVICTING)) == {"web-1": outcome}


def test_only_the_lowest_priority_is_certainly_in_the_first_group_of_cluster_autoscaler() -> None:
    pods = [a_pod("low", priority=-1), a_pod("none"), a_pod("high", priority=10)]
    for first in range(3):
        assert [each.pod.name for each in decide(*pods[first:], other=EVICTING).leaving] == [pods[first].name]
    daemon = a_pod("daemon", priority=-9, **DAEMON)
    assert outcomes(decide(daemon, *pods, other=EVICTING))["low"] is Outcome.EVICT
    unknown = UnknownPod("shop", "unknown", "u", node_name="n1", error="no `int`")
    assert not decide(unknown, *pods, other=EVICTING).leaving


def test_there_is_no_deadline_of_cluster_autoscaler() -> None:
    assert EVICTING.owner is DrainOwner.CLUSTER_AUTOSCALER
    assert EVICTING.deadline is None
    assert not EVICTING.deletes(a_pod())
    assert protection_of(a_pod(), NOW, ProtectionSettings()) is None


# -- Cluster API -------------------------------------------------------------------------------------------------------

OF_MACHINE: dict[str, Any] = {"is_deleted": True, "is_draining": True, "node_name": "n1", "drain_ends": NOW + 60}


def a_machine(**fields: Any) -> Machine:
    return Machine("fleet", "m1", "u1", **OF_MACHINE | fields)


@pytest.mark.parametrize(("machines", "node", "is_draining"), [
    ([a_machine()], {}, True), ([], {}, False), ([a_machine(), a_machine()], {}, False),
    ([a_machine(is_deleted=False)], {}, False), ([a_machine(is_draining=False)], {}, False),
    ([a_machine(is_paused=True)], {}, False), ([a_machine(node_name="n2")], {}, False),
    ([a_machine(annotations=frozenset({names.EXCLUDE_NODE_DRAINING}))], {}, False),
    ([a_machine()], {"deletion_timestamp": NOW}, False),
    ([a_machine()], {"conditions": (Condition("Ready", "Unknown"),)}, False),
])  # fmt: skip
def test_cluster_api_drains_the_node_of_a_deleted_machine_that_is_draining(
    machines: list[Machine], node: dict[str, Any], is_draining: bool
) -> None:
    drain = cluster_api_drain(a_node(**node), machines)
    assert drain == (ClusterApiDrain(machine=("fleet", "m1"), ends=NOW + 60) if is_draining else None)


@pytest.mark.parametrize(("reason", "seconds", "is_draining", "ends"), [
    ("DrainingNode", 60, True, NOW + 60), ("DrainingNode", 0, True, None), ("DrainingNode", None, True, None),
    ("WaitingForPreDrainHook", 60, False, NOW + 60),
])  # fmt: skip
def test_a_machine_shows_its_drain(reason: str, seconds: int | None, is_draining: bool, ends: float | None) -> None:
    machine = decode_machine(encode({
        "metadata": {"namespace": "fleet", "name": "m1"},
        "spec": {"deletion": {"nodeDrainTimeoutSeconds": seconds}},
        "status": {
            "deletion": {"nodeDrainStartTime": format_time(NOW)},
            "conditions": [{"type": "Deleting", "status": "True", "reason": reason}],
        },
    }))  # fmt: skip
    assert (machine.is_draining, machine.drain_ends) == (is_draining, ends)


WITHOUT_RULES = ClusterApiDrain(machine=("fleet", "m1"), has_rules=False, ends=NOW + 60)


@pytest.mark.parametrize(("fields", "outcome"), [
    ({}, Outcome.EVICT), (DAEMON, Outcome.IGNORED), (CLUSTER_CRITICAL, Outcome.EVICT),
    ({"labels": {"cluster.x-k8s.io/drain": "skip"}}, Outcome.WAITING),
    ({"labels": {"cluster.x-k8s.io/drain": "Wait-Completed"}}, Outcome.WAITING),
    ({"annotations": {names.DO_NOT_DISRUPT: "true"}}, Outcome.PROTECTED),
])  # fmt: skip
def test_cluster_api_evicts_all_pods_without_its_label(fields: dict[str, Any], outcome: Outcome) -> None:
    assert outcomes(decide(a_pod(**fields), other=WITHOUT_RULES)) == {"web-1": outcome}


@pytest.mark.parametrize("has_rules", [None, True])
def test_with_machine_drain_rules_cluster_api_drains_alone(has_rules: bool | None) -> None:
    other = ClusterApiDrain(machine=("fleet", "m1"), has_rules=has_rules)
    assert not decide(a_pod(), other=other).leaving


def test_a_drain_of_cluster_api_times_out() -> None:
    assert decide(a_pod(), other=WITHOUT_RULES).next_change == NOW + 60
    assert not decide(a_pod(), other=WITHOUT_RULES, at=NOW + 60).leaving
