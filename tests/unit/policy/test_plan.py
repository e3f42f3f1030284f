"""plan(): for every pod of a node one outcome and its reason, and the instant at which to look again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import NOW, a_budget, a_node, a_pod, decide, entry, outcomes, owned_by, reason, tolerating, view

from gracectl.model import names
from gracectl.model.meta import Condition
from gracectl.model.pod import Pod, UnknownPod, VolumeAttachment
from gracectl.policy.budgets import Allowance, eviction_verdict
from gracectl.policy.explain import explain
from gracectl.policy.plan import Blocker, Outcome, Plan
from gracectl.policy.planner import plan

DAEMON = owned_by("DaemonSet")
UNCOUNTED = Condition(names.DISRUPTION_ALLOWED, names.FALSE, names.SYNC_FAILED, "no scale")


@pytest.mark.parametrize(("fields", "outcome"), [
    ({}, Outcome.EVICT), ({"owners": ()}, Outcome.EVICT),
    ({"phase": "Pending", "ready": False}, Outcome.EVICT),
    ({"phase": "Succeeded"}, Outcome.IGNORED), ({"phase": "Failed"}, Outcome.IGNORED),
    ({"owners": owned_by("Node")}, Outcome.IGNORED),
    ({"owners": owned_by("Node", group="robots.example.com")}, Outcome.EVICT),
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
])  # fmt: skip
def test_one_pod_on_its_own(fields: dict[str, Any], outcome: Outcome) -> None:
    assert outcomes(decide(a_pod(**fields))) == {"web-1": outcome}


def test_volumes_of_a_stuck_pod_are_those_of_a_pod_that_stays() -> None:
    """Its kubelet is gone, so that they cannot be detached before the instance is."""
    decision = decide(a_pod("stuck", deletion_timestamp=NOW - 60), a_pod("finished", phase="Succeeded"))
    assert {each.pod.name: each.stays for each in decision.pods} == {"stuck": True, "finished": False}


@pytest.mark.parametrize(("status", "is_gone"), [("Unknown", True), ("False", False), ("True", False)])
def test_one_stuck_pod_shows_for_all_waves_that_a_silent_kubelet_is_gone(status: str, is_gone: bool) -> None:
    node = a_node(conditions=(Condition("Ready", status),))
    stuck, going = a_pod("stuck", deletion_timestamp=NOW - 60), a_pod("going", deletion_timestamp=NOW + 25)
    decision = plan(msgspec.structs.replace(view(stuck, going, a_pod("agent", owners=DAEMON)), node=node), NOW)
    later = {"agent": Outcome.EVICT} if is_gone else {"agent": Outcome.WAITING}
    gone = Outcome.IGNORED if is_gone else Outcome.TERMINATING
    assert outcomes(decision) == {"stuck": Outcome.IGNORED, "going": gone, **later}
    assert entry(decision, "going").stays == is_gone
    early = msgspec.structs.replace(stuck, deletion_timestamp=NOW - 59.5)
    decision = plan(msgspec.structs.replace(view(early, going), node=node), NOW)
    assert set(outcomes(decision).values()) == {Outcome.TERMINATING}


def test_a_pod_that_cannot_be_decoded_holds_the_node_and_no_other_pod() -> None:
    unknown = UnknownPod("shop", "unknown", "u", node_name="node-1", error="no `int`")
    critical = a_pod("critical", priority_class="system-cluster-critical", priority=2_000_000_000)
    decision = decide(unknown, critical)
    assert outcomes(decision) == {"unknown": Outcome.WAITING, "critical": Outcome.EVICT}
    assert entry(decision, "unknown").blocker is Blocker.UNDECODABLE
    assert reason(decision, "unknown") == "cannot decide: unknown pod, its object cannot be decoded (no `int`)"
    assert explain(decision).startswith("2 pods left: shop/unknown (cannot decide")
    assert not decide(unknown).drained
    ended = decide(unknown, deadline=NOW)
    assert (ended.drained, entry(ended, "unknown").delete_at) == (True, None)


def test_a_wave_starts_when_the_one_before_is_gone_not_merely_asked() -> None:
    plain, agent = a_pod("plain"), a_pod("agent", owners=DAEMON)
    critical = a_pod("critical", priority_class="system-cluster-critical", priority=2_000_000_000)
    network = a_pod("network", owners=DAEMON, priority_class="system-node-critical", priority=2_000_001_000)
    remaining = {"plain": plain, "agent": agent, "critical": critical, "network": network}
    order = []
    while remaining:
        evicted = [name for name, outcome in outcomes(decide(*remaining.values())).items() if outcome is Outcome.EVICT]
        order.append(evicted)
        leaving = {name: msgspec.structs.replace(remaining[name], deletion_timestamp=NOW + 30) for name in evicted}
        assert Outcome.EVICT not in outcomes(decide(*{**remaining, **leaving}.values())).values()
        for name in evicted:
            del remaining[name]
    assert order == [["plain"], ["agent"], ["critical"], ["network"]]


def test_a_late_pod_of_an_earlier_wave_goes_first() -> None:
    decision = decide(a_pod("network", owners=DAEMON, priority=2_000_001_000), a_pod("late"))
    assert outcomes(decision) == {"late": Outcome.EVICT, "network": Outcome.WAITING}
    assert reason(decision, "network") == "waiting for the non-critical pods"


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


@pytest.mark.parametrize(("pod", "budgets", "outcome", "words"), [
    ({}, [{"disruptions_allowed": 0, "current_healthy": 2}], "blocked", "allows no disruption now (2 of 3 healthy"),
    ({}, [{"generation": 2}], "blocked", "has just changed"),
    ({}, [{"generation": 2, "disruptions_allowed": 0, "verdict": UNCOUNTED}], "blocked", "cannot be counted: no scale"),
    ({}, [{"generation": 2, "verdict": UNCOUNTED}], "blocked", "has just changed"),
    ({}, [{}, {"name": "also"}], "blocked", "budgets shop/web and shop/also both select it"),
    ({"phase": "Pending", "ready": False}, [{}, {"name": "also"}], "evict", ""),
    ({"ready": False}, [{"disruptions_allowed": 0, "current_healthy": 2}], "evict", ""),
    ({"ready": False}, [{"disruptions_allowed": 0, "current_healthy": 1}], "blocked", "1 of 3 healthy, 2 required"),
    ({"ready": False}, [{"disruptions_allowed": 0, "current_healthy": 0, "desired_healthy": 0}], "blocked",
     "allows no"),
    ({"ready": False},
     [{"disruptions_allowed": 0, "current_healthy": 1, "unhealthy_pod_eviction_policy": "AlwaysAllow"}], "evict", ""),
])  # fmt: skip
def test_what_a_budget_says(pod: dict[str, Any], budgets: list[dict[str, Any]], outcome: str, words: str) -> None:
    one = a_pod(**pod)
    decision = decide(one, budgets={one.uid: tuple(a_budget(**fields) for fields in budgets)})
    assert outcomes(decision) == {"web-1": outcome}
    assert words in reason(decision, "web-1")


def test_a_refused_pod_is_blocked_stays_queued_and_takes_no_disruption() -> None:
    pods = [a_pod("web-1"), a_pod("web-2")]
    budgets = {pod.uid: (a_budget(),) for pod in pods}
    refusals = {"uid-web-1": "denied by an admission webhook or policy: its operator moves it"}
    decision = decide(*pods, budgets=budgets, refusals=refusals)
    assert outcomes(decision) == {"web-1": Outcome.BLOCKED, "web-2": Outcome.EVICT}
    assert entry(decision, "web-1").blocker is Blocker.REFUSED
    assert reason(decision, "web-1") == f"eviction refused: {refusals['uid-web-1']}"
    assert len(decision.leaving) == 2
    spent = decide(*pods, budgets={pod.uid: (a_budget(disruptions_allowed=0),) for pod in pods}, refusals=refusals)
    assert {each.blocker for each in spent.pods} == {Blocker.BUDGET}
    assert outcomes(decide(a_pod(), refusals=refusals, deadline=NOW + 30)) == {"web-1": Outcome.DELETE}


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


# -- attached volumes --------------------------------------------------------------------------------------------------

TOLERANT = tolerating("Exists")
CSI = "ebs.csi.aws.com"


def attached(*volumes: str) -> tuple[VolumeAttachment, ...]:
    return tuple(VolumeAttachment(f"csi-{each}", f"uid-{each}", volume_name=each, driver=CSI) for each in volumes)


def test_volumes_of_pods_that_stay_are_not_waited_for() -> None:
    agent = a_pod("agent", claims=("logs",), **TOLERANT)
    unread = decide(agent, attachments=attached("db", "logs"))
    assert [each.volume_name for each in unread.detaching] == ["db", "logs"]
    assert unread.unread_claims == ((agent, "logs"),)
    decision = decide(agent, attachments=attached("db", "logs"), volumes={(agent.uid, "logs"): "logs"})
    assert [each.volume_name for each in decision.detaching] == ["db"]
    assert decision.unread_claims == ()
    namesake = decide(agent, attachments=attached("logs"), volumes={("another-uid", "logs"): "logs"})
    assert [each.volume_name for each in namesake.detaching] == ["logs"]


@pytest.mark.parametrize(("volume", "handle"), [
    ("vol-1", "vol-1"), ("aws://eu-central-1a/vol-1", "vol-1"),
    ("vol-1", "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/vol-1"),
    ("/subscriptions/s/disks/vol-1", "/subscriptions/s/disks/vol-1"),
])  # fmt: skip
def test_an_inline_volume_of_a_pod_that_stays_is_not_waited_for(volume: str, handle: str) -> None:
    inline = (VolumeAttachment("csi-1", "u1", volume_handle=handle), VolumeAttachment("csi-2", "u2"))
    stays, leaves = (a_pod(name, inline_volumes=(volume,), **more) for name, more in (("a", TOLERANT), ("b", {})))
    assert [each.name for each in decide(stays, attachments=inline).detaching] == ["csi-2"]
    assert [each.name for each in decide(leaves, attachments=inline).detaching] == ["csi-1", "csi-2"]


def test_no_daemon_leaves_while_a_volume_of_a_drained_pod_is_attached() -> None:
    plugin = a_pod("plugin", owners=DAEMON)
    network = a_pod("network", owners=DAEMON, priority_class="system-node-critical", priority=2_000_001_000)
    decision = decide(plugin, network, attachments=attached("v1", "v2", "v3", "v10"))
    assert outcomes(decision) == {"plugin": Outcome.WAITING, "network": Outcome.WAITING}
    assert entry(decision, "plugin").blocker is Blocker.VOLUME
    assert reason(decision, "plugin") == (
        "waiting for volumes of drained pods to detach: v1 (attachment csi-v1, driver ebs.csi.aws.com), "
        "v2 (attachment csi-v2, driver ebs.csi.aws.com), v3 (attachment csi-v3, driver ebs.csi.aws.com), and 1 more"
    )
    assert [each.name for each in entry(decision, "plugin").attachments] == ["csi-v1", "csi-v2", "csi-v3", "csi-v10"]
    assert entry(decision, "network").blocker is Blocker.WAVE
    only_critical = decide(network, attachments=attached("v1"))
    assert entry(only_critical, "network").blocker is Blocker.VOLUME
    assert outcomes(decide(plugin, network)) == {"plugin": Outcome.EVICT, "network": Outcome.WAITING}


def test_a_later_wave_with_volumes_does_not_wait_for_the_daemons_that_wait_for_its_volumes() -> None:
    plugin, dns = a_pod("plugin", owners=DAEMON), a_pod("dns", priority_class="system-cluster-critical")
    etcd = a_pod("etcd", priority_class="system-cluster-critical", claims=("data",))
    storage = a_pod("storage", owners=DAEMON, priority_class="system-node-critical", inline_volumes=("vol-1",))
    waits = decide(plugin, dns, attachments=attached("v1"))
    assert outcomes(waits) == {"plugin": Outcome.WAITING, "dns": Outcome.WAITING}
    first = decide(plugin, dns, etcd, storage, attachments=attached("v1"))
    assert outcomes(first) == {
        "plugin": Outcome.WAITING, "dns": Outcome.EVICT, "etcd": Outcome.EVICT, "storage": Outcome.WAITING,
    }  # fmt: skip
    assert {each.pod.name: each.blocker for each in first.left} == {
        "plugin": Blocker.VOLUME, "dns": None, "etcd": None, "storage": Blocker.WAVE,
    }  # fmt: skip
    assert first.awaited == {dns.uid, etcd.uid}
    # A DaemonSet pod with a volume of its own waits for none.
    assert outcomes(decide(plugin, storage, attachments=attached("v1")))["storage"] is Outcome.EVICT


def test_the_deadline_is_above_attached_volumes() -> None:
    plugin = a_pod("plugin", owners=DAEMON)
    assert outcomes(decide(plugin, attachments=attached("v1"), deadline=NOW + 31)) == {"plugin": Outcome.WAITING}
    assert outcomes(decide(plugin, attachments=attached("v1"), deadline=NOW + 30)) == {"plugin": Outcome.DELETE}


def test_without_a_kubelet_no_daemon_waits_for_volumes() -> None:
    silent = a_node(conditions=(Condition("Ready", "Unknown"),))
    stuck, plugin = a_pod("stuck", deletion_timestamp=NOW - 60), a_pod("plugin", owners=DAEMON)
    seen = msgspec.structs.replace(view(stuck, plugin, attachments=attached("v1")), node=silent)
    assert outcomes(plan(seen, NOW)) == {"stuck": Outcome.IGNORED, "plugin": Outcome.EVICT}


# -- on a node that stays ----------------------------------------------------------------------------------------------

STAYS = "DaemonSet pod: it stays, as its node does"
CRITICAL = {"priority_class": "system-node-critical", "priority": 2_000_001_000}


@pytest.mark.parametrize(("fields", "outcome", "words"), [
    ({}, Outcome.EVICT, ""), ({"owners": DAEMON}, Outcome.IGNORED, STAYS),
    ({"owners": DAEMON, **CRITICAL}, Outcome.IGNORED, STAYS),
    ({"owners": DAEMON, **tolerating("Exists", key="")}, Outcome.IGNORED, STAYS),
    ({"owners": DAEMON, "deletion_timestamp": NOW + 30}, Outcome.IGNORED, STAYS),
    ({"owners": DAEMON, "annotations": {names.DO_NOT_DISRUPT: "true"}}, Outcome.IGNORED, STAYS),
    ({"owners": DAEMON, "labels": {names.DO_NOT_EVICT: "true"}}, Outcome.IGNORED, STAYS),
    ({"owners": DAEMON, "phase": "Failed"}, Outcome.IGNORED, "finished: its phase is Failed"),
    (tolerating("Exists"), Outcome.IGNORED, "tolerates the taint karpenter.sh/disrupted: it stays as its node does"),
    ({"owners": owned_by("Node")}, Outcome.IGNORED, "static pod: it belongs to its node"),
    ({"annotations": {names.DO_NOT_DISRUPT: "true"}}, Outcome.PROTECTED, "protected by do-not-disrupt"),
    ({"deletion_timestamp": NOW + 30}, Outcome.TERMINATING, "terminating"),
    (CRITICAL, Outcome.EVICT, ""),
])  # fmt: skip
def test_daemons_stay_on_a_node_in_maintenance(fields: dict[str, Any], outcome: Outcome, words: str) -> None:
    decision = decide(a_pod(**fields), is_maintenance=True)
    assert outcomes(decision) == {"web-1": outcome}
    assert reason(decision, "web-1") == words


def test_a_node_that_stays_is_drained_with_its_daemons_on_it() -> None:
    daemons = [a_pod("agent", owners=DAEMON), a_pod("network", owners=DAEMON, **CRITICAL)]
    decision = decide(*daemons, is_maintenance=True)
    assert (decision.drained, decision.next_change) == (True, None)
    assert all(each.stays for each in decision.pods)
    assert not decide(*daemons).drained


def test_daemons_of_a_node_that_stays_hold_up_no_wave() -> None:
    agent, dns = a_pod("agent", owners=DAEMON), a_pod("dns", **CRITICAL)
    assert outcomes(decide(agent, dns, is_maintenance=True)) == {"agent": Outcome.IGNORED, "dns": Outcome.EVICT}
    assert outcomes(decide(agent, dns)) == {"agent": Outcome.EVICT, "dns": Outcome.WAITING}


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


# -- whatever it is given ----------------------------------------------------------------------------------------------

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
    """No pod is lost, at most one wave moves, the budget is not exceeded, and a stuck plan says why."""
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
    st.lists(st.tuples(st.sampled_from(["Pending", "Running"]), st.booleans(), st.integers(0, 4)), max_size=12),
    st.integers(0, 2),
)
def test_each_pod_under_budgets_has_the_verdict_for_its_turn(drawn: list[tuple[str, bool, int]], allowed: int) -> None:
    web, api = a_budget(disruptions_allowed=allowed), a_budget("api", disruptions_allowed=0, current_healthy=0)
    under = [(), (web,), (api,), (web, api), (web,)]
    pods = [a_pod(f"p{number:02}", phase=phase, ready=ready) for number, (phase, ready, _) in enumerate(drawn)]
    budgets = {pod.uid: under[choice] for pod, (*_, choice) in zip(pods, drawn, strict=True)}
    taken: Counter[str] = Counter()
    for each in decide(*pods, budgets=budgets).pods:
        its = budgets[each.pod.uid]
        name = its[0].name if its else ""
        verdict = eviction_verdict(each.pod, its, taken=taken[name])
        assert each.reason == verdict.reason
        assert each.budgets == tuple(budget.key for budget in its)
        assert (each.outcome is Outcome.EVICT) == (verdict.allowance in (Allowance.ALLOWED, Allowance.UNCHARGED))
        taken[name] += verdict.allowance is Allowance.ALLOWED


@given(
    st.lists(PODS, max_size=6, unique_by=lambda pod: pod.uid), st.integers(-10, 120), st.floats(0, 200, allow_nan=False)
)
def test_between_two_instants_that_it_names_a_plan_does_not_change(pods: list[Pod], period: int, ahead: float) -> None:
    """Only an event can change it then: so waiting for one misses nothing."""

    def shape(decision: Plan) -> object:
        return [(each.pod.uid, each.outcome) for each in decision.pods], decision.drained, decision.overdue

    def at(now: float) -> Plan:
        return plan(view(*pods, cordoned_at=NOW - 1, deadline=NOW + period), now)

    decision = at(NOW)
    later = NOW + ahead
    if decision.next_change is None or later < decision.next_change:
        assert shape(at(later)) == shape(decision)


@given(
    st.lists(PODS, min_size=2, max_size=8, unique_by=lambda pod: pod.uid),
    st.one_of(st.none(), st.integers(1, 1_000)),
    st.data(),
)
def test_the_end_of_terminating_pods_changes_nothing(pods: list[Pod], period: int | None, data: st.DataObject) -> None:
    """So nothing but reports has to follow it at once."""
    budget = a_budget(disruptions_allowed=1)
    deadline = None if period is None else NOW + period

    def shape(held: list[Pod]) -> dict[str, object]:
        decision = decide(*held, budgets={pod.uid: (budget,) for pod in held}, deadline=deadline)
        return {each.pod.uid: (each.outcome, each.reason, each.delete_at, each.deadline) for each in decision.pods}

    awaited = decide(*pods, deadline=deadline).awaited
    ending = [pod.uid for pod in pods if pod.uid in awaited and pod.deletion_timestamp is not None]
    gone = data.draw(st.lists(st.sampled_from(ending or [""]), max_size=max(len(awaited) - 1, 0), unique=True))
    left = [pod for pod in pods if pod.uid not in gone]
    assert shape(left) == {uid: what for uid, what in shape(pods).items() if uid in {pod.uid for pod in left}}


def test_what_a_plan_awaits() -> None:
    web, leaving = a_pod("web"), a_pod("leaving", deletion_timestamp=NOW + 30, deletion_grace_seconds=30)
    daemon, static = a_pod("daemon", owners=owned_by("DaemonSet")), a_pod("static", owners=owned_by("Node"))
    holder = a_pod("holder", labels={names.DO_NOT_EVICT: "true"})
    for pods, deadline, awaited in [
        ([web, leaving, daemon, static], None, {web.uid, leaving.uid}),
        ([daemon, static], None, {daemon.uid}),
        ([static], None, set()),
        ([web, leaving, holder], None, set()),  # each that holds the whole node may be the last of them
        ([web, leaving], NOW, set()),
    ]:
        assert decide(*pods, deadline=deadline).awaited == awaited


@pytest.mark.parametrize(("status", "is_maintenance", "state"), [
    # (drained, is_stuck, names of stuck pods)
    ("True", True, (False, True, ["stuck"])), ("False", True, (False, True, ["stuck"])),
    ("Unknown", True, (True, False, [])), (None, True, (True, False, [])), ("True", False, (True, False, ["stuck"])),
    ("Unknown", False, (True, False, [])),
])  # fmt: skip
def test_a_stuck_pod_is_gone_only_with_its_kubelet(
    status: str | None, is_maintenance: bool, state: tuple[bool, bool, list[str]]
) -> None:
    node = a_node(conditions=() if status is None else (Condition("Ready", status),))
    seen = view(a_pod("stuck", deletion_timestamp=NOW - 60), a_pod("done", phase="Failed"))
    seen = msgspec.structs.replace(seen, node=node, is_maintenance=is_maintenance, cordoned_at=NOW - 100)
    decision = plan(seen, NOW)
    outcome = (decision.drained, decision.is_stuck, [each.pod.name for each in decision.stuck])
    assert outcome == state
    with_another = plan(msgspec.structs.replace(seen, pods=(*seen.pods, a_pod("running"))), NOW)
    assert (with_another.drained, with_another.is_stuck) == (False, False)


DO_NOT_EVICT = {"labels": {names.DO_NOT_EVICT: "true"}}
ATTACHED = VolumeAttachment("va", "uid-va", node_name="n1", volume_name="pv", attached=True)


@pytest.mark.parametrize(("pods", "more", "is_excluded"), [
    ((), {}, True), ((), {"attachments": (ATTACHED,)}, False), ((a_pod(),), {}, False),
    ((a_pod(), a_pod("agent", owners=DAEMON)), {}, False),
    ((a_pod(phase="Succeeded"), a_pod("agent", owners=DAEMON)), {}, True),
    ((a_pod("agent", owners=DAEMON),), {}, True),
    ((a_pod("agent", owners=DAEMON),), {"is_maintenance": True}, False),
    ((a_pod("agent", owners=DAEMON), a_pod("held", **DO_NOT_EVICT, priority=2_000_000_000)), {}, False),
    # It is being replaced by a rollout, while pods before it are left.
    ((a_pod(), a_pod("agent", owners=DAEMON, deletion_timestamp=NOW + 5)), {}, False),
    # Its grace is 30 s: deleted 30 s before the deadline, and no new one may come five seconds before that.
    ((a_pod(), a_pod("agent", owners=DAEMON)), {"deadline": NOW + 35.1}, False),
    ((a_pod(), a_pod("agent", owners=DAEMON)), {"deadline": NOW + 35}, True),
    ((a_pod(), a_pod("agent", owners=DAEMON)), {"deadline": NOW}, True),
])  # fmt: skip
def test_when_new_daemon_set_pods_are_excluded(pods: tuple[Pod, ...], more: dict[str, Any], is_excluded: bool) -> None:
    decision = plan(msgspec.structs.replace(view(*pods), **more), NOW)
    assert decision.excludes_daemon_sets is is_excluded


def test_the_plan_changes_when_new_daemon_set_pods_are_excluded() -> None:
    pods = (a_pod(annotations={names.DO_NOT_DISRUPT: "true"}), a_pod("agent", owners=DAEMON))
    decision = plan(msgspec.structs.replace(view(*pods), deadline=NOW + 100, cordoned_at=NOW - 10), NOW)
    assert decision.next_change == NOW + 65
