"""How nodes stand, as their objects alone show it: state, step, who holds them and since when, who should act."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.builders import DRAINED, KEPT, NOW, READY, a_budget, a_node, a_pod, cluster, going, kept, owned_by, replica

from gracectl.controllers.settings import TerminationSettings
from gracectl.inspect.status import (
    NodePhase,
    NodeStatus,
    NodeStatuses,
    claims_without_node_status,
    is_active,
    node_statuses,
)
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import Condition
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.selectors import LabelSelector
from gracectl.model.times import format_time
from gracectl.policy.deadlines import DeadlineOrigin
from gracectl.policy.plan import Outcome
from gracectl.policy.settings import NodeGroup, PolicySettings
from gracectl.policy.warnings import WarningKind

SETTINGS = TerminationSettings()
FAILS = Condition(names.DRAINED, "False", names.STEP_FAILING, "step cordon failed: forbidden")


def status_of(node: Node, *pods: Pod, settings: TerminationSettings = SETTINGS, **caches: Any) -> NodeStatus:
    (status,) = node_statuses(cluster(node, pods=pods, **caches), settings, {node.name}, NOW)
    return status


# -- where it stands ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "pods", "expected"),
    [
        (a_node(finalizers=(names.FINALIZER,)), (), (NodePhase.IDLE, "", "")),
        (going(taints=(), since=1), (), (NodePhase.TERMINATING, "cordon", "not cordoned yet")),
        (going(taints=(), conditions=(FAILS,)), (), (NodePhase.TERMINATING, "cordon", "step cordon failed: forbidden")),
        (going(conditions=(FAILS,)), (replica(),), (NodePhase.TERMINATING, "drain", "step cordon failed: forbidden")),
        (
            going(),
            (replica(),),
            (NodePhase.TERMINATING, "drain", "is being evicted – shop/web-1"),
        ),
        (
            going(),
            (),
            (NodePhase.TERMINATING, "drain", "no pod is left; waiting for pods bound at the time of the cordon"),
        ),
        (
            going(
                conditions=(DRAINED, Condition(names.VOLUMES_DETACHED, "False", "AwaitingDetachment", "waits for v"))
            ),
            (),
            (NodePhase.TERMINATING, "volumes", "waits for v"),
        ),
        (
            going(conditions=(DRAINED, Condition(names.INSTANCE_TERMINATING, "False", "ProviderFailed", "no quota"))),
            (),
            (NodePhase.TERMINATING, "instance", "no quota"),
        ),
        (going(conditions=(DRAINED,)), (), (NodePhase.TERMINATING, "instance", "")),
        # At the deadline pods and volumes are not waited for any more.
        (
            going(annotations={names.TERMINATION_TIMESTAMP: format_time(NOW - 1)}),
            (replica(deletion_timestamp=NOW, deletion_grace_seconds=1),),
            (NodePhase.TERMINATING, "instance", "deadline passed"),
        ),
        (
            going(conditions=(DRAINED,), finalizers=("a.io/x", "b.io/y")),
            (),
            (NodePhase.TERMINATING, "finalizer", "other finalizers: a.io/x, b.io/y"),
        ),
        (kept(taints=()), (), (NodePhase.MAINTENANCE, "cordon", "not cordoned yet")),
        (kept(), (replica(),), (NodePhase.MAINTENANCE, "drain", "is being evicted – shop/web-1")),
        (kept(conditions=(KEPT,)), (), (NodePhase.MAINTENANCE, "drained", "all pods are gone")),
        # It was empty once, and a late pod has come.
        (kept(conditions=(KEPT,)), (replica(),), (NodePhase.MAINTENANCE, "drain", "is being evicted – shop/web-1")),
        (
            kept(unschedulable=False),
            (replica(),),
            (NodePhase.UNCORDONING, "uncordon", "removal of the marks of its cordon"),
        ),
        (
            kept(annotations={names.CORDONED: ""}),
            (replica(),),
            (NodePhase.UNCORDONING, "uncordon", "removal of the marks of its cordon"),
        ),
        (
            going(labels={names.CONTROL_PLANE_ROLE: ""}),
            (replica(),),
            (NodePhase.TERMINATING, "", "not managed"),
        ),
    ],
)
def test_the_step_of_a_node(node: Node, pods: tuple[Pod, ...], expected: tuple[NodePhase, str, str]) -> None:
    status = status_of(node, *pods)
    assert (status.state, status.step, status.waits_for) == expected
    assert is_active(node) is (status.state is not NodePhase.IDLE)
    assert status.is_done is (status.step == "drained")


def test_the_deadline_of_a_drain_is_shown_until_the_node_is_drained() -> None:
    annotations = {
        names.KEEP_DRAINED: format_time(NOW - 100), names.CORDONED: "unschedulable",
        names.DRAIN_DEADLINE: format_time(NOW + 60),
    }  # fmt: skip
    draining = kept(annotations=annotations, taints=(), conditions=READY)
    status = status_of(draining, replica(grace_seconds=20))
    assert status.deadline is not None
    assert (status.state, status.step, status.deadline.at) == (NodePhase.MAINTENANCE, "drain", NOW + 60)
    assert status.deadline_origin == DeadlineOrigin("annotation", "Node n1")
    assert status.pods is not None
    assert [pod.entry.delete_at for pod in status.pods] == [NOW + 40]
    assert not status_of(draining).is_done
    del annotations[names.DRAIN_DEADLINE]
    drained = status_of(kept(annotations=annotations, taints=(), conditions=READY))
    assert (drained.is_done, drained.deadline) == (True, None)


def test_what_is_not_there_is_left_out_and_the_others_come_by_name() -> None:
    seen = cluster(going("b"), going("a"), going("c"))
    assert [each.name for each in node_statuses(seen, SETTINGS, {"b", "a", "missing"}, NOW)] == ["a", "b"]


def test_pods_that_are_not_listed_yet_are_not_taken_for_none() -> None:
    (status,) = node_statuses(cluster(going()), SETTINGS, {"n1"}, NOW, has_pods=lambda node: False)
    assert (status.pods, status.step) == (None, "drain")


def test_what_stays_with_a_node_is_no_pod_that_holds_it() -> None:
    daemon = a_pod("agent", owners=owned_by("DaemonSet"))
    assert [pod.entry.pod.name for pod in status_of(kept(), daemon).pods or ()] == []
    assert [pod.entry.pod.name for pod in status_of(going(), daemon).pods or ()] == ["agent"]


def test_waves_and_groups_are_those_of_the_settings() -> None:
    group = NodeGroup(LabelSelector({"pool": "a"}), termination_grace_seconds=600.0)
    settings = TerminationSettings(policy=PolicySettings(node_groups=(group,)))
    status = status_of(going(labels={"pool": "a"}), settings=settings)
    assert status.deadline is not None
    assert (status.deadline.at, status.deadline_origin) == (NOW + 500, DeadlineOrigin("nodeGroup", "nodeGroups[0]"))
    assert status_of(kept(labels={"pool": "a"}), settings=settings).deadline is None


# -- who holds it, and since when --------------------------------------------------------------------------------------

SPENT: dict[str, Any] = {"disruptions_allowed": 0, "current_healthy": 2}


def held(node: Node, pod: Pod, **budget: Any) -> tuple[Outcome, float]:
    """What is said of a pod, and since how many seconds."""
    (pod_status,) = status_of(node, pod, budgets=(a_budget(**budget),) if budget else ()).pods or ()
    return pod_status.entry.outcome, NOW - pod_status.since


@pytest.mark.parametrize(
    ("pod", "budget", "expected"),
    [
        (replica(), {}, (Outcome.EVICT, 100.0)),
        (replica(created=NOW - 40), {}, (Outcome.EVICT, 40.0)),
        (replica(), SPENT, (Outcome.BLOCKED, 100.0)),
        (
            replica(),
            {**SPENT, "verdict": Condition(names.DISRUPTION_ALLOWED, "False", last_transition=NOW - 30)},
            (Outcome.BLOCKED, 30.0),
        ),
        # It allowed nothing long before the first eviction under it.
        (
            replica(),
            {**SPENT, "verdict": Condition(names.DISRUPTION_ALLOWED, "False", last_transition=NOW - 9000)},
            (Outcome.BLOCKED, 100.0),
        ),
        (replica(annotations={names.DO_NOT_DISRUPT: "true"}), SPENT, (Outcome.PROTECTED, 100.0)),
        (
            replica(deletion_timestamp=NOW + 10, deletion_grace_seconds=30),
            SPENT,
            (Outcome.TERMINATING, 20.0),
        ),
    ],
)
def test_since_when_a_pod_is_held(pod: Pod, budget: dict[str, Any], expected: tuple[Outcome, float]) -> None:
    assert held(going(), pod, **budget) == expected


def test_blocking_pods_come_first_and_waiting_pods_name_them() -> None:
    pods = [
        replica("free", labels={"app": "free"}),
        replica("kept", labels={"app": "kept"}, annotations={names.DO_NOT_DISRUPT: "true"}),
        replica("b"),
        replica("c", node_name="n2"),
    ]
    seen = cluster(going(), going("n2", since=200), pods=tuple(pods), budgets=(a_budget(**SPENT),))
    (status,) = node_statuses(seen, SETTINGS, {"n1"}, NOW)
    assert [pod.entry.pod.name for pod in status.pods or ()] == ["b", "kept", "free"]
    places = [pod.queue_position for pod in status.pods or ()]
    assert places[1:] == [None, None]
    assert places[0] is not None
    assert places[0].ahead is not None
    assert (places[0].number, places[0].of, places[0].ahead.node) == (2, 2, "n2")


def test_pods_of_a_queue_are_in_its_order() -> None:
    pods = tuple(replica(name, created=NOW - age) for name, age in (("a", 10.0), ("b", 30.0), ("c", 20.0)))
    (status,) = node_statuses(cluster(going(), pods=pods, budgets=(a_budget(**SPENT),)), SETTINGS, {"n1"}, NOW)
    assert [pod.queue_position.number for pod in status.pods or () if pod.queue_position] == [1, 2, 3]


def test_a_continued_watch_knows_since_when() -> None:
    """A pod that waits for a wave and is then blocked is blocked since then, not since the beginning."""
    node = going()
    first, second = replica("first"), replica("second", labels={"app": "x"}, priority=2_000_000_000)
    budget = a_budget("x", selector=LabelSelector({"app": "x"}), **SPENT)

    seen = cluster(node, budgets=(budget,))
    statuses = NodeStatuses(seen, SETTINGS, follows=True)

    def since(at: float, *pods: Pod) -> dict[str, tuple[Outcome, float]]:
        seen.pods.replace(pods)
        (status,) = statuses.at({"n1"}, at)
        return {pod.entry.pod.name: (pod.entry.outcome, pod.since - NOW) for pod in status.pods or ()}

    assert since(NOW, first, second) == {"first": (Outcome.EVICT, -100), "second": (Outcome.WAITING, -100)}
    deleted = msgspec.structs.replace(
        first, resource_version="2", deletion_timestamp=NOW + 30, deletion_grace_seconds=30
    )
    assert since(NOW + 5, deleted, second) == {"first": (Outcome.TERMINATING, 0), "second": (Outcome.WAITING, -100)}
    assert since(NOW + 9, second) == {"second": (Outcome.BLOCKED, 9)}
    assert since(NOW + 50, second) == {"second": (Outcome.BLOCKED, 9)}
    assert since(NOW + 60) == {}
    assert since(NOW + 70, second) == {"second": (Outcome.BLOCKED, -100)}  # forgotten: another one may have its name


# -- who should act ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", [going(), kept(), a_node(finalizers=(names.FINALIZER,))])
def test_that_the_machine_of_a_node_shuts_down_is_told_whatever_else_is_done_to_it(node: Node) -> None:
    says = Condition(names.SHUTTING_DOWN, names.TRUE, "WaitingForPods", "priority 0: it is the turn of 1 pod")
    for conditions, expected in (((says,), [WarningKind.MACHINE_SHUTS_DOWN]), ((), [])):
        status = status_of(msgspec.structs.replace(node, conditions=(*node.conditions, *conditions)), replica())
        assert [each.kind for each in status.warnings] == expected
    (warning,) = status_of(msgspec.structs.replace(node, conditions=(says,))).warnings
    assert warning.message == (
        "its machine shuts down, and the agent deletes its pods: priority 0: it is the turn of 1 pod"
    )


def test_one_that_is_not_managed_says_what_helps() -> None:
    (warning,) = status_of(going(labels={names.CONTROL_PLANE_ROLE: ""})).warnings
    assert "change nodeSelector or the node's labels" in warning.message


@pytest.mark.parametrize(
    ("deadline", "since", "pod", "expected"),
    [
        # Its 30 s before the deadline have begun 15 s ago.
        (15.0, 100.0, replica(), ["shop/web-1"]),
        (16.0, 100.0, replica(), []),
        (15.0, 100.0, replica(deletion_timestamp=NOW + 15, deletion_grace_seconds=30), []),
        # An end that is to be at once was asked for just now, or the pod has just come.
        (-9000.0, 14.0, replica(), []),
        (-9000.0, 15.0, replica(), ["shop/web-1"]),
        (15.0, 100.0, replica(created=NOW - 14), []),
    ],
)
def test_a_pod_that_is_due_and_not_deleted(deadline: float, since: float, pod: Pod, expected: list[str]) -> None:
    node = going(since=since, annotations={names.TERMINATION_TIMESTAMP: format_time(NOW + deadline)})
    warnings = [each for each in status_of(node, pod).warnings if each.kind is WarningKind.NO_CONTROLLER]
    assert [name for each in warnings for name in each.objects] == expected
    assert all("is `gracectl controller` running?" in each.message for each in warnings)


# -- claims ------------------------------------------------------------------------------------------------------------


def test_claims_that_end_without_a_node() -> None:
    ends: dict[str, Any] = {"deletion_timestamp": NOW - 50, "finalizers": (names.FINALIZER,)}
    said = (Condition(names.INSTANCE_TERMINATING, "False", "ProviderFailed", "no quota"),)
    held = (Condition(names.DRAINED, "False", "NodeDisruptionBudget", "deletion of node n2 blocked: it"),)
    claims = (
        NodeClaim("held", "h", **ends, node_name="n2", conditions=held),
        NodeClaim("b", "b", **ends, conditions=said, termination_grace_period="1m"),
        NodeClaim("a", "a", **ends),
        NodeClaim("with-node", "w", **ends, node_name="n1"),
        NodeClaim("lives", "l", finalizers=(names.FINALIZER,)),
        NodeClaim("of-others", "o", deletion_timestamp=NOW - 50, finalizers=("a.io/x",)),
        NodeClaim("unmanaged", "u", **ends, labels={names.CONTROL_PLANE_ROLE: ""}),
    )
    statuses = claims_without_node_status(cluster(going(), a_node("n2"), claims=claims), SETTINGS, NOW)
    assert [(each.name, each.nodes, each.since, each.waits_for) for each in statuses] == [
        ("a", (), NOW - 50, ""),
        ("b", (), NOW - 50, "no quota"),
        ("held", ("n2",), NOW - 50, "deletion of node n2 blocked: it"),
    ]
    assert statuses[1].deadline is not None
    assert statuses[1].deadline.at == NOW + 10
