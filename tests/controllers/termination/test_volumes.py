"""Attached volumes: which pods leave after they are detached, and what is said of volumes that stay attached."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.faults import Refuse, Rule
from kubesim.server.api import JsonObject
from support.builders import a_pod
from support.clients import a_client, named, seeing
from support.stage import NAMESPACE, Stage, a_pod_manifest, a_workload, reasons, staged
from support.stories import deletions, draining, with_grace_period

from gracectl.controllers.cluster.volumes import MOST_AT_A_TIME, MOST_OF_NAMESPACE, fair_share
from gracectl.inspect.forecast import forecast_drains
from gracectl.inspect.status import node_statuses
from gracectl.inspect.watcher import snapshot
from gracectl.kube.transport import Request, Response
from gracectl.model import names
from gracectl.policy.forecast import Assumptions
from gracectl.policy.plan import Blocker, Outcome
from gracectl.policy.warnings import WarningKind

ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
TEMPLATES = [{"metadata": {"name": "data"}, "spec": CLAIM}]
PLUGIN = "app=plugin"
VOLUME = "persistentVolumeName"


def a_database(**more: Any) -> JsonObject:
    return a_workload("StatefulSet", "db", 1, serviceName="db", volumeClaimTemplates=TEMPLATES, **more)


def a_daemon(name: str, **more: Any) -> JsonObject:
    """A DaemonSet that tolerates nothing special, as CSI node plugins of some charts."""
    workload = a_workload("DaemonSet", name, 0, **more)
    del workload["spec"]["replicas"]
    return workload


def attached_to(stage: Stage, node: str) -> list[JsonObject]:
    table = stage.server.store.table("volumeattachments.storage.k8s.io")
    return [each for each in table if each["spec"]["nodeName"] == node]


async def words_of(stage: Stage, name: str, reason: str) -> list[str]:
    return [words for object_, found, words in await stage.events() if (object_, found) == (name, reason)]


def described(attachment: JsonObject, of: str = "") -> str:
    spec = attachment["spec"]
    volume = spec["source"]["persistentVolumeName"]
    return f"{volume}{of} (attachment {attachment['metadata']['name']}, driver {spec['attacher']})"


def asked(stage: Stage, start: float) -> list[tuple[str, float]]:
    return [(each.operation.name.partition("-")[0], round(each.instant - start, 3)) for each in stage.evictions]


async def test_daemons_leave_when_the_plugin_has_unstaged_the_volumes_of_drained_pods() -> None:
    """Evicted after the last ordinary pod, at 5 s, the plugin could not unstage the volume at 8 s."""
    async with staged("n1", unstage_seconds=3.0, detach_seconds=4.0, node_plugin=PLUGIN) as stage:
        await stage.create(a_daemon("plugin"), a_database(behaviour={"stop-seconds": 5}))
        await stage.clock.sleep(30)
        async with stage.settled():
            start = await stage.delete_node("n1")
            await stage.clock.sleep(11)  # a message is written every 10 s
            [attachment] = attached_to(stage, "n1")
            condition = stage.condition("n1", names.VOLUMES_DETACHED)
            assert condition is not None
            waits = f"waiting for volumes of drained pods to detach: {described(attachment)}"
            assert condition["message"] == waits
            condition = stage.condition("n1", names.DRAINED)
            assert condition is not None
            assert condition["message"].endswith(f"({waits})")
            await stage.until_gone("n1")
            assert asked(stage, start) == [("db", 0.0), ("plugin", 12.0)]
        assert "AwaitingVolumeDetachment" in await reasons(stage, "n1")


async def test_a_plugin_leaves_in_time_for_the_deadline_whatever_is_attached() -> None:
    settings = with_grace_period("60s")
    async with staged("n1", settings=settings, unstage_seconds=100.0, node_plugin=PLUGIN) as stage:
        plugin = a_daemon("plugin", behaviour={"ignores-sigterm": "true"}, pod={"terminationGracePeriodSeconds": 20})
        await stage.create(plugin, a_database())
        await stage.clock.sleep(30)
        async with draining(stage, "n1"):
            await stage.until_gone("n1")
    assert [name.partition("-")[0] for name, _ in asked(stage, 0.0)] == ["db"]
    [(name, at, grace)] = deletions(stage)
    assert (name.partition("-")[0], at, grace) == ("plugin", 40.0, 20)


async def test_a_volume_that_stays_attached_is_reported_after_a_minute_with_its_pod_and_a_remedy() -> None:
    async with staged("n1", objects=[a_database()], unstage_seconds=10_000.0) as stage:
        await stage.add_nodes("n2")
        await stage.clock.sleep(30)
        async with stage.settled():
            await stage.delete_node("n1")
            await stage.clock.sleep(61)
            assert "VolumesStillAttached" not in await reasons(stage, "n1")
            await stage.clock.sleep(2)
            [attachment] = attached_to(stage, "n1")
            name = attachment["metadata"]["name"]
            message = (
                f"waiting for volumes of drained pods to detach: {described(attachment, ' of shop/db-0')}; "
                f"once nothing on the node uses the volume: kubectl delete volumeattachment {name}"
            )
            assert await words_of(stage, "n1", "VolumesStillAttached") == [message]
            await stage.clock.sleep(10)
            condition = stage.condition("n1", names.VOLUMES_DETACHED)
            assert condition is not None
            assert (condition["reason"], condition["message"]) == (names.STILL_ATTACHED, message)
            await stage.call("DELETE", f"{ATTACHMENTS}/{name}")
            await stage.until_gone("n1")


async def an_agent_that_stays(stage: Stage) -> None:
    """On n1, with a volume."""
    tolerations = [{"key": names.DISRUPTED_TAINT_KEY, "operator": "Exists"}]
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    metadata = {"name": "data", "namespace": NAMESPACE}
    await stage.cluster.create(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": CLAIM}
    )
    await stage.create(a_pod_manifest("agent", "n1", tolerations=tolerations, volumes=volumes))
    await stage.clock.sleep(5)


async def test_commands_know_the_volumes_of_pods_that_stay() -> None:
    async with staged("n1", objects=[a_daemon("plugin")]) as stage, seeing(stage, named("n1")) as sight:
        await an_agent_that_stays(stage)
        cluster = await snapshot(a_client(stage), named("n1"))
        assert list(cluster.volumes.values()) == [attached_to(stage, "n1")[0]["spec"]["source"][VOLUME]]
        assert sight.cluster.volumes == cluster.volumes
        now = stage.clock.now()
        [node] = forecast_drains(cluster, stage.settings.termination, ("n1",), now, Assumptions()).nodes
        assert {entry.outcome for entry in node.forecast.plan.pods} == {Outcome.IGNORED, Outcome.EVICT}
        assert node.forecast.plan.attached == ()


async def test_status_warns_of_volumes_that_stay_attached() -> None:
    async with staged("n1", objects=[a_daemon("plugin"), a_database()], unstage_seconds=10_000.0) as stage:
        await stage.clock.sleep(30)
        async with stage.settled():
            await stage.delete_node("n1")
            await stage.clock.sleep(70)
            cluster = await snapshot(a_client(stage), named("n1"))
            settings = stage.settings.termination
            [status] = node_statuses(cluster, settings, ("n1",), stage.clock.now())
    [attachment] = attached_to(stage, "n1")
    [warning] = [each for each in status.warnings if each.kind is WarningKind.VOLUMES_STILL_ATTACHED]
    assert warning.message == f"attached for more than a minute after their pods: {described(attachment)}"
    assert warning.remedy.endswith(f"kubectl delete volumeattachment {attachment['metadata']['name']}")
    assert status.pods is not None
    [held] = status.pods
    assert held.entry.blocker is Blocker.VOLUME


async def test_claims_of_pods_that_stay_that_cannot_be_read_are_named() -> None:
    async with staged("n1") as stage:
        await an_agent_that_stays(stage)
        stage.transport.before.add(rule := Rule(fault=Refuse(403), method="GET", path="/persistentvolumeclaims"))
        async with stage.settled():
            await stage.delete_node("n1")
            await stage.clock.sleep(70)
            [words] = await words_of(stage, "n1", "VolumesStillAttached")
            assert "cannot read claim shop/data: " in words
            stage.transport.before.remove(rule)
            await stage.until_gone("n1")


@pytest.mark.parametrize("pods", [1, 12])
async def test_claims_that_do_not_exist_cost_few_requests_and_other_pods_no_time(pods: int) -> None:
    tolerations = [{"key": names.DISRUPTED_TAINT_KEY, "operator": "Exists"}]

    def staying(name: str, *claims: str) -> JsonObject:
        volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
        return a_pod_manifest(name, "n1", tolerations=tolerations, volumes=volumes)

    async with staged("n1", unstage_seconds=10_000.0) as stage:
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "shop"}}
        await stage.cluster.create({**claim, "spec": CLAIM})
        await stage.create(a_database(), staying("agent", "data"))
        await stage.clock.sleep(5)
        for number in range(pods):
            missing = (f"missing-{number}-{each:05}" for each in range(1_500))
            pod = staying(f"hostile-{number}", *missing)
            await stage.cluster.create({**pod, "status": {"phase": "Running"}})
        reads: list[str] = []
        send = stage.transport.send

        async def counting(request: Request) -> Response:
            if request.method == "GET" and "/persistentvolumeclaims/" in request.path:
                reads.append(request.path.rpartition("/")[2])
            return await send(request)

        stage.transport.send = counting  # type: ignore[method-assign]
        async with stage.settled():
            await stage.delete_node("n1")
            await stage.clock.sleep(300)
            assert len(reads) < 300
            assert reads.count("data") == 1


def test_one_look_reads_a_few_claims_of_each_namespace_each_once() -> None:
    crowd = [(a_pod(f"p{number}", namespace="crowd"), f"c{number % 300}") for number in range(600)]
    shop = [(a_pod("web"), "data")]
    found = fair_share([*crowd, *shop])
    assert ("shop", "data") in {(pod.namespace, claim) for pod, claim in found}
    assert len({claim for pod, claim in found if pod.namespace == "crowd"}) == MOST_OF_NAMESPACE
    many = [(a_pod("p", namespace=f"n{number}"), f"c{each}") for number in range(90) for each in range(9)]
    assert len({(pod.namespace, claim) for pod, claim in fair_share(many)}) == MOST_AT_A_TIME
    assert {pod.namespace for pod, _ in fair_share(many)} == {f"n{number}" for number in range(90)}
