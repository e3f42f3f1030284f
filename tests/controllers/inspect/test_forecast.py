"""What is predicted of nodes as the caches show them: their deadlines and where these come from, and what they lack."""

from __future__ import annotations

from typing import Any

import pytest
from support.builders import NOW, READY, a_node, a_pod, owned_by

from gracectl.controllers.cluster.cache import ClusterCache, empty_cluster_cache
from gracectl.controllers.settings import TerminationSettings
from gracectl.inspect.forecast import DrainForecast, NodeDrainForecast, forecast_drains, with_node_budgets
from gracectl.model import names
from gracectl.model.budget import NodeDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import Condition
from gracectl.model.node import Node
from gracectl.model.selectors import LabelSelector
from gracectl.model.times import format_time
from gracectl.policy.answers import Never, Window
from gracectl.policy.deadlines import DeadlineOrigin
from gracectl.policy.forecast import Assumptions, Bounds
from gracectl.policy.settings import NodeGroup, PolicySettings
from gracectl.policy.warnings import WarningKind

GROUPS = (NodeGroup(LabelSelector({"pool": "a"})), NodeGroup(LabelSelector({}), termination_grace_seconds=1800.0))


def a_good_node(name: str = "n1", **fields: Any) -> Node:
    return a_node(name, **{"conditions": READY, "finalizers": (names.FINALIZER,), **fields})


def a_claim(name: str = "c1", **fields: Any) -> NodeClaim:
    return NodeClaim(name, f"uid-{name}", **{"node_name": "n1", **fields})


def annotated(instant: float) -> dict[str, str]:
    return {names.TERMINATION_TIMESTAMP: format_time(instant)}


def by(seconds: float) -> dict[str, str]:
    """Drained for maintenance, requested a minute ago, with a deadline."""
    return {names.KEEP_DRAINED: format_time(NOW - 60), names.DRAIN_DEADLINE: format_time(NOW + seconds)}


def cluster(*things: Node | NodeClaim) -> ClusterCache:
    """These, with a pod on each node."""
    cache = empty_cluster_cache()
    nodes = [thing for thing in things if isinstance(thing, Node)]
    cache.nodes.replace(nodes)
    cache.claims.replace([thing for thing in things if isinstance(thing, NodeClaim)])
    cache.pods.replace([a_pod(f"on-{node.name}", node_name=node.name, owners=owned_by("ReplicaSet")) for node in nodes])
    return cache


def predicted(
    *things: Node | NodeClaim, asked: tuple[str, ...] = ("n1",), for_maintenance: bool = False, **policy: Any
) -> DrainForecast:
    settings = TerminationSettings(policy=PolicySettings(**policy))
    return forecast_drains(cluster(*things), settings, asked, NOW, Assumptions(), for_maintenance=for_maintenance)


def of_n1(*things: Node | NodeClaim, **policy: Any) -> NodeDrainForecast:
    (node,) = predicted(*things, **policy).nodes
    return node


@pytest.mark.parametrize(
    ("provider_id", "policy", "for_maintenance", "is_warned"),
    [
        ("aws:///eu-central-1a/i-0abc", {"terminates_instances": False}, False, True),
        ("azure:///subscriptions/x", {"terminates_instances": False}, False, True),
        ("aws:///eu-central-1a/i-0abc", {"terminates_instances": False}, True, False),
        ("aws:///eu-central-1a/i-0abc", {}, False, False),
        ("kind://docker/kind/n1", {"terminates_instances": False}, False, False),
        ("", {"terminates_instances": False}, False, False),
    ],
)
def test_a_machine_of_a_cloud_that_no_provider_terminates_is_warned_of(
    provider_id: str, policy: dict[str, Any], for_maintenance: bool, is_warned: bool
) -> None:
    (node,) = predicted(a_good_node(provider_id=provider_id), for_maintenance=for_maintenance, **policy).nodes
    assert (WarningKind.MACHINE_KEEPS_RUNNING in {each.kind for each in node.warnings}) is is_warned


