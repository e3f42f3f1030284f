"""Protection that changes while a drain waits, and what stands above and below it."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.controllers.client import MERGE
from support.deadlines import delete_at_start, deletions, evictions, told, until, with_grace_period
from support.protection import DAY, HOUR, MINUTE, edit, lasting, made_at_start, patiently, protected
from support.stage import NAMESPACE, a_budget_manifest, a_pod_manifest

from gracectl.model import names

pytestmark = pytest.mark.anyio

BUDGET = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"


async def test_each_pod_of_a_node_leaves_when_its_own_protection_ends() -> None:
    async with lasting("n1") as stage, stage.controller() as controller:
        await stage.settle(controller)
        values = {"none": None, "half": "30m", "odd": "1h30m0.5s", "two": "2h", "also-two": "120m", "day": "24h"}
        await made_at_start(stage, *(protected(name, value) for name, value in values.items()))
        await delete_at_start(stage, "n1")
        await stage.until_gone("n1")
        assert sorted(evictions(stage), key=lambda each: (each[1], each[0])) == [
            ("none", 0.0),
            ("half", 30 * MINUTE),
            ("odd", 90 * MINUTE + 0.5),
            ("also-two", 2 * HOUR),
            ("two", 2 * HOUR),
            ("day", DAY),
        ]


@pytest.mark.parametrize(
    ("before", "after", "leaves"),
    [
        ("4h", "6h", 6 * HOUR),
        ("4h", "2h", 2 * HOUR),
        ("4h", "30m", HOUR),
        ("4h", None, HOUR),
        ("4h", "true", None),
        ("4h", "four hours", None),
        ("4h", "0s", None),
        ("4h", "240m", 4 * HOUR),
        ("true", "4h", 4 * HOUR),
        ("true", "30m", HOUR),
        ("true", None, HOUR),
        ("four hours", "4h", 4 * HOUR),
    ],
)
async def test_an_annotation_that_is_edited_in_the_middle_of_a_drain_counts_at_once(
    before: str, after: str | None, leaves: float | None
) -> None:
    async with lasting("n1") as stage, stage.controller() as controller:
        await stage.settle(controller)
        await made_at_start(stage, protected("job", before))
        await delete_at_start(stage, "n1")
        await until(stage, HOUR)
        await edit(stage, "job", after)
        await until(stage, 12 * HOUR)
        assert evictions(stage) == ([] if leaves is None else [("job", leaves)])
        if leaves is None:
            await edit(stage, "job", None)
            await stage.until_gone("n1")
            assert evictions(stage) == [("job", 12 * HOUR)]


async def test_an_annotation_that_comes_in_the_middle_of_a_drain_protects() -> None:
    """Its budget has held it so far; when that lets it go, it is protected."""
    async with lasting("n1") as stage, stage.controller() as controller:
        await stage.settle(controller)
        await made_at_start(stage, protected("job", None), a_budget_manifest("job", minAvailable=1))
        await delete_at_start(stage, "n1")
        await until(stage, HOUR)
        await edit(stage, "job", "4h")
        await until(stage, 2 * HOUR)
        await stage.call("PATCH", f"{BUDGET}/job", {"spec": {"minAvailable": 0}}, MERGE)
        await stage.until_gone("n1")
        assert evictions(stage) == [("job", 4 * HOUR)]
        assert len(await told(stage, "job", "DoNotDisruptUntil")) == 1


# -- from when, and how long at most -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("reference", "leaves"), [("creation", 4 * HOUR), ("start", 4 * HOUR + 600)])
async def test_protection_counts_from_what_the_administrator_says(reference: str, leaves: float) -> None:
    """The pod waits ten minutes for a node that has room for it."""
    settings = patiently(protection={"from": reference})
    async with lasting(settings=settings) as stage, stage.controller() as controller:
        await until(stage, 0.0)
        await stage.cluster.create(protected("job", "4h", node=""))
        await until(stage, 600.0)
        await stage.add_nodes("n1")
        await stage.until(lambda: len(stage.pods_on("n1")) == 1)
        await stage.settle(controller)
        await stage.delete_node("n1")
        await stage.until_gone("n1")
        assert evictions(stage) == [("job", leaves)]


@pytest.mark.parametrize(
    ("value", "leaves"), [("true", HOUR), ("4h", HOUR), ("for ever", HOUR), ("30m", 30 * MINUTE), (None, 0.0)]
)
async def test_nobody_is_protected_for_longer_than_the_administrator_grants(value: str | None, leaves: float) -> None:
    async with lasting("n1", settings=patiently(protection={"maximumSeconds": HOUR})) as stage:
        async with stage.controller() as controller:
            await stage.settle(controller)
            await made_at_start(stage, protected("job", value))
            await delete_at_start(stage, "n1")
            await stage.until_gone("n1")
        assert evictions(stage) == [("job", leaves)]


# -- do-not-evict: the older word --------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["labels", "annotations"])
async def test_do_not_evict_holds_every_pod_of_its_node_until_it_is_taken_off(where: str) -> None:
    async with lasting("n1", "n2") as stage, stage.controller() as controller:
        await stage.settle(controller)
        holder: Any = {where: {names.DO_NOT_EVICT: "true"}}
        await made_at_start(
            stage, a_pod_manifest("holder", "n1", **holder), protected("job", "2h"), protected("web", None)
        )
        await stage.create(a_pod_manifest("elsewhere", "n2"))
        await delete_at_start(stage, "n1", "n2")
        await until(stage, 10 * HOUR)
        assert (stage.node("n1") or {})["spec"]["unschedulable"]
        assert evictions(stage) == [("elsewhere", 0.0)]
        off = {"metadata": {where: {names.DO_NOT_EVICT: None}}}
        await stage.call("PATCH", f"/api/v1/namespaces/{NAMESPACE}/pods/holder", off, MERGE)
        await stage.until_gone("n1")
        assert sorted(evictions(stage)[1:]) == [(name, 10 * HOUR) for name in ("holder", "job", "web")]


async def test_do_not_evict_holds_its_node_until_the_pod_is_gone_not_until_it_is_told_to_go() -> None:
    async with lasting("n1") as stage, stage.controller() as controller:
        await stage.settle(controller)
        holder = a_pod_manifest("holder", "n1", labels={names.DO_NOT_EVICT: "true"}, behaviour={"stop-seconds": 25})
        await made_at_start(stage, holder, protected("web", None))
        await delete_at_start(stage, "n1")
        await until(stage, HOUR)
        await stage.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/holder")
        await stage.until_gone("n1")
        assert evictions(stage) == [("web", HOUR + 25)]


async def test_a_cap_ends_do_not_evict_as_well_and_what_else_protects_the_pod_goes_on() -> None:
    async with lasting("n1", settings=patiently(protection={"maximumSeconds": 2 * HOUR})) as stage:
        async with stage.controller() as controller:
            await stage.settle(controller)
            both = protected("both", "1h", labels={names.DO_NOT_EVICT: "true"})
            await made_at_start(stage, both, protected("web", None))
            await delete_at_start(stage, "n1")
            await stage.until_gone("n1")
        assert sorted(evictions(stage)) == [("both", 2 * HOUR), ("web", 2 * HOUR)]


# -- above budgets, below the deadline ---------------------------------------------------------------------------------


async def test_protection_is_looked_at_before_budgets_and_does_not_replace_them() -> None:
    """Nobody asks the server as long as the pod is protected; then the budget counts as for any pod."""
    async with lasting("n1") as stage, stage.controller() as controller:
        await stage.settle(controller)
        await made_at_start(stage, protected("job", "4h"), a_budget_manifest("job", minAvailable=1))
        await delete_at_start(stage, "n1")
        await until(stage, HOUR)
        message = (stage.condition("n1", names.DRAINED) or {})["message"]
        assert message == '1 pod left: shop/job (protected by do-not-disrupt "4h" until 2026-01-01T04:01:40Z)'
        await until(stage, 4 * HOUR - 0.001)
        assert stage.evictions == []
        await until(stage, 6 * HOUR)
        assert evictions(stage) == []
        await stage.call("PATCH", f"{BUDGET}/job", {"spec": {"minAvailable": 0}}, MERGE)
        await stage.until_gone("n1")
        assert evictions(stage) == [("job", 6 * HOUR)]


@pytest.mark.parametrize("value", ["true", "4h", "for ever"])
@pytest.mark.parametrize("word", [names.DO_NOT_DISRUPT, names.DO_NOT_EVICT])
async def test_the_deadline_stands_above_protection_and_budgets(word: str, value: str) -> None:
    async with lasting("n1", settings=with_grace_period("1h")) as stage, stage.controller() as controller:
        await stage.settle(controller)
        job = a_pod_manifest("job", "n1", annotations={word: value}, terminationGracePeriodSeconds=300)
        await made_at_start(stage, job, a_budget_manifest("job", minAvailable=1))
        await delete_at_start(stage, "n1")
        await stage.until_gone("n1")
        assert evictions(stage) == []
        assert deletions(stage) == [("job", 55 * MINUTE, 300)]
