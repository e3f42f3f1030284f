"""Deployments that roll: how many pods at which instant, what they say of it, and how one goes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kubesim.cluster import EmbeddedCluster
from kubesim.controllers.objects import annotations_of, condition_of, is_active, is_ready
from kubesim.controllers.paths import (
    DAEMON_SETS,
    DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    REVISIONS,
    STATEFUL_SETS,
    path_of,
)
from kubesim.controllers.rollout import Bounds, SetState, scale_in_proportion
from kubesim.server.api import JsonObject
from kubesim_support.clusters import NAMESPACE, Timeline, get, names, patch, quiet, running, sim, workload

pytestmark = pytest.mark.anyio

WEB = path_of(DEPLOYMENTS, NAMESPACE, "web")
REVISION = "deployment.kubernetes.io/revision"


def rolling(surge: int | str, unavailable: int | str) -> dict[str, Any]:
    return {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}}


async def change_image(cluster: EmbeddedCluster, image: str, **more: Any) -> None:
    template = {"spec": {"containers": [{"name": "c", "image": image}], **more}}
    await patch(cluster, WEB, {"spec": {"template": template}})


async def deployment_now(cluster: EmbeddedCluster) -> JsonObject:
    await quiet()
    deployment = await get(cluster, WEB)
    assert deployment is not None
    return deployment


async def progress(cluster: EmbeddedCluster) -> tuple[str, str]:
    condition = condition_of(await deployment_now(cluster), "Progressing")
    assert condition is not None
    return condition["status"], condition["reason"]


def images(cluster: EmbeddedCluster, chosen: Callable[[JsonObject], bool] = is_active) -> dict[str, int]:
    """How many active pods run which image."""
    counts: dict[str, int] = {}
    for each in filter(chosen, cluster.pods()):
        image = each["spec"]["containers"][0]["image"]
        counts[image] = counts.get(image, 0) + 1
    return counts


async def revisions(cluster: EmbeddedCluster) -> dict[str, int]:
    """Replicas by revision."""
    _, answer = await cluster.api.call("GET", path_of(REPLICA_SETS, NAMESPACE))
    return {annotations_of(item)[REVISION]: item["spec"].get("replicas", 0) for item in answer["items"]}


async def test_a_rolling_update_keeps_its_bounds_at_every_instant() -> None:
    async with running("a") as cluster:
        annotations = sim(ready_seconds=10, stop_seconds=3)
        await cluster.create(workload("Deployment", "web", 4, annotations=annotations, **rolling(2, 1)))
        await cluster.pace.clock.sleep(20)
        assert await progress(cluster) == ("True", "NewReplicaSetAvailable")
        fewest, most = 99, 0

        def count(old: JsonObject | None, new: JsonObject | None) -> None:
            nonlocal fewest, most
            fewest = min(fewest, sum(map(is_ready, filter(is_active, cluster.pods()))))
            most = max(most, sum(map(is_active, cluster.pods())))

        cluster.informers.of(PODS).subscribe(count)
        await change_image(cluster, "new")
        await quiet()
        assert await progress(cluster) == ("True", "ReplicaSetUpdated")
        assert images(cluster) == {"pause": 3, "new": 3}
        await cluster.pace.clock.sleep(9.9)
        assert images(cluster, is_ready) == {"pause": 3}
        await cluster.pace.clock.sleep(0.1)
        await quiet()
        assert images(cluster) == {"new": 4}  # Three were Ready at once: all old ones but none of the new may go.
        await cluster.pace.clock.sleep(10)
        assert await progress(cluster) == ("True", "NewReplicaSetAvailable")
        assert images(cluster, is_ready) == {"new": 4}
        # What the sets want is bounded; a pod that is no longer wanted is there until its set has noticed.
        assert fewest == 3
        assert most <= 7
        assert await revisions(cluster) == {"1": 0, "2": 4}
        assert annotations_of(await deployment_now(cluster))[REVISION] == "2"


async def test_going_back_is_a_new_revision_of_an_old_set() -> None:
    async with running("a") as cluster:
        await cluster.create(workload("Deployment", "web", 2))
        await cluster.pace.clock.sleep(1)
        first = (await deployment_now(cluster))["spec"]["template"]
        await change_image(cluster, "bad", terminationGracePeriodSeconds=5)
        await cluster.pace.clock.sleep(1)
        assert images(cluster) == {"bad": 2}
        patches = [{"op": "replace", "path": "/spec/template", "value": first}]
        await cluster.api.call("PATCH", WEB, patches, content_type="application/json-patch+json")
        await cluster.pace.clock.sleep(1)
        assert images(cluster) == {"pause": 2}
        assert await revisions(cluster) == {"2": 0, "3": 2}


async def test_one_that_cannot_progress_says_so_after_its_deadline() -> None:
    async with running("a") as cluster:
        await cluster.create(workload("Deployment", "web", 2, progressDeadlineSeconds=60))
        await cluster.pace.clock.sleep(5)
        await patch(cluster, WEB, {"spec": {"template": {"metadata": {"annotations": sim(never_ready=True)}}}})
        await cluster.pace.clock.sleep(60)
        assert await progress(cluster) == ("True", "ReplicaSetUpdated")
        await cluster.pace.clock.sleep(1.1)
        assert await progress(cluster) == ("False", "ProgressDeadlineExceeded")
        assert sum(map(is_ready, filter(is_active, cluster.pods()))) == 2
        available = condition_of(await deployment_now(cluster), "Available")
        assert available is not None
        assert available["status"] == "True"


async def test_recreate_waits_until_the_old_pods_are_gone() -> None:
    async with running("a") as cluster:
        annotations = sim(stop_seconds=7)
        await cluster.create(workload("Deployment", "web", 2, annotations=annotations, strategy={"type": "Recreate"}))
        await cluster.pace.clock.sleep(1)
        await change_image(cluster, "new")
        await cluster.pace.clock.sleep(6.9)
        assert images(cluster, lambda each: True) == {"pause": 2}
        await cluster.pace.clock.sleep(0.1)
        await quiet()
        assert images(cluster, lambda each: True) == {"new": 2}


async def test_a_paused_one_scales_and_rolls_when_it_goes_on() -> None:
    async with running("a") as cluster:
        await cluster.create(workload("Deployment", "web", 2))
        await cluster.pace.clock.sleep(1)
        await patch(cluster, WEB, {"spec": {"paused": True}})
        await change_image(cluster, "new")
        await patch(cluster, WEB, {"spec": {"replicas": 3}})
        await cluster.pace.clock.sleep(1)
        assert images(cluster) == {"pause": 3}
        assert await progress(cluster) == ("Unknown", "DeploymentPaused")
        await patch(cluster, WEB, {"spec": {"paused": None}})
        await cluster.pace.clock.sleep(1)
        assert images(cluster) == {"new": 3}
        assert await progress(cluster) == ("True", "NewReplicaSetAvailable")


async def test_old_revisions_are_forgotten() -> None:
    async with running("a") as cluster:
        await cluster.create(workload("Deployment", "web", 1, revisionHistoryLimit=2))
        for image in ("one", "two", "three", "four"):
            await cluster.pace.clock.sleep(1)
            await change_image(cluster, image)
        await cluster.pace.clock.sleep(1)
        assert await revisions(cluster) == {"3": 0, "4": 0, "5": 1}


async def test_pods_count_as_available_only_after_a_while() -> None:
    async with running("a") as cluster:
        await cluster.create(workload("Deployment", "web", 2, minReadySeconds=10))
        await cluster.pace.clock.sleep(9.9)
        status = (await deployment_now(cluster))["status"]
        assert (status["readyReplicas"], status.get("availableReplicas", 0)) == (2, 0)
        await cluster.pace.clock.sleep(0.1)
        assert (await deployment_now(cluster))["status"]["availableReplicas"] == 2


def test_a_change_of_size_in_the_middle_is_spread() -> None:
    sets = [SetState("new", 2, 2), SetState("old", 10, 10)]
    assert scale_in_proportion(Bounds(20, 4, 2), sets, 12) == {"new": 4, "old": 20}
    assert scale_in_proportion(Bounds(0, 0, 0), sets, 12) == {"new": 0, "old": 0}


DB, AGENT = path_of(STATEFUL_SETS, NAMESPACE, "db"), path_of(DAEMON_SETS, NAMESPACE, "agent")


async def status_of(cluster: EmbeddedCluster, path: str) -> JsonObject:
    await quiet()
    thing = await get(cluster, path)
    assert thing is not None
    status: JsonObject = thing["status"]
    return status


async def test_a_stateful_set_rolls_from_the_highest_pod_down_one_at_a_time() -> None:
    async with running("a") as cluster:
        annotations = sim(ready_seconds=2, stop_seconds=3)
        await cluster.create(workload("StatefulSet", "db", 3, annotations=annotations))
        await cluster.pace.clock.sleep(10)
        first = await status_of(cluster, DB)
        assert first["currentRevision"] == first["updateRevision"]
        template = {"spec": {"containers": [{"name": "c", "image": "new"}]}}
        async with Timeline(cluster).watching() as timeline:
            await patch(cluster, DB, {"spec": {"template": template}})
            await cluster.pace.clock.sleep(7)
            middle = await status_of(cluster, DB)
            assert (middle["updatedReplicas"], middle["currentRevision"]) == (1, first["currentRevision"])
            await cluster.pace.clock.sleep(20)
            added = [(at, who) for at, who, what in timeline.rows if what == "ADDED unbound"]
            assert added == [(3.0, "db-2"), (8.0, "db-1"), (13.0, "db-0")]
        last = await status_of(cluster, DB)
        assert last["currentRevision"] == last["updateRevision"] != first["currentRevision"]
        assert (last["updatedReplicas"], last["readyReplicas"]) == (3, 3)
        assert images(cluster) == {"new": 3}
        assert len(await names(cluster, path_of(REVISIONS, NAMESPACE))) == 2


async def test_a_partition_keeps_the_lower_pods_as_they_are() -> None:
    async with running("a") as cluster:
        update: dict[str, Any] = {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}}
        await cluster.create(workload("StatefulSet", "db", 3, **update))
        await cluster.pace.clock.sleep(1)
        await patch(cluster, DB, {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "new"}]}}}})
        await cluster.pace.clock.sleep(1)
        assert images(cluster) == {"pause": 2, "new": 1}
        await cluster.api.call("DELETE", path_of(PODS, NAMESPACE, "db-0"))
        await cluster.pace.clock.sleep(1)
        assert images(cluster) == {"pause": 2, "new": 1}
        await patch(cluster, DB, {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}})
        await cluster.pace.clock.sleep(1)
        assert images(cluster) == {"new": 3}


@pytest.mark.parametrize(("bound", "instants"), [(1, [0.0, 3.0, 6.0, 9.0]), ("50%", [0.0, 0.0, 3.0, 3.0])])
async def test_a_daemon_set_rolls_no_more_pods_at_once_than_it_may(bound: int | str, instants: list[float]) -> None:
    async with running("a", "b", "c", "d") as cluster:
        update: dict[str, Any] = {"updateStrategy": {"rollingUpdate": {"maxUnavailable": bound}}}
        annotations = sim(ready_seconds=2, stop_seconds=1)
        await cluster.create(workload("DaemonSet", "agent", annotations=annotations, **update))
        await cluster.pace.clock.sleep(5)
        template = {"spec": {"containers": [{"name": "c", "image": "new"}]}}
        async with Timeline(cluster).watching() as timeline:
            await patch(cluster, AGENT, {"spec": {"template": template}})
            await cluster.pace.clock.sleep(20)
            assert [at for at, _, what in timeline.rows if what == "MODIFIED terminating, grace 30"] == instants
        status = await status_of(cluster, AGENT)
        assert (status["updatedNumberScheduled"], status["numberAvailable"]) == (4, 4)
