"""Random worlds next to Karpenter: its nodes and ours end, both are killed, its Lease is lost.

Invariants, judged at each request: gracectl writes nothing about Karpenter's nodes but evictions, deletions of pods and
Events; it evicts only pods that Karpenter would evict now, each once; it deletes only for a deadline, never early; each
node ends.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from kubesim.controllers.karpenter import LEASE, LEASE_NAMESPACE, Karpenter, group_of, is_protected
from kubesim.controllers.objects import is_finished
from kubesim.server.api import JsonObject
from support.inprocess import Arrived, uid_of
from support.karpenter import karpenter_stage
from support.stage import Stage, a_budget_manifest, a_pod_manifest, a_workload, the_settings

from gracectl.kube.transport import Request
from gracectl.model import names
from gracectl.model.times import parse_time

KARPENTERS = ("k1", "k2", "k3")
LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases/{LEASE}"
MERGE = "application/merge-patch+json"
STORY_SECONDS, ENDING_SECONDS = 60.0, 1200.0
SENT = {("create", "pods/eviction"), ("delete", "pods"), ("create", "events"), ("patch", "events")}


class Judge:
    """Looks at each request of gracectl in the moment in which the server begins with it."""

    def __init__(self, stage: Stage) -> None:
        self.violations: list[str] = []
        self._stage = stage
        stage.transport.listeners.append(self._request)

    def _request(self, arrived: Arrived, request: Request) -> None:
        operation = arrived.operation
        if operation.plural in ("nodes", "nodeclaims") and operation.name.startswith("k") and request.method != "GET":
            self._violated(f"{operation} is Karpenter's")
        pod = self._pod(operation.namespace, operation.name) if operation.plural == "pods" else None
        if pod is None or pod["spec"].get("nodeName") not in KARPENTERS or request.method == "GET":
            return
        if (operation.verb, operation.resource) not in SENT:
            self._violated(f"{operation}")
        elif uid_of(request) != pod["metadata"]["uid"]:
            return  # another pod of that name: the server refuses it
        elif operation.resource == "pods/eviction":
            self._eviction(pod)
        elif operation.verb == "delete":
            self._deletion(pod)

    def _eviction(self, pod: JsonObject) -> None:
        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        if "deletionTimestamp" in pod["metadata"]:
            return  # it was told to leave a moment ago, perhaps by Karpenter
        others = [each for each in self._stage.pods_on(node) if not is_finished(each)]
        first = min(group_of(each) for each in others)
        if group_of(pod) > first:
            self._violated(f"{name} is evicted in group {group_of(pod)}, and group {first} has pods")
        if is_protected(pod, self._now, self._stage.cluster.pace):
            self._violated(f"{name} is evicted, and protected")

    def _deletion(self, pod: JsonObject) -> None:
        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        at = next((each for claim in self._stage.claims() if (each := _deadline(claim, node)) is not None), None)
        if at is None:
            self._violated(f"{name} is deleted without a deadline")
        elif self._now < at - pod["spec"]["terminationGracePeriodSeconds"] - 0.001:
            self._violated(f"{name} is deleted too early")

    @property
    def _now(self) -> float:
        return self._stage.cluster.server_clock.now()

    def _pod(self, namespace: str, name: str) -> JsonObject | None:
        return self._stage.server.store.table("pods").get(namespace, name)

    def _violated(self, text: str) -> None:
        self.violations.append(f"{self._stage.clock.monotonic():.3f} {text}")


def _deadline(claim: JsonObject, node: str) -> float | None:
    at = claim["metadata"].get("annotations", {}).get(names.TERMINATION_TIMESTAMP)
    return parse_time(at) if at and claim.get("status", {}).get("nodeName") == node else None


def objects(chance: random.Random) -> Iterator[JsonObject]:
    for number in range(chance.randint(1, 3)):
        replicas, name = chance.randint(2, 7), f"app{number}"
        pace = {"ready-seconds": chance.choice([0.2, 2, 8]), "stop-seconds": chance.choice([0.5, 3, 9])}
        pod: dict[str, Any] = {"terminationGracePeriodSeconds": 10}
        if chance.random() < 0.2:
            pod["priorityClassName"] = names.SYSTEM_CLUSTER_CRITICAL
        yield a_workload("Deployment", name, replicas, behaviour=pace, pod=pod)
        yield a_budget_manifest(name, **chance.choice([{"maxUnavailable": 1}, {"minAvailable": replicas - 1}]))
    for number in range(chance.randint(0, 5)):
        protection = chance.choice(["", "", "true", "20s", "nonsense"])
        annotations = {names.DO_NOT_DISRUPT: protection} if protection else {}
        more = {"priorityClassName": names.SYSTEM_NODE_CRITICAL} if chance.random() < 0.3 else {}
        grace = chance.choice([1, 10, 30])
        yield a_pod_manifest(
            f"bare{number}",
            chance.choice(KARPENTERS),
            annotations=annotations,
            terminationGracePeriodSeconds=grace,
            behaviour={"stop-seconds": chance.choice([0.5, 5, 60])},
            **more,
        )


@pytest.mark.seeds(3)
async def test_what_gracectl_sends_next_to_karpenter(seed: int) -> None:
    chance = random.Random(f"next to karpenter/{seed}")
    settings = the_settings(assist={"karpenter": chance.random() < 0.8})
    claim = {"termination_grace_period": chance.choice(["", "30s", "2m"])}
    async with karpenter_stage(*KARPENTERS, claim=claim, settings=settings, seed=seed) as (stage, karpenter):
        await stage.add_nodes("refuge", pods=500)
        for each in objects(chance):
            await stage.cluster.create(each)
        await stage.clock.sleep(30)
        judge = Judge(stage)
        async with anyio.create_task_group() as group:
            for _ in range(chance.randint(1, 4)):
                group.start_soon(disturb, stage, karpenter, chance.uniform(0, STORY_SECONDS), chance.random())
            for node in chance.sample(KARPENTERS, chance.randint(1, 3)):
                group.start_soon(end, stage, node, chance.uniform(0, STORY_SECONDS / 2), chance.random() < 0.5)
            if chance.random() < 0.5:
                group.start_soon(end, stage, "other", chance.uniform(0, STORY_SECONDS), False)
            await lives(stage, [chance.uniform(1, STORY_SECONDS / 2) for _ in range(chance.randint(0, 2))])
        async with stage.controller():
            await mend(stage)
            with anyio.move_on_after(ENDING_SECONDS):
                await stage.until(lambda: not any("deletionTimestamp" in each["metadata"] for each in stage.nodes()))
            left = [each["metadata"]["name"] for each in stage.nodes() if "deletionTimestamp" in each["metadata"]]
        assert not left
        assert not judge.violations
        assert max(Counter(stage.agreed()).values(), default=1) == 1


async def lives(stage: Stage, seconds: list[float]) -> None:
    """Controllers that are killed after so many seconds, one after the other, until the story is over."""
    left = STORY_SECONDS
    for each in seconds:
        async with stage.mortal():
            await stage.clock.sleep(min(each, left))
        left = max(left - each, 0.0)
    async with stage.mortal():
        await stage.clock.sleep(left)


async def disturb(stage: Stage, karpenter: Karpenter, at: float, kind: float) -> None:
    await stage.clock.sleep(at)
    if kind < 0.6:
        karpenter.kill()
        return
    await stage.call("PATCH", LEASE_PATH, {"spec": {"holderIdentity": "another"}}, MERGE)


async def end(stage: Stage, node: str, at: float, by_claim: bool) -> None:
    await stage.clock.sleep(at)
    if by_claim:
        await stage.delete_claim(f"{node}-claim")
    elif stage.node(node) is not None:
        await stage.delete_node(node)


async def mend(stage: Stage) -> None:
    """What is protected indefinitely is so no longer."""
    for pod in list(stage.server.store.table("pods")):
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        change = {"metadata": {"annotations": {names.DO_NOT_DISRUPT: None}}}
        await stage.cluster.api.call("PATCH", path, change, content_type=MERGE)
