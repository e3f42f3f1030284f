"""A kubelet writes an instant of the year 10000 on its own node: the server refuses each patch that leaves it there."""

from __future__ import annotations

import anyio
import pytest
from kubesim.server.api import JsonObject
from support.stage import Stage, a_pod_manifest, staged
from support.stories import START, asked_to_end, delete_at_start, with_grace_period

from gracectl.model import names

POISON = "9999-12-31T23:59:59-23:59"
STORED = "10000-01-01T23:58:59Z"
HEARTBEAT_SECONDS = 10.0


async def poison(stage: Stage, node: str = "n1") -> None:
    """Write the whole status with such an instant, as a kubelet may."""
    status, whole = await stage.cluster.api.call("GET", f"/api/v1/nodes/{node}")
    if status != 200:
        return
    others = [each for each in whole["status"].get("conditions", ()) if each["type"] != "Poisoned"]
    entry = {"type": "Poisoned", "status": "False", "lastTransitionTime": POISON, "lastHeartbeatTime": POISON}
    whole["status"]["conditions"] = [*others, entry]
    await stage.cluster.api.call("PUT", f"/api/v1/nodes/{node}/status", whole)


def poisoned(stage: Stage) -> list[JsonObject]:
    node = stage.node("n1")
    assert node is not None
    return [each for each in node["status"]["conditions"] if STORED in each.values()]


async def test_it_is_rewritten_and_the_node_is_terminated_as_ever() -> None:
    async with staged("n1", objects=[a_pod_manifest("web", "n1")]) as stage, stage.settled():
        await poison(stage)
        assert len(poisoned(stage)) == 1
        await delete_at_start(stage, "n1")
        assert await stage.until_gone("n1") < START + 60
        assert [pod["metadata"]["name"] for pod in stage.pods_on("n1")] == []


async def test_a_kubelet_that_writes_it_again_keeps_its_node_no_longer(caplog: pytest.LogCaptureFixture) -> None:
    async with staged("n1", settings=with_grace_period("15m")) as stage:
        protected = {names.DO_NOT_DISRUPT: "true"}
        await stage.create(a_pod_manifest("web", "n1", annotations=protected))
        async with stage.controller() as controller, anyio.create_task_group() as group:
            await stage.settle(controller)

            async def kubelet() -> None:
                while True:
                    await poison(stage)
                    await stage.clock.sleep(HEARTBEAT_SECONDS)

            group.start_soon(kubelet)
            await delete_at_start(stage, "n1")
            assert await stage.until_gone("n1") <= START + 900 + HEARTBEAT_SECONDS
            [ended] = asked_to_end(stage)
            assert ended <= 900.0
            group.cancel_scope.cancel()
    logged = [record.getMessage() for record in caplog.records if record.name.startswith("gracectl.")]
    assert 0 < sum(map(len, logged)) < 100_000
