"""Events about an invalid do-not-disrupt: at once, once per workload, and again for another value."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from kubesim.controllers.client import MERGE
from support.builders import a_node, a_pod, owned_by
from support.eviction import EvictionServer
from support.stage import Stage, a_workload, staged, the_settings
from support.stories import HOUR, delete_at_start, edit, lasting, made_at_start, protected, told, until

from gracectl.app.controller import Controller
from gracectl.cloud.none import NoneProvider
from gracectl.config import Settings
from gracectl.controllers.termination import events, invalid_annotations
from gracectl.controllers.termination.invalid_annotations import InvalidAnnotationReporter
from gracectl.model import names
from gracectl.model.pod import Pod
from gracectl.policy.settings import ProtectionSettings
from gracectl.runtime.clock import LoopClock

REASON = "InvalidDoNotDisruptAnnotation"
WORKLOADS = "/apis/apps/v1/namespaces/shop/deployments"


async def warned(stage: Stage) -> Counter[str]:
    return Counter(name for name, reason, _ in await stage.events() if reason == REASON)


def deployment(value: str, replicas: int) -> dict[str, Any]:
    return a_workload("Deployment", "web", replicas, pod={"annotations": {names.DO_NOT_DISRUPT: value}})


@pytest.mark.parametrize("value", ["false", "4 hours", "0s", "-1h", "", "1d"])
async def test_it_is_reported_at_once_without_a_termination(value: str) -> None:
    async with staged("n1") as stage, stage.settled():
        await stage.create(protected("job", value))
        await stage.clock.sleep(0.01)
        assert await told(stage, "job", REASON) == [
            f'annotation karpenter.sh/do-not-disrupt: "{value}" is neither "true" nor a positive duration and protects '
            'the pod indefinitely; set "true", or a duration such as "4h" or "1h30m" from its creation, or remove it'
        ]
        events = (await stage.call("GET", "/api/v1/events"))["items"]
        assert [each["type"] for each in events if each["reason"] == REASON] == ["Warning"]


async def test_a_deployment_is_one_event_however_many_pods_it_has_and_one_more_for_other_nonsense() -> None:
    async with staged("n1", "n2") as stage, stage.settled():
        await stage.create(deployment("always", 60))
        await stage.clock.sleep(10)
        assert (await warned(stage)).total() == 1
        path = f"{WORKLOADS}/web"
        await stage.call("PATCH", path, {"spec": {"replicas": 90}}, MERGE)
        await stage.clock.sleep(10)
        assert (await warned(stage)).total() == 1
        annotations = {names.DO_NOT_DISRUPT: "1 hour"}
        await stage.call("PATCH", path, {"spec": {"template": {"metadata": {"annotations": annotations}}}}, MERGE)
        await stage.clock.sleep(60)
        assert (await warned(stage)).total() == 2


async def test_a_value_that_is_edited_is_reported_again_also_if_it_has_been_reported_before() -> None:
    async with lasting("n1") as stage, stage.settled():
        await stage.create(protected("job", "always"))
        for n, value in enumerate(("1 hour", "4h", "1 hour", None, "1 hour", "always"), 1):
            await until(stage, n * HOUR)
            await edit(stage, "job", value)
        await until(stage, 7 * HOUR)
        said = [message.split('"')[1] for message in await told(stage, "job", REASON)]
        assert said == ["always", "1 hour", "1 hour", "1 hour", "always"]


async def test_only_pods_that_would_hold_a_managed_node_are_reported() -> None:
    settings = the_settings(nodeSelector={"matchLabels": {"pool": "mine"}})
    async with staged("n1", labels={"pool": "mine"}, settings=settings) as stage:
        await stage.add_nodes("n2", labels={"pool": "yours"})
        stays = [{"key": names.DISRUPTED_TAINT_KEY, "operator": "Exists"}]
        await stage.create(
            protected("elsewhere", "always", "n2"),
            protected("stays", "always", tolerations=stays),
            protected("done", "always", behaviour={"exit-seconds": 1}, restartPolicy="Never"),
        )
        await stage.cluster.create(protected("nowhere", "always", node="", nodeSelector={"pool": "none"}))
        await stage.clock.sleep(2)
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(10)
            assert await warned(stage) == {}
            await stage.patch_node("n2", {"metadata": {"labels": {"pool": "mine"}}})
            await stage.clock.sleep(0.01)
            assert await warned(stage) == {"elsewhere": 1}


async def test_a_drain_reports_each_pod() -> None:
    async with lasting("n1") as stage, stage.settled():
        await stage.create(deployment("always", 10))
        await made_at_start(stage)
        assert (await warned(stage)).total() == 1
        await delete_at_start(stage, "n1")
        await until(stage, HOUR)
        pods = {pod["metadata"]["name"] for pod in stage.pods_on("n1")}
        assert await warned(stage) == dict.fromkeys(pods, 1)
        for pod in sorted(pods)[:2]:
            await edit(stage, pod, "1 hour")
        await until(stage, 2 * HOUR)
        assert sorted((await warned(stage)).values()) == [1] * 8 + [2, 2]


async def test_a_drain_that_is_taken_up_again_repeats_nothing() -> None:
    async with lasting("n1") as stage:
        async with stage.settled(mortal=True) as controller:
            await made_at_start(stage, *(protected(name, "always") for name in ("a", "b")))
            await delete_at_start(stage, "n1")
            await until(stage, HOUR)
        before = await warned(stage)
        async with stage.controller() as controller:
            await controller.wait_live()
            await until(stage, 2 * HOUR)
            # Each is a workload of its own, which the new process reports once.
            assert await warned(stage) == {name: count + 1 for name, count in before.items()}


@pytest.fixture
async def controller() -> Controller:
    clock = LoopClock()
    return Controller(Settings(), EvictionServer(clock), clock, NoneProvider(NoneProvider.Options()))


def crowd(count: int, **fields: Any) -> list[Pod]:
    return [a_pod(f"p{n}", annotations={names.DO_NOT_DISRUPT: "always"}, **fields) for n in range(count)]


async def test_thousands_without_a_controller_are_reported_a_few_at_a_time(controller: Controller) -> None:
    """So that other Events do not wait behind them."""
    context = controller._manager._drains.context
    part = InvalidAnnotationReporter(context)
    context.cluster.nodes.put(a_node())
    start = context.clock.monotonic()
    for pod in crowd(100):
        context.cluster.pods.put(pod)
        await part.reconcile(pod.key)
    assert context.recorder.statistics().recorded == 100
    assert context.clock.monotonic() - start == pytest.approx(50 / 5)
    assert part.queues()["invalid-annotations"].ready == 100  # the queue has them, and no worker takes them here


async def test_what_is_remembered_is_bounded(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invalid_annotations, "REMEMBERED", 10)
    context = controller._manager._drains.context
    part = InvalidAnnotationReporter(context)
    context.cluster.nodes.put(a_node())
    for pod in crowd(30):
        context.cluster.pods.put(pod)
        await part.reconcile(pod.key)
    assert [topic[0] for topic in part._reported] == [f"uid-p{n}" for n in range(20, 30)]
    assert all(len(value) <= 60 for _, value in part._reported)


@pytest.mark.parametrize(
    ("settings", "pod", "words"),
    [
        (
            ProtectionSettings(reference="start"),
            crowd(1)[0],
            'protects the pod indefinitely; set "true", or a duration such as "4h" or "1h30m" from its start, or '
            "remove it",
        ),
        (
            ProtectionSettings(maximum_seconds=7200.0),
            crowd(1)[0],
            "protects the pod for protection.maximumSeconds (7200 s from its creation); set",
        ),
        (
            ProtectionSettings(),
            crowd(1, owners=owned_by("ReplicaSet", "web-5d4f"))[0],
            "or remove it, on all pods of ReplicaSet web-5d4f that have it",
        ),
        (ProtectionSettings(), a_pod(annotations={names.DO_NOT_DISRUPT: "x" * 300}), f': "{"x" * 59}…" is neither'),
    ],
)
def test_the_message_says_the_effect_and_valid_values(settings: ProtectionSettings, pod: Pod, words: str) -> None:
    assert words in events.invalid_protection(pod, settings).message
