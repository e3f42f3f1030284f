"""Small objects for decisions: everything has a default that lets a pod go."""

from __future__ import annotations

from typing import Any

import msgspec

from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.meta import Condition, OwnerReference
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.selectors import LabelSelector
from gracectl.policy.plan import NodeView
from gracectl.policy.simulation import DrainingNode

NOW = 1_000_000.0
READY = (Condition("Ready", "True"),)


def a_pod(name: str = "web-1", **fields: Any) -> Pod:
    """A ready pod of namespace `shop` on node `n1`."""
    defaults: dict[str, Any] = {
        "namespace": "shop",
        "uid": f"uid-{name}",
        "node_name": "n1",
        "labels": {"app": "web"},
        "created": NOW - 3600,
        "started": NOW - 3590,
        "phase": "Running",
        "ready": True,
        "grace_seconds": 30,
    }
    return Pod(name=name, **{**defaults, **fields})


def owned_by(kind: str, name: str = "owner", group: str = "") -> tuple[OwnerReference, ...]:
    return (OwnerReference(kind, name, f"uid-{name}", controller=True, group=group),)


def a_budget(name: str = "web", **fields: Any) -> PodDisruptionBudget:
    """A budget over `app: web` that allows one disruption."""
    defaults: dict[str, Any] = {
        "namespace": "shop",
        "uid": f"uid-{name}",
        "resource_version": "1",
        "generation": 1,
        "observed_generation": 1,
        "selector": LabelSelector({"app": "web"}),
        "disruptions_allowed": 1,
        "current_healthy": 3,
        "desired_healthy": 2,
        "expected_pods": 3,
    }
    return PodDisruptionBudget(name=name, **{**defaults, **fields})


def a_node(name: str = "n1", **fields: Any) -> Node:
    return Node(name=name, uid=f"uid-{name}", **fields)


def ending(
    name: str, *pods: Pod, budgets: Any = (), deadline: float | None = None, since: float = NOW, **fields: Any
) -> DrainingNode:
    """A node that was deleted, just now by default; `deadline` in seconds from NOW. Each pod is under all of `budgets`,
    or, of a mapping, under those of its name."""
    node = a_node(name, conditions=fields.pop("conditions", READY), deletion_timestamp=since)
    pods = tuple(msgspec.structs.replace(pod, node_name=name) for pod in pods)
    of = budgets if isinstance(budgets, dict) else {pod.name: budgets for pod in pods}
    by_pod = {pod.uid: tuple(of[pod.name]) for pod in pods if of.get(pod.name)}
    at = None if deadline is None else NOW + deadline
    return DrainingNode(NodeView(node, pods, by_pod, cordoned_at=since, deadline=at, **fields), since)
