"""The disruption controller against what the real one wrote (recording pdb-status), and its patience with evicted
pods.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kubesim.cluster import EmbeddedCluster
from kubesim.controllers.paths import BUDGETS, EVENTS, PODS, path_of
from kubesim.server.api import Json, JsonObject
from kubesim_support.clusters import NAMESPACE, budget, delete_pod, evict, get, pod, quiet, running, sim, workload

pytestmark = pytest.mark.anyio

RECORDING = Path(__file__).parents[1] / "conformance" / "recordings" / "pdb-status.json"
CONTROLLERS = frozenset(("deployments", "replicasets", "disruption", "garbage-collector"))
NUMBERS = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods", "observedGeneration")


NOT_OURS = "beta-empty"
"""A budget of policy/v1beta1: it is the API server, not the controller, that turns its empty selector into another."""


class Player:
    """Sends the requests of a recording; its generated names stand for those that the answers here bring."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self._names: dict[str, str] = {}

    async def send(self, request: JsonObject) -> tuple[int, Json]:
        path, body = request["path"], json.loads(self._filled(json.dumps(request.get("body"))))
        return await self.cluster.api.call(
            request["method"],
            self._filled(path),
            body,
            query=request.get("query"),
            content_type=request["headers"]["Content-Type"],
        )

    def learn(self, recorded: Json, actual: Json) -> None:
        """Generated names: the pods of a Deployment are interchangeable, so any order will do."""
        if not isinstance(recorded, dict):
            return
        for old, new in zip(recorded.get("items", ()), actual.get("items", ()), strict=True):
            if old["metadata"]["name"].startswith("<name:"):
                self._names[old["metadata"]["name"]] = new["metadata"]["name"]

    def _filled(self, text: str) -> str:
        for placeholder, name in self._names.items():
            text = text.replace(placeholder, name)
        return text.replace("<time>", "2026-01-01T00:00:00Z")


def told(status: JsonObject) -> JsonObject:
    """What a budget's status says, its instants aside, and why a sync failed (today's server has other words)."""
    failed = {each["type"] for each in status.get("conditions", ()) if each["reason"] == "SyncFailed"}
    conditions = [
        {k: v for k, v in c.items() if k != "lastTransitionTime" and not (k == "message" and c["type"] in failed)}
        for c in status.get("conditions", ())
    ]
    numbers = {key: status[key] for key in NUMBERS if key in status}
    return {**numbers, "conditions": conditions}


def shown(recorded: JsonObject, actual: JsonObject) -> JsonObject:
    """Of an actual status what the recording shows of it (lists show the numbers only)."""
    return {key: value for key, value in told(actual).items() if key in told(recorded) and key in recorded}


async def test_every_status_of_the_recording() -> None:
    compared = 0
    async with running(parts=CONTROLLERS) as cluster:
        player = Player(cluster)
        for index, step in enumerate(json.loads(RECORDING.read_text())["steps"]):
            if NOT_OURS in json.dumps(step["request"]) or step["response"]["status"] >= 400:
                continue  # What a server refuses is no business of the controllers.
            await quiet()
            status, answer = await player.send(step["request"])
            recorded = step["response"]["body"]
            assert status == step["response"]["status"], (index, answer)
            player.learn(recorded, answer)
            if step["request"]["method"] == "GET" and "poddisruptionbudgets" in step["request"]["path"]:
                pairs = (
                    zip(recorded["items"], answer["items"], strict=True)
                    if "items" in recorded
                    else [(recorded, answer)]
                )
                for old, new in pairs:
                    expected = {k: v for k, v in told(old["status"]).items() if k in old["status"]}
                    assert shown(old["status"], new["status"]) == expected, (index, step.get("note"))
                    compared += 1
    assert compared == 43


async def status_of(cluster: EmbeddedCluster, name: str) -> JsonObject:
    await quiet()
    found = await get(cluster, path_of(BUDGETS, NAMESPACE, name))
    assert found is not None
    status: JsonObject = found["status"]
    return status


