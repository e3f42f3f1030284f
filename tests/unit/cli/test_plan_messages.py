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
    foretold,
    never,
    three_replicas,
    under_way,
)

from gracectl.cli.plan.messages import ordinal
from gracectl.cli.plan.text import NodeTelling, PodLine, Telling, Terms, telling
from gracectl.inspect.forecast import Outlook
from gracectl.model import names
from gracectl.model.meta import Condition
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
from gracectl.policy.plan import NodeView
from gracectl.policy.settings import PolicySettings, ProtectionSettings
from gracectl.policy.simulation import DrainingNode, EvictionRate
from gracectl.policy.warnings import PlanWarning, WarningKind
from gracectl.policy.waves import by_priority

RANGES = PolicySettings(order=by_priority([(0, 60.0), (1000, 300.0)]))


def told(*going: Any, **terms: bool) -> Telling:
    return telling(foretold(*going), Terms(**terms))


def lines(node: NodeTelling) -> list[PodLine]:
    return [line for wave in node.waves for line in wave.lines]


def line(pod: Pod, *others: Pod, **world: Any) -> tuple[str, str]:
    """When and how a pod of `n1` leaves."""
    (node,) = told(ending("n1", pod, *others, **world)).nodes
    (found,) = [each for each in lines(node) if each.name == f"shop/{pod.name}"]
    return found.when, found.how


def a_replica(name: str = "web-1", **fields: Any) -> Pod:
    return a_pod(name, owners=REPLICA, **fields)


SPENT: dict[str, Any] = {"disruptions_allowed": 0, "current_healthy": 3, "desired_healthy": 3}
LACKING: dict[str, Any] = {"disruptions_allowed": 0, "current_healthy": 2}

CASES: list[tuple[Pod, dict[str, Any], str, str]] = [
    (a_replica(), {}, "0:00", "evicted"),
    (a_replica(), {"budgets": (a_budget(),)}, "0:00", "evicted, as budget shop/web allows it now"),
    (a_replica(), {"budgets": (a_budget(**LACKING),)}, "0:00 or later", "evicted when budget shop/web allows it"),
    (
        a_replica(),
        {"budgets": (a_budget(**SPENT),)},
        "never",
        "stays: budget shop/web allows no disruption now (3 of 3 healthy, 3 required)",
    ),
    (
        a_replica(),
        {"budgets": (a_budget("also"), a_budget("web"))},
        "never",
        "stays: budgets shop/also and shop/web both select it: the eviction API refuses such a pod",
    ),
    (
        a_replica(created=NOW, annotations={names.DO_NOT_DISRUPT: "4h"}),
        {},
        "4:00:00",
        'protected by do-not-disrupt "4h" until 1970-01-12T17:46:40Z, then evicted',
    ),
    (
        a_replica(created=NOW, annotations={names.DO_NOT_DISRUPT: "4h"}),
        {"settings": PolicySettings(protection=ProtectionSettings(maximum_seconds=60.0))},
        "1:00",
        'protected by do-not-disrupt "4h" until 1970-01-12T13:47:40Z (the most that protection.maximumSeconds grants), '
        "then evicted",
    ),
    (
        a_replica(created=NOW, annotations={names.DO_NOT_DISRUPT: "4h"}),
        {"budgets": (a_budget(),)},
        "4:00:00",
        'protected by do-not-disrupt "4h" until 1970-01-12T17:46:40Z, then evicted when budget shop/web allows it',
    ),
    (a_replica(**FOR_EVER), {}, "never", "stays: protected by do-not-disrupt"),
    (
        a_replica(**FOR_EVER),
        {"deadline": 900},
        "14:30",
        "protected by do-not-disrupt; deleted at 14:30 for the deadline, with all of its 30 s",
    ),
    (
        a_replica(grace_seconds=3600),
        {"deadline": 900},
        "0:00",
        "deleted at 0:00 for the deadline, with 900 of its 3600 s",
    ),
    (
        a_replica(),
        {"deadline": 900, "budgets": (a_budget(**LACKING),)},
        "0:00-14:30",
        "evicted when budget shop/web allows it, or deleted at 14:30 for the deadline, with all of its 30 s",
    ),
    (
        a_replica(deletion_timestamp=NOW + 20, deletion_grace_seconds=30),
        {},
        "already",
        "terminating already, until 0:20 at the latest",
    ),
    (
        a_replica(deletion_timestamp=NOW + 3600, deletion_grace_seconds=3600, grace_seconds=3600),
        {"deadline": 900},
        "0:00",
        "terminating already; told again at 0:00 for the deadline, with 900 of its 3600 s",
    ),
]


