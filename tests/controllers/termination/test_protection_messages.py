"""Events about protection during a drain: their texts, objects and number, also after a restart."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from support.disruption import TERMINABLE
from support.stage import Stage, a_budget_manifest, a_pod_manifest
from support.stories import (
    DAY,
    HOUR,
    MINUTE,
    delete_at_start,
    edit,
    evictions,
    lasting,
    made_at_start,
    patiently,
    protected,
    stamp,
    told,
    until,
    with_grace_period,
)

from gracectl.kube.events import EventSettings
from gracectl.model import names

UNTIL, ELAPSED, INVALID = (
    "DoNotDisruptUntil",
    "DoNotDisruptGracePeriodElapsed",
    "InvalidDoNotDisruptAnnotation",
)
BLOCKS = "blocks the drain of node n1: "


async def count(stage: Stage, *reasons: str) -> Counter[str]:
    """On how many Events with these reasons each object has got."""
    return Counter(name for name, reason, _ in await stage.events() if reason in reasons)


def posted(stage: Stage, reason: str) -> list[float]:
    """When an Event with this reason was written or patched."""
    written = stage.transport.of("create", "events") + stage.transport.of("patch", "events")
    return [each.instant for each in written if reason.encode() in (each.request.body or b"")]


# -- words -------------------------------------------------------------------------------------------------------------


async def test_pod_node_and_claim_get_events_until_when_and_when_it_is_over() -> None:
    async with lasting() as stage:
        await stage.add_nodes("n1", claim=ClaimSpec())
        async with stage.settled():
            await made_at_start(stage, protected("job", "4h"))
            await delete_at_start(stage, "n1")
            await stage.until_gone("n1")
            at = stamp(stage, 4 * HOUR)
            assert await told(stage, "job", UNTIL) == [
                f'{BLOCKS}protected by do-not-disrupt "4h" until {at}; evicted after that as budgets allow'
            ]
            assert await told(stage, "job", ELAPSED) == [
                f'no longer blocks the drain of node n1: was protected by do-not-disrupt "4h" until {at}; evicted as '
                "budgets allow"
            ]
            for holder in ("n1", "n1-claim"):
                assert await told(stage, holder, UNTIL) == [f"1 pod is protected, until {at}: shop/job"]
                assert await told(stage, holder, ELAPSED) == [
                    "1 pod is no longer protected, evicted as budgets allow: shop/job"
                ]
            assert set(posted(stage, UNTIL)) == {100.0}
            assert set(posted(stage, ELAPSED)) == {100.0 + 4 * HOUR}


@pytest.mark.parametrize(
    ("pod", "settings", "words"),
    [
        (
            protected("job", "true"),
            {},
            "protected by do-not-disrupt; stays until you remove that",
        ),
        (
            protected("job", "4 hours"),
            {},
            'protected by do-not-disrupt "4 hours", which is not "true" or a duration, so it never ends; '
            "stays until you remove that",
        ),
        (
            a_pod_manifest("job", "n1", labels={names.DO_NOT_EVICT: "true"}),
            {},
            "protected by do-not-evict, which blocks the whole node; stays until you remove that",
        ),
        (
            protected("job", "true"),
            {"protection": {"maximumSeconds": 3600.0}},
            'protected by do-not-disrupt "true" until 2026-01-01T01:01:40Z (the most that protection.maximumSeconds '
            "grants); evicted after that as budgets allow",
        ),
        (
            protected("job", "true"),
            {"nodeGroups": [{"selector": {}, "terminationGracePeriod": "2h"}]},
            "protected by do-not-disrupt; stays until you remove that; deleted at "
            "2026-01-01T02:01:10Z at the latest (node deadline 2026-01-01T02:01:40Z)",
        ),
        (
            protected("job", "1h"),
            {"nodeGroups": [{"selector": {}, "terminationGracePeriod": "2h"}]},
            'protected by do-not-disrupt "1h" until 2026-01-01T01:01:40Z; evicted after that as budgets allow; '
            "deleted at 2026-01-01T02:01:10Z at the latest (node deadline 2026-01-01T02:01:40Z)",
        ),
        (
            protected("job", "4h"),
            {"nodeGroups": [{"selector": {}, "terminationGracePeriod": "2h"}]},
            'protected by do-not-disrupt "4h" until 2026-01-01T04:01:40Z; deleted at 2026-01-01T02:01:10Z at the '
            "latest (node deadline 2026-01-01T02:01:40Z)",
        ),
    ],
    ids=["true", "nonsense", "do-not-evict", "capped", "deadline", "before the deadline", "beyond the deadline"],
)
async def test_what_protects_it_what_ends_that_and_what_comes_then(
    pod: Any, settings: dict[str, Any], words: str
) -> None:
    async with lasting("n1", settings=patiently(**settings)) as stage, stage.settled():
        await made_at_start(stage, pod)
        await delete_at_start(stage, "n1")
        await until(stage, 1.0)
        assert await told(stage, "job", UNTIL) == [BLOCKS + words]


async def test_a_protection_that_counts_from_the_start_of_a_pod_that_has_not_started() -> None:
    settings = patiently(protection={"from": "start"})
    async with lasting("n1", settings=settings) as stage, stage.settled():
        await until(stage, -1.0)
        stage.cluster.kubelet.partition("n1")
        await until(stage, 0.0)
        await stage.cluster.create(protected("job", "1h"))
        await delete_at_start(stage, "n1")
        await until(stage, 30.0)
        stage.cluster.kubelet.heal("n1")
        await until(stage, MINUTE)
        first, then = await told(stage, "job", UNTIL)
        assert first == (f'{BLOCKS}protected by do-not-disrupt "1h", which counts from its start; not started yet')
        assert then.startswith(f'{BLOCKS}protected by do-not-disrupt "1h" until {stamp(stage, HOUR + 30)}; evicted')
        assert await told(stage, "n1", UNTIL) == [
            "1 pod is protected, without a known end: shop/job",
            f"1 pod is protected, until {stamp(stage, HOUR + 30)}: shop/job",
        ]


async def test_the_node_hears_of_all_its_pods_in_one_event() -> None:
    async with lasting("n1", settings=with_grace_period("72h")) as stage, stage.settled():
        values = {"a": "1h", "b": "3h", "c": "2h", "d": "30m", "free": None}
        await made_at_start(stage, *(protected(name, value) for name, value in values.items()))
        await delete_at_start(stage, "n1")
        await until(stage, HOUR + 1)
        ends = f"; node deadline {stamp(stage, 72 * HOUR)}"
        assert await told(stage, "n1", UNTIL) == [
            f"4 pods are protected, the last until {stamp(stage, 3 * HOUR)}: shop/b, shop/c, shop/a, and 1 more" + ends
        ]
        left = f"the last until {stamp(stage, 3 * HOUR)}: shop/b, shop/c"
        assert await told(stage, "n1", ELAPSED) == [
            f"1 pod is no longer protected, evicted as budgets allow: shop/d; 3 pods are protected, {left}, shop/a",
            f"1 pod is no longer protected, evicted as budgets allow: shop/a; 2 pods are protected, {left}",
        ]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["true", "1h", "true"], "3 pods are protected, 2 without a known end: shop/p0, shop/p2, shop/p1"),
        (["true", "never"], "2 pods are protected, all without a known end: shop/p0, shop/p1"),
    ],
)
async def test_the_event_of_the_node_names_pods_without_an_end_first(values: list[str], words: str) -> None:
    async with lasting("n1") as stage, stage.settled():
        await made_at_start(stage, *(protected(f"p{n}", value) for n, value in enumerate(values)))
        await delete_at_start(stage, "n1")
        await until(stage, 1.0)
        assert await told(stage, "n1", UNTIL) == [words]


# -- how often ---------------------------------------------------------------------------------------------------------


async def test_pods_whose_protection_ends_at_different_times_do_not_swallow_each_other() -> None:
    """Within the five minutes in which repeats are counted only."""
    async with lasting("n1") as stage, stage.settled():
        await made_at_start(stage, *(protected(f"job-{n}", f"{60 + n}s") for n in range(20)))
        await delete_at_start(stage, "n1")
        await stage.until_gone("n1")
        assert len(await told(stage, "n1", ELAPSED)) == 20
        assert len(await told(stage, "n1", UNTIL)) == 1
        assert posted(stage, ELAPSED)[::2] == [160.0 + n for n in range(20)]


async def test_a_changed_end_makes_events_on_the_pod_and_on_the_node_if_it_is_the_last() -> None:
    async with lasting("n1") as stage, stage.settled():
        await made_at_start(stage, protected("job", "4h"), protected("short", "2h"))
        await delete_at_start(stage, "n1")
        for at, value in ((10.0, "6h"), (20.0, "360m"), (30.0, "true"), (40.0, "6h"), (50.0, "5h")):
            await until(stage, at)
            await edit(stage, "job", value)
        await until(stage, MINUTE)
        await edit(stage, "short", "1h")
        await until(stage, 2 * MINUTE)
        ends = [4 * HOUR, 6 * HOUR, None, 5 * HOUR]  # the third "6h" repeats an Event within five minutes
        for name, words in (("job", "protected by do-not-disrupt"), ("n1", "2 pods are protected")):
            found = await told(stage, name, UNTIL)
            assert len(found) == len(ends)
            assert all(words in each for each in found)
            assert all(end is None or stamp(stage, end) in each for each, end in zip(found, ends, strict=True))
        first, then = await told(stage, "short", UNTIL)
        assert stamp(stage, 2 * HOUR) in first
        assert stamp(stage, HOUR) in then
        assert await told(stage, "n1", ELAPSED) == []


async def test_no_event_is_repeated_within_a_day() -> None:
    async with lasting("n1") as stage, stage.settled():
        await made_at_start(stage, protected("job", "true"), protected("odd", "1 day"))
        await delete_at_start(stage, "n1")
        await until(stage, EventSettings().window + 1.0)
        before = await stage.events()
        await until(stage, DAY)
        assert await stage.events() == before
        assert await count(stage, UNTIL, INVALID) == {"job": 1, "odd": 2, "n1": 1}


async def test_lifted_left_or_deleted_is_not_elapsed() -> None:
    async with lasting("n1", settings=with_grace_period("2h")) as stage, stage.settled():
        finished = protected("finished", "1h", behaviour={"exit-seconds": 600}, restartPolicy="Never")
        await made_at_start(stage, finished, *(protected(name, "3h") for name in ("lifted", "deleted", "overdue")))
        await delete_at_start(stage, "n1")
        await until(stage, 1000.0)
        await edit(stage, "lifted", "10m")
        await stage.call("DELETE", "/api/v1/namespaces/shop/pods/deleted")
        await stage.until_gone("n1")
        assert await count(stage, ELAPSED) == {}


# -- after a restart ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [2 * HOUR, 4 * HOUR - 0.01])
async def test_a_controller_that_is_killed_in_the_middle_leaves_the_expiry_to_its_successor(killed: float) -> None:
    """It acts to the second, and repeats no Event."""
    async with lasting("n1") as stage:
        async with stage.settled(mortal=True):
            await made_at_start(stage, protected("job", "4h"), protected("odd", "4 hours"))
            await delete_at_start(stage, "n1")
            await until(stage, killed)
        async with stage.controller():
            await until(stage, 5 * HOUR)
            assert evictions(stage) == [("job", 4 * HOUR)]
            assert await count(stage, UNTIL) == {"job": 1, "odd": 1, "n1": 1}
            assert await count(stage, ELAPSED) == {"job": 1, "n1": 1}
            assert set(posted(stage, ELAPSED)) == {100.0 + 4 * HOUR}


async def test_a_successor_that_comes_after_the_expiry_evicts_at_once_without_events_of_the_past() -> None:
    async with lasting("n1") as stage:
        async with stage.settled(mortal=True):
            await made_at_start(stage, protected("job", "4h"))
            await delete_at_start(stage, "n1")
            await until(stage, HOUR)
        await until(stage, 6 * HOUR)
        async with stage.controller():
            await stage.until_gone("n1")
            assert evictions(stage) == [("job", 6 * HOUR)]
            assert await count(stage, ELAPSED) == {}


# -- voluntary terminations -------------------------------------------------------------------------------------------


async def test_a_node_that_something_else_blocks_gets_an_event_that_the_protection_is_over_and_what_blocks() -> None:
    async with lasting("n1") as stage, stage.settled():
        web = protected("web", None)
        await made_at_start(stage, protected("job", "1h"), web, a_budget_manifest("web", minAvailable=1))
        await stage.patch_node("n1", TERMINABLE)
        await until(stage, 2 * HOUR)
        [message] = await told(stage, "n1", ELAPSED)
        assert f'pod shop/job was protected by do-not-disrupt "1h" until {stamp(stage, HOUR)}, but' in message
        assert "but blocked: pod shop/web cannot be evicted: budget shop/web allows no disruption now" in message
        assert posted(stage, ELAPSED) == [100.0 + HOUR]
        await stage.call("DELETE", "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/web")
        await stage.until_gone("n1")
        assert len(await told(stage, "n1", ELAPSED)) == 1


@pytest.mark.parametrize("way", ["made longer", "taken off", "left"])
async def test_a_protection_that_did_not_elapse_frees_its_node_without_that_word(way: str) -> None:
    async with lasting("n1") as stage, stage.settled():
        await made_at_start(stage, protected("job", "2h"))
        await stage.patch_node("n1", TERMINABLE)
        await until(stage, HOUR)
        if way == "left":
            await stage.call("DELETE", "/api/v1/namespaces/shop/pods/job")
        else:
            await edit(stage, "job", "true" if way == "made longer" else None)
        await until(stage, 3 * HOUR)
        if way == "made longer":
            await edit(stage, "job", None)
        await stage.until_gone("n1")
        assert await count(stage, ELAPSED) == {}
