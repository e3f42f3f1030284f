"""A drain whose budgets take many slices to match goes on as any other, and its deadline does not wait for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from support.stage import STOPS_AFTER_5, a_budget_manifest, a_pod_manifest, staged
from support.stories import deletions, draining, evictions, with_grace_period

from gracectl.controllers.cluster import cache as matching
from gracectl.runtime.slices import Slices


@pytest.mark.parametrize("is_sliced", [False, True], ids=["at once", "in slices"])
async def test_budgets_hold_and_free_pods_at_the_same_instants(
    is_sliced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_sliced:
        monkeypatch.setattr(matching, "SLICE", 1)
        monkeypatch.setattr(matching, "MEMO_BYTES", -1)  # nothing is remembered either
    async with staged("n1", "n2") as stage:
        under = {"labels": {"app": "web"}, **STOPS_AFTER_5}
        await stage.create(
            *(a_pod_manifest(f"web-{number}", "n1", **under) for number in range(2)),
            *(a_pod_manifest(f"else-{number}", "n2", labels={"app": "web"}) for number in range(2)),
            a_pod_manifest("alone", "n1", **STOPS_AFTER_5),
            a_budget_manifest("web", minAvailable=3),
        )
        async with draining(stage, "n1"):
            await stage.until(lambda: len(evictions(stage)) == 2)
            assert sorted(evictions(stage)) == [("alone", 0.0), ("web-0", 0.0)]
            await stage.call("DELETE", "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/web")
            await stage.until_gone("n1")
            assert sorted(name for name, _ in evictions(stage)) == ["alone", "web-0", "web-1"]


async def test_deletions_for_a_deadline_do_not_wait_for_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Slices.run

    async def endless(slices: Slices, work: Any, before_waiting: Callable[[], None] | None = None) -> Any:
        if before_waiting is None:
            return await run(slices, work)  # pages of lists
        before_waiting()
        await anyio.sleep_forever()

    monkeypatch.setattr(Slices, "run", endless)
    objects = [a_pod_manifest("web", "n1", **STOPS_AFTER_5)]
    async with staged("n1", objects=objects, settings=with_grace_period("1m")) as stage, draining(stage, "n1"):
        await stage.until_gone("n1")
    assert evictions(stage) == []
    assert deletions(stage) == [("web", 30.0, 30)]
