"""Events and conditions about a deadline, on the node and on its claim, and other writers of these objects."""

from __future__ import annotations

from typing import Any

from kubesim.controllers.cloud import CloudSettings
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.server.api import JsonObject
from support.stage import Stage, a_budget_manifest, a_pod_manifest, reasons, staged
from support.stories import (
    asked_to_end,
    delete_at_start,
    draining,
    stamp,
    staying,
    told,
    until,
    with_grace_period,
)

from gracectl.model import names

QUARTER = with_grace_period("15m")
CLAIM = ClaimSpec(termination_grace_period="15m")
SLOW_CLOUD = CloudSettings(terminate_delay=60.0)


def condition(stage: Stage, holder: str, type_: str = names.DRAINED) -> JsonObject:
    condition_object = (
        stage.claim_condition(holder, type_) if holder.endswith("-claim") else stage.condition(holder, type_)
    )
    assert condition_object is not None, f"{holder} has no condition {type_}"
    return condition_object


async def test_the_condition_says_until_when_at_most_each_pod_is_waited_for() -> None:
    objects = [
        a_budget_manifest("web", minAvailable=1),
        a_pod_manifest("web", "n1", terminationGracePeriodSeconds=60),
        staying("job", 600),
    ]
    async with staged("n1", objects=objects, claim=CLAIM) as stage, draining(stage, "n1"):
        await until(stage, 1.0)
        message = (
            "2 pods left: shop/web (budget shop/web allows no disruption now (1 of 1 healthy, 1 required); "
            f"it is deleted at {stamp(stage, 840.0)} at the latest), "
            f"shop/job (protected by do-not-disrupt; it is deleted at {stamp(stage, 300.0)} at the latest); "
            f"node deadline {stamp(stage, 900.0)}"
        )
        for holder in ("n1", "n1-claim"):
            assert condition(stage, holder)["message"] == message
            assert condition(stage, holder)["reason"] == "Draining"
            assert await told(stage, holder, "Draining") == [message]
        await until(stage, 70.0)
        for holder in ("n1", "n1-claim"):
            assert await told(stage, holder, "DrainBlocked") == [f"no pod has left for 60 s; {message}"]
        await until(stage, 320.0)
        assert condition(stage, "n1")["message"].endswith(
            f"shop/job (terminating until {stamp(stage, 900.0)}); node deadline {stamp(stage, 900.0)}"
        )
        await stage.until_gone("n1")


async def test_a_drain_in_which_pods_are_deleted_stands_not_still() -> None:
    objects = [a_pod_manifest("slow", "n1", terminationGracePeriodSeconds=3600, behaviour={"stop-seconds": 300})]
    async with staged("n1", objects=objects, settings=QUARTER) as stage, draining(stage, "n1"):
        await stage.until_gone("n1")
        assert "DrainBlocked" not in await reasons(stage, "n1")


async def test_what_was_left_behind_stays_to_be_read_when_it_is_gone() -> None:
    objects = [*(staying(f"job-{n}", 600) for n in range(5))]
    async with staged("n1", objects=objects, claim=CLAIM, cloud=SLOW_CLOUD) as stage, draining(stage, "n1"):
        await until(stage, 50.0)
        stage.cluster.kubelet.partition("n1")
        await until(stage, 905.0)
        message = (
            f"the deadline {stamp(stage, 900.0)} has passed with 5 pods left: shop/job-0 (terminating), "
            "shop/job-1 (terminating), shop/job-2 (terminating), and 2 more"
        )
        for holder in ("n1", "n1-claim"):
            shown = condition(stage, holder)
            assert (shown["status"], shown["reason"], shown["message"]) == ("False", "DeadlinePassed", message)
            assert await told(stage, holder, "TerminationGracePeriodExpired") == [message]
            assert condition(stage, holder, names.INSTANCE_TERMINATING)["status"] == "True"
        stage.cluster.kubelet.heal("n1")
        await until(stage, 925.0)
        for holder in ("n1", "n1-claim"):
            shown = condition(stage, holder)
            assert (shown["status"], shown["reason"], shown["message"]) == ("True", "DeadlinePassed", message)
        await stage.until_gone("n1")
        assert asked_to_end(stage)[0] == 900.0


async def test_the_steps_are_told_on_the_claim_as_on_the_node() -> None:
    objects = [a_pod_manifest("a", "n1", behaviour={"stop-seconds": 5})]
    async with staged("n1", objects=objects, claim=CLAIM, cloud=SLOW_CLOUD) as stage, draining(stage, "n1"):
        await until(stage, 20.0)
        for holder in ("n1", "n1-claim"):
            for type_ in (names.DRAINED, names.VOLUMES_DETACHED, names.INSTANCE_TERMINATING):
                shown = condition(stage, holder, type_)
                assert (shown["status"], shown["lastTransitionTime"]) == ("True", stamp(stage, 5.0))
        claim = stage.claim("n1-claim")
        assert claim is not None
        # What its maker has written stands as it was.
        assert [each["type"] for each in claim["status"]["conditions"]] == [
            "Launched",
            "Registered",
            "Initialized",
            "Ready",
            names.DRAINED,
            names.VOLUMES_DETACHED,
            names.INSTANCE_TERMINATING,
        ]
        assert claim["status"]["conditions"][0]["observedGeneration"] == 1
        await stage.until_gone("n1")


async def test_a_condition_of_another_client_that_comes_in_the_same_moment_survives() -> None:
    """Lists of a custom resource are written by place: a write that has read another list is refused, and made anew."""
    async with staged("n1", objects=[staying("job")], claim=CLAIM) as stage, stage.settled():
        handle = stage.server.handle
        foreign = {
            "type": "ConsistentStateFound",
            "status": "True",
            "reason": "Checked",
            "message": "",
            "lastTransitionTime": stamp(stage, 0.0),
            "observedGeneration": 7,
        }
        storms = iter(range(3))

        async def stormy(request: Any) -> Any:
            is_ours = request.path.endswith("/nodeclaims/n1-claim/status") and isinstance(request.body, bytes)
            if is_ours and (n := next(storms, None)) is not None:
                claim = stage.claim("n1-claim")
                assert claim is not None
                others = [each for each in claim["status"]["conditions"] if each["type"] != foreign["type"]]
                mine = {**foreign, "message": f"look {n}"}
                await stage.patch_claim("n1-claim", {"status": {"conditions": [mine, *others]}}, "/status")
            return await handle(request)

        stage.server.handle = stormy  # type: ignore[method-assign]  # the one way to be there just before
        await delete_at_start(stage, "n1")
        await until(stage, 5.0)
        assert next(storms, None) is None
        claim = stage.claim("n1-claim")
        assert claim is not None
        assert claim["status"]["conditions"][0] == {**foreign, "message": "look 2"}
        assert condition(stage, "n1-claim")["reason"] == "Draining"
        written = stage.transport.of("patch", "nodeclaims/status")
        assert [each.status for each in written] == [409, 409, 409, 200]


async def test_a_claim_without_any_status_gets_its_conditions() -> None:
    async with staged("n1", objects=[staying("job")], settings=QUARTER) as stage:
        await stage.create_claim("bare", {"nodeName": "n1"})
        async with draining(stage, "n1"):
            await until(stage, 1.0)
            claim = stage.claim("bare")
            assert claim is not None
            assert [each["type"] for each in claim["status"]["conditions"]] == [names.DRAINED]
            assert claim["status"]["nodeName"] == "n1"
