"""Deadlines while all workers are taken: by a server or a provider that is silent for many other nodes."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Partition, Rule
from support.stage import SILENT, a_pod_manifest, staged, the_settings
from support.stories import (
    CROWD,
    asked_to_end,
    controlled,
    delete_at_start,
    deletions,
    evictions,
    few_workers,
    until,
)
from support.virtual import ShiftedClock

from gracectl.model import names

QUIET: Any = {"kubelet": SILENT, "node_grace_seconds": 1e7}
"""No heartbeats: of so many nodes they would take most of the time."""
SLOW_CLOUD = CloudSettings(terminate_delay=60.0)
PAST = {"metadata": {"annotations": {names.TERMINATION_TIMESTAMP: "2000-01-01T00:00:00Z"}}}


@pytest.fixture(autouse=True)
def with_few_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    few_workers(monkeypatch)


def bounded(period: str, **more: object) -> dict[str, object]:
    selector = {"matchLabels": {"bounded": "yes"}}
    return {"nodeGroups": [{"selector": selector, "terminationGracePeriod": period}], **more}


@pytest.mark.parametrize("by_hand", [False, True], ids=["0s", "by hand"])
async def test_a_deadline_that_has_passed_already_waits_for_no_worker(by_hand: bool) -> None:
    async with staged(
        *CROWD, settings=the_settings(**bounded("1h" if by_hand else "0s")), cloud=SLOW_CLOUD, **QUIET
    ) as stage:
        await stage.add_nodes("late", labels={"bounded": "yes"})
        async with stage.settled():
            await until(stage, -1.0)
            stage.transport.before.add(rule := Rule(fault=Partition(), method="PATCH|POST|DELETE"))
            await delete_at_start(stage, *CROWD, "late")
            if by_hand:
                await stage.patch_node("late", PAST)
            await until(stage, 10.0)
            (asked,) = asked_to_end(stage)
            assert asked <= 2.0
            stage.transport.before.remove(rule)
            await stage.until_gone(*CROWD, "late")


async def test_a_provider_that_is_silent_for_many_delays_neither_evictions_nor_deletions_elsewhere() -> None:
    async with staged(*CROWD, settings=the_settings(**bounded("50s")), **QUIET) as stage:
        await stage.add_nodes("late", labels={"bounded": "yes"})
        protected = {"annotations": {names.DO_NOT_DISRUPT: "true"}, "behaviour": {"ignores-sigterm": "true"}}
        await stage.create(a_pod_manifest("web", "late"))
        await stage.create(a_pod_manifest("job", "late", terminationGracePeriodSeconds=20, **protected))
        async with stage.settled():
            stage.provider.seconds = 1000.0
            await until(stage, -10.0)
            for name in CROWD:
                await stage.delete_node(name)
            await delete_at_start(stage, "late")
            await until(stage, 60.0)
            stage.provider.seconds = 0.0
            assert evictions(stage) == [("web", 0.0)]
            assert deletions(stage)[0] == ("job", 30.0, 20)
            assert 50.0 in asked_to_end(stage)
            await stage.until_gone(*CROWD, "late")


async def test_claims_whose_provider_is_silent_hold_up_no_claim_whose_node_is_still_to_be_deleted() -> None:
    async with staged("late", claim=ClaimSpec(termination_grace_period="50s")) as stage:
        protected = {"annotations": {names.DO_NOT_DISRUPT: "true"}, "behaviour": {"ignores-sigterm": "true"}}
        await stage.create(a_pod_manifest("web", "late"))
        await stage.create(a_pod_manifest("job", "late", terminationGracePeriodSeconds=20, **protected))
        for name in CROWD:
            await stage.create_claim(name, {"providerID": f"sim:///{name}"})
        async with stage.settled():
            stage.provider.seconds = 1000.0
            await until(stage, -10.0)
            for name in CROWD:
                await stage.delete_claim(name)
            await until(stage, 0.0)
            await stage.delete_claim("late-claim")
            await until(stage, 55.0)
            stage.provider.seconds = 0.0
            assert evictions(stage) == [("web", 0.0)]
            assert deletions(stage)[0] == ("job", 30.0, 20)
            assert 50.0 in asked_to_end(stage)
            await stage.until_claims_gone(*CROWD, "late-claim")


async def test_pods_have_their_grace_though_no_worker_comes_to_their_node() -> None:
    """All workers hang on writes to other nodes; each pod is handled within five seconds."""
    async with staged(*CROWD, settings=the_settings(**bounded("60s")), cloud=SLOW_CLOUD, **QUIET) as stage:
        await stage.add_nodes("late", labels={"bounded": "yes"})
        protected = {"annotations": {names.DO_NOT_DISRUPT: "true"}, "behaviour": {"ignores-sigterm": "true"}}
        await stage.create(a_pod_manifest("job", "late", terminationGracePeriodSeconds=40, **protected))
        await stage.create(a_pod_manifest("long", "late", terminationGracePeriodSeconds=600, **protected))
        async with stage.settled():
            await until(stage, -1.0)
            stage.transport.before.add(rule := Rule(fault=Partition(), method="PATCH", path="/nodes"))
            await delete_at_start(stage, *CROWD, "late")
            await until(stage, 65.0)
            assert deletions(stage)[:2] == [("long", 5.0, 55), ("job", 20.0, 40)]
            (asked,) = asked_to_end(stage)
            assert 60.0 <= asked <= 62.0
            stage.transport.before.remove(rule)
            await stage.until_gone(*CROWD, "late")


async def test_a_deadline_that_comes_nearer_with_the_clock_waits_for_no_worker() -> None:
    async with staged(*CROWD, settings=the_settings(**bounded("10m")), cloud=SLOW_CLOUD, **QUIET) as stage:
        await stage.add_nodes("late", labels={"bounded": "yes"})
        protected = {"annotations": {names.DO_NOT_DISRUPT: "true"}, "behaviour": {"ignores-sigterm": "true"}}
        await stage.create(a_pod_manifest("job", "late", **protected))
        ours = ShiftedClock(stage.clock, -500.0)
        async with controlled(stage, ours) as controller:
            await stage.settle(controller)
            await delete_at_start(stage, "late")
            await until(stage, 650.0)
            assert asked_to_end(stage) == []
            stage.transport.before.add(rule := Rule(fault=Partition(), method="PATCH", path="/nodes"))
            for name in CROWD:
                await stage.delete_node(name)
            await until(stage, 650.5)  # at 651 what hangs has left its workers
            ours.offset = 0.0
            await until(stage, 655.0)
            (asked,) = asked_to_end(stage)
            assert asked == 650.5
            stage.transport.before.remove(rule)
            await stage.until_gone(*CROWD, "late")
