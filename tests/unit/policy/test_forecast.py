"""What is predicted of nodes that end: to the second where nothing is uncertain, between two instants elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from support.builders import NOW, a_budget, a_pod, ending, owned_by

from gracectl.model import names
from gracectl.model.meta import Condition
from gracectl.model.pod import VolumeAttachment
from gracectl.policy.answers import Answer, Never, Unknown
from gracectl.policy.eviction_queues import EvictionRate
from gracectl.policy.forecast import Assumptions, Bounds, Forecast, PodForecast, forecast
from gracectl.policy.plan import Blocker
from gracectl.policy.scenario import DrainingNode, RemovalMethod
from gracectl.policy.settings import PolicySettings, ProtectionSettings
from gracectl.policy.waves import by_priority

REPLICA = owned_by("ReplicaSet")
SET = owned_by("StatefulSet")


def predicted(*going: DrainingNode, **assumptions: Any) -> Forecast:
    return forecast(going, NOW, Assumptions(**assumptions))


def of(prediction: Forecast, name: str) -> PodForecast:
    return next(pod for node in prediction.nodes for pod in node.pods if pod.entry.pod.name == name)


def span(bounds: Bounds | Answer | None) -> tuple[float, float | None] | None:
    """In seconds from the deletion; None for never, and for what is removed in no scenario."""
    match bounds:
        case None | Never():
            return None
        case Unknown(_, earliest):
            return (-1.0 if earliest is None else round(earliest - NOW, 3), None)
    return (round(bounds.earliest - NOW, 3), None if bounds.latest is None else round(bounds.latest - NOW, 3))


def tell(prediction: Forecast) -> dict[str, tuple[float, float | None] | None]:
    """When each pod is told."""
    return {pod.entry.pod.name: span(pod.removal) for node in prediction.nodes for pod in node.pods}


def test_pods_that_nothing_holds_are_told_at_once_and_for_certain() -> None:
    prediction = predicted(ending("n1", a_pod("a"), a_pod("b", grace_seconds=60)))
    assert tell(prediction) == {"a": (0, 0), "b": (0, 0)}
    assert of(prediction, "a").is_certain
    assert of(prediction, "a").methods == (RemovalMethod.EVICTED,)
    assert span(of(prediction, "b").terminated) == (0, 60)
    assert span(prediction.nodes[0].drained) == (2, 60)  # the minimum drain time; all of the longest grace
    assert prediction.nodes[0].held == ()


def test_an_empty_node_takes_the_minimum_time() -> None:
    assert span(predicted(ending("n1")).nodes[0].drained) == (2, 2)
    assert span(predicted(ending("n1", a_pod("static", owners=owned_by("Node")))).nodes[0].drained) == (2, 2)


def test_a_wave_is_told_when_the_one_before_has_stopped() -> None:
    prediction = predicted(ending("n1", a_pod("plain"), a_pod("critical", priority=2_000_000_000)))
    assert tell(prediction) == {"plain": (0, 0), "critical": (0, 30)}
    assert not of(prediction, "critical").is_certain


def test_a_pending_pod_stops_at_once() -> None:
    pending = a_pod("pending", phase="Pending", ready=False)
    assert tell(predicted(ending("n1", pending, a_pod("last", priority=2_000_000_000))))["last"] == (0, 0)


def test_a_protected_pod_is_told_in_the_second_in_which_its_protection_ends() -> None:
    pod = a_pod("job", created=NOW - 3600, annotations={names.DO_NOT_DISRUPT: "4h"})
    prediction = predicted(ending("n1", pod))
    assert tell(prediction) == {"job": (10_800, 10_800)}
    assert of(prediction, "job").is_certain
    assert span(prediction.nodes[0].drained) == (10_800, 10_830)


@pytest.mark.parametrize(("owners", "latest"), [
    (REPLICA, [0, 20, 40]),  # replaced as soon as it is told, Ready 20 s later
    (SET, [0, 50, 100]),  # replaced when it is gone
])  # fmt: skip
def test_pods_under_one_budget_follow_each_other_over_all_nodes(owners: Any, latest: list[float]) -> None:
    pods = [a_pod(f"web-{n}", owners=owners) for n in range(3)]
    budget = a_budget()
    prediction = predicted(ending("n1", *pods, budgets=(budget,)), replacement_seconds=20.0)
    assert tell(prediction) == {f"web-{n}": (0, at) for n, at in enumerate(latest)}
    assert [pod.is_certain for pod in (of(prediction, "web-0"), of(prediction, "web-1"))] == [True, False]
    # Of two nodes that are deleted together it is not known which is reconciled first.
    prediction = predicted(
        ending("n1", pods[0], pods[1], budgets=(budget,)),
        ending("n2", pods[2], budgets=(budget,)),
        replacement_seconds=20.0,
    )
    assert tell(prediction) == {f"web-{n}": (0, latest[-1]) for n in range(3)}
    [(keys, lane)] = prediction.queues.items()
    assert keys == (("shop", "web"),)
    assert [(waiting.node, waiting.entry.pod.name) for waiting in lane] == [
        ("n1", "web-0"), ("n1", "web-1"), ("n2", "web-2"),
    ]  # fmt: skip


def test_a_stateful_set_makes_its_pods_again_one_after_another() -> None:
    pods = [a_pod(f"db-{n}", owners=SET) for n in range(4)]
    budget = a_budget(disruptions_allowed=2, current_healthy=4, expected_pods=4)
    prediction = predicted(ending("n1", *pods, budgets=(budget,)), replacement_seconds=20.0)
    assert tell(prediction) == {"db-0": (0, 0), "db-1": (0, 0), "db-2": (0, 50), "db-3": (0, 70)}


def test_the_heir_of_a_pod_without_grace_may_be_taken_for_the_pod_itself_for_two_minutes() -> None:
    pods = [a_pod(f"db-{n}", owners=SET, grace_seconds=0) for n in range(2)]
    prediction = predicted(ending("n1", *pods, budgets=(a_budget(),)), replacement_seconds=20.0)
    assert tell(prediction) == {"db-0": (0, 0), "db-1": (0, 120)}


def test_a_budget_of_pods_that_are_not_replaced_is_used_up() -> None:
    pods = [a_pod(f"web-{n}", owners=()) for n in range(3)]
    prediction = predicted(ending("n1", *pods, budgets=(a_budget(disruptions_allowed=2, desired_healthy=1),)))
    assert tell(prediction) == {"web-0": (0, 0), "web-1": (0, 0), "web-2": None}
    assert isinstance(prediction.nodes[0].drained, Never)
    assert [pod.entry.pod.name for pod in prediction.nodes[0].held] == ["web-2"]


def test_a_budget_that_lacks_pods_now_may_allow_it_at_once_or_never() -> None:
    budget = a_budget(disruptions_allowed=0, current_healthy=2)
    prediction = predicted(ending("n1", a_pod("web", owners=REPLICA), budgets=(budget,)))
    assert tell(prediction) == {"web": (0, None)}
    assert span(prediction.nodes[0].drained) == (2, None)
    assert prediction.nodes[0].held == ()


def test_what_a_budget_lacks_because_a_pod_is_leaving_comes_back_in_time() -> None:
    budget = a_budget(disruptions_allowed=0, current_healthy=2)
    leaving = a_pod("leaving", owners=REPLICA, deletion_timestamp=NOW + 10, deletion_grace_seconds=30)
    prediction = predicted(
        ending("n1", leaving, a_pod("web", owners=REPLICA), budgets=(budget,)), replacement_seconds=15.0
    )
    assert tell(prediction) == {"leaving": None, "web": (0, 15)}
    assert span(of(prediction, "leaving").terminated) == (0, 10)


def test_a_pod_that_is_not_ready_leaves_as_the_budget_s_policy_says() -> None:
    sick = a_pod("sick", ready=False, owners=REPLICA)
    spent: dict[str, Any] = {"disruptions_allowed": 0, "current_healthy": 1, "desired_healthy": 2}
    assert tell(predicted(ending("n1", sick, budgets=(a_budget(**spent),)))) == {"sick": (0, None)}
    always = a_budget(**spent, unhealthy_pod_eviction_policy="AlwaysAllow")
    assert tell(predicted(ending("n1", sick, budgets=(always,)))) == {"sick": (0, 0)}


def test_two_budgets_hold_a_pod_until_the_deadline() -> None:
    both = (a_budget("web"), a_budget("also"))
    assert isinstance(predicted(ending("n1", a_pod("web"), budgets=both)).nodes[0].drained, Never)
    prediction = predicted(ending("n1", a_pod("web"), budgets=both, deadline=900))
    assert tell(prediction) == {"web": (870, 870)}
    assert of(prediction, "web").methods == (RemovalMethod.DELETED,)
    assert [(order.at - NOW, order.grace) for order in of(prediction, "web").removals] == [(870, 30)]


def test_a_deadline_deletes_what_a_budget_blocks_in_unknown_order() -> None:
    budget = a_budget(disruptions_allowed=0, current_healthy=2)
    prediction = predicted(
        ending("n1", a_pod("web", owners=REPLICA, grace_seconds=600), budgets=(budget,), deadline=900)
    )
    assert tell(prediction) == {"web": (0, 300)}
    assert of(prediction, "web").methods == (RemovalMethod.EVICTED, RemovalMethod.DELETED)
    assert span(prediction.nodes[0].drained) == (2, 900)


def test_three_replicas_and_fifteen_minutes() -> None:
    """The scenario of the grace period design: A is evicted at 0:00, B and C are deleted at 5:00 with 600 s each."""
    pods = [a_pod(name, owners=REPLICA, grace_seconds=600) for name in "abc"]
    nodes = [ending(f"n-{pod.name}", pod, budgets=(a_budget(),), deadline=900) for pod in pods]
    prediction = predicted(*nodes, replacement_seconds=600.0)
    # One of them, unknown which, is evicted at once; the others when the deadline leaves them just their grace.
    assert tell(prediction) == dict.fromkeys("abc", (0, 300))
    assert of(prediction, "b").methods == (RemovalMethod.EVICTED, RemovalMethod.DELETED)
    assert [(o.at - NOW, o.method, o.grace) for o in of(prediction, "b").removals] == [
        (300, RemovalMethod.DELETED, 600)
    ]
    assert [span(node.drained) for node in prediction.nodes] == [(2, 900)] * 3


def test_a_pod_with_more_grace_than_there_is_time_is_deleted_at_once_with_what_is_left() -> None:
    prediction = predicted(ending("n1", a_pod("slow", grace_seconds=3600), deadline=900))
    assert of(prediction, "slow").is_certain
    assert [(o.at - NOW, o.method, o.grace) for o in of(prediction, "slow").removals] == [
        (0, RemovalMethod.DELETED, 900)
    ]


def test_at_the_deadline_pods_that_are_left_are_deleted_again_and_the_node_is_over() -> None:
    late = a_pod("late", deletion_timestamp=NOW - 5, deletion_grace_seconds=30)
    prediction = predicted(ending("n1", late, deadline=20))
    assert span(prediction.nodes[0].drained) == (2, 20)


def test_ranges_have_their_own_deadlines() -> None:
    settings = PolicySettings(order=by_priority([(0, 60.0), (1000, 300.0)]))
    kept = {"annotations": {names.DO_NOT_DISRUPT: "true"}}
    pods = (a_pod("low", **kept), a_pod("high", priority=1000, **kept))
    assert tell(predicted(ending("n1", *pods, deadline=900, settings=settings))) == {
        "low": (570, 570),
        "high": (870, 870),
    }


def test_a_range_whose_deadline_may_move_is_told_early_or_late_and_may_stop_at_once_either_way() -> None:
    settings = PolicySettings(order=by_priority([(0, 60.0), (1000, 60.0)]))
    kept = a_pod("kept", grace_seconds=90, annotations={names.DO_NOT_DISRUPT: "true"})
    slow = a_pod("slow", grace_seconds=400, priority=1000)
    prediction = predicted(ending("n1", kept, slow, deadline=3600, settings=settings))
    # `slow` leaves at 3200. Is it gone by 3450, nothing is kept for its range, and `kept` has until 3600.
    assert tell(prediction) == {"kept": (3450, 3510), "slow": (3200, 3200)}
    assert span(of(prediction, "kept").terminated) == (3450, 3600)
    assert span(prediction.nodes[0].drained) == (3450, 3600)


def test_the_heir_of_a_pod_that_was_not_ready_is_not_one_more_than_there_should_be() -> None:
    sick, web = a_pod("sick", phase="Pending", ready=False, owners=REPLICA), a_pod("web", owners=REPLICA)
    budget = a_budget(disruptions_allowed=0, current_healthy=2, desired_healthy=3)
    prediction = predicted(ending("n1", sick, web, budgets=(budget,)))
    assert tell(prediction) == {"sick": (0, 0), "web": None}


def test_pods_of_a_node_without_a_kubelet_are_waited_for_until_they_count_as_stuck() -> None:
    prediction = predicted(ending("n1", a_pod("web"), conditions=(Condition("Ready", "Unknown"),)))
    assert span(prediction.nodes[0].drained) == (2, 90)
    assert span(of(prediction, "web").terminated) == (0, None)


ATTACHED = (VolumeAttachment("csi-1", "u", node_name="n1", volume_name="v1", driver="d"),)


def test_daemons_leave_when_the_volumes_of_drained_pods_may_be_detached() -> None:
    db, plugin = a_pod("db", claims=("data",)), a_pod("plugin", owners=owned_by("DaemonSet"))
    prediction = predicted(ending("n1", db, plugin, attachments=ATTACHED))
    assert tell(prediction) == {"db": (0, 0), "plugin": (0, 90)}
    assert span(prediction.nodes[0].drained) == (2, 120)
    assert tell(predicted(ending("n1", db, plugin))) == {"db": (0, 0), "plugin": (0, 30)}


def test_when_a_volume_of_a_pod_that_is_gone_is_detached_is_unknown() -> None:
    prediction = predicted(ending("n1", a_pod("plugin", owners=owned_by("DaemonSet")), attachments=ATTACHED))
    assert tell(prediction) == {"plugin": (0, None)}
    assert span(prediction.nodes[0].drained) == (2, None)
    (entry,) = prediction.nodes[0].plan.pods
    assert entry.blocker is Blocker.VOLUME
    missing = "when these volumes are detached: v1 (attachment csi-1, driver d)"
    assert prediction.nodes[0].drained == Unknown((missing,), NOW + 2)
    late = predicted(ending("n1", a_pod("plugin", owners=owned_by("DaemonSet")), attachments=ATTACHED, deadline=300))
    assert span(late.nodes[0].drained) == (2, 300)


def test_daemons_leave_after_a_later_wave_with_volumes() -> None:
    etcd = a_pod("etcd", claims=("data",), priority_class="system-cluster-critical")
    prediction = predicted(ending("n1", etcd, a_pod("plugin", owners=owned_by("DaemonSet")), attachments=ATTACHED))
    assert tell(prediction) == {"etcd": (0, 0), "plugin": (0, 90)}


def test_all_waves_of_a_node_without_a_kubelet_wait_for_it_once() -> None:
    daemon = a_pod("agent", owners=owned_by("DaemonSet"))
    critical = a_pod("dns", priority_class="system-cluster-critical")
    silent = (Condition("Ready", "Unknown"),)
    assert span(predicted(ending("n1", a_pod("web"), daemon, critical, conditions=silent)).nodes[0].drained) == (2, 90)


def test_do_not_evict_blocks_all_pods_until_the_protected_one_is_gone() -> None:
    holder = a_pod("holder", labels={names.DO_NOT_EVICT: "true"})
    prediction = predicted(ending("n1", holder, a_pod("other")))
    assert tell(prediction) == {"holder": None, "other": None}
    ends = a_pod("holder", labels={names.DO_NOT_EVICT: "true"}, deletion_timestamp=NOW + 7, deletion_grace_seconds=7)
    assert tell(predicted(ending("n1", ends, a_pod("other")))) == {"holder": None, "other": (0, 7)}


def test_the_administrator_s_maximum_ends_a_protection_to_the_second() -> None:
    holder = a_pod("holder", labels={names.DO_NOT_EVICT: "true"}, created=NOW - 3600)
    capped = PolicySettings(protection=ProtectionSettings(maximum_seconds=7200.0))
    prediction = predicted(ending("n1", holder, a_pod("other"), settings=capped))
    assert tell(prediction) == {"holder": (3600, 3600), "other": (3600, 3600)}


def test_pods_without_a_budget_leave_as_fast_as_the_rate_allows() -> None:
    pods = [a_pod(f"p{n:03}") for n in range(250)]
    prediction = predicted(ending("n1", *pods), rate=EvictionRate(qps=50.0, burst=100))
    first, last = of(prediction, "p000").removal, of(prediction, "p249").removal
    assert span(first) == (0, 0)
    assert last is not None
    assert last.earliest - NOW == pytest.approx(3.0, abs=0.2)
    assert last.is_certain


def test_nodes_share_nothing_but_budgets() -> None:
    prediction = predicted(
        ending("n1", a_pod("a")), ending("n2", a_pod("b", annotations={names.DO_NOT_DISRUPT: "true"}))
    )
    assert [span(node.drained) for node in prediction.nodes] == [(2, 30), None]


# -- who never leaves, and why -----------------------------------------------------------------------------------------


def kept(prediction: Forecast, name: str) -> tuple[str, str] | None:
    last = of(prediction, name).final_entry
    return None if last is None else (last.outcome.value, last.reason)


def test_what_keeps_a_pod_in_the_end_is_another_matter_than_what_keeps_it_now() -> None:
    budget = a_budget(disruptions_allowed=0, desired_healthy=3)
    waits = a_pod("waits", owners=REPLICA, priority=2_000_000_000)
    prediction = predicted(ending("n1", waits, budgets=(budget,)), ending("n2", a_pod("first")))
    assert kept(prediction, "waits") == (
        "blocked",
        "budget shop/web allows no disruption now (3 of 3 healthy, 3 required)",
    )
    assert kept(prediction, "first") is None
    protected = a_pod("protected", owners=REPLICA, annotations={names.DO_NOT_DISRUPT: "2h"})
    assert kept(predicted(ending("n1", protected, budgets=(budget,))), "protected") == kept(prediction, "waits")


def test_a_budget_that_was_used_up_is_told_as_it_is_then() -> None:
    pods = [a_pod(f"web-{n}", owners=()) for n in range(3)]
    prediction = predicted(ending("n1", *pods, budgets=(a_budget(disruptions_allowed=2, desired_healthy=1),)))
    assert kept(prediction, "web-2") == (
        "blocked",
        "budget shop/web allows no disruption now (1 of 3 healthy, 1 required)",
    )


def test_a_pod_that_waits_for_one_that_stays_is_blocked_by_it() -> None:
    prediction = predicted(
        ending("n1", a_pod("last", priority=2_000_000_000), a_pod("job", annotations={names.DO_NOT_DISRUPT: "true"}))
    )
    assert kept(prediction, "last") == ("waiting", "waiting for the non-critical pods")
    assert kept(prediction, "job") == ("protected", "protected by do-not-disrupt")


def test_where_only_the_slow_are_kept_it_is_said_what_would_keep_them() -> None:
    budget = a_budget(disruptions_allowed=0, current_healthy=2)
    prediction = predicted(ending("n1", a_pod("web", owners=REPLICA), budgets=(budget,)))
    assert kept(prediction, "web") == (
        "blocked",
        "budget shop/web allows no disruption now (2 of 3 healthy, 2 required)",
    )
    assert kept(predicted(ending("n1", a_pod("web"), deadline=900)), "web") is None


def test_what_a_budget_has_been_missing_for_a_short_time_is_replaced_in_time() -> None:
    """A drain in progress is in this state again and again: its last pod is gone, the replacement is not Ready yet."""

    def told(since: float) -> Forecast:
        verdict = Condition(names.DISRUPTION_ALLOWED, "False", "InsufficientPods", "", NOW - since)
        budget = a_budget(disruptions_allowed=0, current_healthy=2, verdict=verdict)
        return predicted(ending("n1", a_pod("a", owners=REPLICA), budgets=(budget,)), replacement_seconds=30.0)

    assert tell(told(10)) == {"a": (0, 20)}
    assert tell(told(31)) == {"a": (0, None)}


def test_the_first_pod_that_a_budget_refuses_is_refused_for_all_but_pods_that_are_not_ready() -> None:
    pods = [a_pod(f"p{number}", owners=REPLICA, grace_seconds=0) for number in range(4)]
    broken = a_pod("q", owners=REPLICA, ready=False)
    prediction = predicted(ending("n1", *pods, broken, budgets=(a_budget(expected_pods=5),)), replacement_seconds=10.0)
    assert tell(prediction) == {"p0": (0, 0), "p1": (0, 10), "p2": (0, 20), "p3": (0, 30), "q": (0, 0)}