async def test_an_evicted_pod_that_is_not_deleted_counts_for_two_minutes() -> None:
    """Recording eviction-of-another-uid: the eviction that its uid refused has spent the budget all the same."""
    async with running("a") as cluster:
        await cluster.create(workload("Deployment", "web", 2))
        await cluster.create(budget("web", minAvailable=1))
        await quiet()
        assert (await status_of(cluster, "web"))["disruptionsAllowed"] == 1
        name = cluster.pods()[0]["metadata"]["name"]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name},
            "deleteOptions": {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}},
        }
        answered, _ = await cluster.api.call("POST", path_of(PODS, NAMESPACE, name, "eviction"), body)
        assert answered == 409
        spent = await status_of(cluster, "web")
        assert (spent["disruptionsAllowed"], spent["currentHealthy"], list(spent["disruptedPods"])) == (0, 1, [name])
        await cluster.pace.clock.sleep(119.9)
        assert (await status_of(cluster, "web"))["disruptionsAllowed"] == 0
        await cluster.pace.clock.sleep(0.2)
        free = await status_of(cluster, "web")
        assert (free["disruptionsAllowed"], free["currentHealthy"], "disruptedPods" in free) == (1, 2, False)
        _, events = await cluster.api.call("GET", EVENTS)
        told = [(e["reason"], e["message"]) for e in events["items"] if e["type"] == "Warning"]
        assert told == [("NotDeleted", "Pod was expected by PDB test/test to be deleted but it wasn't")]


async def test_a_terminating_pod_is_forgotten_and_the_next_waits_for_its_replacement() -> None:
    async with running("a") as cluster:
        await cluster.create(workload("Deployment", "web", 3, annotations=sim(ready_seconds=2, stop_seconds=9)))
        await cluster.create(budget("web", maxUnavailable=1))
        await cluster.pace.clock.sleep(3)
        first, second, _ = (found["metadata"]["name"] for found in cluster.pods())
        assert await evict(cluster, first) == 201
        assert await evict(cluster, second) == 429
        spent = await status_of(cluster, "web")
        assert (spent["disruptionsAllowed"], spent["currentHealthy"], "disruptedPods" in spent) == (0, 2, False)
        await cluster.pace.clock.sleep(1.9)
        assert await evict(cluster, second) == 429
        await cluster.pace.clock.sleep(0.2)
        assert await evict(cluster, second) == 201


async def test_daemon_pods_have_no_scale() -> None:
    async with running("a", "b") as cluster:
        await cluster.create(workload("DaemonSet", "agent"))
        await cluster.create(budget("agent", maxUnavailable=1))
        await cluster.pace.clock.sleep(1)
        status = await status_of(cluster, "agent")
        assert status["disruptionsAllowed"] == 0
        assert "observedGeneration" not in status
        (condition,) = status["conditions"]
        assert (condition["reason"], condition["message"]) == (
            "SyncFailed",
            "daemonsets.apps does not implement the scale subresource",
        )


async def test_a_stateful_sets_scale_counts_the_pod_that_is_missing() -> None:
    async with running("a") as cluster:
        await cluster.create(workload("StatefulSet", "db", 3, annotations=sim(stop_seconds=5)))
        await cluster.create(budget("db", maxUnavailable="34%"))
        await cluster.pace.clock.sleep(1)
        assert told(await status_of(cluster, "db"))["expectedPods"] == 3
        await delete_pod(cluster, "db-1")
        status = await status_of(cluster, "db")
        assert [status[key] for key in NUMBERS[:4]] == [1, 2, 1, 3]


async def test_pods_without_labels_and_other_namespaces_do_not_count() -> None:
    async with running("a") as cluster:
        elsewhere = pod("web-0", "a", {"app": "web"})
        elsewhere["metadata"]["namespace"] = "elsewhere"
        await cluster.create(elsewhere)
        await cluster.create(pod("web-0", "a", {"app": "web"}))
        await cluster.create(pod("other", "a"))
        await cluster.create(budget("web", minAvailable=1))
        status = await status_of(cluster, "web")
        assert [status[key] for key in NUMBERS[:4]] == [0, 1, 1, 1]