@pytest.mark.parametrize(
    ("things", "deadline", "origin"),
    [
        ((a_good_node(),), 1800.0, DeadlineOrigin("nodeGroup", "nodeGroups[1]")),
        ((a_good_node(labels={"pool": "a"}),), None, None),
        ((a_good_node(), a_claim()), 1800.0, DeadlineOrigin("nodeGroup", "nodeGroups[1]")),
        ((a_good_node(), a_claim(termination_grace_period="15m")), 900.0, DeadlineOrigin("claim", "NodeClaim c1")),
        (
            (a_good_node(annotations=annotated(NOW + 60)), a_claim(termination_grace_period="15m")),
            60.0,
            DeadlineOrigin("annotation", "Node n1"),
        ),
        ((a_good_node(), a_claim(annotations=annotated(NOW + 60))), 60.0, DeadlineOrigin("annotation", "NodeClaim c1")),
        # What the controller has written from the TGP is no other source.
        (
            (
                a_good_node(annotations=annotated(NOW + 300), deletion_timestamp=NOW - 600),
                a_claim(termination_grace_period="15m", deletion_timestamp=NOW - 600),
            ),
            300.0,
            DeadlineOrigin("claim", "NodeClaim c1"),
        ),
    ],
)
def test_a_deadline_is_told_with_where_it_comes_from(
    things: tuple[Node | NodeClaim, ...], deadline: float | None, origin: DeadlineOrigin | None
) -> None:
    node = of_n1(*things, node_groups=GROUPS)
    assert (node.deadline.at - NOW if node.deadline else None) == deadline
    assert node.deadline_origin == origin


@pytest.mark.parametrize(
    ("things", "kind", "message"),
    [
        (
            (a_good_node(labels={names.CONTROL_PLANE_ROLE: ""}),),
            WarningKind.NOT_MANAGED,
            "not managed: no nodeSelector match; gracectl does not drain it",
        ),
        (
            (a_good_node(finalizers=()),),
            WarningKind.FINALIZER_MISSING,
            "finalizer of gracectl missing: deleted now, it would disappear without a drain; is `gracectl "
            "controller` running, and does its nodeSelector match the node?",
        ),
        (
            (a_good_node(finalizers=("other",), deletion_timestamp=NOW - 5),),
            WarningKind.FINALIZER_MISSING,
            "being deleted without the finalizer of gracectl, which can no longer be added: not drained",
        ),
        (
            (a_good_node(), a_claim("c1"), a_claim("c2")),
            WarningKind.SEVERAL_CLAIMS,
            "several node claims have this node (c1, c2): none is used",
        ),
        (
            (a_good_node(annotations={names.TERMINATION_TIMESTAMP: "tomorrow"}),),
            WarningKind.INVALID_DEADLINE,
            'annotation karpenter.sh/nodeclaim-termination-timestamp of n1 ignored: "tomorrow" is no instant',
        ),
    ],
)
def test_what_keeps_a_node_from_ending_as_predicted_is_said(
    things: tuple[Node | NodeClaim, ...], kind: WarningKind, message: str
) -> None:
    assert [(warning.kind, warning.message) for warning in of_n1(*things).warnings] == [(kind, message)]


def test_warnings_of_all_sources_are_sorted_by_importance() -> None:
    node = of_n1(a_good_node(finalizers=(), conditions=()))
    assert [warning.kind for warning in node.warnings] == [WarningKind.FINALIZER_MISSING, WarningKind.NOT_READY]


def test_nodes_that_end_already_are_part_of_the_whole_but_only_those_asked_about_are_answered() -> None:
    forecast = predicted(
        a_good_node("n1"),
        a_good_node("n2", deletion_timestamp=NOW - 60),
        a_good_node("n3", deletion_timestamp=NOW - 60, finalizers=()),  # not ours to end
        a_good_node("n4"),
        asked=("n1",),
    )
    assert [node.name for node in forecast.nodes] == ["n1"]
    assert [node.name for node in forecast.whole.nodes] == ["n1", "n2"]
    assert [node.draining.since for node in forecast.whole.nodes] == [NOW, NOW - 60]


