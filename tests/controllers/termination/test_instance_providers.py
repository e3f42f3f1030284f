"""Nodes that end with each of the providers: drained first, then the instance, then the node."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim_support.patience import PATIENCE
from support import instances
from support.instances import DEFINITION, MACHINES, ClusterApi
from support.stage import Stage, a_pod_manifest, reasons, staged

from gracectl.cli.crds import shipped_definitions
from gracectl.cloud.provider import Provider, ProviderSettings, load_provider
from gracectl.model import names

DEFINITIONS = (*shipped_definitions(), DEFINITION)
QUICK = CloudSettings(terminate_delay=0.3)
Behind = Callable[[Stage, Path], AbstractAsyncContextManager[Provider]]


def plug(stage: Stage, provider: Provider) -> None:
    """From now on controllers of this stage end instances with it."""
    chosen: Any = provider
    stage.provider = chosen


@pytest.mark.real_time
@pytest.mark.parametrize(
    "behind",
    [instances.machines, instances.machines_elsewhere, instances.endpoint, instances.command],
    ids=lambda behind: behind.__name__,
)
async def test_a_node_ends_with_every_provider(behind: Behind, tmp_path: Path) -> None:
    async with staged("n1", "n2", objects=[a_pod_manifest("web", "n1")], definitions=DEFINITIONS, cloud=QUICK) as stage:
        async with behind(stage, tmp_path) as provider:
            plug(stage, provider)
            async with stage.settled():
                with anyio.fail_after(PATIENCE):
                    await stage.delete_node("n1")
                    await stage.until_gone("n1")
                assert stage.instance_state("n1") == "terminated"
                assert stage.instance_state("n2") == "running"
                # An event is written after the deed, and nothing waits for its recorder.
                with anyio.fail_after(PATIENCE):
                    while "InstanceTerminated" not in await reasons(stage, "n1"):
                        await stage.clock.sleep(0.05)
        asked = min(entry.instant for entry in stage.cluster.cloud.journal if entry.what == "shutting-down")
        (eviction,) = stage.evictions
        assert asked - stage.clock.now() > eviction.instant - stage.clock.monotonic()


async def test_cluster_api_deletes_the_node_that_we_hold_and_neither_waits_for_the_other() -> None:
    slow = CloudSettings(terminate_delay=60.0)
    async with staged("n1", "n2", definitions=DEFINITIONS, cloud=slow) as stage:
        capi = ClusterApi(stage)
        for node in ("n1", "n2"):
            await capi.add(node)
        plug(stage, load_provider(ProviderSettings("clusterapi")))
        async with capi.working(), stage.settled():
            start = await stage.delete_node("n1")
            took = await stage.until_gone("n1") - start
            assert 60 <= took <= 90
            assert capi.deleted_nodes == ["n1"]
            assert capi.drained == []
            assert capi.machine("m-n1") is None
            assert capi.machine("m-n2") is not None


async def test_a_machine_that_another_client_deletes_takes_its_node_with_it() -> None:
    """Scaling down, a rollout, a health check: the node is deleted when its machine is gone, and we let it go."""
    async with staged("n1", "n2", definitions=DEFINITIONS) as stage:
        capi = ClusterApi(stage)
        for node in ("n1", "n2"):
            await capi.add(node)
        plug(stage, load_provider(ProviderSettings("clusterapi")))
        async with capi.working(), stage.settled():
            await stage.call("DELETE", f"{MACHINES}/m-n1")
            start = stage.clock.monotonic()
            await stage.until_gone("n1")
            assert stage.clock.monotonic() - start <= 60
            assert capi.drained == ["m-n1"]  # by Cluster API: it was not requested from us


async def test_a_paused_machine_holds_its_node_which_says_so_until_it_is_paused_no_more() -> None:
    async with staged("n1", "n2", definitions=DEFINITIONS) as stage:
        capi = ClusterApi(stage)
        for node in ("n1", "n2"):
            await capi.add(node)
        await capi.patch("m-n1", {"metadata": {"annotations": {names.CLUSTER_API_PAUSED: ""}}})
        plug(stage, load_provider(ProviderSettings("clusterapi")))
        async with capi.working(), stage.settled():
            await stage.delete_node("n1")
            await stage.clock.sleep(600)
            condition = stage.condition("n1", names.INSTANCE_TERMINATING)
            assert condition is not None
            assert "provider clusterapi: Machine fleet/m-n1 is paused" in condition["message"]
            assert names.CLUSTER_API_PAUSED in condition["message"]
            assert stage.instance_state("n1") == "running"
            await capi.patch("m-n1", {"metadata": {"annotations": {names.CLUSTER_API_PAUSED: None}}})
            await stage.until_gone("n1")
            assert stage.instance_state("n1") == "terminated"


async def test_a_controller_that_dies_at_any_instant_leaves_the_next_one_enough() -> None:
    for instant in (0.05, 1.0, 2.05, 2.1, 2.5, 3.0, 5.0, 20.0, 32.0):
        slow = CloudSettings(terminate_delay=30.0)
        async with staged("n1", "n2", definitions=DEFINITIONS, cloud=slow) as stage:
            capi = ClusterApi(stage)
            for node in ("n1", "n2"):
                await capi.add(node)
            async with capi.working():
                plug(stage, load_provider(ProviderSettings("clusterapi")))
                async with stage.settled(mortal=True):
                    await stage.delete_node("n1")
                    await stage.clock.sleep(instant)
                plug(stage, load_provider(ProviderSettings("clusterapi")))
                async with stage.controller():
                    await stage.until_gone("n1")
                    assert stage.instance_state("n1") == "terminated"
                    assert stage.instance_state("n2") == "running"
                    assert len(stage.transport.of("delete", "machines")) == 1
