"""What stories of kept nodes have in common: asking for one, giving it back, and what is left on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from kubesim.server.api import JsonObject

from gracectl.controllers.termination.maintenance import request_patch, withdrawal_patch
from gracectl.kube.requests import MergePatch
from gracectl.model import names
from gracectl.model.decode import decode_node
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.policy.cordon import Mark
from support.stage import Stage, a_workload

OURS = (names.DRAINED, names.VOLUMES_DETACHED, names.INSTANCE_TERMINATING)
ANNOTATIONS = (names.KEEP_DRAINED, names.CORDONED, names.UNCORDONED, names.TERMINATION_TIMESTAMP)
RECORD = ",".join(mark for mark in Mark if mark is not Mark.TAINT)
"""All that the cordon of maintenance can add."""
RECORD_OF_EARLIER_RELEASES = ",".join(Mark)
"""With the taint, which keeps DaemonSet pods off."""


def seen(stage: Stage, node: str) -> Node:
    """The node as the server has it now."""
    found = stage.node(node)
    assert found is not None, f"there is no node {node}"
    return decode_node(msgspec.json.encode(found))


async def keep(stage: Stage, node: str, value: str | None = None) -> float:
    """Ask to drain a node and to keep it so; returns the instant."""
    text = format_time(stage.clock.now()) if value is None else value
    await stage.patch_node(node, {"metadata": {"annotations": {names.KEEP_DRAINED: text}}})
    return stage.clock.monotonic()


async def take_off(stage: Stage, node: str) -> float:
    """Take the request off, as `kubectl annotate node n gracectl.io/keep-drained-` does; returns the instant."""
    await stage.patch_node(node, {"metadata": {"annotations": {names.KEEP_DRAINED: None}}})
    return stage.clock.monotonic()


async def kubectl_uncordon(stage: Stage, node: str) -> float:
    """What `kubectl uncordon` sends; returns the instant."""
    await stage.patch_node(node, {"spec": {"unschedulable": None}})
    return stage.clock.monotonic()


async def gracectl_uncordon(stage: Stage, node: str) -> float:
    """What `gracectl uncordon` sends; returns the instant."""
    await send(stage, node, withdrawal_patch(seen(stage, node)))
    return stage.clock.monotonic()


async def gracectl_keep(stage: Stage, node: str) -> float:
    """What `gracectl drain` sends; returns the instant."""
    await send(stage, node, request_patch(seen(stage, node), stage.clock.now()))
    return stage.clock.monotonic()


async def send(stage: Stage, node: str, patch: MergePatch | None) -> None:
    """Carry out the patch of a command, if there is anything to be done."""
    if patch is not None:
        await stage.patch_node(node, dict(patch.body))


Way = Callable[[Stage, str], Awaitable[float]]
WAYS_BACK: tuple[Way, ...] = (take_off, kubectl_uncordon, gracectl_uncordon)
"""How people give a node back."""

each_way_back = pytest.mark.parametrize("give_back", WAYS_BACK)


def is_cordoned(stage: Stage, node: str) -> bool:
    """Both at once: no more pods, no more traffic."""
    now = seen(stage, node)
    return now.unschedulable and names.EXCLUDE_FROM_LOAD_BALANCERS in now.labels


def is_tainted(stage: Stage, node: str) -> bool:
    """Whether our taint keeps DaemonSet pods off, too."""
    taints = seen(stage, node).taints
    return any((taint.key, taint.effect) == (names.DISRUPTED_TAINT_KEY, "NoSchedule") for taint in taints)


def remains(stage: Stage, node: str) -> dict[str, Any]:
    """What tells a node apart from one that was never kept: its spec, labels, our annotations and conditions."""
    found: JsonObject = stage.node(node) or {"metadata": {}, "spec": {}, "status": {}}
    annotations = found["metadata"].get("annotations") or {}
    conditions = [each["type"] for each in found["status"].get("conditions", ()) if each["type"] in OURS]
    return {
        "spec": found["spec"],
        "labels": found["metadata"].get("labels"),
        "finalizers": found["metadata"].get("finalizers"),
        "annotations": {key: value for key, value in annotations.items() if key in ANNOTATIONS},
        "conditions": conditions,
    }


def is_at_rest(stage: Stage, node: str) -> bool:
    """Whether the condition says that the node is drained and kept."""
    condition = stage.condition(node, names.DRAINED)
    return condition is not None and (condition["status"], condition["reason"]) == ("True", "Maintenance")


def a_daemon_set(name: str, **more: Any) -> JsonObject:
    """A DaemonSet of `shop`, whose pods run on every node that takes them."""
    whole = a_workload("DaemonSet", name, 0, **more)
    del whole["spec"]["replicas"]
    return whole


def names_on(stage: Stage, node: str) -> list[str]:
    """The names of the pods on a node, sorted."""
    return sorted(pod["metadata"]["name"] for pod in stage.pods_on(node))


def asked(stage: Stage, start: float) -> list[tuple[str, float]]:
    """(pod, seconds after `start`) of every eviction that the server has agreed to since then."""
    agreed = [each for each in stage.evictions if each.status == 201 and each.instant >= start]
    return [(each.operation.name, round(each.instant - start, 3)) for each in agreed]
