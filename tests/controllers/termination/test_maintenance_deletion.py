"""A kept node that is deleted ends like any other, and one that is ending cannot be kept; what else ends it, and what
does not."""

from __future__ import annotations

import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Partition, Rule
from support.builders import a_node
from support.disruption import NOT_TERMINABLE, TERMINABLE, lost_at
from support.disruption import deletions as ended
from support.stage import STOPS_AFTER_5, a_budget_manifest, a_pod_manifest, a_workload, reasons, staged, the_settings
from support.stories import (
    Way,
    a_daemon_set,
    asked,
    asked_to_end,
    deletions,
    each_way_back,
    evictions,
    gracectl_keep,
    gracectl_uncordon,
    is_at_rest,
    is_cordoned,
    keep,
    kubectl_uncordon,
    names_on,
    remains,
    seen,
    take_off,
    told,
    until,
    with_grace_period,
    written_on,
)

from gracectl.controllers.termination.maintenance import record_removal_patch, uncordon_patch
from gracectl.model import names

# -- deleted while it is kept ------------------------------------------------------------------------------------------


async def test_a_node_at_rest_that_is_deleted_ends_with_its_daemons() -> None:
    async with staged("n1", "n2", cloud=CloudSettings(terminate_delay=1.0)) as stage:
        await stage.create(a_pod_manifest("a", "n1"), a_daemon_set("agent", behaviour={"stop-seconds": 3}))
        async with stage.settled() as controller:
            await keep(stage, "n1")
            await stage.clock.sleep(400)  # longer than repeats of an Event are counted and not told
            (daemon,) = names_on(stage, "n1")
            start = await stage.delete_node("n1")
            await stage.clock.sleep(1)
            assert asked(stage, start) == [(daemon, 0.0)]
            (ending,) = controller.under_way()
            assert (ending.is_maintenance, ending.step) == (False, "drain")
            await stage.until_gone("n1")
            assert stage.provider.instants_of("terminate") == [pytest.approx(start + 3.0, abs=0.001)]
            await stage.clock.sleep(0.01)
            assert [each.is_maintenance for each in controller.finished()] == [True, False]
        drain = ["Cordoned", "Draining", "Drained"]
        end = ["Draining", "InstanceTerminating", "InstanceTerminated", "NodeTerminated"]
        assert await reasons(stage, "n1") == [*drain, *end]
        [message] = await told(stage, daemon, "Evicted")
        assert message == "evicted by gracectl: node n1 is being terminated"


async def test_no_pod_is_forgotten_or_evicted_twice_when_a_node_is_deleted_in_the_middle_of_its_drain() -> None:
    async with staged("n1") as stage:
        await stage.create(
            a_workload("Deployment", "web", 6, behaviour={"ready-seconds": 5}),
            a_budget_manifest("web", maxUnavailable=1),
            a_daemon_set("agent"),
        )
        await stage.add_nodes("n2")
        async with stage.settled() as controller:
            (daemon,) = [name for name in names_on(stage, "n1") if name.startswith("agent")]
            start = await keep(stage, "n1")
            await stage.clock.sleep(12)
            await stage.delete_node("n1")
            waiting = controller.statistics().evictor.waiting
            await stage.clock.sleep(0.5)
            assert controller.statistics().evictor.waiting == waiting == 3
            await stage.until_gone("n1")
            at = [each for name, each in asked(stage, start) if name != daemon]
            assert at == [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]
            assert asked(stage, start)[-1][0] == daemon
            assert set(stage.agreed().values()) == {1}


async def test_pods_leave_without_a_pause_while_the_end_of_a_kept_node_begins_slowly() -> None:
    """Its claim cannot be deleted for five seconds, and no other is requested before that."""
    async with staged("n1", claim=ClaimSpec()) as stage:
        await stage.create(
            a_workload("Deployment", "web", 6, behaviour={"ready-seconds": 2}),
            a_budget_manifest("web", maxUnavailable=1),
        )
        await stage.add_nodes("n2")
        async with stage.settled():
            start = await keep(stage, "n1")
            await stage.clock.sleep(3)
            stage.transport.before.add(Rule(fault=Partition(), method="DELETE", path="nodeclaims"))
            await stage.delete_node("n1")
            await stage.clock.sleep(10)
            assert [at for _, at in asked(stage, start)] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


