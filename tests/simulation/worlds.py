"""Worlds by chance: nodes, workloads, budgets that make sense and broken ones, protections, deadlines, waves."""

from __future__ import annotations

import copy
import random
from typing import Any, Final

from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.server.api import JsonObject
from support.disruption import a_node_budget_manifest
from support.stage import a_budget_manifest, a_pod_manifest, a_workload

from gracectl.model import names
from simulation.plan import PERIODS, POOL, REFUGE, NodePlan

TEAM = {"team": "a"}
"""Label of the nodes over which node disruption budgets are."""
VOLUME: JsonObject = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
ASKING: Final = 0.25
"""Share of the worlds with pods that are replaced before their eviction."""
WAVES = [
    [{"priority": 0, "shutdownGracePeriodSeconds": 0}, {"priority": 1000, "shutdownGracePeriodSeconds": 0}],
    [{"priority": 0, "shutdownGracePeriodSeconds": 10}, {"priority": 1_000_000, "shutdownGracePeriodSeconds": 5}],
]


def a_cluster(chance: random.Random) -> dict[str, Any]:
    """Options of the simulated cluster."""
    return {
        "attach_seconds": round(chance.uniform(0, 0.5), 2),
        "detach_seconds": round(chance.uniform(0, 3), 2),
        "cloud": {
            "terminate_delay": round(chance.uniform(0, 5), 2),
            "answer_delay": chance.choice([0.0, 0.0, 0.2]),
            "failure_probability": chance.choice([0.0, 0.0, 0.3]),
        },
    }


def some_settings(chance: random.Random) -> dict[str, Any]:
    """Settings of the controllers; what only restarts apply among them."""
    groups: list[JsonObject] = [
        {"selector": {"matchLabels": {POOL: period}}, "terminationGracePeriod": period} for period in PERIODS
    ]
    settings: dict[str, Any] = {"nodeGroups": groups}
    if chance.random() < 0.3:
        settings["shutdownGracePeriodByPodPriority"] = chance.choice(WAVES)
    if chance.random() < 0.3:
        tolerated = [{"type": "Ready", "status": status, "tolerationSeconds": 30} for status in ("False", "Unknown")]
        settings["health"] = {"enabled": True, "conditions": tolerated, "maximumUnhealthy": "100%"}
    if chance.random() < 0.5:
        settings["voluntary"] = {
            "maximumAtOnce": chance.choice([1, 2, "100%"]),
            "waitForReplacement": chance.random() < 0.5,
        }
    if chance.random() < 0.1:
        groups[0]["expireAfter"] = "30s"
    return settings


def reloaded(chance: random.Random) -> dict[str, Any]:
    """Settings that may change while a controller runs, and move no deadline."""
    return {
        "eviction": {
            "qps": chance.choice([0, 1, 5, 100]),
            "burst": chance.choice([1, 100]),
            "maxInFlight": chance.choice([1, 3, 50]),
            "backoffMaximumSeconds": chance.choice([0.5, 10]),
            "probeSeconds": chance.choice([5, 60]),
        },
        "drain": {"minimumSeconds": chance.choice([0, 2, 7])},
        "protection": {"from": chance.choice(["creation", "start"])},
        "instance": {"retryMaximumSeconds": chance.choice([5, 300])},
        **chance.choice([{}, {"shutdownGracePeriodByPodPriority": WAVES[0]}]),
    }


def some_nodes(chance: random.Random, *, knows_claims: bool) -> tuple[NodePlan, ...]:
    """The refuge, and some to which things happen."""
    return (NodePlan(name=REFUGE), *(_node(chance, f"n{n}", knows_claims) for n in range(1, chance.randint(3, 5))))


def _node(chance: random.Random, name: str, knows_claims: bool) -> NodePlan:
    labels = dict(TEAM) if chance.random() < 0.5 else {}
    period = chance.choice([*PERIODS])
    match chance.choice(["plain", "plain", "claim", "claim", "group"]):
        case "claim" if knows_claims:
            claim = ClaimSpec(
                termination_grace_period=period if chance.random() < 0.7 else "",
                expire_after="40s" if chance.random() < 0.1 else "",
                labels=labels,
            )
            return NodePlan(name=name, claim=claim)
        case "group":
            labels[POOL] = period
    return NodePlan(name=name, labels=labels)


