"""kubernetes_asyncio's own typed client, models and all, works against the embedded cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from clients.place import Place
from kubernetes_asyncio import client, config, watch
from kubesim_support.patience import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.fixture
async def api(place: Place) -> AsyncIterator[Any]:
    settings = client.Configuration()
    await config.load_kube_config(str(place.kubeconfig), client_configuration=settings)
    async with client.ApiClient(settings) as connected:
        yield connected


def pod(name: str, *, ignores_sigterm: bool = False) -> Any:
    annotations = {"kubesim/ignores-sigterm": "true"} if ignores_sigterm else None
    return client.V1Pod(
        metadata=client.V1ObjectMeta(name=name, labels={"app": name}, annotations=annotations),
        spec=client.V1PodSpec(containers=[client.V1Container(name="main", image="pause")]),
    )


async def test_pods_are_created_read_evicted_and_deleted(api: Any, place: Place) -> None:
    core = client.CoreV1Api(api)
    created = await core.create_namespaced_pod("default", pod("one", ignores_sigterm=True))
    await core.create_namespaced_pod("default", pod("two"))
    assert created.spec.termination_grace_period_seconds == 30
    await place.cluster.until_ready()
    listed = await core.list_namespaced_pod("default", label_selector="app in (one, two)")
    assert {each.status.phase for each in listed.items} == {"Running"}
    eviction = client.V1Eviction(
        metadata=client.V1ObjectMeta(name="one"),
        delete_options=client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=created.metadata.uid)),
    )
    await core.create_namespaced_pod_eviction("one", "default", eviction)
    read = await core.read_namespaced_pod("one", "default")
    assert read.metadata.deletion_grace_period_seconds == 30
    gone = await core.delete_namespaced_pod("two", "default", grace_period_seconds=5)
    assert gone.metadata.deletion_timestamp is not None
    with pytest.raises(client.ApiException) as refused:
        await core.read_namespaced_pod("missing", "default")
    assert refused.value.status == 404


async def test_a_watch_yields_models(api: Any, place: Place) -> None:
    core = client.CoreV1Api(api)
    seen: list[tuple[str, str]] = []
    async with watch.Watch() as stream, anyio.create_task_group() as group:

        async def follow() -> None:
            async for event in stream.stream(core.list_namespaced_pod, "default", timeout_seconds=int(PATIENCE)):
                seen.append((event["type"], event["object"].metadata.name))
                if event["type"] == "DELETED":
                    group.cancel_scope.cancel()

        group.start_soon(follow)
        await core.create_namespaced_pod("default", pod("one"))
        with anyio.fail_after(PATIENCE):
            while not seen:
                await place.cluster.pace.clock.sleep(0.05)
        await core.delete_namespaced_pod("one", "default", grace_period_seconds=1)
    assert seen[0] == ("ADDED", "one")
    assert seen[-1] == ("DELETED", "one")