def test_nodes_that_are_drained_for_maintenance_are_part_of_the_whole_and_end_only_if_they_are_asked_about() -> None:
    kept = a_good_node("n2", annotations={names.KEEP_DRAINED: format_time(NOW - 60)})
    forecast = predicted(a_good_node("n1"), kept, asked=("n1",), node_groups=GROUPS)
    assert [(each.name, each.draining.since, each.plan.deadline) for each in forecast.whole.nodes] == [
        ("n1", NOW, NOW + 1800),
        ("n2", NOW - 60, None),
    ]
    assert forecast.whole.nodes[1].draining.view.is_maintenance
    forecast = predicted(a_good_node("n1"), kept, asked=("n2",), node_groups=GROUPS)
    assert [(each.name, each.plan.deadline) for each in forecast.whole.nodes] == [("n2", NOW + 1800)]


def test_a_node_in_maintenance_that_is_not_ours_is_unmanaged() -> None:
    kept = a_good_node("n2", annotations={names.KEEP_DRAINED: ""}, labels={names.CONTROL_PLANE_ROLE: ""})
    assert [each.name for each in predicted(a_good_node("n1"), kept).whole.nodes] == ["n1"]


# -- if they are to stay -----------------------------------------------------------------------------------------------


def test_a_node_that_is_to_stay_has_no_deadline_and_claims_do_not_matter() -> None:
    claims = (a_claim("c1", termination_grace_period="15m"), a_claim("c2"))
    node = predicted(
        a_good_node(annotations=annotated(NOW + 60)), *claims, for_maintenance=True, node_groups=GROUPS
    ).nodes[0]
    assert (node.deadline, node.deadline_origin, node.warnings) == (None, None, ())
    assert (node.is_maintenance, node.is_terminating, node.is_requested) == (True, False, False)
    assert node.forecast.draining.view.is_maintenance
    assert node.forecast.draining.since == NOW


def test_one_that_is_kept_already_is_predicted_from_its_request_on() -> None:
    kept = a_good_node(annotations={names.KEEP_DRAINED: format_time(NOW - 60)})
    (node,) = predicted(kept, for_maintenance=True).nodes
    assert (node.is_requested, node.forecast.draining.since) == (True, NOW - 60)
    back = a_good_node(annotations={names.KEEP_DRAINED: format_time(NOW - 60), names.CORDONED: "unschedulable"})
    (node,) = predicted(back, for_maintenance=True).nodes
    assert (node.is_requested, node.forecast.draining.since) == (False, NOW)


@pytest.mark.parametrize(("node", "seconds", "deadline"), [
    pytest.param(a_good_node(), 60.0, 60.0, id="asked for"),
    pytest.param(a_good_node(annotations=by(60.0)), None, 60.0, id="requested"),
    pytest.param(a_good_node(annotations=by(60.0)), 90.0, 60.0, id="an earlier one is requested"),
    pytest.param(a_good_node(annotations={names.DRAIN_DEADLINE: format_time(NOW - 5)}), None, None, id="left over"),
    pytest.param(
        a_good_node(annotations={**by(-5.0), names.CORDONED: "unschedulable"}), None, None, id="uncordoned since"
    ),
])  # fmt: skip
def test_one_that_is_to_stay_may_have_a_deadline(node: Node, seconds: float | None, deadline: float | None) -> None:
    pods = cluster(node)
    pods.pods.replace([a_pod("held", grace_seconds=20, annotations={names.DO_NOT_DISRUPT: "true"})])
    assumed = Assumptions(deadline_seconds=seconds)
    (found,) = forecast_drains(pods, TerminationSettings(), ("n1",), NOW, assumed, for_maintenance=True).nodes
    (held,) = found.forecast.pods
    if deadline is None:
        assert (found.deadline, found.deadline_origin) == (None, None)
        assert isinstance(found.forecast.drained, Never)
        return
    assert found.deadline is not None
    assert (found.deadline.at, found.deadline.annotation) == (NOW + deadline, names.DRAIN_DEADLINE)
    assert found.deadline_origin == DeadlineOrigin("annotation", "Node n1")
    assert held.removal == Bounds(NOW + deadline - 20, NOW + deadline - 20)
    assert found.forecast.drained == Window(NOW + deadline - 20, NOW + deadline)


