"""How the world follows a server, in-process and over HTTP: nothing twice, nothing lost, never back in time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import anyio
import pytest
from kubesim.clock import LoopClock, SystemClock
from kubesim.cluster import PARTS, ClusterOptions, EmbeddedCluster, NodeSpec
from kubesim.controllers.behaviour import PodBehaviour, Stage
from kubesim.controllers.client import ApiClient, Disconnected, OverHttp, follow
from kubesim.controllers.informers import Informer, Informers
from kubesim.controllers.kubelet import HollowKubelet, KubeletSettings
from kubesim.controllers.objects import is_ready
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import NAMESPACES, PODS, path_of
from kubesim.faults import DropWatch, Refuse, Rule
from kubesim.http import HttpFace
from kubesim.server.api import JsonObject
from kubesim_support.clusters import NAMESPACE, pod, quiet
from kubesim_support.patience import PATIENCE

pytestmark = pytest.mark.anyio


async def an_empty_server() -> EmbeddedCluster:
    cluster = EmbeddedCluster(LoopClock(), ClusterOptions(parts=frozenset()))
    await cluster.api.call("POST", NAMESPACES, {"metadata": {"name": NAMESPACE}})
    return cluster


@asynccontextmanager
async def following(cluster: EmbeddedCluster) -> AsyncIterator[list[tuple[str, str]]]:
    """What `follow` tells of the pods: (type, name), as it comes."""
    seen: list[tuple[str, str]] = []

    async def read() -> None:
        async for event in follow(cluster.api, PODS, {}, cluster.pace.clock):
            name = event.object["metadata"].get("name", "")
            seen.append((event.type, name))

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await quiet()
        yield seen
        group.cancel_scope.cancel()


async def test_a_broken_watch_is_resumed_where_it_was() -> None:
    cluster = await an_empty_server()
    await cluster.create(pod("one"))
    drop = Rule(fault=DropWatch(after=1.0), path="pods")
    cluster.server.faults.add(drop)
    async with following(cluster) as seen:
        await cluster.create(pod("two"))
        await cluster.pace.clock.sleep(1)
        await cluster.create(pod("three"))
        await cluster.pace.clock.sleep(10)
        assert cluster.server.faults.struck(drop) > 5
        assert seen == [("ADDED", "one"), ("SYNCED", ""), ("ADDED", "two"), ("ADDED", "three")]


async def test_a_version_that_is_too_old_means_list_again_and_tell_the_difference() -> None:
    cluster = await an_empty_server()
    for name in ("stays", "goes", "changes", "is-replaced"):
        await cluster.create(pod(name))
    drop = Rule(fault=DropWatch(after=1.0), path="pods")
    cluster.server.faults.add(drop)
    async with following(cluster) as seen:
        assert seen[-1] == ("SYNCED", "")
        seen.clear()
        cluster.server.faults.clear()
        refuse = Rule(fault=Refuse(503), path="pods", method="GET")
        cluster.server.faults.add(refuse)
        await cluster.pace.clock.sleep(2)
        for name in ("goes", "is-replaced"):
            await cluster.api.call("DELETE", path_of(PODS, NAMESPACE, name))
        await cluster.create(pod("is-replaced"))
        await cluster.create(pod("comes"))
        change = {"metadata": {"labels": {"changed": "yes"}}}
        await cluster.api.call(
            "PATCH",
            path_of(PODS, NAMESPACE, "changes"),
            change,
            content_type="application/merge-patch+json",
        )
        cluster.server.store.table("pods").forget(cluster.server.store.revision)
        cluster.server.faults.remove(refuse)
        await cluster.pace.clock.sleep(10)
        assert sorted(seen) == [
            ("ADDED", "comes"),
            ("ADDED", "is-replaced"),
            ("DELETED", "goes"),
            ("DELETED", "is-replaced"),
            ("MODIFIED", "changes"),
            ("SYNCED", ""),
        ]
        assert seen.index(("DELETED", "is-replaced")) < seen.index(("ADDED", "is-replaced"))


def seen_at(version: int, name: str = "one", uid: str = "u1") -> JsonObject:
    return {"metadata": {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version)}}


def test_a_view_never_goes_back_in_time() -> None:
    view = Informer("/api/v1/things")
    news: list[tuple[int | None, int | None]] = []

    def version(object_: JsonObject | None) -> int | None:
        return None if object_ is None else int(object_["metadata"]["resourceVersion"])

    view.subscribe(lambda old, new: news.append((version(old), version(new))))
    view.remember(seen_at(5))
    view.remember(seen_at(3))
    view.remember(seen_at(7))
    assert version(view.get("ns", "one")) == 7
    assert news == [(None, 5), (5, 7)]


async def test_what_was_written_and_deleted_out_of_sight_does_not_stay() -> None:
    cluster = await an_empty_server()
    informers = Informers(cluster.api, cluster.pace.clock)
    view = informers.of(PODS)
    ghost = await cluster.create(pod("ghost"))
    await cluster.api.call("DELETE", path_of(PODS, NAMESPACE, "ghost"))
    view.remember(ghost)
    assert len(view) == 1
    async with anyio.create_task_group() as group:
        group.start_soon(informers.run)
        await view.synced.wait()
        assert len(view) == 0
        written = await cluster.create(pod("real"))
        view.remember(written)
        await quiet()
        assert view.keys() == [(NAMESPACE, "real")]
        group.cancel_scope.cancel()


@pytest.mark.real_time
async def test_the_kubelet_runs_over_http_against_any_server() -> None:
    clock = SystemClock()
    cluster = EmbeddedCluster(clock, ClusterOptions(parts=PARTS - {"kubelet"}, tokens={"sesame": "kubelet"}))
    face = HttpFace(cluster.server)
    url = await face.start()
    async with aiohttp.ClientSession() as session, anyio.create_task_group() as group:
        stranger: ApiClient = OverHttp(session, url)
        assert (await stranger.call("GET", PODS))[0] == 403
        api = OverHttp(session, url, headers={"Authorization": "Bearer sesame"})
        informers, pace = Informers(api, clock), Pace(clock)
        behaviour = PodBehaviour(start_delay=0.05, stop_delay=0.05)
        kubelet = HollowKubelet(informers, pace, KubeletSettings(behaviours=(Stage(behaviour),), leases=True))
        group.start_soon(informers.run)
        group.start_soon(kubelet.run)
        await group.start(cluster.run)
        with anyio.fail_after(PATIENCE):
            await cluster.add_node(NodeSpec(name="a"))
            await cluster.create(pod("one"))
            await cluster.until(lambda: [is_ready(pod_object) for pod_object in cluster.pods()] == [True])
            status, _ = await api.call("DELETE", path_of(PODS, NAMESPACE, "one"))
            assert status == 200
            await cluster.until(lambda: not cluster.pods())
        group.cancel_scope.cancel()
    await face.stop()


@pytest.mark.real_time
async def test_a_server_that_is_not_there() -> None:
    async with aiohttp.ClientSession() as session:
        api = OverHttp(session, "http://127.0.0.1:9")
        with pytest.raises(Disconnected, match=PODS):
            await api.call("GET", PODS)
        with pytest.raises(Disconnected, match=PODS):
            async for _ in api.watch(PODS, {}):
                pass
