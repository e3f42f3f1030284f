"""Protection of pods, to the second: the design's examples, edits during a drain, budgets, caps and deadlines."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from kubesim.controllers.client import MERGE
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.server.api import JsonObject
from support.disruption import TERMINABLE
from support.disruption import deletions as deletions_of_nodes
from support.stage import NAMESPACE, Stage, a_budget_manifest, a_pod_manifest
from support.stories import (
    DAY,
    HOUR,
    MINUTE,
    START,
    asked_to_end,
    delete_at_start,
    deletions,
    edit,
    evictions,
    lasting,
    made_at_start,
    protected,
    stamp,
    told,
    until,
    with_grace_period,
)

from gracectl.config import Settings
from gracectl.model import names
from gracectl.policy.plan import NodeView, Plan
from gracectl.policy.planner import plan

STUBBORN = {"ignores-sigterm": "true"}


def a_job(value: str, minutes: float) -> JsonObject:
    """A Job whose pod takes so long, and fails if it is deleted; with the annotation on its template."""
    pod = a_pod_manifest(
        "data-processing-job",
        annotations={names.DO_NOT_DISRUPT: value},
        behaviour={"exit-seconds": minutes * MINUTE, **STUBBORN},
        restartPolicy="Never",
    )
    template = {"metadata": {key: pod["metadata"][key] for key in ("labels", "annotations")}, "spec": pod["spec"]}
    metadata = {"name": "data-processing-job", "namespace": NAMESPACE}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}}


def refused_or_not(stage: Stage) -> int:
    """How often the server was asked for an eviction, whatever it has answered."""
    return len(stage.evictions)


# -- the four examples -------------------------------------------------------------------------------------------------


async def test_a_batch_job_that_takes_longer_is_evicted_after_two_hours_and_begins_anew_elsewhere() -> None:
    async with lasting("n1") as stage, stage.settled():
        await made_at_start(stage, a_job("2h", minutes=180))
        await stage.until(lambda: len(stage.pods_on("n1")) == 1)
        [pod] = [each["metadata"]["name"] for each in stage.pods_on("n1")]
        await stage.add_nodes("n2")
        await delete_at_start(stage, "n1")
        await stage.until_gone("n1")
        assert evictions(stage) == [(pod, 2 * HOUR)]
        assert asked_to_end(stage) == [2 * HOUR + 30]
        await stage.until(lambda: len(stage.pods_on("n2")) == 1)
        [again] = stage.pods_on("n2")
        assert again["metadata"]["annotations"][names.DO_NOT_DISRUPT] == "2h"


# -- four hours of protection, 72 hours of termination grace period ----------------------------------------------------

LAYERED = with_grace_period("72h")


@pytest.mark.parametrize("way", ["deleted", "labeled"])
@pytest.mark.parametrize("claimed", [False, True], ids=["plain", "claimed"])
async def test_the_layers_when_the_budget_allows_it(way: str, claimed: bool) -> None:
    """0 to 4 hours: protected. From then on: as the budget allows, which is at once. With a grace period it does not
    matter whether the node was deleted, or its termination is voluntary."""
    async with lasting(settings=None if claimed else LAYERED) as stage:
        await stage.add_nodes("n1", claim=ClaimSpec(termination_grace_period="72h") if claimed else None)
        async with stage.settled():
            await made_at_start(stage, protected("job", "4h"), a_budget_manifest("job", minAvailable=0))
            await (stage.delete_node("n1") if way == "deleted" else stage.patch_node("n1", TERMINABLE))
            await until(stage, 4 * HOUR - 0.001)
            assert (stage.node("n1") or {})["spec"]["unschedulable"]
            assert refused_or_not(stage) == 0
            await stage.until_gone("n1")
            assert evictions(stage) == [("job", 4 * HOUR)]
            assert asked_to_end(stage) == [4 * HOUR]
            assert deletions(stage) == []


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("way", "period"), [("deleted", 72), ("labeled", 12)])
async def test_the_layers_when_the_budget_never_allows_it(way: str, period: int) -> None:
    """From 4 hours on the budget blocks it; its grace before 72 hours it is deleted, and at 72 hours the node goes."""
    # Without the questions that a lane asks every minute three days pass faster.
    settings = with_grace_period(f"{period}h", eviction={"probeSeconds": DAY})
    parts = frozenset({"kubelet", "disruption"})
    async with lasting("n1", settings=settings, parts=parts) as stage, stage.settled():
        pod = protected("job", "4h", terminationGracePeriodSeconds=600, behaviour=STUBBORN)
        await made_at_start(stage, pod, a_budget_manifest("job", minAvailable=1))
        await (stage.delete_node("n1") if way == "deleted" else stage.patch_node("n1", TERMINABLE))
        await until(stage, 4 * HOUR - 0.001)
        assert (stage.condition("n1", names.DRAINED) or {})["message"] == (
            f'1 pod left: shop/job (protected by do-not-disrupt "4h" until {stamp(stage, 4 * HOUR)}; it is deleted at '
            f"{stamp(stage, period * HOUR - 600)} at the latest); node deadline {stamp(stage, period * HOUR)}"
        )
        await until(stage, 4 * HOUR + 0.001)
        assert (stage.condition("n1", names.DRAINED) or {})["message"].startswith(
            "1 pod left: shop/job (budget shop/job allows no disruption now"
        )
        assert await stage.until_gone("n1") - START == period * HOUR
        assert evictions(stage) == []
        assert deletions(stage) == [("job", period * HOUR - 600, 600)]
        assert asked_to_end(stage)[0] == period * HOUR


async def test_a_voluntary_termination_does_not_begin_before_the_protection_is_over() -> None:
    """Without a termination grace period, 0 to 4 hours: the node cannot be disrupted, only cordoned for its label."""
    async with lasting() as stage:
        await stage.add_nodes("n1", claim=ClaimSpec())
        async with stage.settled():
            await made_at_start(stage, protected("job", "4h"))
            await stage.patch_node("n1", TERMINABLE)
            await until(stage, 4 * HOUR - 0.001)
            assert (stage.node("n1") or {})["metadata"]["annotations"][names.PENDING_CORDONED] == "unschedulable"
            assert deletions_of_nodes(stage, "nodeclaims") == []
            [held] = await told(stage, "n1", "DisruptionHeld")
            assert 'pod shop/job is protected by do-not-disrupt "4h" until 2026-01-01T04:01:40Z;' in held
            await stage.until_gone("n1")
            assert deletions_of_nodes(stage, "nodeclaims") == [(START + 4 * HOUR, "n1-claim")]
            assert evictions(stage) == [("job", 4 * HOUR)]
            assert asked_to_end(stage) == [4 * HOUR + 2]  # after the least time that a drain takes
            for holder in ("n1", "n1-claim"):
                assert await told(stage, holder, "DoNotDisruptGracePeriodElapsed") == [
                    "termination due (node n1 has the label karpenter.sh/lifecycle-phase=terminable): pod shop/job was "
                    'protected by do-not-disrupt "4h" until 2026-01-01T04:01:40Z'
                ]


# -- nothing polls -----------------------------------------------------------------------------------------------------


async def test_a_drain_that_a_budget_blocks_is_looked_at_when_the_budget_changes() -> None:
    settings = msgspec.convert({"leaderElection": {"enabled": False}}, Settings)
    async with lasting("n1", settings=settings) as stage, stage.settled() as controller:
        await made_at_start(stage, a_budget_manifest("all", minAvailable=2), protected("a", None), protected("b", None))
        await until(stage, MINUTE)
        await stage.delete_node("n1")
        await until(stage, 4 * MINUTE)
        looks = controller.statistics().queues["nodes"].handed_out
        await until(stage, HOUR)
        assert controller.statistics().queues["nodes"].handed_out == looks


async def test_in_four_idle_hours_the_drain_is_looked_at_only_when_they_are_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[float] = []
    decide = plan

    def counted(view: NodeView, now: float) -> Plan:
        looks.append(round(stage.clock.monotonic() - START, 3))
        return decide(view, now)

    monkeypatch.setattr("gracectl.controllers.termination.drain.plan", counted)
    async with lasting("n1") as stage, stage.settled() as controller:
        await made_at_start(stage, protected("job", "4h"), protected("last", "5h"))
        await delete_at_start(stage, "n1")
        await until(stage, 61.0)
        before = controller.statistics().queues["nodes"].handed_out
        await until(stage, 4 * HOUR - 0.001)
        assert controller.statistics().queues["nodes"].handed_out == before
        await stage.until_gone("n1")
        # The beginning; a minute without a pod that leaves, which is worth an Event; then each end of a protection, and
        # that a pod has gone, which is only reported.
        assert sorted(set(looks)) == [0.0, 60.0, 4 * HOUR, 4 * HOUR + 10, 4 * HOUR + 70, 5 * HOUR]


BUDGET = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"


async def test_each_pod_of_a_node_leaves_when_its_own_protection_ends() -> None:
    async with lasting("n1") as stage, stage.settled():
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
    async with lasting("n1") as stage, stage.settled():
        await made_at_start(stage, protected("job", before))
        await delete_at_start(stage, "n1")
        await until(stage, HOUR)
        await edit(stage, "job", after)
        await until(stage, 7 * HOUR)
        assert evictions(stage) == ([] if leaves is None else [("job", leaves)])
        if leaves is None:
            await edit(stage, "job", None)
            await stage.until_gone("n1")
            assert evictions(stage) == [("job", 7 * HOUR)]


# -- do-not-evict: the older word --------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["labels", "annotations"])
async def test_do_not_evict_holds_every_pod_of_its_node_until_it_is_taken_off(where: str) -> None:
    async with lasting("n1", "n2") as stage, stage.settled():
        holder: Any = {where: {names.DO_NOT_EVICT: "true"}}
        await made_at_start(
            stage, a_pod_manifest("holder", "n1", **holder), protected("job", "2h"), protected("web", None)
        )
        await stage.create(a_pod_manifest("elsewhere", "n2"))
        await delete_at_start(stage, "n1", "n2")
        await until(stage, 3 * HOUR)
        assert (stage.node("n1") or {})["spec"]["unschedulable"]
        assert evictions(stage) == [("elsewhere", 0.0)]
        off = {"metadata": {where: {names.DO_NOT_EVICT: None}}}
        await stage.call("PATCH", f"/api/v1/namespaces/{NAMESPACE}/pods/holder", off, MERGE)
        await stage.until_gone("n1")
        assert sorted(evictions(stage)[1:]) == [(name, 3 * HOUR) for name in ("holder", "job", "web")]