@pytest.mark.parametrize(("pod", "world", "when", "how"), CASES)
def test_of_a_pod_is_said_when_it_leaves_how_and_why(pod: Pod, world: dict[str, Any], when: str, how: str) -> None:
    assert line(pod, **world) == (when, how)


def test_a_pod_of_a_later_wave_waits_and_has_its_budget_still_before_it() -> None:
    last = a_replica("dns", priority=CRITICAL)
    words = "waiting for the non-critical pods, then evicted"
    assert line(last, a_replica()) == ("0:00-0:30", words)
    when, how = line(last, a_replica(), budgets={"dns": (a_budget(),)}, deadline=900)
    assert (when, how) == ("0:00-0:30", f"{words} when budget shop/web allows it; deleted at 14:30 at the latest")


def test_who_waits_for_a_pod_that_holds_the_node_is_told_which() -> None:
    holder = a_replica("holder", labels={names.DO_NOT_EVICT: "true"})
    how = "stays: blocked by do-not-evict of shop/holder"
    assert line(a_replica(), holder) == ("never", how)


def test_a_deletion_whose_instant_depends_on_others_has_two() -> None:
    kept, slow = a_replica("kept", grace_seconds=90, **FOR_EVER), a_replica("slow", grace_seconds=400, priority=1000)
    settings = PolicySettings(order=by_priority([(0, 60.0), (1000, 60.0)]))
    how = "protected by do-not-disrupt; deleted between 57:30 and 58:30 for the deadline, with all of its 90 s"
    assert line(kept, slow, deadline=3600, settings=settings) == ("57:30-58:30", how)


def test_in_a_lane_everybody_knows_who_goes_before() -> None:
    first, second = [
        ending(f"n{n}", a_replica(f"web-{n}"), budgets=(a_budget(**LACKING),), since=NOW - n) for n in (1, 2)
    ]
    by_name = {each.name: each.how for node in told(first, second).nodes for each in lines(node)}
    assert by_name == {
        "shop/web-1": "evicted when budget shop/web allows it (2nd of 2 in its lane, after shop/web-2 on n2)",
        "shop/web-2": "evicted when budget shop/web allows it (1st of 2 in its lane)",
    }
    (node,) = told(ending("n1", a_replica("a"), a_replica("b"), budgets=(a_budget(**LACKING),))).nodes
    assert lines(node)[1].how.endswith("(2nd of 2 in its lane, after shop/a)")


def test_of_nodes_that_are_deleted_together_nobody_knows_who_goes_before() -> None:
    for node in telling(three_replicas(), Terms()).nodes:
        assert [each.how for each in lines(node)] == [
            "evicted when budget shop/orders allows it (3 in its lane; whose node is looked at first goes first), or "
            "deleted at 5:00 for the deadline, with all of its 600 s"
        ]


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (1, "1st"),
        (2, "2nd"),
        (3, "3rd"),
        (4, "4th"),
        (11, "11th"),
        (12, "12th"),
        (13, "13th"),
        (21, "21st"),
        (112, "112th"),
    ],
)
def test_places_are_counted_as_people_do(number: int, word: str) -> None:
    assert ordinal(number) == word


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
            "0:00-2:30",
            "5 pods: shop/p1, shop/p2, and 3 more",
            "evicted when budget shop/web allows it (6 in its lane, one after another)",
            5,
        ),
    ]


def test_what_is_not_alike_is_not_told_together() -> None:
    pods = [a_replica(f"long{n}", grace_seconds=1000 + n) for n in range(4)]
    (node,) = told(ending("n1", *pods, deadline=900)).nodes
    assert [each.count for each in lines(node)] == [1] * 4


def test_of_a_crowd_only_the_large_is_told_unless_somebody_wants_it_all() -> None:
    node = telling(crowd(), Terms()).nodes[0]
    assert lines(node) == [
        PodLine("0:00", "8 pods", "evicted", 8),
        PodLine("0:00-4:00", "102 pods", "evicted when their budgets allow it", 102),
    ]
    node = telling(crowd(), Terms(verbose=True)).nodes[0]
    assert [each.count for each in lines(node)] == [1] * 110


