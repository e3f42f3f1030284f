"""A whole termination: a node of the embedded cluster whose instance is one of an account of AWS."""

from __future__ import annotations

import anyio
import pytest
from kubesim.server.api import JsonObject
from kubesim_support.patience import PATIENCE
from support.aws import ZONE, at, give_credentials, moto_server, provider_id
from support.stage import Stage, a_workload, reasons, staged

from gracectl.model import names

pytestmark = pytest.mark.real_time


async def add_worker(stage: Stage, name: str, instance: str) -> None:
    """A Ready node whose instance is not one of the embedded cluster's own cloud."""
    await stage.add_nodes("pattern")
    pattern: JsonObject = await stage.call("GET", "/api/v1/nodes/pattern")
    await stage.call("DELETE", "/api/v1/nodes/pattern")
    labels = {**pattern["metadata"]["labels"], "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": ZONE}
    spec = {"providerID": provider_id(instance)}
    node = {**pattern, "metadata": {"name": name, "labels": labels}, "spec": spec}
    await stage.cluster.create(node)
    stage.cluster.kubelet.revive(name)


async def test_a_node_that_is_deleted_is_drained_and_goes_with_its_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    give_credentials(monkeypatch)
    with moto_server() as moto:
        (instance,) = moto.run()
        async with at(moto.url) as provider, staged() as stage:
            stage.provider = provider  # type: ignore[assignment]
            worker = moto.host_of(instance)
            await add_worker(stage, worker, instance)
            await stage.create(a_workload("Deployment", "web", 2, behaviour={"stop-seconds": 0.1}))
            assert len(stage.pods_on(worker)) == 2
            await stage.add_nodes("refuge")
            async with stage.controller() as controller:
                await stage.settle(controller)
                moto.protect(instance)
                await stage.delete_node(worker)
                with anyio.fail_after(PATIENCE):
                    await stage.until(lambda: refused(stage, worker))
                assert moto.state(instance) == "running"
                assert stage.pods_on(worker) == []
                moto.protect(instance, False)
                with anyio.fail_after(PATIENCE):
                    await stage.until_gone(worker)
            assert moto.state(instance) == "terminated"
            event_reasons = await reasons(stage, worker)
            assert names.EventReason.INSTANCE_TERMINATION_FAILED in event_reasons
            assert event_reasons[-2:] == [names.EventReason.INSTANCE_TERMINATED, names.EventReason.NODE_TERMINATED]


def refused(stage: Stage, node: str) -> bool:
    """Whether people can read on the node what they have to do."""
    condition = stage.condition(node, names.INSTANCE_TERMINATING)
    return bool(condition and "--no-disable-api-termination" in condition["message"])
