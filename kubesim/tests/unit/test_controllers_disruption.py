"""The disruption controller against what the real one wrote (recording pdb-status), and its patience with evicted
pods.
"""

from __future__ import annotations

import pytest
from kubesim.cluster import EmbeddedCluster
from kubesim.controllers.paths import BUDGETS, path_of
from kubesim.server.api import JsonObject
from kubesim_support.clusters import NAMESPACE, budget, evict, get, pod, quiet, running, sim, workload

pytestmark = pytest.mark.anyio
NUMBERS = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods", "observedGeneration")


async def status_of(cluster: EmbeddedCluster, name: str) -> JsonObject:
    await quiet()
    thing = await get(cluster, path_of(BUDGETS, NAMESPACE, name))
    assert thing is not None
    status: JsonObject = thing["status"]
    return status


async def test_a_terminating_pod_is_forgotten_and_the_next_waits_for_its_replacement() -> None:
    async with running("a") as cluster:
        await cluster.create(workload("Deployment", "web", 3, annotations=sim(ready_seconds=2, stop_seconds=9)))
        await cluster.create(budget("web", maxUnavailable=1))
        await cluster.pace.clock.sleep(3)
        first, second, _ = (pod_object["metadata"]["name"] for pod_object in cluster.pods())
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
