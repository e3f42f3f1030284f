"""Writes that take as long as a dead webhook (10 s by default, 30 at most) succeed, and hold nothing up."""

from __future__ import annotations

import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Latency, Rule
from support.stage import STOPS_AFTER_5, a_pod_manifest, staged
from support.stories import (
    START,
    asked_to_end,
    delete_at_start,
    deletions,
    draining,
    evictions,
    until,
    with_grace_period,
)

from gracectl.controllers import drains
from gracectl.kube.transport import Request, Response
from gracectl.model import names

SECONDS = [10.5, 30.5]


def slow(seconds: float, method: str, path: str) -> Rule:
    return Rule(fault=Latency(seconds, seconds), method=method, path=path)


@pytest.mark.parametrize("seconds", SECONDS)
async def test_a_claim_whose_deletion_is_slow_ends_with_its_node(seconds: float) -> None:
    objects = [a_pod_manifest("a", "n1", **STOPS_AFTER_5)]
    async with staged("n1", objects=objects, claim=ClaimSpec()) as stage, stage.settled():
        stage.transport.before.add(slow(seconds, "DELETE", "/nodeclaims"))
        await delete_at_start(stage, "n1")
        await until(stage, 9.0)
        assert [pod for pod, _ in evictions(stage)] == ["a"]  # meanwhile
        await until(stage, 600.0)
        assert stage.nodes() == stage.claims() == []
        assert len(stage.transport.of("delete", "nodeclaims")) == 1


@pytest.mark.parametrize("seconds", SECONDS)
async def test_a_pod_whose_deletion_is_slow_has_left_before_its_instance_ends(seconds: float) -> None:
    async with staged("n1", settings=with_grace_period("15m")) as stage:
        protected = {names.DO_NOT_DISRUPT: "true"}
        await stage.create(a_pod_manifest("a", "n1", terminationGracePeriodSeconds=60, annotations=protected))
        async with draining(stage, "n1"):
            stage.transport.before.add(slow(seconds, "DELETE", "/pods/"))
            await stage.until_gone("n1")
            assert deletions(stage)[0] == ("a", 840.0 + seconds, 60)
            (asked,) = asked_to_end(stage)
            assert 840.0 + seconds <= asked < 900.0


async def test_the_deadline_is_kept_while_everything_is_slow() -> None:
    """What is under way at the deadline is not taken back: the claim's deletion arrives after it."""
    objects = [a_pod_manifest("a", "n1", behaviour={"ignores-sigterm": "true"})]
    async with staged("n1", objects=objects, claim=ClaimSpec(termination_grace_period="20s")) as stage, stage.settled():
        stage.transport.before.add(slow(25.0, "DELETE", "/nodeclaims"))
        await delete_at_start(stage, "n1")
        await until(stage, 24.0)
        (asked,) = asked_to_end(stage)
        assert 20.0 <= asked <= 21.0
        await stage.until_gone("n1")
        await stage.until_claims_gone("n1-claim")
        (deleted,) = stage.transport.of("delete", "nodeclaims")
        assert deleted.instant - START == pytest.approx(25.0, abs=0.5)


async def test_a_status_webhook_that_hangs_for_many_nodes_holds_few_requests_and_no_other_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drains, "STATUS_WRITES", 10)
    hung = [f"hung-{number}" for number in range(80)]
    async with staged(*hung, "good") as stage:
        for name in (*hung, "good"):
            await stage.create(a_pod_manifest(f"on-{name}", name, annotations={names.DO_NOT_DISRUPT: "true"}))
        in_flight, most = 0, 0
        send = stage.transport.send

        async def counted(request: Request) -> Response:
            nonlocal in_flight, most
            is_status = request.method == "PATCH" and "/hung-" in request.path and request.path.endswith("/status")
            in_flight += is_status
            most = max(most, in_flight)
            try:
                return await send(request)
            finally:
                in_flight -= is_status

        stage.transport.send = counted  # type: ignore[method-assign]
        async with stage.settled():
            stage.transport.before.add(slow(10.0, "PATCH", "/nodes/hung-[0-9]+/status"))
            for name in hung:
                await delete_at_start(stage, name)
            await until(stage, 60.0)
            assert most == 20
            await stage.call("DELETE", "/api/v1/nodes/good")
            await until(stage, 60.1)
            assert stage.condition("good", names.DRAINED) is not None
            assert all(stage.condition(name, names.DRAINED) is not None for name in hung)


async def test_pods_of_a_node_that_was_replaced_leave_the_queues_while_a_write_for_it_hangs() -> None:
    async with staged("n1", settings=with_grace_period("15m")) as stage:
        await stage.create(a_pod_manifest("a", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
        async with draining(stage, "n1") as controller:
            await until(stage, 10.0)
            assert controller.statistics().deleter.scheduled == 1
            # A deadline that was moved by hand is written anew; that hangs.
            stage.transport.before.add(slow(30.0, "PATCH", "/nodes/n1$"))
            later = {"metadata": {"annotations": {names.TERMINATION_TIMESTAMP: "2100-01-01T00:00:00Z"}}}
            await stage.patch_node("n1", later)
            await until(stage, 12.0)
            await stage.patch_node("n1", {"metadata": {"finalizers": []}})
            await until(stage, 12.1)
            assert controller.statistics().deleter.scheduled == 0
