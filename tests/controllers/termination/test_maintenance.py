"""A node that is drained for maintenance and stays: cordoned, emptied as in a termination, and then left in peace."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.controllers.nodeclaims import ClaimSpec
from support.stage import (
    STOPS_AFTER_5,
    a_budget_manifest,
    a_pod_manifest,
    a_workload,
    instants,
    reasons,
    staged,
    the_settings,
)
from support.stories import (
    RECORD,
    a_daemon_set,
    asked,
    gracectl_keep,
    is_at_rest,
    is_cordoned,
    keep,
    names_on,
    remains,
    seen,
    take_off,
    with_grace_period,
)

from gracectl.model import names
from gracectl.model.times import format_time

MESSAGE = "drained, but for pods that stay with the node; to return it: gracectl uncordon n1, or kubectl uncordon n1"


async def test_a_node_is_cordoned_drained_and_kept() -> None:
    async with staged("n1", "n2", cloud=CloudSettings(terminate_delay=1.0)) as stage:
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5), a_daemon_set("agent"))
        (daemon,) = [name for name in names_on(stage, "n1") if name != "a"]
        async with stage.settled() as controller:
            await stage.clock.sleep(1)
            start = await gracectl_keep(stage, "n1")
            await stage.until(lambda: is_at_rest(stage, "n1"))
            assert stage.clock.monotonic() - start == pytest.approx(5.0, abs=0.001)
            await stage.clock.sleep(1000)
            assert asked(stage, start) == [("a", 0.0)]
            assert names_on(stage, "n1") == [daemon]
            assert is_cordoned(stage, "n1")
            condition = stage.condition("n1", names.DRAINED)
            assert condition is not None
            assert condition["message"] == MESSAGE
            (kept,) = controller.under_way()
            assert (kept.name, kept.is_maintenance, kept.step, kept.pods_left, kept.deadline) == (
                "n1",
                True,
                "drained",
                0,
                None,
            )
            assert kept.waits_for == MESSAGE
            assert {step: round(spent) for step, spent in kept.seconds.items() if step != "drained"} == {
                "cordon": 0,
                "drain": 5,
                "volumes": 0,
            }
            assert kept.started == pytest.approx(stage.clock.now() - stage.clock.monotonic() + start, abs=1.0)
            assert controller.finished() == ()
        assert stage.provider.calls == []
        assert stage.transport.of("delete", "pods") == stage.transport.of("delete", "nodes") == []
        assert stage.instance_state("n1") == "running"
        assert await reasons(stage, "n1") == ["Cordoned", "Draining", "Drained"]
        messages = {reason: message for name, reason, message in await stage.events() if name in ("n1", "a")}
        assert messages["Cordoned"] == "cordoned; removed from external load balancers: it is drained for maintenance"
        assert messages["Drained"] == MESSAGE
        assert messages["Evicted"] == "evicted by gracectl: node n1 is drained for maintenance"


async def test_the_cordon_is_one_write_that_says_what_it_has_added() -> None:
    async with staged("n1", objects=[a_pod_manifest("a", "n1", **STOPS_AFTER_5)]) as stage, stage.settled():
        before = len(stage.transport.of("patch", "nodes"))
        asked_for = format_time(stage.clock.now())
        start = await keep(stage, "n1")
        await stage.clock.sleep(100)
        writes = stage.transport.of("patch", "nodes")[before:]
        assert [(round(each.instant - start, 3), each.status) for each in writes] == [(0.0, 200)]
        assert remains(stage, "n1")["annotations"] == {names.KEEP_DRAINED: asked_for, names.CORDONED: RECORD}
        order = [each.operation.resource for each in stage.transport.executed]
        assert order.index("pods/eviction") > order.index("nodes", before)


async def test_a_rest_costs_nothing() -> None:
    """Nothing is written, no eviction is sent, the work queue is idle."""
    objects = [a_pod_manifest("a", "n1"), a_daemon_set("agent")]
    async with staged("n1", "n2", objects=objects) as stage, stage.settled() as controller:
        await keep(stage, "n1")
        await stage.clock.sleep(60)
        requests, looks = len(stage.transport.executed), controller.statistics().queues["nodes"].handed_out
        await stage.clock.sleep(3600)
        asked = [each.operation for each in stage.transport.executed[requests:]]
        assert {each.verb for each in asked} <= {"watch"}
        # One a minute of its own; the heartbeats of the node and its pod do the rest.
        assert controller.statistics().queues["nodes"].handed_out - looks < 60 + 3 * 3600 / 10


async def test_a_budget_over_two_kept_nodes_and_one_that_ends_is_kept_by_one_lane() -> None:
    async with staged("n1", "n2", "n3") as stage:
        await stage.create(
            a_workload("Deployment", "web", 6, behaviour={"ready-seconds": 2, "stop-seconds": 0.5}),
            a_budget_manifest("web", maxUnavailable=1),
        )
        await stage.add_nodes("n4")
        async with stage.settled():
            leaving = sum(len(stage.pods_on(name)) for name in ("n1", "n2", "n3"))
            start = await keep(stage, "n1")
            await keep(stage, "n2")
            await stage.delete_node("n3")
            await stage.until(lambda: is_at_rest(stage, "n1") and is_at_rest(stage, "n2") and not stage.node("n3"))
            assert instants(stage, "create", "pods/eviction", start) == [2.0 * n for n in range(leaving)]
            assert set(stage.agreed().values()) == {1}


@pytest.mark.parametrize(("word", "held"), [(names.DO_NOT_DISRUPT, False), (names.DO_NOT_EVICT, True)])
async def test_a_protected_pod_is_waited_for(word: str, held: bool) -> None:
    objects = [a_pod_manifest("job", "n1", annotations={word: "true"}), a_pod_manifest("other", "n1")]
    async with staged("n1", objects=objects) as stage, stage.settled():
        start = await keep(stage, "n1")
        await stage.clock.sleep(500)
        assert asked(stage, start) == ([] if held else [("other", 0.0)])
        condition = stage.condition("n1", names.DRAINED)
        assert condition is not None
        assert (condition["status"], condition["reason"]) == ("False", "Draining")
        assert "shop/job (protected by" in condition["message"]
        assert "DrainBlocked" in await reasons(stage, "n1")
        await stage.call("DELETE", "/api/v1/namespaces/shop/pods/job")
        await stage.until(lambda: is_at_rest(stage, "n1"))


@pytest.mark.parametrize("claimed", [False, True])
async def test_a_kept_node_has_no_deadline_whatever_says_so(claimed: bool) -> None:
    """Neither a grace period, of its group or its claim, nor the annotation: no pod is deleted."""
    settings = with_grace_period("30s")
    async with staged(settings=settings) as stage:
        await stage.add_nodes("n1", claim=ClaimSpec(termination_grace_period="30s") if claimed else None)
        await stage.create(
            a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}, terminationGracePeriodSeconds=5)
        )
        past: dict[str, Any] = {"metadata": {"annotations": {names.TERMINATION_TIMESTAMP: "2026-01-01T00:00:00Z"}}}
        async with stage.settled() as controller:
            await keep(stage, "n1")
            await stage.clock.sleep(10)
            await stage.patch_node("n1", past)
            await stage.clock.sleep(3600)
            assert names_on(stage, "n1") == ["job"]
            (kept,) = controller.under_way()
            assert (kept.step, kept.pods_left, kept.deadline) == ("drain", 1, None)
            assert controller.claims_under_way() == ()
            assert controller.statistics().deleter.scheduled == 0
        assert stage.transport.of("delete", "pods") == []
        assert stage.transport.of("delete", "nodeclaims") == stage.transport.of("patch", "nodeclaims/status") == []
        assert "TerminationGracePeriodExpiring" not in await reasons(stage, "n1")


async def test_a_late_pod_is_drained_too_and_then_the_node_rests_again() -> None:
    """Bound by hand, or by a scheduler that had not seen the cordon yet."""
    async with staged("n1", "n2") as stage, stage.settled() as controller:
        start = await keep(stage, "n1")
        at_rest = await stage.until(lambda: is_at_rest(stage, "n1"))
        assert at_rest - start == pytest.approx(2.0, abs=0.001)  # the minimum drain time
        await stage.clock.sleep(400)
        late = a_pod_manifest("late", "n1", behaviour={"stop-seconds": 7})
        await stage.cluster.create(late)
        bound = stage.clock.monotonic()
        await stage.clock.sleep(1)
        assert not is_at_rest(stage, "n1")
        (kept,) = controller.under_way()
        assert (kept.step, kept.pods_left) == ("drain", 1)
        assert await stage.until(lambda: is_at_rest(stage, "n1")) - bound == pytest.approx(7.0, abs=0.001)
        assert asked(stage, bound) == [("late", 0.0)]
        await stage.clock.sleep(0.01)
        (kept,) = controller.under_way()
        assert kept.step == "drained"
        assert (await reasons(stage, "n1")).count("Drained") == 2


async def test_the_node_requested_first_is_drained_first() -> None:
    """Two pods of one budget on two kept nodes: the instants of the requests decide, not who is seen first."""
    async with staged("n1", "n2") as stage:
        await stage.create(a_workload("Deployment", "web", 2, behaviour={"ready-seconds": 2}))
        await stage.create(a_budget_manifest("web", maxUnavailable=1))
        await stage.add_nodes("n3")
        on_n2 = names_on(stage, "n2")
        assert len(on_n2) == 1
        await stage.clock.sleep(100)
        async with stage.settled():
            # No pod may leave for a while, so that both are in the lane before the first eviction.
            path = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/web"
            merge = "application/merge-patch+json"
            await stage.call("PATCH", path, {"spec": {"maxUnavailable": 0}}, merge)
            await stage.clock.sleep(1)
            await keep(stage, "n1", "2026-01-01T00:01:20Z")
            await keep(stage, "n2", "2026-01-01T00:01:10Z")
            await stage.clock.sleep(1)
            await stage.call("PATCH", path, {"spec": {"maxUnavailable": 1}}, merge)
            await stage.until(lambda: is_at_rest(stage, "n1") and is_at_rest(stage, "n2"))
            assert [name for name, _ in asked(stage, 0.0)][:1] == on_n2


async def test_a_node_that_was_cordoned_before_is_drained_all_the_same() -> None:
    async with staged("n1", "n2", objects=[a_pod_manifest("a", "n1")]) as stage:
        await stage.patch_node("n1", {"spec": {"unschedulable": True}})
        async with stage.settled():
            await stage.clock.sleep(10)
            assert stage.evictions == []
            await keep(stage, "n1")
            await stage.until(lambda: is_at_rest(stage, "n1"))
            assert seen(stage, "n1").annotations[names.CORDONED] == RECORD
            assert is_cordoned(stage, "n1")


async def test_what_another_client_removes_of_the_cordon_is_restored_while_the_request_stands() -> None:
    """All but spec.unschedulable, which gives the node back."""
    async with staged("n1") as stage, stage.settled():
        await keep(stage, "n1")
        await stage.until(lambda: is_at_rest(stage, "n1"))
        await stage.patch_node("n1", {"metadata": {"labels": {names.EXCLUDE_FROM_LOAD_BALANCERS: None}}})
        await stage.clock.sleep(0.01)
        assert is_cordoned(stage, "n1")
        await stage.patch_node("n1", {"metadata": {"annotations": {names.CORDONED: "nonsense, label"}}})
        await stage.clock.sleep(0.01)
        assert seen(stage, "n1").annotations[names.CORDONED] == RECORD
        # The label was there when the record was gone, so it is unknown which client has put it there.
        await stage.patch_node("n1", {"metadata": {"annotations": {names.CORDONED: "nonsense"}}})
        await stage.clock.sleep(0.01)
        assert seen(stage, "n1").annotations[names.CORDONED] == "unschedulable"


# -- nodes that are not ours -------------------------------------------------------------------------------------------

MINE = the_settings(nodeSelector={"matchLabels": {"pool": "mine"}})


async def test_a_node_that_is_not_managed_is_complained_about_once_and_left_alone() -> None:
    async with staged("n1", objects=[a_pod_manifest("a", "n1")], settings=MINE) as stage:
        async with stage.controller() as controller:
            await controller.wait_live()
            before = remains(stage, "n1")
            await keep(stage, "n1", "2026-01-01T00:00:00Z")
            await stage.clock.sleep(1000)
            assert stage.evictions == []
            assert controller.under_way() == ()
            assert remains(stage, "n1") == {**before, "annotations": {names.KEEP_DRAINED: "2026-01-01T00:00:00Z"}}
            assert controller.statistics().events.recorded == 1
            await take_off(stage, "n1")
            await stage.clock.sleep(1)
            await keep(stage, "n1")
            await stage.clock.sleep(1)
            assert controller.statistics().events.recorded == 2
        events = await stage.events()
        assert [reason for _, reason, _ in events] == ["MaintenanceIgnored"] * 2
        message = events[0][2]
        assert message == (
            "annotation gracectl.io/keep-drained requests maintenance of this node, but it is not managed: "
            "nodeSelector does not match it; change nodeSelector or the node's labels, or remove the annotation"
        )


async def test_a_kept_node_that_is_no_longer_managed_is_left_alone_and_taken_up_again() -> None:
    async with staged("n1", labels={"pool": "mine"}, settings=MINE) as stage:
        await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "60s"}))
        async with stage.settled() as controller:
            await keep(stage, "n1")
            await stage.clock.sleep(10)
            await stage.patch_node("n1", {"metadata": {"labels": {"pool": "yours"}}})
            await stage.clock.sleep(100)
            assert controller.under_way() == ()
            assert stage.evictions == []
            await take_off(stage, "n1")
            await stage.clock.sleep(10)
            assert is_cordoned(stage, "n1")
            messages = [message for _, reason, message in await stage.events() if reason == "MaintenanceIgnored"]
            assert len(messages) == 1  # both are of the same kind, and within five minutes
            await stage.patch_node("n1", {"metadata": {"labels": {"pool": "mine"}}})
            await stage.clock.sleep(1)
            assert not is_cordoned(stage, "n1")
            assert names_on(stage, "n1") == ["job"]
