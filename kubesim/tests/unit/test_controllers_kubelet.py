"""The hollow kubelet: instants of starting and stopping, grace periods, static pods, nodes that fall silent."""

from __future__ import annotations

import pytest
from kubesim.cluster import PARTS, EmbeddedCluster
from kubesim.controllers.behaviour import PodBehaviour, Stage
from kubesim.controllers.kubelet import KubeletSettings
from kubesim.controllers.objects import condition_of, is_ready
from kubesim.controllers.paths import LEASES, NODES, PODS, path_of
from kubesim.server.api import JsonObject
from kubesim.values import parse_time
from kubesim_support.clusters import NAMESPACE, Timeline, delete_pod, get, pod, quiet, running, sim

pytestmark = pytest.mark.anyio


async def pod_now(cluster: EmbeddedCluster, name: str) -> JsonObject:
    await quiet()
    pod_object = await get(cluster, path_of(PODS, NAMESPACE, name))
    assert pod_object is not None
    return pod_object


async def is_there(cluster: EmbeddedCluster, name: str) -> bool:
    await quiet()
    return await get(cluster, path_of(PODS, NAMESPACE, name)) is not None


async def test_a_pod_runs_and_is_ready_at_the_exact_instants() -> None:
    behaviour = PodBehaviour(start_delay=2, ready_delay=3)
    async with running("a", kubelet=KubeletSettings(behaviours=(Stage(behaviour),))) as cluster:
        begun = cluster.pace.clock.now()
        await cluster.create(pod("one", "a"))
        await cluster.pace.clock.sleep(1.999)
        assert (await pod_now(cluster, "one"))["status"]["phase"] == "Pending"
        await cluster.pace.clock.sleep(0.001)
        running_pod = await pod_now(cluster, "one")
        assert running_pod["status"]["phase"] == "Running"
        assert not is_ready(running_pod)
        assert parse_time(running_pod["status"]["startTime"]) == begun
        assert running_pod["status"]["podIP"]
        await cluster.pace.clock.sleep(2.999)
        assert not is_ready(await pod_now(cluster, "one"))
        await cluster.pace.clock.sleep(0.001)
        ready = await pod_now(cluster, "one")
        assert {c["type"]: c["status"] for c in ready["status"]["conditions"]} == dict.fromkeys(
            ("PodScheduled", "Initialized", "ContainersReady", "Ready"), "True"
        )
        assert ready["status"]["containerStatuses"][0]["ready"] is True


@pytest.mark.parametrize(
    ("annotations", "grace", "ends_at", "phase"),
    [
        (sim(stop_seconds=4), None, 4.0, "Succeeded"),
        (sim(stop_seconds=0), None, 0.0, "Succeeded"),
        (sim(stop_seconds=60), None, 30.0, "Failed"),
        (sim(stop_seconds=4, ignores_sigterm=True), None, 30.0, "Failed"),
        (sim(stop_seconds=4), 2, 2.0, "Failed"),
        (sim(stop_seconds=40), 50, 40.0, "Succeeded"),
    ],
)
async def test_a_deleted_pod_ends_when_it_stops_or_is_killed(
    annotations: dict[str, str], grace: int | None, ends_at: float, phase: str
) -> None:
    async with running("a") as cluster:
        await cluster.create(pod("one", "a", annotations=annotations))
        await quiet()
        phases: list[str] = []
        async with Timeline(cluster).watching() as timeline:
            cluster.informers.of(PODS).subscribe(
                lambda old, new: phases.append(new["status"]["phase"]) if new else None
            )
            await delete_pod(cluster, "one", **({} if grace is None else {"gracePeriodSeconds": grace}))
            await cluster.pace.clock.sleep(100)
            assert timeline.of("one")[-1] == (ends_at, "DELETED")
        assert phases[-1] == phase


async def test_a_pod_that_never_stops_outlives_its_grace_until_its_object_is_removed() -> None:
    async with running("a") as cluster:
        await cluster.create(pod("one", "a", annotations=sim(never_stops=True)))
        await cluster.until_ready()
        await delete_pod(cluster, "one", gracePeriodSeconds=5)
        await cluster.pace.clock.sleep(1000)
        assert (await pod_now(cluster, "one"))["status"]["phase"] == "Running"
        await delete_pod(cluster, "one", gracePeriodSeconds=0)
        assert not await is_there(cluster, "one")


