"""plan(): for every pod of a node one outcome and its reason, and the instant at which to look again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import NOW, a_budget, a_node, a_pod, owned_by

from gracectl.model import names
from gracectl.model.pod import Pod, Toleration
from gracectl.model.volume import VolumeAttachment
from gracectl.policy.explain import brief, explain, left_behind
from gracectl.policy.plan import NodeView, Outcome, Plan, PodPlan, plan
from gracectl.policy.settings import PolicySettings
from gracectl.policy.waves import by_priority

DAEMON = owned_by("DaemonSet")


def view(*pods: Pod, budgets: dict[str, Any] | None = None, **fields: Any) -> NodeView:
    return NodeView(node=a_node(), pods=pods, budgets=budgets or {}, **{"cordoned_at": NOW - 60, **fields})


def decide(*pods: Pod, **fields: Any) -> Plan:
    return plan(view(*pods, **fields), NOW)


def outcomes(decision: Plan) -> dict[str, Outcome]:
    return {entry.pod.name: entry.outcome for entry in decision.pods}


def reason(decision: Plan, name: str) -> str:
    return next(entry.reason for entry in decision.pods if entry.pod.name == name)


def tolerating(
    operator: str, value: str = "", effect: str = "", key: str = names.DISRUPTED_TAINT_KEY
) -> dict[str, Any]:
    return {"tolerations": (Toleration(key, operator, value, effect),)}


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({}, Outcome.EVICT),
        ({"owners": ()}, Outcome.EVICT),
        ({"phase": "Pending", "ready": False}, Outcome.EVICT),
        ({"phase": "Succeeded"}, Outcome.IGNORED),
        ({"phase": "Failed"}, Outcome.IGNORED),
        ({"owners": owned_by("Node")}, Outcome.IGNORED),
        ({"annotations": {names.MIRROR_POD: "x"}}, Outcome.IGNORED),
        (tolerating("Exists"), Outcome.IGNORED),
        (tolerating("Exists", effect="NoSchedule"), Outcome.IGNORED),
        (tolerating("Equal"), Outcome.IGNORED),
        (tolerating("Exists", key=""), Outcome.IGNORED),
        (tolerating("Equal", value="other"), Outcome.EVICT),
        (tolerating("Exists", effect="NoExecute"), Outcome.EVICT),
        (tolerating("Exists", key="node.kubernetes.io/unschedulable"), Outcome.EVICT),
        ({"deletion_timestamp": NOW + 30}, Outcome.TERMINATING),
        ({"deletion_timestamp": NOW - 59.9}, Outcome.TERMINATING),
        ({"deletion_timestamp": NOW - 60}, Outcome.IGNORED),
        ({"deletion_timestamp": NOW + 30, **tolerating("Exists")}, Outcome.IGNORED),
        ({"annotations": {names.DO_NOT_DISRUPT: "true"}}, Outcome.PROTECTED),
        ({"annotations": {names.DO_NOT_DISRUPT: "1h1s"}}, Outcome.PROTECTED),
        ({"annotations": {names.DO_NOT_DISRUPT: "1h"}}, Outcome.EVICT),
        ({"annotations": {names.DO_NOT_DISRUPT: "nonsense"}}, Outcome.PROTECTED),
        ({"annotations": {names.DO_NOT_DISRUPT: "true"}, "phase": "Succeeded"}, Outcome.IGNORED),
        ({"annotations": {names.DO_NOT_DISRUPT: "true"}, "deletion_timestamp": NOW + 1}, Outcome.TERMINATING),
    ],
)
def test_one_pod_on_its_own(fields: dict[str, Any], outcome: Outcome) -> None:
    assert outcomes(decide(a_pod(**fields))) == {"web-1": outcome}


def test_a_wave_starts_when_the_one_before_is_gone_not_merely_asked() -> None:
    plain, agent = a_pod("plain"), a_pod("agent", owners=DAEMON)
    critical = a_pod("critical", priority_class="system-cluster-critical", priority=2_000_000_000)
    network = a_pod("network", owners=DAEMON, priority_class="system-node-critical", priority=2_000_001_000)
    everybody = {"plain": plain, "agent": agent, "critical": critical, "network": network}
    order = []
    while everybody:
        evicted = [name for name, outcome in outcomes(decide(*everybody.values())).items() if outcome is Outcome.EVICT]
        order.append(evicted)
        leaving = {name: msgspec.structs.replace(everybody[name], deletion_timestamp=NOW + 30) for name in evicted}
        assert Outcome.EVICT not in outcomes(decide(*{**everybody, **leaving}.values())).values()
        for name in evicted:
            del everybody[name]
    assert order == [["plain"], ["agent"], ["critical"], ["network"]]


def test_a_late_pod_of_an_earlier_wave_goes_first() -> None:
    decision = decide(a_pod("network", owners=DAEMON, priority=2_000_001_000), a_pod("late"))
    assert outcomes(decision) == {"late": Outcome.EVICT, "network": Outcome.WAITING}
    assert reason(decision, "network") == "waits until the non-critical pods are gone"


def test_a_protected_pod_holds_only_itself_within_its_wave() -> None:
    decision = decide(a_pod("kept", annotations={names.DO_NOT_DISRUPT: "true"}), a_pod("other"))
    assert outcomes(decision) == {"kept": Outcome.PROTECTED, "other": Outcome.EVICT}


@pytest.mark.parametrize("where", ["labels", "annotations"])
def test_do_not_evict_holds_the_whole_node(where: str) -> None:
    decision = decide(a_pod("kept", **{where: {names.DO_NOT_EVICT: "true"}}), a_pod("other"))
    assert outcomes(decision) == {"kept": Outcome.PROTECTED, "other": Outcome.WAITING}
    assert "shop/kept" in reason(decision, "other")
    assert not decision.leaving


def test_pods_under_one_budget_take_turns() -> None:
    pods = [a_pod(f"web-{n}") for n in range(3)]
    decision = decide(*pods, budgets={pod.uid: (a_budget(disruptions_allowed=2),) for pod in pods})
    assert list(outcomes(decision).values()) == [Outcome.EVICT, Outcome.EVICT, Outcome.BLOCKED]
    assert reason(decision, "web-2") == "waits for its turn under budget shop/web, which allows 2 now"
    assert [entry.budgets for entry in decision.leaving] == [(("shop", "web"),)] * 3


@pytest.mark.parametrize(
    ("pod", "budgets", "outcome", "words"),
    [
        ({}, [{"disruptions_allowed": 0, "current_healthy": 2}], "blocked", "allows no disruption now (2 of 3 healthy"),
        ({}, [{"generation": 2}], "blocked", "has just changed"),
        ({}, [{}, {"name": "also"}], "blocked", "2 budgets select it (shop/web, shop/also)"),
        ({"phase": "Pending", "ready": False}, [{}, {"name": "also"}], "evict", ""),
        ({"ready": False}, [{"disruptions_allowed": 0, "current_healthy": 2}], "evict", ""),
        ({"ready": False}, [{"disruptions_allowed": 0, "current_healthy": 1}], "blocked", "1 of 3 healthy, 2 required"),
        (
            {"ready": False},
            [{"disruptions_allowed": 0, "current_healthy": 0, "desired_healthy": 0}],
            "blocked",
            "allows no",
        ),
        (
            {"ready": False},
            [{"disruptions_allowed": 0, "current_healthy": 1, "unhealthy_pod_eviction_policy": "AlwaysAllow"}],
            "evict",
            "",
        ),
    ],
)
def test_what_a_budget_says(pod: dict[str, Any], budgets: list[dict[str, Any]], outcome: str, words: str) -> None:
    one = a_pod(**pod)
    decision = decide(one, budgets={one.uid: tuple(a_budget(**fields) for fields in budgets)})
    assert outcomes(decision) == {"web-1": outcome}
    assert words in reason(decision, "web-1")


def test_protection_is_looked_at_before_the_budget() -> None:
    one = a_pod(annotations={names.DO_NOT_DISRUPT: "true"})
    decision = decide(one, budgets={one.uid: (a_budget(disruptions_allowed=0),)})
    assert outcomes(decision) == {"web-1": Outcome.PROTECTED}
    assert not decision.leaving


def test_the_drain_ends_when_nothing_is_waited_for_but_not_before_the_minimum_time() -> None:
    static = a_pod(owners=owned_by("Node"))
    assert not decide(static, cordoned_at=None).drained
    early = decide(static, cordoned_at=NOW - 1.5)
    assert (early.drained, early.next_change) == (False, NOW + 0.5)
    assert decide(static, cordoned_at=NOW - 2).drained
    assert not decide(static, a_pod("other")).drained


def test_the_next_instant_is_the_first_one_at_which_the_clock_alone_changes_something() -> None:
    hour = a_pod("hour", annotations={names.DO_NOT_DISRUPT: "2h"})
    half = a_pod("half", annotations={names.DO_NOT_DISRUPT: "90m"})
    assert decide(hour, half).next_change == half.created + 5400
    assert decide(a_pod(deletion_timestamp=NOW + 5)).next_change == NOW + 65
    assert decide(a_pod()).next_change is None


def test_volumes_of_pods_that_stay_are_not_waited_for() -> None:
    attached = [VolumeAttachment(f"csi-{volume}", f"uid-{volume}", volume_name=volume) for volume in ("db", "logs")]
    decision = decide(attachments=tuple(attached), staying_volumes=frozenset({"logs"}))
    assert [attachment.volume_name for attachment in decision.detaching] == ["db"]


def test_an_explanation_names_the_first_three_and_a_count_blocked_ones_first() -> None:
    blocked, others = a_pod("blocked"), [a_pod(f"pod-{n}", deletion_timestamp=NOW + 30) for n in range(4)]
    decision = decide(*others, blocked, budgets={blocked.uid: (a_budget(disruptions_allowed=0, current_healthy=2),)})
    assert explain(decision).startswith(
        "5 pods left: shop/blocked (budget shop/web allows no disruption now (2 of 3 healthy, 2 required)), shop/pod-0 "
    )
    assert explain(decision).endswith(", and 2 more")
    assert explain(decide()) == "all pods are gone"


def test_a_brief_line_begins_with_the_reason_of_the_most_urgent_pod() -> None:
    blocked, other = a_pod("blocked"), a_pod("other", deletion_timestamp=NOW + 30)
    budget = a_budget(disruptions_allowed=0, current_healthy=2)
    decision = decide(other, blocked, budgets={blocked.uid: (budget,)})
    reason = "budget shop/web allows no disruption now (2 of 3 healthy, 2 required)"
    assert brief(decision) == f"{reason} – shop/blocked and 1 more"
    assert brief(decide(other)) == "terminating until 1970-01-12T13:47:10Z – shop/other"
    assert brief(decide()) == ""


# -- on a node that stays ----------------------------------------------------------------------------------------------

STAYS = "DaemonSet pod: it stays, as its node does"
CRITICAL = {"priority_class": "system-node-critical", "priority": 2_000_001_000}


@pytest.mark.parametrize(
    ("fields", "outcome", "words"),
    [
        ({}, Outcome.EVICT, ""),
        ({"owners": DAEMON}, Outcome.IGNORED, STAYS),
        ({"owners": DAEMON, **CRITICAL}, Outcome.IGNORED, STAYS),
        ({"owners": DAEMON, **tolerating("Exists", key="")}, Outcome.IGNORED, STAYS),
        ({"owners": DAEMON, "deletion_timestamp": NOW + 30}, Outcome.IGNORED, STAYS),
        ({"owners": DAEMON, "annotations": {names.DO_NOT_DISRUPT: "true"}}, Outcome.IGNORED, STAYS),
        ({"owners": DAEMON, "labels": {names.DO_NOT_EVICT: "true"}}, Outcome.IGNORED, STAYS),
        ({"owners": DAEMON, "phase": "Failed"}, Outcome.IGNORED, "finished: its phase is Failed"),
        (
            tolerating("Exists"),
            Outcome.IGNORED,
            "tolerates the taint karpenter.sh/disrupted: it stays as its node does",
        ),
        ({"owners": owned_by("Node")}, Outcome.IGNORED, "static pod: it belongs to its node"),
        ({"annotations": {names.DO_NOT_DISRUPT: "true"}}, Outcome.PROTECTED, "protected by do-not-disrupt"),
        ({"deletion_timestamp": NOW + 30}, Outcome.TERMINATING, "terminating"),
        (CRITICAL, Outcome.EVICT, ""),
    ],
)
def test_daemons_stay_on_a_node_that_stays_and_everybody_else_leaves_as_ever(
    fields: dict[str, Any], outcome: Outcome, words: str
) -> None:
    decision = decide(a_pod(**fields), is_kept=True)
    assert outcomes(decision) == {"web-1": outcome}
    assert reason(decision, "web-1") == words


def test_a_node_that_stays_is_drained_with_its_daemons_on_it() -> None:
    daemons = [a_pod("agent", owners=DAEMON), a_pod("network", owners=DAEMON, **CRITICAL)]
    decision = decide(*daemons, is_kept=True)
    assert (decision.drained, decision.next_change) == (True, None)
    assert all(each.stays for each in decision.pods)
    assert not decide(*daemons).drained


def test_daemons_of_a_node_that_stays_hold_up_no_wave() -> None:
    agent, dns = a_pod("agent", owners=DAEMON), a_pod("dns", **CRITICAL)
    assert outcomes(decide(agent, dns, is_kept=True)) == {"agent": Outcome.IGNORED, "dns": Outcome.EVICT}
    assert outcomes(decide(agent, dns)) == {"agent": Outcome.EVICT, "dns": Outcome.WAITING}


# -- with a deadline ---------------------------------------------------------------------------------------------------

D = NOW + 900


def entry(decision: Plan, name: str) -> PodPlan:
    return next(each for each in decision.pods if each.pod.name == name)


def test_whose_time_has_come_is_deleted_whatever_holds_it() -> None:
    """Over waves, protection, the pod that holds the node, and budgets; the others wait as before."""
    for grace, outcome in [
        (900, dict.fromkeys(("protected", "holder", "last", "blocked", "free"), Outcome.DELETE)),
        (
            899,
            {
                "protected": Outcome.PROTECTED,
                "holder": Outcome.PROTECTED,
                "last": Outcome.WAITING,
                "blocked": Outcome.WAITING,
                "free": Outcome.WAITING,
            },
        ),
    ]:
        blocked = a_pod("blocked", grace_seconds=grace)
        decision = decide(
            a_pod("protected", grace_seconds=grace, annotations={names.DO_NOT_DISRUPT: "true"}),
            a_pod("holder", grace_seconds=grace, labels={names.DO_NOT_EVICT: "true"}),
            a_pod("last", grace_seconds=grace, owners=DAEMON, priority=2_000_001_000),
            a_pod("free", grace_seconds=grace),
            blocked,
            budgets={blocked.uid: (a_budget(disruptions_allowed=0),)},
            deadline=D,
        )
        assert outcomes(decision) == outcome
        assert {each.delete_at for each in decision.pods} == {D - grace}
        assert decision.next_change == (D if outcome["free"] is Outcome.DELETE else NOW + 1)
        assert not decision.leaving


def test_a_pod_without_a_reason_to_stay_is_evicted_until_its_time_comes() -> None:
    assert outcomes(decide(a_pod(grace_seconds=899), deadline=D)) == {"web-1": Outcome.EVICT}
    assert outcomes(decide(a_pod(grace_seconds=900), deadline=D)) == {"web-1": Outcome.DELETE}
    assert outcomes(decide(a_pod(grace_seconds=86_400), deadline=D)) == {"web-1": Outcome.DELETE}


@pytest.mark.parametrize(
    "fields",
    [
        tolerating("Exists"),
        {"owners": owned_by("Node")},
        {"phase": "Succeeded"},
        {"phase": "Failed", "deletion_timestamp": NOW + 5, "deletion_grace_seconds": 30},
        {"deletion_timestamp": NOW - 1000, "deletion_grace_seconds": 30},
    ],
)
@pytest.mark.parametrize("deadline", [D, NOW, NOW - 60])
def test_what_is_not_waited_for_is_never_deleted(fields: dict[str, Any], deadline: float) -> None:
    decision = decide(a_pod(grace_seconds=30, **fields), deadline=deadline)
    assert outcomes(decision) == {"web-1": Outcome.IGNORED}
    assert entry(decision, "web-1").delete_at is None


def test_a_pod_that_comes_late_is_deleted_with_what_is_left() -> None:
    view_of_late = view(a_pod("late", created=D - 10), deadline=D)
    assert outcomes(plan(view_of_late, D - 9)) == {"late": Outcome.DELETE}
    assert outcomes(plan(view_of_late, D + 60)) == {"late": Outcome.DELETE}


def test_a_pod_that_terminates_beyond_the_deadline_is_told_to_be_quicker_once() -> None:
    beyond: dict[str, Any] = {"deletion_timestamp": NOW + 3590, "deletion_grace_seconds": 3600, "grace_seconds": 3600}
    decision = decide(a_pod(**beyond), deadline=D)
    assert outcomes(decision) == {"web-1": Outcome.DELETE}
    assert reason(decision, "web-1") == "terminating, its grace is cut for the deadline"
    assert decision.next_change == NOW + (900 - 10 - 1) / 2  # when a server would no longer grant what is left
    cut = decide(a_pod(**{**beyond, "deletion_timestamp": D - 10, "deletion_grace_seconds": 900}), deadline=D)
    assert outcomes(cut) == {"web-1": Outcome.TERMINATING}
    assert (entry(cut, "web-1").until, cut.next_change) == (D, D)


def test_a_pod_whose_grace_was_cut_is_not_stuck_before_the_deadline() -> None:
    """Deleted 500 s ago with an hour, now cut to the 600 s that are left, which count from the first DELETE."""
    deadline = NOW + 600
    cut: dict[str, Any] = {"deletion_timestamp": NOW - 500 + 600, "deletion_grace_seconds": 600, "grace_seconds": 3600}
    for now in (NOW, NOW + 161, deadline - 0.001):
        decision = plan(view(a_pod(**cut), deadline=deadline), now)
        assert outcomes(decision) == {"web-1": Outcome.TERMINATING}
        assert decision.next_change == deadline
    by_hand = {**cut, "deletion_timestamp": NOW - 500 + 5, "deletion_grace_seconds": 5}
    assert outcomes(decide(a_pod(**by_hand), deadline=D)) == {"web-1": Outcome.IGNORED}
    assert outcomes(plan(view(a_pod(**cut)), NOW + 161))["web-1"] is Outcome.IGNORED  # without a deadline, as ever


@pytest.mark.parametrize("now", [D, D + 0.001, D + 50])
def test_at_the_deadline_nothing_is_waited_for(now: float) -> None:
    attached = (VolumeAttachment("csi-db", "uid-db", volume_name="db"),)
    going: dict[str, Any] = {"deletion_timestamp": D, "deletion_grace_seconds": 600, "grace_seconds": 600}
    decision = plan(
        view(
            a_pod("kept", annotations={names.DO_NOT_DISRUPT: "true"}),
            a_pod("going", **going),
            a_pod("told", **{**going, "deletion_timestamp": D + 1, "deletion_grace_seconds": 1}),
            cordoned_at=None,
            attachments=attached,
            deadline=D,
        ),
        now,
    )
    assert (decision.overdue, decision.drained, decision.detaching, decision.leaving) == (True, True, (), ())
    assert outcomes(decision) == {
        "kept": Outcome.DELETE,
        "going": Outcome.DELETE,
        "told": Outcome.TERMINATING,
    }


def test_just_before_the_deadline_everything_is_waited_for() -> None:
    attached = (VolumeAttachment("csi-db", "uid-db", volume_name="db"),)
    decision = plan(view(attachments=attached, cordoned_at=D - 1, deadline=D), D - 0.001)
    assert (decision.overdue, decision.drained, decision.detaching) == (False, False, attached)
    assert decision.next_change == D  # and not the end of the minimum time, which it cuts off


def test_a_reason_says_until_when_a_pod_is_waited_for() -> None:
    protected = a_pod("job", grace_seconds=600, annotations={names.DO_NOT_DISRUPT: "2h"})
    blocked = a_pod("web")
    decision = decide(
        protected,
        blocked,
        a_pod("ending", deletion_timestamp=NOW + 30, deletion_grace_seconds=30),
        a_pod("late", grace_seconds=3600),
        budgets={blocked.uid: (a_budget(disruptions_allowed=0, current_healthy=2),)},
        deadline=D,
    )
    assert explain(decision, shown=4) == (
        "4 pods left: shop/web (budget shop/web allows no disruption now (2 of 3 healthy, 2 required); "
        "it is deleted at 1970-01-12T14:01:10Z at the latest), "
        'shop/job (protected by do-not-disrupt "2h" until 1970-01-12T14:46:40Z; '
        "it is deleted at 1970-01-12T13:51:40Z at the latest), "
        "shop/late (is deleted now for the deadline), "
        "shop/ending (terminating until 1970-01-12T13:47:10Z); the node ends by 1970-01-12T14:01:40Z"
    )
    assert brief(decision).startswith("budget shop/web allows no disruption now")


def test_what_was_left_behind_at_the_deadline_is_named() -> None:
    pods = [a_pod(f"web-{n}") for n in range(4)]
    ending = a_pod("ending", deletion_timestamp=NOW + 30)
    assert left_behind(decide(*pods, ending, deadline=NOW)) == (
        "the deadline 1970-01-12T13:46:40Z has passed with 5 pods left: "
        "shop/ending (terminating), shop/web-0 (running), shop/web-1 (running), and 2 more"
    )
    assert left_behind(decide(deadline=NOW)) == ""
    assert left_behind(decide(*pods)) == ""


PODS = st.builds(
    lambda n, phase, ready, owner, priority, deleted, value, graces: a_pod(
        f"pod-{n}",
        phase=phase,
        ready=ready,
        owners=owned_by(owner),
        priority=priority,
        deletion_timestamp=deleted,
        deletion_grace_seconds=None if deleted is None else graces[1],
        grace_seconds=graces[0],
        annotations={} if value is None else {names.DO_NOT_DISRUPT: value},
    ),
    st.integers(0, 10_000),
    st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    st.booleans(),
    st.sampled_from(["ReplicaSet", "DaemonSet", "Node"]),
    st.sampled_from([None, 0, 2_000_000_000]),
    st.sampled_from([None, None, NOW - 100, NOW - 10, NOW + 30, NOW + 100, NOW + 550]),
    st.sampled_from([None, "true", "30m", "2h", "61m", "-1h", "soon"]),
    st.sampled_from([(30, 30), (600, 600), (600, 120), (100, 1), (None, 30), (0, 0)]),
)


@given(st.lists(PODS, max_size=12, unique_by=lambda pod: pod.uid), st.integers(0, 3))
def test_whatever_the_node_holds(pods: list[Pod], allowed: int) -> None:
    """No pod is lost, at most one wave moves, nobody exceeds the budget, and a stuck plan says why."""
    budget = a_budget(disruptions_allowed=allowed)
    decision = decide(*pods, budgets={pod.uid: (budget,) for pod in pods})
    assert sorted(entry.pod.uid for entry in decision.pods) == sorted(pod.uid for pod in pods)
    assert len({entry.wave for entry in decision.leaving}) <= 1
    charged = [entry for entry in decision.pods if entry.outcome is Outcome.EVICT and entry.pod.phase == "Running"]
    assert len([entry for entry in charged if entry.pod.ready]) <= allowed
    assert decision.drained == (not decision.left)
    assert all(entry.reason for entry in decision.pods if entry.outcome is not Outcome.EVICT)
    assert decision.next_change is None or decision.next_change > NOW
    assert all(entry.pod.deletion_timestamp is None for entry in decision.leaving)


@given(
    st.lists(PODS, max_size=6, unique_by=lambda pod: pod.uid),
    st.integers(-10, 120),
    st.floats(0, 200, allow_nan=False),
)
def test_between_two_instants_that_it_names_a_plan_does_not_change(pods: list[Pod], period: int, ahead: float) -> None:
    """Only an event can change it then: so somebody who waits for it misses nothing."""

    def shape(decision: Plan) -> object:
        return [(each.pod.uid, each.outcome) for each in decision.pods], decision.drained, decision.overdue

    def at(now: float) -> Plan:
        return plan(view(*pods, cordoned_at=NOW - 1, deadline=NOW + period), now)

    decision = at(NOW)
    later = NOW + ahead
    if decision.next_change is None or later < decision.next_change:
        assert shape(at(later)) == shape(decision)


# -- priority ranges under a deadline ----------------------------------------------------------------------------------

RANGES = PolicySettings(order=by_priority([(0, 60.0), (1_000, 120.0), (100_000, 300.0)]))


def ranged(*pods: Pod, **fields: Any) -> NodeView:
    node = a_node(deletion_timestamp=NOW)
    defaults: dict[str, Any] = {"settings": RANGES, "budgets": {}, "cordoned_at": NOW - 60, "deadline": D}
    return NodeView(node=node, pods=pods, **{**defaults, **fields})


LOW, MIDDLE, HIGH = a_pod("low", priority=0), a_pod("middle", priority=1_000), a_pod("high", priority=2_000_000)


def test_every_range_has_its_own_deadline_and_each_pod_its_grace_before_that() -> None:
    decision = plan(ranged(LOW, MIDDLE, HIGH), NOW)
    assert outcomes(decision) == {"low": Outcome.EVICT, "middle": Outcome.WAITING, "high": Outcome.WAITING}
    assert reason(decision, "high") == "waits until the pods of priority below 1000 are gone"
    assert {e.pod.name: e.deadline for e in decision.pods} == {"low": D - 420, "middle": D - 300, "high": D}
    assert {e.pod.name: e.delete_at for e in decision.pods} == {"low": D - 450, "middle": D - 330, "high": D - 30}
    assert decision.next_change == D - 450


def test_no_time_is_kept_for_a_range_without_pods() -> None:
    decision = plan(ranged(LOW, HIGH), NOW)
    assert {e.pod.name: e.deadline for e in decision.pods} == {"low": D - 300, "high": D}
    static = a_pod("static", priority=2_000_000, owners=owned_by("Node"))
    assert entry(plan(ranged(LOW, static), NOW), "low").deadline == D


def test_when_the_time_of_a_range_is_over_the_next_one_waits_for_it_no_longer() -> None:
    """Its pods were killed at its deadline; who is still shown (its kubelet hangs) holds nobody up."""
    hanging = msgspec.structs.replace(LOW, deletion_timestamp=D - 125, deletion_grace_seconds=1)
    before = plan(ranged(hanging, MIDDLE), D - 120.5)
    assert outcomes(before) == {"low": Outcome.TERMINATING, "middle": Outcome.WAITING}
    assert before.next_change == D - 120
    assert outcomes(plan(ranged(hanging, MIDDLE), D - 120)) == {"low": Outcome.TERMINATING, "middle": Outcome.EVICT}


def test_what_is_left_of_a_range_at_its_deadline_is_deleted_then() -> None:
    going = msgspec.structs.replace(LOW, deletion_timestamp=D - 420, deletion_grace_seconds=30)
    assert outcomes(plan(ranged(going, HIGH, MIDDLE), D - 420.5))["low"] is Outcome.TERMINATING
    assert outcomes(plan(ranged(going, HIGH, MIDDLE), D - 420))["low"] is Outcome.DELETE


def test_a_pod_with_more_grace_than_its_range_leaves_before_its_turn_with_all_of_it() -> None:
    long = msgspec.structs.replace(HIGH, grace_seconds=600)
    assert outcomes(plan(ranged(LOW, long), D - 600.5)) == {"low": Outcome.EVICT, "high": Outcome.WAITING}
    assert outcomes(plan(ranged(LOW, long), D - 600)) == {"low": Outcome.EVICT, "high": Outcome.DELETE}


def test_a_late_pod_of_an_earlier_range_goes_first_again() -> None:
    assert outcomes(plan(ranged(MIDDLE, HIGH), NOW)) == {"middle": Outcome.EVICT, "high": Outcome.WAITING}
    assert outcomes(plan(ranged(LOW, MIDDLE, HIGH), NOW + 1)) == {
        "low": Outcome.EVICT,
        "middle": Outcome.WAITING,
        "high": Outcome.WAITING,
    }


def test_without_a_deadline_the_ranges_are_an_order_and_nothing_else() -> None:
    decision = plan(ranged(LOW, HIGH, deadline=None), NOW + 100_000)
    assert outcomes(decision) == {"low": Outcome.EVICT, "high": Outcome.WAITING}
    assert {e.deadline for e in decision.pods} == {e.delete_at for e in decision.pods} == {None}


def test_a_grace_cut_for_a_range_is_not_taken_for_one_that_somebody_else_has_cut() -> None:
    """Told 200 s instead of 500 while high pods were there; they are gone, and so its own grace would have fitted."""
    cut = a_pod("low", grace_seconds=500, deletion_timestamp=NOW + 200, deletion_grace_seconds=200)
    decision = plan(ranged(cut), NOW + 261)
    assert outcomes(decision) == {"low": Outcome.TERMINATING}
    assert entry(decision, "low").until == NOW + 400  # 200 s from the second DELETE, if that came as late as it may


# -- a pod that holds the node -----------------------------------------------------------------------------------------


def test_do_not_evict_holds_the_node_until_the_pod_is_gone_not_merely_told_to_end() -> None:
    held = {"labels": {names.DO_NOT_EVICT: "true"}}
    ending = decide(a_pod("kept", deletion_timestamp=NOW + 30, **held), a_pod("other"))
    assert outcomes(ending) == {"kept": Outcome.TERMINATING, "other": Outcome.WAITING}
    assert "shop/kept" in reason(ending, "other")
    stuck = decide(a_pod("kept", deletion_timestamp=NOW - 60, **held), a_pod("other"))
    assert outcomes(stuck) == {"kept": Outcome.IGNORED, "other": Outcome.EVICT}
    finished = decide(a_pod("kept", phase="Succeeded", **held), a_pod("other"))
    assert outcomes(finished) == {"kept": Outcome.IGNORED, "other": Outcome.EVICT}