def test_one_that_is_to_end_may_get_a_deadline_that_is_never_later_than_its_own() -> None:
    for seconds, expected in ((60.0, 60.0), (3600.0, 1800.0)):
        assumed = Assumptions(deadline_seconds=seconds)
        settings = TerminationSettings(policy=PolicySettings(node_groups=GROUPS))
        (found,) = forecast_drains(cluster(a_good_node()), settings, ("n1",), NOW, assumed).nodes
        assert found.deadline is not None
        assert found.deadline.at == NOW + expected


def test_one_that_is_deleted_already_ends_whatever_is_asked() -> None:
    node = predicted(a_good_node(deletion_timestamp=NOW - 60), for_maintenance=True, node_groups=GROUPS).nodes[0]
    assert (node.is_maintenance, node.is_terminating) == (False, True)
    assert node.deadline is not None


def test_only_those_that_were_asked_about_are_taken_to_stay() -> None:
    forecast = predicted(a_good_node("n1"), a_good_node("n2", deletion_timestamp=NOW - 60), for_maintenance=True)
    assert [each.draining.view.is_maintenance for each in forecast.whole.nodes] == [True, False]


def test_an_unmanaged_node_is_not_drained_for_maintenance_either() -> None:
    (node,) = predicted(a_good_node(finalizers=()), for_maintenance=True).nodes
    assert [(warning.kind, warning.message) for warning in node.warnings] == [
        (
            WarningKind.FINALIZER_MISSING,
            "finalizer of gracectl missing: it would not be drained; is `gracectl controller` running, "
            "and does its nodeSelector match the node?",
        )
    ]


def test_a_node_budget_that_would_refuse_a_deletion_is_reported_of_nodes_not_yet_deleted() -> None:
    budget = NodeDisruptionBudget(
        name="pool-a",
        uid="b",
        selector=LabelSelector({"pool": "a"}),
        min_available="100%",
        expected_nodes=1,
        current_available=1,
        desired_available=1,
    )
    nodes = (
        a_good_node("held", labels={"pool": "a"}),
        a_good_node("other", labels={"pool": "b"}),
        a_good_node("deleted", labels={"pool": "a"}, deletion_timestamp=NOW),
    )
    asked = ("held", "other", "deleted")
    forecast = with_node_budgets(
        forecast_drains(cluster(*nodes), TerminationSettings(), asked, NOW, Assumptions()), (budget,), NOW
    )
    found = {
        node.name: [each for each in node.warnings if each.kind is WarningKind.NODE_BUDGET_BLOCKS]
        for node in forecast.nodes
    }
    assert (found["other"], found["deleted"]) == ([], [])
    [caution] = found["held"]
    assert caution.kind.is_blocking
    assert caution.objects == ("pool-a",)
    assert caution.message == (
        "deletion would be refused: node disruption budget pool-a allows no termination now (1 of 1 available, 1 "
        "required by minAvailable 100%)"
    )
    helps = "change or delete the budget, which never allows a termination; see what it counts: gracectl budgets"
    assert caution.remedy == helps
    kept = forecast_drains(cluster(*nodes), TerminationSettings(), ("held",), NOW, Assumptions(), for_maintenance=True)
    (warning,) = with_node_budgets(kept, (budget,), NOW).nodes[0].warnings
    assert (warning.kind, warning.kind.is_blocking) == (WarningKind.NODE_BUDGET_SPENT, False)
    assert warning.message == (
        "still drained, but do not stop its machine now: node disruption budget pool-a allows no termination "
        "now (1 of 1 available, 1 required by minAvailable 100%)"
    )
    assert warning.remedy == helps


@pytest.mark.parametrize("fields", [{}, {"deletion_timestamp": NOW + 10}])
def test_a_pod_that_waits_for_its_kubelet_is_not_named_as_one_that_stays(fields: dict[str, Any]) -> None:
    silent = a_good_node(conditions=(Condition(names.READY, "Unknown", "NodeStatusUnknown", ""),))
    pods = cluster(silent)
    pods.pods.replace([a_pod("plain", **fields), a_pod("held", annotations={names.DO_NOT_DISRUPT: "true"})])
    (node,) = forecast_drains(pods, TerminationSettings(), ("n1",), NOW, Assumptions(), for_maintenance=True).nodes
    never = [each.message for each in node.warnings if each.kind is WarningKind.NEVER_DRAINS]
    assert never == ["this node never drains: shop/held stays indefinitely (protected by do-not-disrupt)"]