def test_who_only_waits_for_the_rate_is_told_so() -> None:
    pods = [a_replica(f"p{n:03}") for n in range(30)]
    outlook = foretold(ending("n1", *pods), rate=EvictionRate(qps=10.0, burst=10))
    (node,) = telling(outlook, Terms()).nodes
    assert lines(node) == [PodLine("0:00-0:02", "30 pods", "evicted, as fast as eviction.qps lets them go", 30)]


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
@pytest.mark.parametrize("verbose", [False, True])
def test_every_pod_is_told_of_exactly_once(world: Callable[[], Outlook], verbose: bool) -> None:
    outlook = world()
    for node, seen in zip(telling(outlook, Terms(verbose=verbose)).nodes, outlook.nodes, strict=True):
        ignored = sum(not pod.is_waited_for for pod in seen.prospect.pods)
        count = sum(each.count for each in lines(node)) + (0 if verbose else ignored)
        assert count == len(seen.prospect.pods)
        assert bool(node.ignored) == bool(ignored and not verbose)


# -- of nodes ----------------------------------------------------------------------------------------------------------


def test_a_day() -> None:
    (node,) = telling(a_day(), Terms()).nodes
    assert node.headline == "drained between 1d 00:00:00 and 1d 00:01:00 after its deletion"
    assert node.facts == ("no deadline: it takes as long as its pods need",)
    assert [wave.title for wave in node.waves] == ["non-critical", "critical"]
    assert [(each.when, each.name) for each in lines(node)] == [
        ("0:00", "shop/quick"),
        ("0:00", "shop/web-1"),
        ("0:00-0:30", "shop/web-2"),
        ("1d 00:00:00", "shop/notebook"),
        ("1d 00:00:00-1d 00:00:30", "shop/dns"),
    ]
    assert node.ignored == (
        "not waited for: 2 pods (1 finished: its phase is Succeeded; 1 static pod: it belongs to its node)"
    )


def test_a_node_that_is_ending_is_told_from_now_on() -> None:
    told = telling(under_way(), Terms())
    (node,) = told.nodes
    assert told.title == (
        "What happens next (0:00 is 1970-01-12T13:46:40Z by the server's clock), while old-2 is draining already"
    )
    assert node.headline == "drained between 0:00 and 14:00 from now"
    assert node.facts == (
        "deadline 14:00 (1970-01-12T14:00:40Z): termination grace period 15m0s of NodeClaim old-1",
        "ending since 1970-01-12T13:45:40Z (1:00 ago)",
    )
    assert told.summary == ()


def staying(*pods: Pod, since: float | None = None) -> DrainingNode:
    """A node that is drained for maintenance: asked for at `since`, or by nobody yet."""
    annotations = {} if since is None else {names.KEEP_DRAINED: format_time(since)}
    node = a_node("n1", conditions=READY, annotations=annotations)
    view = NodeView(node, pods, {}, is_maintenance=True, cordoned_at=NOW)
    return DrainingNode(view, NOW if since is None else since)


def test_of_a_node_that_stays_no_deadline_is_told() -> None:
    told = telling(foretold(staying(a_replica(empty_dir=True), a_pod("log", owners=owned_by("DaemonSet")))), Terms())
    (node,) = told.nodes
    assert told.title == (
        "What happens if n1 is drained for maintenance now (0:00 is 1970-01-12T13:46:40Z by the server's clock)"
    )
    assert node.headline == "drained between 0:02 and 0:30 from now"
    assert node.facts == ()
    assert [caution.kind for caution in node.cautions] == [WarningKind.DATA_LOSS]
    assert node.ignored == "not waited for: 1 pod (1 DaemonSet pod: it stays, as its node does)"
    assert (
        "Drained means that no pod is waited for any more; volumes come after that, and then the node is kept so until "
        "somebody gives it back."
    ) in told.remarks


def test_of_one_that_is_being_drained_already_it_is_told_since_when() -> None:
    told = telling(foretold(staying(a_replica(), since=NOW - 60)), Terms())
    assert told.title == "What happens next (0:00 is 1970-01-12T13:46:40Z by the server's clock)"
    assert told.nodes[0].facts == ("drained for maintenance since 1970-01-12T13:45:40Z (1:00 ago)",)


def test_beside_one_that_stays_one_may_end() -> None:
    told = telling(foretold(staying(a_replica()), ending("n2", a_replica("web-2"), since=NOW - 60)), Terms())
    assert told.title.startswith("What happens if n1 is drained for maintenance now (")
    assert (
        "Drained means that no pod is waited for any more; volumes and the instance come after that where a node ends."
    ) in told.remarks


def test_several_nodes_have_a_summary() -> None:
    told = telling(three_replicas(), Terms())
    assert told.title == "What happens if 3 nodes are deleted now (0:00 is 1970-01-12T13:46:40Z by the server's clock)"
    assert [(each.node, each.drained, each.deadline, each.pods, each.kinds) for each in told.summary] == [
        (f"node-{n}", "0:02-15:00", "15:00", 1, ("BudgetViolated",)) for n in (1, 2, 3)
    ]


