"""Jobs: how many pods at which instant, what counts as a failure, and how they end."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.cluster import EmbeddedCluster
from kubesim.controllers.objects import condition_of, is_active
from kubesim.controllers.paths import JOBS, PODS, path_of
from kubesim.server.api import JsonObject
from kubesim_support.clusters import NAMESPACE, get, names, patch, quiet, running, sim

pytestmark = pytest.mark.anyio

PATH = path_of(JOBS, NAMESPACE, "job")


def a_job(policy: str = "Never", annotations: dict[str, str] | None = None, **spec: Any) -> JsonObject:
    pod = {"restartPolicy": policy, "containers": [{"name": "c", "image": "pause"}]}
    metadata = {"labels": {"app": "job"}, "annotations": annotations or sim(exit_seconds=10)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job", "namespace": NAMESPACE},
        "spec": {"template": {"metadata": metadata, "spec": pod}, **spec},
    }


async def job_now(cluster: EmbeddedCluster) -> JsonObject:
    await quiet()
    job = await get(cluster, PATH)
    assert job is not None
    return job


async def state(cluster: EmbeddedCluster) -> tuple[int, int, int, str]:
    """(active, succeeded, failed, how it ended or "")."""
    job = await job_now(cluster)
    status = job.get("status", {})
    ended = next((type_ for type_ in ("Complete", "Failed") if condition_of(job, type_) is not None), "")
    return status.get("active", 0), status.get("succeeded", 0), status.get("failed", 0), ended


async def reason(cluster: EmbeddedCluster) -> str:
    condition = condition_of(await job_now(cluster), "Failed")
    assert condition is not None
    reason_of_failure: str = condition["reason"]
    return reason_of_failure


async def test_a_job_runs_so_many_at_a_time_until_enough_have_ended_well() -> None:
    async with running("a") as cluster:
        await cluster.create(a_job(completions=5, parallelism=2))
        seen = [await state(cluster)]
        for _ in range(3):
            await cluster.pace.clock.sleep(10)
            seen.append(await state(cluster))
        assert seen == [(2, 0, 0, ""), (2, 2, 0, ""), (1, 4, 0, ""), (0, 5, 0, "Complete")]
        assert {pod["status"]["phase"] for pod in cluster.pods()} == {"Succeeded"}
        assert all("finalizers" not in pod["metadata"] for pod in cluster.pods())
        assert (await job_now(cluster))["status"]["completionTime"]


async def test_failures_are_tried_again_after_a_growing_pause_and_then_no_more() -> None:
    async with running("a") as cluster:
        await cluster.create(a_job(annotations=sim(crash_seconds=1), backoffLimit=2))
        await cluster.pace.clock.sleep(1)
        assert await state(cluster) == (0, 0, 1, "")
        await cluster.pace.clock.sleep(10)
        assert await state(cluster) == (1, 0, 1, "")
        await cluster.pace.clock.sleep(1 + 19.9)
        assert await state(cluster) == (0, 0, 2, "")
        await cluster.pace.clock.sleep(0.1)
        assert await state(cluster) == (1, 0, 2, "")
        await cluster.pace.clock.sleep(1)
        assert await state(cluster) == (0, 0, 3, "Failed")
        assert await reason(cluster) == "BackoffLimitExceeded"


async def test_a_job_that_takes_too_long_is_ended() -> None:
    async with running("a") as cluster:
        await cluster.create(a_job(annotations=sim(stop_seconds=3), activeDeadlineSeconds=30))
        await cluster.pace.clock.sleep(29.9)
        assert await state(cluster) == (1, 0, 0, "")
        await cluster.pace.clock.sleep(0.1)
        assert (await state(cluster))[3] == "Failed"
        assert await reason(cluster) == "DeadlineExceeded"
        await cluster.pace.clock.sleep(3)
        await quiet()
        assert await names(cluster, PODS) == []


async def test_a_finished_job_goes_in_its_time_with_its_pods() -> None:
    async with running("a") as cluster:
        await cluster.create(a_job(ttlSecondsAfterFinished=60))
        await cluster.pace.clock.sleep(69.9)
        assert (await state(cluster))[3] == "Complete"
        await cluster.pace.clock.sleep(0.1)
        await quiet()
        assert await get(cluster, PATH) is None
        assert await names(cluster, PODS) == []


async def test_a_suspended_job_has_no_pods_until_it_goes_on() -> None:
    async with running("a") as cluster:
        await cluster.create(a_job())
        await cluster.pace.clock.sleep(5)
        await patch(cluster, PATH, {"spec": {"suspend": True}})
        await quiet()
        job = await job_now(cluster)
        assert condition_of(job, "Suspended") is not None
        assert not any(map(is_active, cluster.pods()))
        assert "startTime" not in job["status"]
        await cluster.pace.clock.sleep(100)
        await patch(cluster, PATH, {"spec": {"suspend": False}})
        await cluster.pace.clock.sleep(9.9)
        assert await state(cluster) == (1, 0, 0, "")
        await cluster.pace.clock.sleep(0.1)
        assert await state(cluster) == (0, 1, 0, "Complete")


async def test_a_policy_may_end_a_job_or_overlook_a_failure() -> None:
    async with running("a") as cluster:
        rules = [
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
            {"action": "Ignore", "onExitCodes": {"operator": "NotIn", "values": [1]}},
        ]
        policy = {"rules": rules}
        await cluster.create(a_job(annotations=sim(crash_seconds=1, exit_code=42), podFailurePolicy=policy))
        await cluster.pace.clock.sleep(1)
        assert (await state(cluster))[3] == "Failed"
        assert await reason(cluster) == "PodFailurePolicy"
        await cluster.api.call("DELETE", PATH, {"propagationPolicy": "Background"})
        await cluster.pace.clock.sleep(1)
        body = a_job(annotations=sim(crash_seconds=1, exit_code=7), podFailurePolicy=policy, backoffLimit=0)
        await cluster.create(body)
        await cluster.pace.clock.sleep(1.5)
        assert (await state(cluster))[2:] == (0, "")


async def test_restarts_of_a_pod_count_as_failures_too() -> None:
    async with running("a") as cluster:
        await cluster.create(a_job("OnFailure", annotations=sim(crash_seconds=1), backoffLimit=2))
        await cluster.pace.clock.sleep(5)
        assert (await state(cluster))[3] == ""
        await cluster.pace.clock.sleep(8)
        assert await reason(cluster) == "BackoffLimitExceeded"
