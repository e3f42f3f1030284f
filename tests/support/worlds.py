"""Random worlds for forecasts: some nodes that will be deleted, all that can be on them, and room for replacements.

The same seed makes the same world. Every pod stops within its grace, every replacement is Ready within
REPLACEMENT_SECONDS: what a forecast assumes.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
from kubesim.controllers.paths import PRIORITY_CLASSES

from gracectl.config import Settings
from gracectl.model import names
from support.stage import Stage, a_budget_manifest, a_pod_manifest, a_workload, the_settings

REPLACEMENT_SECONDS = 40.0
CLASSES = (1_000, 10_000, 100_000)
PERIODS = (None, None, "2m", "10m", "1h")
RANGES = [
    {"priority": 100_000, "shutdownGracePeriodSeconds": 60},
    {"priority": 10_000, "shutdownGracePeriodSeconds": 120},
    {"priority": 0, "shutdownGracePeriodSeconds": 30},
]
PROTECTIONS = ("90s", "5m", "17m30s", "2h", "true", "nonsense", "0s")


class World(msgspec.Struct, frozen=True):
    """What a seed makes: the settings, the nodes, those of them that are deleted, and what is created."""

    settings: Settings
    nodes: dict[str, dict[str, str]]
    deleted: list[str]
    manifests: list[dict[str, Any]]


def a_world(seed: int) -> World:
    """The world of this seed."""
    chance = random.Random(f"world/{seed}")
    nodes = {f"n{n}": {"pool": f"tgp{chance.randrange(len(PERIODS))}"} for n in range(chance.randint(3, 5))}
    deleted = sorted(chance.sample([*nodes], chance.randint(1, len(nodes) - 1)))
    groups = [
        {"selector": {"matchLabels": {"pool": f"tgp{n}"}}} | ({"terminationGracePeriod": period} if period else {})
        for n, period in enumerate(PERIODS)
    ]
    more: dict[str, Any] = {"shutdownGracePeriodByPodPriority": RANGES} if chance.random() < 0.5 else {}
    manifests: list[dict[str, Any]] = []
    for number in range(chance.randint(2, 5)):
        manifests += _workload(chance, f"app{number}")
    for number in range(chance.randint(0, 5)):
        manifests.append(a_pod_manifest(f"bare{number}", chance.choice([*nodes]), **_pod(chance)))
    return World(the_settings(nodeGroups=groups, **more), nodes, deleted, manifests)


async def create(stage: Stage, world: World) -> None:
    """Put the world into the stage's cluster; all pods are Ready then."""
    for value in CLASSES:
        await stage.call("POST", PRIORITY_CLASSES, {"metadata": {"name": f"class{value}"}, "value": value})
    for name, labels in world.nodes.items():
        await stage.add_nodes(name, labels=labels)
    await stage.create(*world.manifests)


def _workload(chance: random.Random, name: str) -> list[dict[str, Any]]:
    kind = chance.choice(["Deployment", "Deployment", "StatefulSet"])
    replicas = chance.randint(1, 6)
    pod = _pod(chance)
    behaviour: dict[str, Any] = {
        **pod.pop("behaviour"),
        "ready-seconds": chance.randint(0, int(REPLACEMENT_SECONDS) - 5),
    }
    found = [a_workload(kind, name, replicas, behaviour=behaviour, pod=pod)]
    if chance.random() < 0.7:
        found.append(a_budget_manifest(name, **chance.choice(_bounds(replicas))))
    if chance.random() < 0.1:
        second = a_budget_manifest(name, maxUnavailable=1)
        second["metadata"]["name"] = f"{name}-too"
        found.append(second)
    return found


def _bounds(replicas: int) -> list[dict[str, Any]]:
    return [{"maxUnavailable": 1}, {"maxUnavailable": "50%"}, {"minAvailable": replicas}, {"minAvailable": 1}]


def _pod(chance: random.Random) -> dict[str, Any]:
    """What is special about a pod."""
    grace = chance.choice([0, 5, 30, 30, 30, 90, 400])
    pod: dict[str, Any] = {
        "terminationGracePeriodSeconds": grace,
        "behaviour": {"stop-seconds": round(chance.uniform(0, grace), 2)},
        "annotations": {},
        "priorityClassName": chance.choice(
            ["", "", "", *(f"class{value}" for value in CLASSES), names.SYSTEM_NODE_CRITICAL]
        ),
    }
    if chance.random() < 0.15:
        pod["annotations"][names.DO_NOT_DISRUPT] = chance.choice(PROTECTIONS)
    if chance.random() < 0.03:
        pod["annotations"][names.DO_NOT_EVICT] = "true"
    if not pod["priorityClassName"]:
        del pod["priorityClassName"]
    return pod
