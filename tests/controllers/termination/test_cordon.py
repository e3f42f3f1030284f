"""The cordon: one write before the first eviction, repeated with backoff when another client undoes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from kubesim.faults import LateWatch, Rule
from support.stage import (
    STOPS_AFTER_5,
    Stage,
    a_pod_manifest,
    instants,
    reasons,
    staged,
)
from support.stories import asked_to_end, delete_at_start, evictions, told, until, with_grace_period

from gracectl.model import names

LABEL, TAINT, UNSCHEDULABLE = "exclude-from-external-load-balancers", "taints", "unschedulable"


def node_patches(stage: Stage, name: str = "n1") -> list[float]:
    """When the node itself was patched."""
    path = f"/api/v1/nodes/{name}"
    return [e.instant - 100.0 for e in stage.transport.of("patch", "nodes") if e.request.path == path]


def strip(stage: Stage, *words: str) -> Callable[[], None]:
    """Add a webhook that strips these parts of the cordon from our writes; returns a function that removes it."""
    handle = stage.server.handle

    async def stripped(request: Any) -> Any:
        if request.method == "PATCH" and request.path.endswith("nodes/n1") and isinstance(request.body, bytes):
            operations = msgspec.json.decode(request.body)
            if isinstance(operations, list):
                left = [each for each in operations if not any(word in str(each["path"]) for word in words)]
                request = msgspec.structs.replace(request, body=msgspec.json.encode(left))
        return await handle(request)

    stage.server.handle = stripped  # type: ignore[method-assign]  # as a mutating webhook would

    def remove() -> None:
        stage.server.handle = handle  # type: ignore[method-assign]

    return remove


@pytest.mark.parametrize("stripped", [(LABEL,), (TAINT,), (LABEL, UNSCHEDULABLE)])
async def test_a_webhook_that_strips_a_part_of_the_cordon_does_not_stop_the_drain(stripped: tuple[str, ...]) -> None:
    async with staged("n1") as stage:
        protected = {names.DO_NOT_DISRUPT: "10m"}
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        await stage.create(a_pod_manifest("p", "n1", annotations=protected, **STOPS_AFTER_5))
        async with stage.settled():
            strip(stage, *stripped)
            await delete_at_start(stage, "n1")
            await until(stage, 60.0)
            assert [pod for pod, _ in evictions(stage)] == ["a"]
            (message,) = await told(stage, "n1", "CordonUndone")
            assert "removed by a webhook or another controller" in message
            assert message.endswith("and the drain continues")
            await stage.until_gone("n1")
            assert len(node_patches(stage)) < 40  # in ten minutes


async def test_a_webhook_that_strips_all_of_the_cordon_is_asked_with_patience_and_the_deadline_is_kept() -> None:
    objects = [a_pod_manifest("a", "n1", behaviour={"ignores-sigterm": "true"})]
    async with staged("n1", objects=objects, settings=with_grace_period("10m")) as stage, stage.settled():
        before = len(node_patches(stage))
        strip(stage, LABEL, TAINT, UNSCHEDULABLE)
        await delete_at_start(stage, "n1")
        await until(stage, 595.0)
        assert evictions(stage) == []
        # the deadline; then after 2, 4, ... ms, up to 60 s
        assert len(node_patches(stage)) - before <= 1 + 16 + 9 + 1
        (message,) = await told(stage, "n1", "CordonUndone")
        assert message.endswith("and no pod is evicted until the node takes no new ones")
        await stage.until_gone("n1")
        (asked,) = asked_to_end(stage)
        assert 600.0 <= asked <= 601.0


async def test_the_cordon_is_one_write_before_the_first_eviction() -> None:
    async with staged("n1", objects=[a_pod_manifest("a", "n1", **STOPS_AFTER_5)]) as stage:
        taint = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
        await stage.patch_node("n1", {"spec": {"taints": [taint]}})
        async with stage.settled():
            before = len(stage.transport.of("patch", "nodes"))
            start = await stage.delete_node("n1")
            await stage.clock.sleep(1)
            node = stage.node("n1")
            assert node is not None
            assert node["spec"]["unschedulable"] is True
            ours = [each for each in node["spec"]["taints"] if each["key"] != "node.kubernetes.io/unschedulable"]
            assert ours == [taint, {"key": names.DISRUPTED_TAINT_KEY, "effect": "NoSchedule"}]
            assert node["metadata"]["labels"][names.EXCLUDE_FROM_LOAD_BALANCERS] == ""
            writes = stage.transport.of("patch", "nodes")[before:]
            assert [round(each.instant - start, 3) for each in writes] == [0.0]
            order = [each.operation.resource for each in stage.transport.executed]
            assert order.index("pods/eviction") > before


@pytest.mark.parametrize("value", ["", "by-another-client"])
async def test_a_disrupted_taint_of_another_client_is_left_as_it_is(value: str) -> None:
    """The API server takes no two taints of one key and effect, so a second one would stop the termination."""
    async with staged("n1", objects=[a_pod_manifest("a", "n1")]) as stage:
        taint = {"key": names.DISRUPTED_TAINT_KEY, "value": value, "effect": "NoSchedule"}
        await stage.patch_node("n1", {"spec": {"taints": [taint]}})
        async with stage.settled():
            start = await stage.delete_node("n1")
            assert await stage.until_gone("n1") - start == pytest.approx(2.0, abs=0.001)


async def test_a_pod_bound_in_the_instant_of_the_cordon_is_drained_too() -> None:
    async with staged("n1", "n2", objects=[a_pod_manifest("elsewhere", "n2")]) as stage, stage.settled():
        start = await stage.delete_node("n1")
        await stage.clock.sleep(1.5)
        await stage.call("POST", "/api/v1/namespaces/shop/pods", a_pod_manifest("late", "n1", **STOPS_AFTER_5))
        assert await stage.until_gone("n1") - start == pytest.approx(6.5, abs=0.001)
        assert instants(stage, "create", "pods/eviction", start) == [1.5]


async def test_a_late_event_from_before_our_write_undoes_no_cordon() -> None:
    """Our first attempt meets the write of another client: neither of the two states that it replaces is news."""
    async with staged("n1", objects=[a_pod_manifest("a", "n1", behaviour={"stop-seconds": 20})]) as stage:
        async with stage.settled():
            stage.transport.before.add(Rule(fault=LateWatch(3.0, 3.0), path="/nodes$"))
            await stage.delete_node("n1")
            await stage.clock.sleep(1.0)
            await stage.patch_node("n1", {"metadata": {"labels": {"written-by": "others"}}})
            await stage.until_gone("n1")
            await stage.clock.sleep(1.0)
        assert {each.status for each in stage.transport.of("patch", "nodes")} == {200, 409}
        assert "CordonUndone" not in await reasons(stage, "n1")