def test_a_node_that_never_drains_or_perhaps_never() -> None:
    assert telling(never(), Terms()).nodes[0].headline == "never drained"
    (perhaps,) = told(ending("n1", a_replica(), budgets=(a_budget(**LACKING),))).nodes
    assert perhaps.headline == "drained 0:02 after its deletion at the earliest, perhaps never"


def test_of_a_node_that_nobody_would_drain_that_is_said_first() -> None:
    outlook = three_replicas()
    first = msgspec.structs.replace(
        outlook.nodes[0], cautions=(PlanWarning(WarningKind.FINALIZER_MISSING, "not held"),)
    )
    told = telling(msgspec.structs.replace(outlook, nodes=(first, *outlook.nodes[1:])), Terms())
    assert told.nodes[0].headline == (
        "nobody would drain it, as things stand; else drained between 0:02 and 15:00 after its deletion"
    )
    assert told.summary[0].drained == "not drained"


def test_a_range_with_a_deadline_of_its_own_says_so() -> None:
    pods = [a_replica("low"), a_replica("high", priority=1000)]
    (node,) = told(ending("n1", *pods, deadline=900, settings=RANGES)).nodes
    assert [wave.title for wave in node.waves] == ["priority below 1000, until 10:00", "priority 1000 and above"]


# -- of budgets --------------------------------------------------------------------------------------------------------


def test_a_budget_says_what_it_allows_and_whom_it_holds_up() -> None:
    (line,) = telling(three_replicas(), Terms()).budgets
    assert (line.name, line.says, line.holds_up) == (
        "shop/orders",
        "allows 1 now (3 of 3 healthy, 2 required); 3 pods in its lane, on node-1, node-2 and node-3; holds up 2 pods "
        "now",
        2,
    )


def test_a_budget_that_holds_up_nobody_is_counted_or_listed() -> None:
    going = ending("n1", a_replica(), a_replica("dns", priority=CRITICAL), budgets=(a_budget(disruptions_allowed=2),))
    assert (told(going).budgets, told(going).others) == ((), "1 budget holds up nobody (-v lists them)")
    (line,) = told(going, verbose=True).budgets
    assert line.says == "allows 2 now (3 of 3 healthy, 2 required); 1 pod in its lane, on n1; 1 pod comes to it later"


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (a_budget(generation=2), "has just changed and is being counted (3 of 3 healthy, 2 required before)"),
        (
            a_budget(
                disruptions_allowed=0,
                verdict=Condition("DisruptionAllowed", "False", reason="SyncFailed", message="no scale"),
            ),
            "allows nothing, as it cannot be counted: no scale",
        ),
    ],
)
def test_a_budget_that_is_not_counted_says_so(budget: Any, says: str) -> None:
    (line,) = told(ending("n1", a_replica(), budgets=(budget,)), verbose=True).budgets
    assert line.says == f"{says}; 1 pod in its lane, on n1; holds up 1 pod now"


def test_of_many_budgets_those_are_told_of_that_hold_up_most() -> None:
    told = telling(crowd(), Terms())
    assert len(told.budgets) == 16
    assert told.others == "24 budgets more hold up 138 pods (-v lists them)"
    assert len(telling(crowd(), Terms(verbose=True)).budgets) == 40


# -- what it rests on --------------------------------------------------------------------------------------------------


def remarks(outlook: Outlook, **terms: bool) -> str:
    return " ".join(telling(outlook, Terms(**terms)).remarks)


def test_it_is_said_what_is_certain_and_what_is_not() -> None:
    sure = remarks(foretold(ending("n1", a_replica())))
    assert sure == (
        "Nothing was changed. A single time is certain, as long as nobody interferes. Drained means that no pod is "
        "waited for any more; volumes and the instance come after that."
    )
    unsure = remarks(three_replicas())
    assert "Between two times nobody can say when" in unsure
    assert "Ready at once or 600 s after it was made (--replacement-seconds)" in unsure
    assert '"Never"' not in unsure
    assert '"Never" and "or later" hold until somebody changes something' in remarks(never())
    assert "-v lists each of them" in remarks(crowd())


def test_who_gives_no_settings_is_told_what_depends_on_them() -> None:
    assert "give the controller's own with --config" in remarks(a_day(), by_default=True)
    assert "--config" not in remarks(a_day())


def test_a_daemonset_s_pod_is_one_that_somebody_makes_again() -> None:
    (node,) = told(ending("n1", a_pod("ds", owners=owned_by("DaemonSet")))).nodes
    assert node.cautions == ()