def some_objects(
    chance: random.Random, nodes: tuple[NodePlan, ...], *, knows_node_budgets: bool
) -> tuple[JsonObject, ...]:
    """Workloads with budgets, single pods, and budgets over nodes."""
    objects: list[JsonObject] = []
    for number in range(chance.randint(1, 3)):
        objects += _workload(chance, f"app{number}")
    objects.append(a_budget_manifest("shut", minAvailable=1000))
    for number in range(chance.randint(0, 8)):
        node = chance.choice(nodes)
        objects.append(a_pod(chance, f"bare{number}", node))
    if chance.random() < 0.4:
        daemon = a_workload("DaemonSet", "agent", 1, behaviour={"stop-seconds": 1})
        del daemon["spec"]["replicas"]
        objects.append(daemon)
    if knows_node_budgets and chance.random() < 0.3:
        bound = chance.choice([{"maxUnavailable": 1}, {"minAvailable": 1}, {"maxUnavailable": 0}])
        objects.append(a_node_budget_manifest("team-a", TEAM, **bound))
    return tuple(objects)


def some_asking(chance: random.Random, objects: tuple[JsonObject, ...]) -> tuple[JsonObject, ...]:
    """In one world of four, pods of Deployments ask for a replacement before they are evicted, and some budgets allow
    nothing without one."""
    if chance.random() >= ASKING:
        return objects
    found = copy.deepcopy(objects)
    deployments = {each["metadata"]["name"]: each for each in found if each["kind"] == "Deployment"}
    for each in deployments.values():
        each["spec"]["template"]["metadata"]["annotations"][names.REPLACE_FIRST] = "true"
        each["spec"]["replicas"] = chance.choice([1, each["spec"]["replicas"]])
    for each in found:
        if each["kind"] == "PodDisruptionBudget" and each["metadata"]["name"] in deployments and chance.random() < 0.5:
            each["spec"] = {"selector": each["spec"]["selector"], "maxUnavailable": 0}
    return found


def _workload(chance: random.Random, name: str) -> list[JsonObject]:
    kind, replicas = chance.choice(["Deployment", "Deployment", "StatefulSet"]), chance.randint(2, 5)
    behaviour: JsonObject = {
        "ready-seconds": round(chance.uniform(0, 2), 2),
        "stop-seconds": round(chance.uniform(0, 4), 2),
        "jitter": 0.5,
    }
    if chance.random() < 0.2:
        behaviour = {"ignores-sigterm": "true"}
    pod: JsonObject = {"terminationGracePeriodSeconds": chance.choice([5, 30])}
    if chance.random() < 0.2:
        pod["priorityClassName"] = names.SYSTEM_CLUSTER_CRITICAL
    more: JsonObject = {"serviceName": name, "volumeClaimTemplates": [VOLUME]} if kind == "StatefulSet" else {}
    objects = [a_workload(kind, name, replicas, behaviour=behaviour, pod=pod, **more)]
    bound: JsonObject = chance.choice(
        [{"maxUnavailable": chance.randint(1, max(1, replicas // 2))}, {"maxUnavailable": "50%"}, {"minAvailable": 1}]
    )
    if chance.random() < 0.1:
        bound = chance.choice([{"maxUnavailable": 0}, {"minAvailable": replicas}, {"minAvailable": "100%"}])
    if chance.random() < 0.85:
        objects.append(a_budget_manifest(name, **bound))
    if chance.random() < 0.08:
        second = a_budget_manifest(name, maxUnavailable=1)
        second["metadata"]["name"] = f"{name}-too"
        objects.append(second)
    return objects


def a_pod(chance: random.Random, name: str, node: NodePlan) -> JsonObject:
    """A pod of its own, perhaps protected, perhaps under a budget that allows nothing, perhaps deaf."""
    grace, app = chance.choice([0, 1, 5, 20, 30]), name
    annotations: dict[str, str] = {}
    if chance.random() < 0.2:
        annotations[names.DO_NOT_DISRUPT] = f"{chance.randint(5, 90)}s"
    elif chance.random() < (0.4 if node.period else 0.05):
        annotations[chance.choice([names.DO_NOT_DISRUPT, names.DO_NOT_DISRUPT, names.DO_NOT_EVICT])] = "true"
    if chance.random() < (0.3 if node.period else 0.05):
        app = "shut"
    behaviour: JsonObject = {"stop-seconds": chance.randint(0, 25)}
    if chance.random() < 0.2:
        behaviour = {"ignores-sigterm": "true"}
    more: JsonObject = {}
    if chance.random() < 0.1:
        more["priorityClassName"] = "system-node-critical"
    if chance.random() < 0.05:
        more["tolerations"] = [{"operator": "Exists"}]
    return a_pod_manifest(
        name,
        node.name,
        labels={"app": app},
        behaviour=behaviour,
        terminationGracePeriodSeconds=grace,
        annotations=annotations,
        **more,
    )
