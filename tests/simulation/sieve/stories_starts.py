"""Stories about how terminations start: each way, and what takes a request back."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from kubesim.controllers.cloud import CloudSettings
from kubesim.controllers.nodeclaims import ClaimSpec
from simulation.sieve.story import story
from support.disruption import AT_ONCE, NOT_TERMINABLE, POOL, TERMINABLE, create_node_budget
from support.stage import (
    Stage,
    a_budget_manifest,
    a_pod_manifest,
    a_workload,
    the_settings,
)
from support.stories import (
    a_daemon_set,
    gracectl_keep,
    gracectl_uncordon,
    is_at_rest,
    is_cordoned,
    keep,
    kubectl_uncordon,
    take_off,
)

from gracectl.model import names
from gracectl.model.times import format_time

SLOW_CLOUD = CloudSettings(terminate_delay=1.0)
FOR_EVER = {names.DO_NOT_DISRUPT: "true"}
QUICK: Any = {"ready-seconds": 0.4, "stop-seconds": 0.3}
STOPS: Any = {"stop-seconds": 2}
TOLERANT: Any = {"health": {"maximumUnhealthy": "100%"}}
PAUSE = 5.0
"""Seconds that people let pass: longer than a controller is away that was killed."""
Telling = AsyncGenerator[None, None]


async def deleted(stage: Stage, *nodes: str) -> None:
    """Delete nodes, and wait until they are gone."""
    for node in nodes:
        await stage.delete_node(node)
    await stage.until_gone(*nodes)


async def drained(stage: Stage, node: str) -> None:
    """Drain a node for maintenance, and wait until it is."""
    await gracectl_keep(stage, node)
    await stage.until(lambda: is_at_rest(stage, node))


async def not_ready(stage: Stage, node: str, seconds: float) -> None:
    """Its kubelet has not been heard of for so long."""
    await _report(stage, node, "Unknown", seconds)


async def ready(stage: Stage, node: str) -> None:
    """It is heard of again."""
    await _report(stage, node, "True", 0.0)


async def _report(stage: Stage, node: str, status: str, seconds: float) -> None:
    since = format_time(stage.clock.now() - seconds)
    condition = {"type": "Ready", "status": status, "reason": "NodeStatus", "lastTransitionTime": since}
    await stage.patch_node(node, {"status": {"conditions": [condition]}}, "/status")


def is_pending(stage: Stage, node: str) -> bool:
    """Whether the node says that its voluntary termination waits."""
    return stage.condition(node, names.TERMINATION_PENDING) is not None


def is_draining(stage: Stage, node: str) -> bool:
    """Whether the node says which pods it waits for."""
    return (stage.condition(node, names.DRAINED) or {}).get("reason") == "Draining"


@story(cloud=SLOW_CLOUD)
async def a_node_is_deleted(stage: Stage) -> Telling:
    await stage.add_nodes("n1")
    await stage.create(
        a_workload("Deployment", "web", 4, behaviour=QUICK),
        a_budget_manifest("web", maxUnavailable=1),
        a_pod_manifest("plain", "n1", behaviour=STOPS),
    )
    await stage.add_nodes("n2")
    yield
    await deleted(stage, "n1")


@story()
async def three_nodes_are_deleted_at_once(stage: Stage) -> Telling:
    three = ("n1", "n2", "n3")
    await stage.add_nodes(*three)
    await stage.create(a_workload("Deployment", "web", 6, behaviour=QUICK), a_budget_manifest("web", maxUnavailable=2))
    for node in three:
        await stage.patch_node(node, {"spec": {"unschedulable": True}})
    await stage.add_nodes("n4")
    yield
    await deleted(stage, *three)


@story()
async def a_claim_is_deleted(stage: Stage) -> Telling:
    await stage.add_nodes("n1", claim=ClaimSpec())
    await stage.create(a_pod_manifest("a", "n1", behaviour=STOPS))
    yield
    await stage.delete_claim("n1-claim")
    await stage.until_gone("n1")
    await stage.until_claims_gone("n1-claim")


@story(cloud=SLOW_CLOUD)
async def a_node_with_a_claim_is_deleted(stage: Stage) -> Telling:
    await stage.add_nodes("n1", claim=ClaimSpec())
    await stage.create(a_pod_manifest("a", "n1", behaviour=STOPS))
    yield
    await deleted(stage, "n1")
    await stage.until_claims_gone("n1-claim")


@story()
async def a_claim_without_a_node_is_deleted(stage: Stage) -> Telling:
    await stage.add_nodes("n2")
    stage.cluster.cloud.create("i-1", "never-registered")
    condition = {"type": names.REGISTERED, "status": "Unknown", "reason": "NodeNotFound", "message": ""}
    condition["lastTransitionTime"] = format_time(stage.clock.now())
    await stage.create_claim("c", {"providerID": "sim:///zone-a/i-1", "conditions": [condition]})
    yield
    await stage.delete_claim("c")
    await stage.until_claims_gone("c")


@story(settings=the_settings(**TOLERANT))
async def a_node_is_unhealthy_for_too_long(stage: Stage) -> Telling:
    await stage.add_nodes("n1", "n2")
    await stage.create(a_pod_manifest("a", "n1", behaviour=STOPS))
    yield
    await not_ready(stage, "n1", 895.0)
    await stage.until_gone("n1")


@story(settings=the_settings(health={"force": True, "maximumUnhealthy": "100%"}))
async def an_unhealthy_node_is_terminated_by_force(stage: Stage) -> Telling:
    await stage.add_nodes("n1", claim=ClaimSpec())
    await stage.create(a_pod_manifest("a", "n1", behaviour=STOPS, annotations=FOR_EVER))
    yield
    await not_ready(stage, "n1", 895.0)
    await stage.until_gone("n1")
    await stage.until_claims_gone("n1-claim")


@story(settings=the_settings(provider={"name": "none"}, **TOLERANT))
async def an_unhealthy_node_without_a_provider_recovers(stage: Stage) -> Telling:
    await stage.add_nodes("n1", "n2")
    yield
    await not_ready(stage, "n1", 895.0)
    await stage.until(lambda: is_pending(stage, "n1") and (stage.node("n1") or {})["spec"].get("unschedulable", False))
    await ready(stage, "n1")
    await stage.until(
        lambda: not is_pending(stage, "n1") and not (stage.node("n1") or {})["spec"].get("unschedulable", False)
    )


@story()
async def a_node_is_labelled_and_waits_for_a_protected_pod(stage: Stage) -> Telling:
    await stage.add_nodes("n1", "n2")
    await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "20s"}))
    yield
    await stage.patch_node("n1", TERMINABLE)
    await stage.until_gone("n1")


@story()
async def a_label_is_taken_back_while_a_pod_blocks(stage: Stage) -> Telling:
    await stage.add_nodes("n1", "n2")
    await stage.create(a_pod_manifest("job", "n1", annotations=FOR_EVER))
    yield
    await stage.patch_node("n1", TERMINABLE)
    await stage.until(lambda: is_pending(stage, "n1"))
    await stage.clock.sleep(3)
    await stage.patch_node("n1", NOT_TERMINABLE)
    await stage.until(lambda: not is_pending(stage, "n1"))


@story()
async def a_labelled_node_waits_for_a_spent_budget(stage: Stage) -> Telling:
    await stage.add_nodes("n1")
    await stage.create(a_workload("Deployment", "web", 2, behaviour=QUICK), a_budget_manifest("web", minAvailable=2))
    await stage.add_nodes("n2")
    yield
    await stage.patch_node("n1", TERMINABLE)
    await stage.until(lambda: is_pending(stage, "n1"))
    path = "/apis/apps/v1/namespaces/shop/deployments/web"
    await stage.call("PATCH", path, {"spec": {"replicas": 3}}, "application/merge-patch+json")
    await stage.until_gone("n1")


@story()
async def a_claim_expires(stage: Stage) -> Telling:
    await stage.add_nodes("n1", claim=ClaimSpec(expire_after="10s"))
    await stage.add_nodes("n2")
    await stage.create(a_pod_manifest("a", "n1", behaviour=STOPS))
    yield
    await stage.until_gone("n1")
    await stage.until_claims_gone("n1-claim")


@story(settings=the_settings(nodeGroups=[{"selector": {"matchLabels": POOL}, "expireAfter": "10s"}]))
async def a_node_reaches_the_age_of_its_group(stage: Stage) -> Telling:
    await stage.add_nodes("n1", labels=POOL)
    await stage.add_nodes("n2")
    await stage.create(a_pod_manifest("a", "n1", behaviour=STOPS))
    yield
    await stage.until_gone("n1")


@story()
async def two_labelled_nodes_go_one_after_the_other(stage: Stage) -> Telling:
    await stage.add_nodes("n1", "n2", "n3")
    await stage.create(a_pod_manifest("a", "n1", behaviour=STOPS), a_pod_manifest("b", "n2"))
    yield
    await stage.patch_node("n1", TERMINABLE)
    await stage.patch_node("n2", TERMINABLE)
    await stage.until_gone("n1", "n2")


@story(settings=the_settings(**AT_ONCE))
async def a_node_budget_lets_one_node_go_at_a_time(stage: Stage) -> Telling:
    await stage.add_nodes("n1", "n2", labels=POOL)
    await create_node_budget(stage, maxUnavailable=1)
    await stage.create(a_pod_manifest("a", "n1", behaviour=STOPS))
    yield
    await stage.patch_node("n1", TERMINABLE)
    await stage.patch_node("n2", TERMINABLE)
    await stage.until_gone("n1", "n2")


@story()
async def a_node_is_drained_for_maintenance_and_uncordoned(stage: Stage) -> Telling:
    await stage.add_nodes("n1")
    await stage.create(
        a_workload("Deployment", "web", 3, behaviour=QUICK),
        a_budget_manifest("web", maxUnavailable=1),
        a_daemon_set("agent"),
    )
    await stage.add_nodes("n2")
    await stage.cluster.until_ready()
    yield
    await drained(stage, "n1")
    await gracectl_uncordon(stage, "n1")
    await stage.until(lambda: not is_cordoned(stage, "n1") and not is_at_rest(stage, "n1"))


@story()
async def a_maintenance_is_taken_back_before_it_is_drained(stage: Stage) -> Telling:
    await stage.add_nodes("n1", "n2")
    await stage.create(a_pod_manifest("job", "n1", annotations=FOR_EVER))
    yield
    await keep(stage, "n1", "2026-01-01T00:00:00Z")
    await stage.until(lambda: is_cordoned(stage, "n1") and is_draining(stage, "n1"))
    await stage.clock.sleep(PAUSE)
    await take_off(stage, "n1")
    await stage.until(lambda: not is_cordoned(stage, "n1"))


@story()
async def kubectl_uncordons_a_node_in_maintenance(stage: Stage) -> Telling:
    await stage.add_nodes("n1", "n2")
    await stage.create(a_pod_manifest("a", "n1", behaviour=STOPS))
    yield
    await drained(stage, "n1")
    await kubectl_uncordon(stage, "n1")
    await stage.until(lambda: not is_cordoned(stage, "n1") and not is_at_rest(stage, "n1"))


@story()
async def a_node_in_maintenance_is_deleted(stage: Stage) -> Telling:
    await stage.add_nodes("n1", "n2")
    await stage.create(a_pod_manifest("a", "n1", behaviour=STOPS))
    yield
    await drained(stage, "n1")
    await deleted(stage, "n1")