@pytest.mark.parametrize("claimed", [False, True])
async def test_its_deadline_counts_from_its_deletion(claimed: bool) -> None:
    settings = with_grace_period("5m")
    async with staged("n1", claim=ClaimSpec() if claimed else None, settings=settings) as stage:
        await stage.create(
            a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}, terminationGracePeriodSeconds=60)
        )
        async with stage.settled():
            await keep(stage, "n1")
            await until(stage, 0.0)
            assert written_on(stage.node("n1")) == ""
            await stage.delete_node("n1")
            await stage.until_gone("n1")
            await stage.until_claims_gone("n1-claim")
        assert deletions(stage) == [("job", 240.0, 60)]
        assert evictions(stage) == []
        assert len(await told(stage, "n1", "TerminationGracePeriodExpiring")) == 1


@pytest.mark.parametrize("path", ["nodes/n1$", "nodes/n1/status"])
async def test_a_node_whose_keeping_hangs_ends_by_its_deadline_all_the_same(path: str) -> None:
    """Nothing of us reaches the node from before the request: neither the cordon nor a condition."""
    objects = [a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}, terminationGracePeriodSeconds=8)]
    async with staged("n1", "n2", objects=objects, settings=with_grace_period("20s")) as stage, stage.settled():
        stage.transport.before.add(silence := Rule(fault=Partition(), method="PATCH", path=path))
        await until(stage, -3.0)
        await keep(stage, "n1")
        await until(stage, 0.0)
        await stage.delete_node("n1")
        await until(stage, 30.0)
        assert deletions(stage) == [("job", 12.0, 8)]
        (at,) = asked_to_end(stage)
        # Conditions hold up nothing: the node ends when its pod is gone.
        assert (12.0 if path.endswith("status") else 20.0) <= at <= 21.0
        stage.transport.before.remove(silence)
        await stage.until_gone("n1")


# -- asked for, or given back, while it ends ---------------------------------------------------------------------------


async def test_a_node_that_is_ending_is_not_kept() -> None:
    async with staged("n1", "n2", objects=[a_pod_manifest("a", "n1", **STOPS_AFTER_5), a_daemon_set("agent")]) as stage:
        async with stage.settled() as controller:
            start = await stage.delete_node("n1")
            await stage.clock.sleep(1)
            await gracectl_keep(stage, "n1")
            assert names.KEEP_DRAINED not in seen(stage, "n1").annotations
            await keep(stage, "n1")
            await stage.clock.sleep(0.01)
            assert [each.is_maintenance for each in controller.under_way()] == [False]
            assert names.CORDONED not in seen(stage, "n1").annotations
            assert await stage.until_gone("n1") - start == pytest.approx(5.0, abs=0.001)
        assert len(asked(stage, start)) == 2


async def test_a_deletion_is_not_taken_back_by_an_uncordon() -> None:
    async with staged("n1", "n2", objects=[a_pod_manifest("a", "n1", behaviour={"stop-seconds": 9})]) as stage:
        async with stage.settled():
            await keep(stage, "n1")
            await stage.clock.sleep(1)
            start = await stage.delete_node("n1")
            await stage.clock.sleep(1)
            await gracectl_uncordon(stage, "n1")
            assert is_cordoned(stage, "n1")
            await kubectl_uncordon(stage, "n1")
            await stage.clock.sleep(0.01)
            assert is_cordoned(stage, "n1")
            await take_off(stage, "n1")
            await stage.clock.sleep(0.01)
            assert is_cordoned(stage, "n1")
            assert await stage.until_gone("n1") - start == pytest.approx(8.0, abs=0.001)
        assert "Uncordoned" not in await reasons(stage, "n1")


