"""The condition DisruptionTarget of pods that are deleted: for a deadline, and when the machine shuts down."""

from __future__ import annotations

from kubesim.server.api import JsonObject
from support.shutdowns import STUBBORN, a_pod_of, an_agent
from support.shutdowns import deletions as deletions_since
from support.stage import Stage, a_pod_manifest, staged
from support.stories import START, deletions, draining, stamp, until, with_grace_period

from gracectl.model import names

PROTECTED = {"annotations": {names.DO_NOT_DISRUPT: "true"}, "terminationGracePeriodSeconds": 30}


def targets(pods: list[JsonObject]) -> dict[str, tuple[str, str]]:
    """By pod, the reason and message of its condition DisruptionTarget."""
    return {
        pod["metadata"]["name"]: (each["reason"], each["message"])
        for pod in pods
        for each in pod["status"]["conditions"]
        if each["type"] == "DisruptionTarget" and each["status"] == "True"
    }


def marked_at(stage: Stage, begun: float) -> list[tuple[str, float]]:
    """(pod, seconds after `begun`) of every patch of the status of a pod by us."""
    return [
        (each.operation.name, round(each.instant - begun, 3)) for each in stage.transport.of("patch", "pods/status")
    ]


async def test_a_pod_is_marked_before_it_is_deleted_for_the_deadline() -> None:
    async with staged("n1", "n2", settings=with_grace_period("60s")) as stage:
        await stage.create(a_pod_manifest("held", "n1", **PROTECTED, behaviour={"stop-seconds": 9}))
        await stage.create(a_pod_manifest("free", "n1", behaviour={"stop-seconds": 9}))
        async with draining(stage, "n1"):
            await until(stage, 35.0)
            assert marked_at(stage, START) == [("held", 28.0)]
            assert deletions(stage) == [("held", 30.0, 30)]
            message = f"deleted by gracectl: node n1 must be gone by {stamp(stage, 60.0)}"
            assert targets(stage.pods_on("n1")) == {"held": ("DeletionByGracectl", message)}


async def test_a_pod_of_a_machine_that_shuts_down_is_marked() -> None:
    async with staged("n1") as stage:
        await a_pod_of(stage, "web", 0, grace=10, **STUBBORN)
        async with an_agent(stage) as played:
            await played.live()
            began = played.logind.shut_down()
            await stage.clock.sleep(5)
            ((name, at, _),) = deletions_since(stage, began)
            assert marked_at(stage, began) == [(name, at)]
            ((reason, message),) = targets(stage.pods_on("n1")).values()
            assert reason == "TerminationByGracectl"
            assert message.startswith("deleted by gracectl: the machine of node n1 shuts down; waiting until ")
