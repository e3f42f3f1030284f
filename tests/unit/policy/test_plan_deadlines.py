"""plan() under a deadline: whose time has come, what is not waited for any more, and the time of each range."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.builders import NOW, a_budget, a_node, a_pod, decide, entry, outcomes, owned_by, reason, tolerating, view

from gracectl.model import names
from gracectl.model.pod import Pod, VolumeAttachment
from gracectl.policy.explain import explain, summarize
from gracectl.policy.plan import NodeView, Outcome
from gracectl.policy.planner import plan
from gracectl.policy.settings import PolicySettings
from gracectl.policy.waves import by_priority

DAEMON = owned_by("DaemonSet")
D = NOW + 900


def test_a_due_pod_is_deleted_whatever_blocks_it() -> None:
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
            a_pod("free", grace_seconds=grace), blocked, budgets={blocked.uid: (a_budget(disruptions_allowed=0),)},
            deadline=D,
        )  # fmt: skip
        assert outcomes(decision) == outcome
        assert {each.delete_at for each in decision.pods} == {D - grace}
        assert decision.next_change == (D if outcome["free"] is Outcome.DELETE else NOW + 1)
        assert not decision.leaving


def test_a_pod_without_a_reason_to_stay_is_evicted_until_its_time_comes() -> None:
    assert outcomes(decide(a_pod(grace_seconds=899), deadline=D)) == {"web-1": Outcome.EVICT}
    assert outcomes(decide(a_pod(grace_seconds=900), deadline=D)) == {"web-1": Outcome.DELETE}
    assert outcomes(decide(a_pod(grace_seconds=86_400), deadline=D)) == {"web-1": Outcome.DELETE}


@pytest.mark.parametrize("fields", [
    tolerating("Exists"), {"owners": owned_by("Node")}, {"phase": "Succeeded"},
    {"phase": "Failed", "deletion_timestamp": NOW + 5, "deletion_grace_seconds": 30},
    {"deletion_timestamp": NOW - 1000, "deletion_grace_seconds": 30},
])  # fmt: skip
@pytest.mark.parametrize("deadline", [D, NOW, NOW - 60])
def test_what_is_not_waited_for_is_never_deleted(fields: dict[str, Any], deadline: float) -> None:
    decision = decide(a_pod(grace_seconds=30, **fields), deadline=deadline)
    assert outcomes(decision) == {"web-1": Outcome.IGNORED}
    assert entry(decision, "web-1").delete_at is None


def test_a_pod_that_terminates_beyond_the_deadline_is_told_to_be_quicker_once() -> None:
    beyond: dict[str, Any] = {"deletion_timestamp": NOW + 3590, "deletion_grace_seconds": 3600, "grace_seconds": 3600}
    decision = decide(a_pod(**beyond), deadline=D)
    assert outcomes(decision) == {"web-1": Outcome.DELETE}
    assert reason(decision, "web-1") == "terminating, grace shortened for the deadline"
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
            a_pod("kept", annotations={names.DO_NOT_DISRUPT: "true"}), a_pod("going", **going),
            a_pod("told", **{**going, "deletion_timestamp": D + 1, "deletion_grace_seconds": 1}),
            cordoned_at=None, attachments=attached, deadline=D,
        ),
        now,
    )  # fmt: skip
    assert (decision.overdue, decision.drained, decision.detaching, decision.leaving) == (True, True, (), ())
    assert outcomes(decision) == {"kept": Outcome.DELETE, "going": Outcome.DELETE, "told": Outcome.TERMINATING}


def test_just_before_the_deadline_everything_is_waited_for() -> None:
    attached = (VolumeAttachment("csi-db", "uid-db", volume_name="db"),)
    decision = plan(view(attachments=attached, cordoned_at=D - 1, deadline=D), D - 0.001)
    assert (decision.overdue, decision.drained, decision.detaching) == (False, False, attached)
    assert decision.next_change == D  # and not the end of the minimum time, which it cuts off


def test_a_reason_says_until_when_a_pod_is_waited_for() -> None:
    protected = a_pod("job", grace_seconds=600, annotations={names.DO_NOT_DISRUPT: "2h"})
    blocked = a_pod("web")
    decision = decide(
        protected, blocked, a_pod("ending", deletion_timestamp=NOW + 30, deletion_grace_seconds=30),
        a_pod("late", grace_seconds=3600),
        budgets={blocked.uid: (a_budget(disruptions_allowed=0, current_healthy=2),)}, deadline=D,
    )  # fmt: skip
    assert explain(decision, shown=4) == (
        "4 pods left: shop/web (budget shop/web allows no disruption now (2 of 3 healthy, 2 required); "
        "it is deleted at 1970-01-12T14:01:10Z at the latest), "
        'shop/job (protected by do-not-disrupt "2h" until 1970-01-12T14:46:40Z; '
        "it is deleted at 1970-01-12T13:51:40Z at the latest), "
        "shop/late (deleted now for the deadline), "
        "shop/ending (terminating until 1970-01-12T13:47:10Z); node deadline 1970-01-12T14:01:40Z"
    )
    assert summarize(decision).startswith("budget shop/web allows no disruption now")


RANGES = PolicySettings(order=by_priority([(0, 60.0), (1_000, 120.0), (100_000, 300.0)]))


def ranged(*pods: Pod, **fields: Any) -> NodeView:
    node = a_node(deletion_timestamp=NOW)
    defaults: dict[str, Any] = {"settings": RANGES, "budgets": {}, "cordoned_at": NOW - 60, "deadline": D}
    return NodeView(node=node, pods=pods, **{**defaults, **fields})


LOW, MIDDLE, HIGH = a_pod("low", priority=0), a_pod("middle", priority=1_000), a_pod("high", priority=2_000_000)


def test_every_range_has_its_own_deadline_and_each_pod_its_grace_before_that() -> None:
    decision = plan(ranged(LOW, MIDDLE, HIGH), NOW)
    assert outcomes(decision) == {"low": Outcome.EVICT, "middle": Outcome.WAITING, "high": Outcome.WAITING}
    assert reason(decision, "high") == "waiting for the pods of priority below 1000"
    assert {e.pod.name: e.deadline for e in decision.pods} == {"low": D - 420, "middle": D - 300, "high": D}
    assert {e.pod.name: e.delete_at for e in decision.pods} == {"low": D - 450, "middle": D - 330, "high": D - 30}
    assert decision.next_change == D - 450


def test_when_the_time_of_a_range_is_over_the_next_one_waits_for_it_no_longer() -> None:
    """Its pods were killed at its deadline; one that still exists (its kubelet hangs) blocks no other."""
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


def test_without_a_deadline_the_ranges_are_an_order_and_nothing_else() -> None:
    decision = plan(ranged(LOW, HIGH, deadline=None), NOW + 100_000)
    assert outcomes(decision) == {"low": Outcome.EVICT, "high": Outcome.WAITING}
    assert {e.deadline for e in decision.pods} == {e.delete_at for e in decision.pods} == {None}


def test_a_grace_cut_for_a_range_is_not_taken_for_one_that_another_client_has_cut() -> None:
    """Told 200 s instead of 500 while high pods were there; they are gone, and so its own grace would have fitted."""
    cut = a_pod("low", grace_seconds=500, deletion_timestamp=NOW + 200, deletion_grace_seconds=200)
    decision = plan(ranged(cut), NOW + 261)
    assert outcomes(decision) == {"low": Outcome.TERMINATING}
    assert entry(decision, "low").until == NOW + 400  # 200 s from the second DELETE, if that came as late as it may