async def test_a_crash_is_restarted_after_a_growing_back_off() -> None:
    async with running("a") as cluster:
        await cluster.create(pod("one", "a", annotations=sim(crash_seconds=5)))
        await quiet()
        changes: list[tuple[float, bool, int]] = []
        start = cluster.pace.clock.monotonic()

        def changed(old: JsonObject | None, new: JsonObject | None) -> None:
            if new is not None:
                at = round(cluster.pace.clock.monotonic() - start, 4)
                restarts = new["status"]["containerStatuses"][0]["restartCount"]
                changes.append((at, is_ready(new), restarts))

        cluster.informers.of(PODS).subscribe(changed)
        await cluster.pace.clock.sleep(45.5)
        assert changes == [
            (0.0, True, 0),
            (5.0, False, 1),
            (15.0, True, 1),
            (20.0, False, 2),
            (40.0, True, 2),
            (45.0, False, 3),
        ]


async def test_another_pod_under_the_same_name_is_another_pod() -> None:
    behaviours = (Stage(PodBehaviour(start_delay=2)),)
    async with running("a", kubelet=KubeletSettings(behaviours=behaviours)) as cluster:
        await cluster.create(pod("one", "a"))
        await cluster.pace.clock.sleep(1)
        await delete_pod(cluster, "one", gracePeriodSeconds=0)
        await cluster.create(pod("one", "a"))
        await cluster.pace.clock.sleep(1.5)
        assert (await pod_now(cluster, "one"))["status"]["phase"] == "Pending"
        await cluster.pace.clock.sleep(0.5)
        assert (await pod_now(cluster, "one"))["status"]["phase"] == "Running"


@pytest.mark.parametrize("leases", [True, False])
async def test_a_node_gives_a_sign_of_life_every_ten_seconds_until_it_falls_silent(leases: bool) -> None:
    parts = PARTS - {"node-lifecycle"}
    async with running("a", kubelet=KubeletSettings(leases=leases), parts=parts) as cluster:
        begun = cluster.pace.clock.now()

        async def heard() -> tuple[float, float]:
            """When the node spoke last by its Lease (or its status), and since when it is Ready."""
            await quiet()
            node = await get(cluster, path_of(NODES, name="a"))
            ready = condition_of(node, "Ready") if node else None
            assert ready is not None
            assert ready["status"] == "True"
            lease = await get(cluster, path_of(LEASES, "kube-node-lease", "a"))
            assert (lease is not None) == leases
            spoken = lease["spec"]["renewTime"] if lease is not None else ready["lastHeartbeatTime"]
            return parse_time(spoken) - begun, parse_time(ready["lastTransitionTime"]) - begun

        assert await heard() == (0, 0)
        await cluster.pace.clock.sleep(20.5)
        assert await heard() == (20, 0)
        cluster.kubelet.partition("a")
        await cluster.pace.clock.sleep(60)
        assert await heard() == (20, 0)
        cluster.kubelet.heal("a")
        assert int((await heard())[0]) == 80


async def test_a_machine_that_crashes_and_comes_back_starts_its_pods_anew() -> None:
    async with running("a") as cluster:
        await cluster.create(pod("one", "a", annotations=sim(start_seconds=2, stop_seconds=5)))
        await cluster.create(pod("once", "a", annotations=sim(start_seconds=2), restartPolicy="Never"))
        await cluster.create(pod("going", "a", annotations=sim(stop_seconds=25)))
        await cluster.pace.clock.sleep(10)
        await delete_pod(cluster, "going")
        cluster.kubelet.kill("a")
        await cluster.pace.clock.sleep(5)
        assert is_ready(await pod_now(cluster, "one"))  # No other report has come yet.
        cluster.kubelet.revive("a")
        assert not await is_there(cluster, "going")
        assert (await pod_now(cluster, "once"))["status"]["phase"] == "Failed"
        await cluster.pace.clock.sleep(1.9)
        assert not is_ready(await pod_now(cluster, "one"))
        await cluster.pace.clock.sleep(0.1)
        back = await pod_now(cluster, "one")
        assert is_ready(back)
        assert back["status"]["containerStatuses"][0]["restartCount"] == 1
        await delete_pod(cluster, "one")
        await cluster.pace.clock.sleep(4.9)
        assert await is_there(cluster, "one")
        await cluster.pace.clock.sleep(0.1)
        assert not await is_there(cluster, "one")


async def test_a_kubelet_that_restarts_forgets_what_it_had_counted_and_its_pods_run_on() -> None:
    async with running("a") as cluster:
        await cluster.create(pod("one", "a", annotations=sim(ignores_sigterm=True)))
        await cluster.create(pod("sick", "a", annotations=sim(crash_seconds=5)))
        await quiet()
        await delete_pod(cluster, "one", gracePeriodSeconds=20)
        await cluster.pace.clock.sleep(8)  # The sick one waits for its first restart, at 15.
        cluster.kubelet.restart("a")
        assert is_ready(await pod_now(cluster, "sick"))
        await cluster.pace.clock.sleep(19.9)
        assert await is_there(cluster, "one")  # Its grace is counted from the start of the kubelet.
        await cluster.pace.clock.sleep(0.1)
        assert not await is_there(cluster, "one")
