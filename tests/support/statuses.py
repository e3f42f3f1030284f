"""Terminating nodes, as caches show them, and scenes of them as commands show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gracectl.cli.status.follow import StatusFrame, TerminatedNode
from gracectl.controllers.cluster.cache import ClusterCache, empty_cluster_cache
from gracectl.controllers.settings import TerminationSettings
from gracectl.inspect.forecast import draining_nodes
from gracectl.inspect.pending import due_candidates, due_nodes
from gracectl.inspect.progress import ProgressTracker, forecast_of
from gracectl.inspect.status import claims_without_node_status, node_statuses, with_forecasts, with_pending
from gracectl.inspect.watcher import ConnectionLoss
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import Condition
from gracectl.model.node import Node, Taint
from gracectl.model.pod import Pod
from gracectl.model.selectors import LabelSelector
from gracectl.model.times import format_time
from gracectl.policy.forecast import Assumptions
from support.builders import NOW, READY, a_budget, a_node, a_pod, owned_by

TAINTED = (Taint(names.DISRUPTED_TAINT_KEY, "", "NoSchedule"),)
KEPT = Condition(names.DRAINED, "True", "Maintenance", "all pods are gone")
DRAINED = Condition(names.DRAINED, "True", "Drained", "all pods are gone")

NEVER_ALLOWS: dict[str, Any] = {"disruptions_allowed": 0, "desired_healthy": 3, "max_unavailable": 0}
"""A budget that requires all of its pods."""


def going(name: str = "n1", *, since: float = 100.0, **fields: Any) -> Node:
    """A cordoned node that was deleted so many seconds ago."""
    defaults: dict[str, Any] = {
        "deletion_timestamp": NOW - since,
        "finalizers": (names.FINALIZER,),
        "taints": TAINTED,
        "conditions": READY,
    }
    return a_node(name, **{**defaults, **fields})


def kept(name: str = "n1", *, since: float = 100.0, **fields: Any) -> Node:
    """A cordoned node whose maintenance was requested so many seconds ago."""
    annotations = {names.KEEP_DRAINED: format_time(NOW - since), names.CORDONED: "taint,unschedulable"}
    defaults: dict[str, Any] = {"annotations": annotations, "unschedulable": True, "deletion_timestamp": None}
    return going(name, **{**defaults, **fields})


def pending(name: str = "n1") -> Node:
    """A node that is due for its label, and has waited for its turn for 100 seconds."""
    waits = Condition(names.TERMINATION_PENDING, "True", "Pace", "waits for its turn", last_transition=NOW - 100)
    return a_node(name, conditions=(*READY, waits), finalizers=(names.FINALIZER,))


def cluster(*nodes: Node, pods: tuple[Pod, ...] = (), **caches: Any) -> ClusterCache:
    found = empty_cluster_cache()
    found.nodes.replace(nodes)
    found.pods.replace(pods)
    for cache, things in caches.items():
        getattr(found, cache).replace(things)
    return found


def replica(name: str = "web-1", **fields: Any) -> Pod:
    return a_pod(name, **{"owners": owned_by("ReplicaSet"), **fields})


def a_scene(seen: ClusterCache, *, at: float = NOW, asked: tuple[str, ...] | None = None, **more: Any) -> StatusFrame:
    """Of all nodes, or those `asked` for; `more` goes to the scene."""
    settings = TerminationSettings()
    wanted = {node.name for node in seen.nodes.values()} if asked is None else set(asked)
    forecast = forecast_of(draining_nodes(seen, settings, at), at, Assumptions())
    due = due_nodes(seen, settings, due_candidates(seen, settings, at), at)
    found = with_pending(seen, settings, node_statuses(seen, settings, wanted, at), due, at)
    found = with_forecasts(found, forecast)
    return StatusFrame(
        at=at,
        nodes=found,
        progress=ProgressTracker().update(found, (), seen.budgets.get, at),
        claims=claims_without_node_status(seen, settings, at),
        **more,
    )


def several() -> StatusFrame:
    """One of each kind: queued, protected, under a deadline, in maintenance, returned, left alone, unmanaged."""
    spent = a_budget(disruptions_allowed=0, current_healthy=2)
    deadline = {names.TERMINATION_TIMESTAMP: format_time(NOW + 600)}
    nodes = [
        going("ip-10-0-1-17.eu-central-1.compute.internal", annotations=deadline),
        going("worker-2", since=5000),
        kept("worker-3", since=90_000),
        kept("worker-4", conditions=(Condition(names.DRAINED, "True", "Maintenance", "all pods are gone"),)),
        kept("worker-5", unschedulable=False),
        a_node("worker-6", conditions=READY),
        going("worker-7", taints=()),
        going("control-1", labels={names.CONTROL_PLANE_ROLE: ""}),
    ]
    pods = [
        replica("web-7d4b9c6f5-2zltl", node_name=nodes[0].name),
        replica("web-7d4b9c6f5-5qtvx", node_name="worker-2"),
        replica("quick", node_name="worker-2", labels={"app": "quick"}, deletion_timestamp=NOW + 20),
        replica("late", node_name="worker-2", labels={"app": "late"}, deletion_timestamp=NOW - 9),
        replica("notebook", node_name="worker-3", labels={}, annotations={names.DO_NOT_DISRUPT: "4h"}),
        replica("dns", node_name="worker-3", labels={}, priority=2_000_000_000),
    ]
    return a_scene(cluster(*nodes, pods=tuple(pods), budgets=(spent,)))


def documented() -> StatusFrame:
    """The example of docs/status.md."""
    deadline = {names.TERMINATION_TIMESTAMP: format_time(NOW + 597)}
    nodes = (
        going("worker-1", since=303),
        going("worker-2", since=12, annotations=deadline),
        kept(
            "worker-3", since=7200, conditions=(Condition(names.DRAINED, "True", "Maintenance", "all pods are gone"),)
        ),
        going("worker-4", since=40, taints=()),
    )
    pods = (
        replica("web-7664t", node_name="worker-1"),
        replica("train-0", node_name="worker-1", labels={}, annotations={names.DO_NOT_DISRUPT: "4h"}),
        replica("dns-hhcmw", node_name="worker-1", labels={}, priority=2_000_000_000),
        replica("web-sgxqm", node_name="worker-2"),
        replica("legacy-0", node_name="worker-2", labels={}, deletion_timestamp=NOW + 18, deletion_grace_seconds=30),
    )
    spent = Condition(names.DISRUPTION_ALLOWED, "False", "InsufficientPods", "", NOW - 124)
    budget = a_budget(disruptions_allowed=0, current_healthy=2, verdict=spent)
    return a_scene(cluster(*nodes, pods=pods, budgets=(budget,)))


def crowd() -> StatusFrame:
    """One node with sixty pods, most of them under a budget that allows nothing."""
    pods = tuple(replica(f"web-{n:02}", labels={"app": "web"} if n % 3 else {"app": "free"}) for n in range(60))
    return a_scene(cluster(going(), pods=pods, budgets=(a_budget(**NEVER_ALLOWS),)))


def many() -> StatusFrame:
    """Forty terminating nodes, blocked by twenty budgets and a few protections; the drain of one has not begun."""
    nodes = [going(f"worker-{n:02}", since=60 + n, taints=() if n == 7 else TAINTED) for n in range(40)]
    pods = [
        replica(f"api-{n}-{p}", node_name=f"worker-{n:02}", labels={"app": f"api-{(n + p) % 20}"})
        for n in range(40)
        for p in range(3)
    ]
    pods += [
        replica(f"job-{n}", node_name=f"worker-{n:02}", labels={}, annotations={names.DO_NOT_DISRUPT: "true"})
        for n in range(0, 40, 8)
    ]
    budgets = [
        a_budget(
            f"api-{n}",
            selector=LabelSelector({"app": f"api-{n}"}),
            disruptions_allowed=0,
            desired_healthy=3,
            max_unavailable=0,
        )
        for n in range(20)
    ]
    return a_scene(cluster(*nodes, pods=tuple(pods), budgets=tuple(budgets)))


def nothing() -> StatusFrame:
    """No drain or termination is requested."""
    return a_scene(cluster())


def claims_and_gone() -> StatusFrame:
    """A node that is gone, and a claim that is terminated without one."""
    claim = NodeClaim(
        "pending-7",
        "p",
        deletion_timestamp=NOW - 50,
        finalizers=(names.FINALIZER,),
        termination_grace_period="15m",
        conditions=(Condition(names.INSTANCE_TERMINATING, "False", "ProviderFailed", "provider aws: no quota"),),
    )
    gone = (TerminatedNode("worker-1", "u1", 303.0), TerminatedNode("worker-9", "u9", None))
    return a_scene(cluster(claims=(claim,)), terminated=gone)


def interrupted() -> StatusFrame:
    """The connection is lost."""
    lost = ConnectionLoss(NOW - 75, "watch pods: the server cannot be reached (Connection refused)")
    return a_scene(cluster(going(), pods=(replica(),)), connection_loss=lost)


SCENES: dict[str, Callable[[], StatusFrame]] = {
    each.__name__: each for each in (several, documented, crowd, many, nothing, claims_and_gone, interrupted)
}
