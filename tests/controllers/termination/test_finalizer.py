"""The step that removes our finalizer from a node."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.faults import Refuse, Rule
from support.stage import (
    STOPS_AFTER_5,
    a_pod_manifest,
    staged,
)
from support.stories import delete_at_start, told, until

from gracectl.model import names

FAILING = Refuse(500)


async def test_a_finalizer_that_cannot_be_taken_off_is_told_of() -> None:
    async with staged("n1") as stage, stage.settled():
        await until(stage, -1.0)
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        await delete_at_start(stage, "n1")
        await until(stage, 2.0)
        stage.transport.before.add(rule := Rule(fault=FAILING, method="PATCH", path="/nodes/n1$"))
        await until(stage, 300.0)
        (message,) = await told(stage, "n1", "StepFailing")
        assert message.startswith("step finalizer failed")
        drained = stage.condition("n1", names.DRAINED)
        assert drained is not None
        assert drained["status"] == "True"
        stage.transport.before.remove(rule)
        await stage.until_gone("n1")


async def test_finalizers_of_others_stay_and_ours_goes_last_of_ours() -> None:
    async with staged("n1") as stage, stage.settled() as controller:
        await stage.patch_node("n1", {"metadata": {"finalizers": ["other.io/hold", names.FINALIZER]}})
        await stage.delete_node("n1")
        await stage.clock.sleep(30)
        node = stage.node("n1")
        assert node is not None
        assert node["metadata"]["finalizers"] == ["other.io/hold"]
        assert stage.instance_state("n1") == "terminated"
        assert controller.under_way() == ()


async def test_a_finalizer_that_stands_elsewhere_by_now_is_taken_off_at_once() -> None:
    """It is removed by its place; where that is none any more, a server calls the patch invalid, not a conflict."""
    async with staged("n1") as stage, stage.settled() as controller:
        await stage.patch_node("n1", {"metadata": {"finalizers": ["other.io/hold", names.FINALIZER]}})
        handle = stage.server.handle

        async def others_go_first(request: Any) -> Any:
            if request.method == "PATCH" and isinstance(request.body, bytes) and b"finalizers/1" in request.body:
                await stage.patch_node("n1", {"metadata": {"finalizers": [names.FINALIZER]}})
            return await handle(request)

        stage.server.handle = others_go_first  # type: ignore[method-assign]  # the one way to be there just before
        start = await stage.delete_node("n1")
        assert await stage.until_gone("n1") - start == pytest.approx(2.0, abs=0.001)
        statuses = [each.status for each in stage.transport.of("patch", "nodes")]
        assert statuses[-2:] == [422, 200]
        assert controller.statistics().queues["nodes"].retries == 0
