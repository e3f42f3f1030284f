"""What is said of a forecast: of pods, of many pods at once, of nodes, of budgets, and what all of it rests on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from support.builders import NOW, READY, a_budget, a_node, a_pod, ending, owned_by
from support.forecasts import (
    CRITICAL,
    FOR_EVER,
    REPLICA,
    WORLDS,
    a_day,
    crowd,
    never,
    predicted,
    three_replicas,
    under_way,
)

from gracectl.cli.plan.text import Detail, NodeText, PlanText, PodLine, plan_text
from gracectl.inspect.forecast import DrainForecast
from gracectl.model import names
from gracectl.model.meta import Condition
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
from gracectl.policy.answers import Unknown
from gracectl.policy.eviction_queues import EvictionRate
from gracectl.policy.plan import NodeView
from gracectl.policy.scenario import DrainingNode
from gracectl.policy.settings import PolicySettings, ProtectionSettings
from gracectl.policy.warnings import PlanWarning, WarningKind
from gracectl.policy.waves import by_priority

RANGES = PolicySettings(order=by_priority([(0, 60.0), (1000, 300.0)]))


def told(*going: Any, **detail: Any) -> PlanText:
    return plan_text(predicted(*going), Detail(**detail))


def lines(node: NodeText) -> list[PodLine]:
    """Its lines without bars."""
    return [PodLine(line.when, line.name, line.text, line.count) for wave in node.waves for line in wave.lines]


def line(pod: Pod, *others: Pod, **world: Any) -> tuple[str, str]:
    """When and how a pod of `n1` leaves."""
    (node,) = told(ending("n1", pod, *others, **world)).nodes
    (chosen,) = [each for each in lines(node) if each.name == f"shop/{pod.name}"]
    return chosen.when, chosen.text


def a_replica(name: str = "web-1", **fields: Any) -> Pod:
    return a_pod(name, owners=REPLICA, **fields)


SPENT: dict[str, Any] = {"disruptions_allowed": 0, "current_healthy": 3, "desired_healthy": 3}
LACKING: dict[str, Any] = {"disruptions_allowed": 0, "current_healthy": 2}

CASES: list[tuple[Pod, dict[str, Any], str, str]] = [
    (a_replica(), {}, "0:00", "evicted"),
    (a_replica(), {"budgets": (a_budget(),)}, "0:00", "evicted, as budget shop/web allows it now"),
    (a_replica(), {"budgets": (a_budget(**LACKING),)}, "unknown", "evicted when budget shop/web allows it"),
    (a_replica(), {"budgets": (a_budget(**SPENT),)}, "never",
     "stays: budget shop/web allows no disruption now (3 of 3 healthy, 3 required)"),
    (a_replica(), {"budgets": (a_budget("also"), a_budget("web"))}, "never",
     "stays: budgets shop/also and shop/web both select it: the eviction API refuses the eviction"),
    (a_replica(created=NOW, annotations={names.DO_NOT_DISRUPT: "4h"}), {}, "4:00:00",
     'protected by do-not-disrupt "4h" until 1970-01-12T17:46:40Z, then evicted'),
    (a_replica(created=NOW, annotations={names.DO_NOT_DISRUPT: "4h"}),
     {"settings": PolicySettings(protection=ProtectionSettings(maximum_seconds=60.0))}, "1:00",
     'protected by do-not-disrupt "4h" until 1970-01-12T13:47:40Z (the most that protection.maximumSeconds grants), '
     "then evicted"),
    (a_replica(created=NOW, annotations={names.DO_NOT_DISRUPT: "4h"}), {"budgets": (a_budget(),)}, "4:00:00",
     'protected by do-not-disrupt "4h" until 1970-01-12T17:46:40Z, then evicted when budget shop/web allows it'),
    (a_replica(**FOR_EVER), {}, "never", "stays: protected by do-not-disrupt"),
    (a_replica(**FOR_EVER), {"deadline": 900}, "14:30",
     "protected by do-not-disrupt; deleted at 14:30 for the deadline (grace 30 s)"),
    (a_replica(grace_seconds=3600), {"deadline": 900}, "0:00",
     "deleted at 0:00 for the deadline (grace 900 of 3600 s)"),
    (a_replica(), {"deadline": 900, "budgets": (a_budget(**LACKING),)}, "0:00-14:30",
     "evicted when budget shop/web allows it, or deleted at 14:30 for the deadline (grace 30 s)"),
    (a_replica(deletion_timestamp=NOW + 20, deletion_grace_seconds=30), {}, "already",
     "terminating until 0:20 at the latest"),
    (a_replica(deletion_timestamp=NOW + 3600, deletion_grace_seconds=3600, grace_seconds=3600), {"deadline": 900},
     "0:00", "terminating already; deleted again at 0:00 for the deadline (grace 900 of 3600 s)"),
]  # fmt: skip


@pytest.mark.parametrize(("pod", "world", "when", "how"), CASES)
def test_of_a_pod_is_said_when_it_leaves_how_and_why(pod: Pod, world: dict[str, Any], when: str, how: str) -> None:
    assert line(pod, **world) == (when, how)


def test_a_pod_of_a_later_wave_waits_and_has_its_budget_still_before_it() -> None:
    last = a_replica("dns", priority=CRITICAL)
    words = "waiting for the non-critical pods, then evicted"
    assert line(last, a_replica()) == ("0:00-0:30", words)
    when, how = line(last, a_replica(), budgets={"dns": (a_budget(),)}, deadline=900)
    assert (when, how) == ("0:00-0:30", f"{words} when budget shop/web allows it; deleted by 14:30")


def test_a_pod_that_waits_for_a_protected_pod_names_it() -> None:
    holder = a_replica("holder", labels={names.DO_NOT_EVICT: "true"})
    how = "stays: blocked by do-not-evict of shop/holder"
    assert line(a_replica(), holder) == ("never", how)


def test_a_deletion_whose_instant_depends_on_others_has_two() -> None:
    kept, slow = a_replica("kept", grace_seconds=90, **FOR_EVER), a_replica("slow", grace_seconds=400, priority=1000)
    settings = PolicySettings(order=by_priority([(0, 60.0), (1000, 60.0)]))
    how = "protected by do-not-disrupt; deleted between 57:30 and 58:30 for the deadline (grace 90 s)"
    assert line(kept, slow, deadline=3600, settings=settings) == ("57:30-58:30", how)


def test_each_pod_of_a_lane_names_the_pods_before_it() -> None:
    first, second = [
        ending(f"n{n}", a_replica(f"web-{n}"), budgets=(a_budget(**LACKING),), since=NOW - n) for n in (1, 2)
    ]
    by_name = {each.name: each.text for node in told(first, second).nodes for each in lines(node)}
    assert by_name == {
        "shop/web-1": "evicted when budget shop/web allows it (2 of 2 in queue, after shop/web-2 on n2)",
        "shop/web-2": "evicted when budget shop/web allows it (1 of 2 in queue)",
    }
    (node,) = told(ending("n1", a_replica("a"), a_replica("b"), budgets=(a_budget(**LACKING),))).nodes
    assert lines(node)[1].text.endswith("(2 of 2 in queue, after shop/a)")


def test_the_order_of_nodes_that_are_deleted_together_is_unknown() -> None:
    for node in plan_text(three_replicas(), Detail()).nodes:
        assert [each.text for each in lines(node)] == [
            "evicted when budget shop/orders allows it (3 pods share this budget; order not decided yet), or "
            "deleted at 5:00 for the deadline (grace 600 s)"
        ]


# -- of many pods ------------------------------------------------------------------------------------------------------


def test_three_are_told_one_by_one_and_four_together() -> None:
    (few,) = told(ending("n1", *(a_replica(f"p{n}") for n in range(3)))).nodes
    assert [each.name for each in lines(few)] == ["shop/p0", "shop/p1", "shop/p2"]
    (more,) = told(ending("n1", *(a_replica(f"p{n}") for n in range(4)))).nodes
    assert lines(more) == [PodLine("0:00", "4 pods", "evicted", 4)]


def test_pods_of_one_lane_are_told_together_over_all_of_their_time() -> None:
    budget = (a_budget(),)
    (node,) = told(ending("n1", *(a_replica(f"p{n}") for n in range(6)), budgets=budget)).nodes
    assert lines(node) == [
        PodLine("0:00", "shop/p0", "evicted, as budget shop/web allows it now"),
        PodLine(
            "0:00-2:30", "shop/p1 and 4 more",
            "evicted when budget shop/web allows it (6 in queue, one after another)", 5,
        ),
    ]  # fmt: skip


def test_what_is_not_alike_is_not_told_together() -> None:
    pods = [a_replica(f"long{n}", grace_seconds=1000 + n) for n in range(4)]
    (node,) = told(ending("n1", *pods, deadline=900)).nodes
    assert [each.count for each in lines(node)] == [1] * 4


def test_many_pods_are_summed_up_unless_all_are_requested() -> None:
    node = plan_text(crowd(), Detail()).nodes[0]
    assert lines(node) == [
        PodLine("0:00", "8 pods", "evicted", 8),
        PodLine("0:00-4:00", "102 pods", "evicted when their budgets allow it", 102),
    ]
    node = plan_text(crowd(), Detail(verbose=True)).nodes[0]
    assert [each.count for each in lines(node)] == [1] * 110


def test_a_pod_that_only_waits_for_the_rate_says_so() -> None:
    pods = [a_replica(f"p{n:03}") for n in range(30)]
    forecast = predicted(ending("n1", *pods), rate=EvictionRate(qps=10.0, burst=10))
    (node,) = plan_text(forecast, Detail()).nodes
    assert lines(node) == [PodLine("0:00-0:02", "30 pods", "evicted, limited by eviction.qps", 30)]


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
@pytest.mark.parametrize("verbose", [False, True])
def test_every_pod_is_told_of_exactly_once(world: Callable[[], DrainForecast], verbose: bool) -> None:
    forecast = world()
    for node, seen in zip(plan_text(forecast, Detail(verbose=verbose)).nodes, forecast.nodes, strict=True):
        ignored = sum(not pod.is_waited_for for pod in seen.forecast.pods)
        count = sum(each.count for each in lines(node)) + (0 if verbose else ignored)
        assert count == len(seen.forecast.pods)
        assert bool(node.ignored) == bool(ignored and not verbose)


# -- of nodes ----------------------------------------------------------------------------------------------------------


def test_a_day() -> None:
    (node,) = plan_text(a_day(), Detail()).nodes
    assert node.headline == "drained 1d 00:00:00-1d 00:01:00 after its deletion"
    assert node.facts == ("deadline: none; the drain takes as long as its pods need",)
    assert [wave.title for wave in node.waves] == ["non-critical", "critical"]
    assert [(each.when, each.name) for each in lines(node)] == [
        ("0:00", "shop/quick"), ("0:00", "shop/web-1"), ("0:00-0:30", "shop/web-2"), ("1d 00:00:00", "shop/notebook"),
        ("1d 00:00:00-1d 00:00:30", "shop/dns"),
    ]  # fmt: skip
    assert node.ignored == (
        "not waited for: 2 pods (1 finished: its phase is Succeeded; 1 static pod: it belongs to its node)"
    )


def test_a_node_that_is_ending_is_told_from_now_on() -> None:
    plan = plan_text(under_way(), Detail())
    (node,) = plan.nodes
    assert plan.title == (
        "What happens next (0:00 is 1970-01-12T13:46:40Z by the server's clock), while old-2 is draining already"
    )
    assert node.headline == "drained 0:00-14:00 from now"
    assert node.facts == (
        "deadline: 14:00 (1970-01-12T14:00:40Z), termination grace period 15m0s of NodeClaim old-1",
        "terminating since 1970-01-12T13:45:40Z (1:00 ago)",
    )
    assert plan.summary == ()


def staying(*pods: Pod, since: float | None = None) -> DrainingNode:
    """A node that is drained for maintenance: requested at `since`, or not yet."""
    annotations = {} if since is None else {names.KEEP_DRAINED: format_time(since)}
    node = a_node("n1", conditions=READY, annotations=annotations)
    view = NodeView(node, pods, {}, is_maintenance=True, cordoned_at=NOW)
    return DrainingNode(view, NOW if since is None else since)


def test_of_a_node_that_stays_no_deadline_is_told() -> None:
    forecast = plan_text(
        predicted(staying(a_replica(empty_dir=True), a_pod("log", owners=owned_by("DaemonSet")))), Detail()
    )
    (node,) = forecast.nodes
    assert forecast.title == (
        "What happens if n1 is drained for maintenance now (0:00 is 1970-01-12T13:46:40Z by the server's clock)"
    )
    assert node.headline == "drained 0:02-0:30 from now"
    assert node.facts == ()
    assert [warning.kind for warning in node.warnings] == [WarningKind.DATA_LOSS]
    assert node.ignored == "not waited for: 1 pod (1 DaemonSet pod: it stays, as its node does)"
    assert (
        "Drained: no pod is left to wait for; volumes follow, then the node stays cordoned until it is uncordoned."
    ) in forecast.remarks


def test_of_one_that_is_being_drained_already_it_is_told_since_when() -> None:
    forecast = plan_text(predicted(staying(a_replica(), since=NOW - 60)), Detail())
    assert forecast.title == "What happens next (0:00 is 1970-01-12T13:46:40Z by the server's clock)"
    assert forecast.nodes[0].facts == ("drained for maintenance since 1970-01-12T13:45:40Z (1:00 ago)",)


def test_beside_one_that_stays_one_may_end() -> None:
    forecast = plan_text(predicted(staying(a_replica()), ending("n2", a_replica("web-2"), since=NOW - 60)), Detail())
    assert forecast.title.startswith("What happens if n1 is drained for maintenance now (")
    assert (
        "Drained: no pod is left to wait for; volumes and the instance follow if the node is terminated."
    ) in forecast.remarks


def test_several_nodes_have_a_summary() -> None:
    plan = plan_text(three_replicas(), Detail())
    assert plan.title == "What happens if 3 nodes are deleted now (0:00 is 1970-01-12T13:46:40Z by the server's clock)"
    assert [(each.node, each.drained, each.deadline, each.pods, each.kinds) for each in plan.summary] == [
        (f"node-{n}", "0:02-15:00", "15:00", 1, ("BudgetViolated",)) for n in (1, 2, 3)
    ]
    assert plan.all_drained == "All 3 nodes are drained in 0:02-15:00."


def test_of_several_nodes_it_is_said_when_all_are_drained_and_which_never_are() -> None:
    protected = a_replica("job", annotations={names.DO_NOT_DISRUPT: "true"})
    some = plan_text(predicted(ending("n1", a_replica()), ending("n2", protected)), Detail())
    assert some.all_drained == "Drained: never for 1 node (n2), 0:02-0:30 for the others."
    none = plan_text(predicted(ending("n1", protected), ending("n2", protected)), Detail())
    assert none.all_drained == "Drained: never."
    assert plan_text(predicted(ending("n1", a_replica())), Detail()).all_drained == ""


def test_a_node_that_never_drains_or_perhaps_never() -> None:
    assert plan_text(never(), Detail()).nodes[0].headline == "never drained"
    (perhaps,) = told(ending("n1", a_replica(), budgets=(a_budget(**LACKING),))).nodes
    missing = "when budget shop/web recovers: 1 of 3 pods is not Ready"
    assert perhaps.headline == f"unknown {missing}; not before 0:02"


def test_of_an_unmanaged_node_that_is_said_first() -> None:
    forecast = three_replicas()
    first = msgspec.structs.replace(
        forecast.nodes[0], warnings=(PlanWarning(WarningKind.FINALIZER_MISSING, "not held"),)
    )
    plan = plan_text(msgspec.structs.replace(forecast, nodes=(first, *forecast.nodes[1:])), Detail())
    assert plan.nodes[0].headline == ("not drained: not managed; if it were: drained 0:02-15:00 after its deletion")
    assert plan.summary[0].drained == "not drained"
    assert plan.all_drained == "Not managed: node-1; the others are drained in 0:02-15:00."


def test_a_range_with_a_deadline_of_its_own_says_so() -> None:
    pods = [a_replica("low"), a_replica("high", priority=1000)]
    (node,) = told(ending("n1", *pods, deadline=900, settings=RANGES)).nodes
    assert [wave.title for wave in node.waves] == ["priority below 1000, until 10:00", "priority 1000 and above"]


# -- of budgets --------------------------------------------------------------------------------------------------------


def test_a_budget_says_what_it_allows_and_which_pods_it_blocks() -> None:
    (line,) = plan_text(three_replicas(), Detail()).budgets
    assert (line.name, line.text, line.blocks) == (
        "shop/orders",
        "allows 1 now (3 of 3 healthy, 2 required); 3 pods in queue on node-1, node-2 and node-3; blocks 2 pods now",
        2,
    )


def test_a_budget_that_blocks_no_pod_is_counted_or_listed() -> None:
    going = ending("n1", a_replica(), a_replica("dns", priority=CRITICAL), budgets=(a_budget(disruptions_allowed=2),))
    assert (told(going).budgets, told(going).other_budgets) == ((), "1 budget blocks no pod (-v lists them)")
    (line,) = told(going, verbose=True).budgets
    assert line.text == "allows 2 now (3 of 3 healthy, 2 required); 1 pod in queue on n1; 1 pod later"


@pytest.mark.parametrize(("budget", "says"), [
    (a_budget(generation=2), "status out of date (3 of 3 healthy, 2 required before)"),
    (
            a_budget(
                disruptions_allowed=0,
                verdict=Condition("DisruptionAllowed", "False", reason="SyncFailed", message="no scale"),
            ),
            "allows 0 now: no scale",
        ),
])  # fmt: skip
def test_a_budget_that_is_not_counted_says_so(budget: Any, says: str) -> None:
    (line,) = told(ending("n1", a_replica(), budgets=(budget,)), verbose=True).budgets
    assert line.text == f"{says}; 1 pod in queue on n1; blocks 1 pod now"


def test_of_many_budgets_those_are_told_of_that_hold_up_most() -> None:
    plan = plan_text(crowd(), Detail())
    assert len(plan.budgets) == 16
    assert plan.other_budgets == "24 budgets more block 138 pods (-v lists them)"
    assert len(plan_text(crowd(), Detail(verbose=True)).budgets) == 40


# -- what it rests on --------------------------------------------------------------------------------------------------


def remarks(forecast: DrainForecast, **detail: Any) -> str:
    return " ".join(plan_text(forecast, Detail(**detail)).remarks)


def test_it_is_said_what_is_certain_and_what_is_not() -> None:
    sure = remarks(predicted(ending("n1", a_replica())))
    assert sure == (
        "Nothing was changed. A single time is certain unless objects change. Drained: no pod is "
        "left to wait for; volumes and the instance follow."
    )
    unsure = remarks(three_replicas())
    assert "Two times are bounds" in unsure
    assert "Ready immediately or up to 600 s after its creation (--replacement-seconds)" in unsure
    budgets = {"web-1": (a_budget("web", **LACKING),)}
    assert isinstance(
        (unknown := predicted(ending("n1", a_replica(), budgets=budgets))).nodes[0].forecast.drained, Unknown
    )
    assert '"Never"' not in unsure + remarks(unknown)
    assert '"Never" means: until you change what the warnings name' in remarks(never())
    assert "-v lists every pod" in remarks(crowd())


def test_it_says_where_its_settings_are_from() -> None:
    assert remarks(a_day(), settings="configmap gracectl/gracectl").endswith("Settings: configmap gracectl/gracectl.")
    assert "Settings" not in remarks(a_day())


def test_a_daemonset_s_pod_is_one_that_is_recreated() -> None:
    (node,) = told(ending("n1", a_pod("ds", owners=owned_by("DaemonSet")))).nodes
    assert node.warnings == ()