# -- what ends nodes by itself -----------------------------------------------------------------------------------------

LENIENT = the_settings(health={"maximumUnhealthy": "100%"})


async def test_a_kept_node_that_is_not_heard_of_is_not_ended() -> None:
    async with staged("n1", "n2", settings=LENIENT) as stage, stage.settled():
        await keep(stage, "n1")
        await stage.clock.sleep(10)
        await lost_at(stage, "n1")
        await stage.clock.sleep(7200)
        assert ended(stage) == []
        assert stage.instance_state("n1") == "running"
        assert "NodeUnhealthy" not in await reasons(stage, "n1")


async def test_it_does_not_count_as_unhealthy_for_the_others() -> None:
    """Two of three are away; one of them is being rebooted."""
    settings = the_settings(health={"maximumUnhealthy": 1})
    async with staged("n1", "n2", "n3", settings=settings) as stage, stage.settled():
        await keep(stage, "n1")
        await stage.clock.sleep(10)
        await lost_at(stage, "n1")
        lost = await lost_at(stage, "n2")
        await stage.until_gone("n2")
        assert ended(stage) == [(lost + 900.0, "n2")]


@each_way_back
async def test_a_node_that_is_given_back_while_it_is_not_ready_has_its_fifteen_minutes_from_then(
    give_back: Way,
) -> None:
    async with staged("n1", "n2", settings=LENIENT) as stage:
        async with stage.settled(mortal=True):
            await keep(stage, "n1")
            await stage.clock.sleep(10)
            await lost_at(stage, "n1")
            await stage.clock.sleep(3600 - stage.clock.monotonic())
            start = await give_back(stage, "n1")
            await stage.clock.sleep(60)
            assert seen(stage, "n1").annotations[names.UNCORDONED] == "2026-01-01T01:00:00Z"
        async with stage.controller():  # which knows of it from the node alone
            await stage.until_gone("n1")
        assert ended(stage) == [(start + 900.0, "n1")]


async def test_a_node_that_is_ready_in_time_has_nothing_to_fear_and_nothing_is_left_after_the_next_return() -> None:
    async with staged("n1", "n2", settings=LENIENT) as stage, stage.settled():
        before = remains(stage, "n1")
        await keep(stage, "n1")
        await lost_at(stage, "n1")
        await stage.clock.sleep(2000)
        await take_off(stage, "n1")
        await stage.clock.sleep(100)
        stage.cluster.kubelet.heal("n1")
        await stage.clock.sleep(3600)
        assert ended(stage) == []
        assert remains(stage, "n1")["annotations"].keys() == {names.UNCORDONED}
        await keep(stage, "n1")
        await stage.clock.sleep(10)
        await take_off(stage, "n1")
        await stage.clock.sleep(1)
        assert remains(stage, "n1") == before


async def test_a_node_in_maintenance_labelled_terminable_is_terminated() -> None:
    async with staged("n1", "n2") as stage:
        await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "300s"}))  # made at 0
        async with stage.settled():
            await keep(stage, "n1")
            await stage.clock.sleep(10)
            await stage.patch_node("n1", TERMINABLE)
            await stage.clock.sleep(10)
            assert ended(stage) == []  # the pod keeps it
            await stage.patch_node("n1", NOT_TERMINABLE)
            await stage.clock.sleep(400)
            assert is_at_rest(stage, "n1")
            await stage.patch_node("n1", TERMINABLE)
            await stage.until_gone("n1")
        assert stage.instance_state("n1") == "terminated"


# -- patches -----------------------------------------------------------------------------------------------------------


def test_the_record_goes_when_all_that_it_lists_is_gone() -> None:
    listed, empty = (a_node(unschedulable=True, annotations={names.CORDONED: marks}) for marks in ("unschedulable", ""))
    assert uncordon_patch(listed) is not None
    assert record_removal_patch(listed) is None
    assert uncordon_patch(empty) is None
    assert record_removal_patch(empty) is not None
