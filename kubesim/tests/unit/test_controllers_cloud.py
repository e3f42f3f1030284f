"""The simulated cloud: instances end late, refuse, fail, and take their node's processes with them."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.cluster import EmbeddedCluster, NodeSpec
from kubesim.controllers.cloud import PREFIX, CloudSettings
from kubesim.controllers.paths import NODES, path_of
from kubesim_support.clusters import delete_pod, get, pod, quiet, running

pytestmark = pytest.mark.anyio


async def ask(cluster: EmbeddedCluster, method: str, id_: str) -> tuple[int, Any]:
    return await cluster.api.call(method, PREFIX + id_)


def journal(cluster: EmbeddedCluster, since: float) -> list[tuple[float, str]]:
    return [(round(entry.instant - since, 3), entry.what) for entry in cluster.cloud.journal]


async def test_an_instance_ends_after_its_delay_and_with_it_the_node() -> None:
    async with running(cloud=CloudSettings(terminate_delay=3)) as cluster:
        begun = cluster.pace.clock.now()
        id_ = await cluster.add_node(NodeSpec(name="a"))
        node = await get(cluster, path_of(NODES, name="a"))
        assert node is not None
        assert node["spec"]["providerID"] == f"sim:///zone-a/{id_}"
        await cluster.create(pod("one", "a"))
        assert await ask(cluster, "GET", id_) == (200, {"id": id_, "state": "running"})
        assert await ask(cluster, "DELETE", id_) == (202, {"id": id_, "state": "shutting-down"})
        assert await ask(cluster, "DELETE", id_) == (202, {"id": id_, "state": "shutting-down"})
        await cluster.pace.clock.sleep(2.9)
        assert cluster.kubelet.is_up("a")
        await cluster.pace.clock.sleep(0.2)
        assert not cluster.kubelet.is_up("a")
        assert await ask(cluster, "GET", id_) == (200, {"id": id_, "state": "terminated"})
        assert await ask(cluster, "DELETE", id_) == (202, {"id": id_, "state": "terminated"})
        assert journal(cluster, begun) == [(0, "created"), (0, "shutting-down"), (3, "terminated")]
        # Its pods remain as objects: no kubelet is left to finish their deletion.
        await delete_pod(cluster, "one")
        await cluster.pace.clock.sleep(100)
        assert len(cluster.pods()) == 1


async def test_unknown_instances_and_methods() -> None:
    async with running("a") as cluster:
        (instance,) = cluster.cloud.instances
        assert (await ask(cluster, "GET", "i-0"))[0] == 404
        assert (await ask(cluster, "DELETE", "i-0"))[0] == 404
        assert (await ask(cluster, "POST", instance.id))[0] == 405


async def test_termination_protection_and_failures_on_request() -> None:
    async with running("a") as cluster:
        (instance,) = cluster.cloud.instances
        cluster.cloud.protect(instance.id, "protected by ops")
        assert await ask(cluster, "DELETE", instance.id) == (409, {"message": "protected by ops"})
        cluster.cloud.unprotect(instance.id)
        cluster.cloud.fail(instance.id, 2)
        assert [(await ask(cluster, "DELETE", instance.id))[0] for _ in range(3)] == [500, 500, 202]
        await quiet()
        assert [entry.what for entry in cluster.cloud.journal] == [
            "created",
            "refused: protected by ops",
            "failed",
            "failed",
            "shutting-down",
            "terminated",
        ]


async def test_chance_failures_are_the_seeds_and_answers_can_be_slow() -> None:
    async def statuses(seed: int) -> list[int]:
        settings = CloudSettings(failure_probability=0.5, answer_delay=2)
        async with running("a", seed=seed, cloud=settings) as cluster:
            (instance,) = cluster.cloud.instances
            begun = cluster.pace.clock.monotonic()
            codes = [(await ask(cluster, "GET", instance.id))[0] for _ in range(20)]
            assert round(cluster.pace.clock.monotonic() - begun, 3) == 40
            return codes

    first = await statuses(1)
    assert set(first) == {200, 500}
    assert await statuses(1) == first
    assert await statuses(2) != first
