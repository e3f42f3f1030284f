"""Warnings about volumes, workloads, services and Pending pods around those of a node."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec
import pytest
from support.builders import NOW, a_budget, a_node, a_pod, ending, owned_by

from gracectl.model.pod import Pod
from gracectl.model.selectors import Requirement
from gracectl.model.workloads import NodeTerm, PendingPod, PersistentVolume, PodNeeds, Service, Workload
from gracectl.policy.forecast import Assumptions, forecast
from gracectl.policy.placement import OtherNode
from gracectl.policy.surroundings import Surroundings, surrounding_warnings
from gracectl.policy.warnings import PlanWarning, WarningKind

HERE = (NodeTerm((Requirement("kubernetes.io/hostname", "In", ("n1",)),)),)
ZONE = (NodeTerm((Requirement("topology.kubernetes.io/zone", "In", ("a",)),)),)
OTHER = (OtherNode(a_node("other"), {"cpu": Fraction(1)}),)


def a_replica(name: str = "web-1", **fields: Any) -> Pod:
    return a_pod(name, **{"owners": owned_by("ReplicaSet", "web-5d"), **fields})


def a_workload(**fields: Any) -> Workload:
    defaults: dict[str, Any] = {"workload": "web", "replicas": 3, "selector": {"app": "web", "pod-template-hash": "5d"}}
    return Workload("shop", "web-5d", "uid-web-5d", **{**defaults, **fields})


def around(**fields: Any) -> Surroundings:
    return Surroundings(**{"others": OTHER, **fields})


def warned(surroundings: Surroundings, *pods: Pod, **world: Any) -> list[PlanWarning]:
    (node,) = forecast([ending("n1", *pods, **world)], NOW, Assumptions()).nodes
    return list(surrounding_warnings(node, surroundings))


def on_volume(volume: PersistentVolume | None, pod: Pod, **world: Any) -> list[str]:
    volumes = {} if volume is None else {("shop", "data"): volume}
    return [each.message for each in warned(around(volumes=volumes), pod, **world)]


DB = "shop/db-0 has data on this node only (volume pv): "


@pytest.mark.parametrize(("volume", "owners", "terminated", "drained"), [
    (PersistentVolume("pv", "u", is_on_disk=True, terms=HERE), owned_by("StatefulSet"),
     "its data goes with the node, and its replacement stays Pending", "it stays Pending until the uncordon"),
    (PersistentVolume("pv", "u", terms=HERE), (), "its data goes with the node", "its data stays behind"),
    (PersistentVolume("pv", "u", is_on_disk=True), owned_by("StatefulSet"), "its data goes with the node",
     "its data stays behind"),
    (PersistentVolume("pv", "u", terms=ZONE), owned_by("StatefulSet"), "", ""),
    (None, owned_by("StatefulSet"), "", ""),
])  # fmt: skip
def test_data_on_this_node_only(volume: PersistentVolume | None, owners: Any, terminated: str, drained: str) -> None:
    pod = a_pod("db-0", claims=("data",), owners=owners)
    assert on_volume(volume, pod) == ([f"{DB}{terminated}"] if terminated else [])
    assert on_volume(volume, pod, is_maintenance=True) == ([f"{DB}{drained}"] if drained else [])


def test_pods_that_no_other_node_can_take_are_named_by_reason() -> None:
    needs = PodNeeds(requests={"cpu": Fraction(2)})
    pods = (a_replica("web-1"), a_replica("web-2"), a_pod("bare"), a_pod("job", owners=owned_by("Job")))
    budgets = {"web-1": (a_budget(),), "web-2": (a_budget(),)}
    (warning,) = warned(around(workloads={"uid-web-5d": a_workload(needs=needs)}), *pods, budgets=budgets)
    assert (warning.kind, warning.objects) == (WarningKind.NO_OTHER_NODE, ("shop/web-1", "shop/web-2"))
    assert warning.message == "no other node fits shop/web-1, shop/web-2 now: 1 is too small for its requests"
    assert warned(around(workloads={"uid-web-5d": a_workload()}), *pods, budgets=budgets) == []
    unread = msgspec.structs.replace(around(workloads={"uid-web-5d": a_workload(needs=needs)}), others=None)
    assert warned(unread, *pods, budgets=budgets) == []


def test_workloads_without_a_budget() -> None:
    pods = (a_replica("web-1"), a_replica("web-2"), a_pod("one", owners=owned_by("StatefulSet", "one")))
    workloads = {"uid-web-5d": a_workload(), "uid-one": Workload("shop", "one", "uid-one", workload="one", replicas=1)}
    (warning,) = warned(around(workloads=workloads), *pods)
    assert (warning.kind, warning.objects) == (WarningKind.NO_BUDGET, ("shop/web",))
    assert warning.message == (
        "no budget covers shop/web (2 of 3 pods here): nothing keeps their pods from leaving at the same time"
    )
    assert warning.remedy == "create one: kubectl create pdb web -n shop --selector=app=web --max-unavailable=1"
    assert warned(around(workloads=workloads), *pods, budgets=(a_budget(),)) == []
    (warning,) = warned(around(workloads={"uid-web-5d": a_workload(selector=None)}), *pods)
    assert warning.remedy == ""


def test_a_deployment_that_rolls_out_is_one_workload() -> None:
    new = Workload("shop", "web-7f", "uid-web-7f", workload="web", replicas=1, selector={"app": "web"})
    pods = (a_replica("web-1"), a_pod("web-2", owners=owned_by("ReplicaSet", "web-7f")))
    workloads = {"uid-web-5d": a_workload(replicas=1), "uid-web-7f": new}
    (warning,) = warned(around(workloads=workloads), *pods)
    assert warning.message.startswith("no budget covers shop/web (2 of 2 pods here): ")


def test_load_balancers_that_reach_pods_through_this_node_only() -> None:
    services = (
        Service("shop", "web", "u1", selector={"app": "web"}, is_local=True),
        Service("shop", "other", "u2", selector={"app": "other"}, is_local=True),
        Service("elsewhere", "web", "u3", selector={"app": "web"}, is_local=True),
        Service("shop", "all", "u4", is_local=True),
    )
    (warning,) = warned(around(services=services), a_pod("web-1"))
    assert (warning.kind, warning.objects) == (WarningKind.LOCAL_TRAFFIC, ("shop/web", "shop/web-1"))
    assert warning.message == (
        "service shop/web has externalTrafficPolicy Local: from the cordon on, load balancers do not reach shop/web-1 "
        "on this node"
    )


def pending(**fields: Any) -> PendingPod:
    defaults = {"labels": {"app": "web"}, "owner": "uid-web-5d", "reason": "0/3 nodes are available: 3 \x1b[31mred"}
    return PendingPod("shop", "web-9", "u9", **{**defaults, **fields})


def test_a_replacement_that_is_pending_is_named_with_the_reason_of_the_scheduler() -> None:
    spent = {"budgets": (a_budget(disruptions_allowed=0, current_healthy=2),)}
    (warning,) = warned(around(pending=(pending(owner=""),)), a_replica(), **spent)
    assert warning.kind is WarningKind.REPLACEMENT_PENDING
    assert warning.message == (
        r"shop/web-9 is Pending, and budget shop/web waits for it: 0/3 nodes are available: 3 \x1b[31mred"
    )
    (warning,) = warned(around(pending=(pending(),)), a_replica())
    assert warning.message.startswith("shop/web-9 is Pending, and its workload has pods on this node: 0/3 nodes ")
    for other in (pending(owner="", labels={}), pending(owner="uid-x", labels={"app": "x"})):
        assert warned(around(pending=(other,)), a_replica(), **spent) == []


def test_pods_that_stay_or_terminate_cause_no_warning() -> None:
    services = (Service("shop", "web", "u1", selector={"app": "web"}, is_local=True),)
    gone = a_pod("web-1", deletion_timestamp=NOW + 30, deletion_grace_seconds=30)
    assert warned(around(services=services), gone) == []


def test_what_was_not_read_is_said_once() -> None:
    assert around().note == ""
    assert around(missing=("list services",)).note == "not checked: missing permission: list services"
    assert around(missing=("a",), failed=("b: broken",)).note == "not checked: missing permission: a; b: broken"
    assert around(missing=("a", "b")).note == "not checked: missing permissions: a, b"
