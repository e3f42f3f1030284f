"""Settings that change while nodes end: what happens from then on, to the second, and that nothing is lost or done
twice. A change is seen when the settings are read next, every five seconds, and counts a second later."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
from kubesim.faults import Latency, LateWatch, Refuse, Rule
from support.disruption import deletions as ends
from support.disruption import lost_at
from support.stage import (
    STOPS_AFTER_5,
    Stage,
    a_budget_manifest,
    a_pod_manifest,
    finalizers_of,
    staged,
    the_settings,
)
from support.stories import (
    START,
    asked_to_end,
    delete_at_start,
    deletions,
    evictions,
    made_at_start,
    stamp,
    until,
    with_grace_period,
    written_on,
)

from gracectl.app.controller import Controller
from gracectl.cloud.provider import ProviderUnavailable
from gracectl.config import ConfigError, Settings
from gracectl.model import names

PROTECTED: dict[str, Any] = {"annotations": {names.DO_NOT_DISRUPT: "true"}}


class Governed:
    """A stage whose controllers follow what `say` has said last."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.said: Settings | ConfigError = stage.settings
        stage.reread = self.read

    def read(self) -> Settings:
        if isinstance(self.said, ConfigError):
            raise self.said
        return self.said

    async def say(self, at: float, settings: Settings | ConfigError) -> None:
        """So that it counts at this instant, in seconds after START, which the five seconds divide."""
        await until(self.stage, at - 3)
        self.said = settings
        await until(self.stage, at)


@asynccontextmanager
async def governed(*nodes: str, settings: Settings | None = None) -> AsyncIterator[tuple[Stage, Governed]]:
    async with staged(*nodes, settings=settings) as stage:
        yield stage, Governed(stage)


@asynccontextmanager
async def ruling(stage: Stage) -> AsyncIterator[Controller]:
    """A controller that looks at the settings 1 s before START, and every five seconds."""
    await until(stage, -21.0)
    async with stage.settled() as controller:
        yield controller


@asynccontextmanager
async def ruled(stage: Stage, *deleted: str) -> AsyncIterator[Controller]:
    """The same, when these nodes are deleted at START."""
    async with ruling(stage) as controller:
        await delete_at_start(stage, *deleted)
        yield controller


def with_rate(qps: float, burst: int = 1, **more: Any) -> Settings:
    return the_settings(eviction={"qps": qps, "burst": burst, **more}, drain={"minimumSeconds": 0})


async def test_another_rate_of_evictions_counts_at_once_for_waiting_pods() -> None:
    async with governed("n1", settings=with_rate(0.1)) as (stage, rule):
        await stage.create(*(a_pod_manifest(f"p{n}", "n1") for n in range(8)))
        async with ruled(stage, "n1"):
            await rule.say(15, with_rate(1))
            await stage.until_gone("n1")
    # At 0.1/s one at 0 and 10; half of the next token has come when it becomes 1/s: half a second is left.
    assert [instant for _, instant in evictions(stage)] == [0.0, 10.0, 15.5, 16.5, 17.5, 18.5, 19.5, 20.5]
    assert set(stage.agreed().values()) == {1}


async def test_a_pod_under_request_is_not_requested_again_and_more_room_is_used_at_once() -> None:
    """Answers take 8 s, and watches are late: nothing but memory knows who has agreed to go."""
    async with governed("n1", settings=with_rate(0, maxInFlight=2)) as (stage, rule):
        await stage.create(*(a_pod_manifest(f"p{n}", "n1", **STOPS_AFTER_5) for n in range(20)))
        async with ruled(stage, "n1"):
            stage.transport.behind.add(Rule(fault=Latency(8.0, 8.0), path="eviction"))
            stage.transport.before.add(Rule(fault=LateWatch(3.0, 3.0), path="pods"))
            await rule.say(5, with_rate(0, maxInFlight=5))
            await rule.say(10, with_rate(0, maxInFlight=1))
            await rule.say(20, with_rate(5, burst=10, maxInFlight=50))
            await stage.until_gone("n1")
    assert set(stage.agreed().values()) == {1}
    assert len(stage.evictions) == 20
    instants = [instant for _, instant in evictions(stage)]
    # Two, and two when these turn out to be slow; six more; from 8 on two as two are answered; one at a time after 10;
    # the rest at 20.
    assert instants == [0.0, 0.0, 1.0, 1.0, *[5.0] * 6, 8.0, 8.0, 9.0, 9.0, 16.0, 17.0, *[20.0] * 4]


async def test_a_shorter_least_duration_ends_a_drain_that_waits_for_nothing_else() -> None:
    long = the_settings(drain={"minimumSeconds": 100})
    async with governed("n1", "n2", settings=long) as (stage, rule), ruled(stage, "n1"):
        await rule.say(15, the_settings(drain={"minimumSeconds": 12}))
        await stage.until_gone("n1")
        assert asked_to_end(stage) == [15.0]
        await until(stage, 50)
        await stage.delete_node("n2")
        await rule.say(55, the_settings(drain={"minimumSeconds": 30}))
        await stage.until_gone("n2")
        assert asked_to_end(stage) == [15.0, 80.0]


async def test_a_longest_protection_lets_a_protected_pod_go_when_it_is_over_and_taken_away_it_protects_again() -> None:
    async with governed("n1", "n2") as (stage, rule), ruling(stage):
        await made_at_start(stage, a_pod_manifest("a", "n1", **PROTECTED), a_pod_manifest("b", "n2", **PROTECTED))
        await stage.delete_node("n1")
        await rule.say(20, the_settings(protection={"maximumSeconds": 60}))
        await stage.until_gone("n1")
        assert evictions(stage) == [("a", 60.0)]
        await rule.say(90, the_settings())
        await stage.delete_node("n2")
        await until(stage, 500)
        assert evictions(stage) == [("a", 60.0)]
        await rule.say(510, the_settings(protection={"maximumSeconds": 60}))
        await stage.until_gone("n2")
        assert evictions(stage) == [("a", 60.0), ("b", 510.0)]


async def test_health_that_is_switched_on_later_and_tolerates_less_counts_from_when_the_node_was_lost() -> None:
    async with governed("n1", "n2", "n3", settings=the_settings(health={"enabled": False})) as (stage, rule):
        await until(stage, -91)
        async with stage.settled():
            lost = await lost_at(stage, "n1") - START
            await until(stage, 1000)
            assert ends(stage) == []
            await rule.say(1010, the_settings(health={"maximumUnhealthy": 0}))
            await until(stage, 1100)
            assert ends(stage) == []  # the brake holds it
            await rule.say(1110, the_settings())
            await stage.until_gone("n1")
            assert ends(stage) == [(START + 1110.0, "n1")]
            again = await lost_at(stage, "n2") - START
            sooner = [{"type": "Ready", "status": "Unknown", "tolerationSeconds": 400}]
            await until(stage, again + 20)
            rule.said = the_settings(health={"conditions": sooner, "maximumUnhealthy": 3})
            await stage.until_gone("n2")
            assert ends(stage)[1:] == [(START + again + 400.0, "n2")]
            assert lost < 1000


async def test_other_waves_count_for_a_drain_that_is_under_way() -> None:
    one = [{"priority": 0, "shutdownGracePeriodSeconds": 60}]
    two = [*one, {"priority": 2_000_000_000, "shutdownGracePeriodSeconds": 1}]
    critical: dict[str, Any] = {"priorityClassName": names.SYSTEM_CLUSTER_CRITICAL, **STOPS_AFTER_5}
    async with governed("n1", settings=the_settings(shutdownGracePeriodByPodPriority=two)) as (stage, rule):
        await stage.create(a_pod_manifest("plain", "n1", **PROTECTED), a_pod_manifest("critical", "n1", **critical))
        async with ruled(stage, "n1"):
            await until(stage, 5)
            assert evictions(stage) == []
            await rule.say(10, the_settings(shutdownGracePeriodByPodPriority=one))
            await until(stage, 20)
            assert evictions(stage) == [("critical", 10.0)]


async def test_a_deadline_comes_nearer_with_its_group_and_never_goes_further_away() -> None:
    async with governed("n1", settings=with_grace_period("5m")) as (stage, rule):
        await stage.create(a_pod_manifest("a", "n1", **PROTECTED, terminationGracePeriodSeconds=30))
        async with ruled(stage, "n1"):
            await until(stage, 1)
            assert written_on(stage.node("n1")) == stamp(stage, 300)
            await rule.say(5, with_grace_period("1h"))
            assert written_on(stage.node("n1")) == stamp(stage, 300)
            await rule.say(20, the_settings())
            assert written_on(stage.node("n1")) == stamp(stage, 300)
            await rule.say(35, with_grace_period("2m"))
            await until(stage, 35.1)
            assert written_on(stage.node("n1")) == stamp(stage, 120)
            await rule.say(40, with_grace_period("1h"))
            await stage.until_gone("n1")
    assert deletions(stage) == [("a", 90.0, 30)]


async def test_a_deadline_that_could_not_be_written_is_kept_all_the_same() -> None:
    async with governed("n1", settings=with_grace_period("2m")) as (stage, rule):
        await stage.create(a_pod_manifest("a", "n1", **PROTECTED, terminationGracePeriodSeconds=30))
        async with ruling(stage):
            broken = Rule(fault=Refuse(403), method="PATCH", path="nodes/n1")
            await until(stage, -1)
            stage.transport.before.add(broken)
            await until(stage, 0)
            await stage.delete_node("n1")
            await rule.say(10, with_grace_period("1h"))
            await until(stage, 100)
            assert written_on(stage.node("n1")) == ""
            assert deletions(stage) == [("a", 90.0, 30)]


async def test_pauses_of_the_provider_are_shorter_from_the_next_one_on() -> None:
    async with governed("n1", settings=the_settings(drain={"minimumSeconds": 0})) as (stage, rule):
        stage.provider.moods.extend(ProviderUnavailable("down") for _ in range(40))
        async with ruled(stage, "n1"):
            await until(stage, 300)
            asked = len(asked_to_end(stage))
            assert asked < 12
            soon = the_settings(drain={"minimumSeconds": 0}, instance={"retryMaximumSeconds": 2})
            await rule.say(310, soon)
            await stage.until_gone("n1")
    # The pause that had begun when it changed is as long as it was.
    pauses = [after - before for before, after in pairwise(asked_to_end(stage)[asked + 1 :])]
    assert len(pauses) > 20
    assert all(1.0 <= pause <= 2.0 for pause in pauses)


async def test_what_needs_a_restart_is_not_taken_over() -> None:
    """Which nodes are managed is among it."""
    nobodys = the_settings(nodeSelector={"matchLabels": {"pool": "x"}}, drain={"minimumSeconds": 7})
    async with governed("n1") as (stage, rule), ruling(stage) as controller:
        await rule.say(10, nobodys)
        await stage.delete_node("n1")
        await stage.until_gone("n1")
        assert asked_to_end(stage) == [17.0]
        values = {each.metric.name: each.value for each in filter(None, controller.process.samples())}
        assert values["gracectl_settings_restart_needed"] == 1
        assert any("nodeSelector" in check.reason for check in controller.process.readiness())


async def test_a_lane_of_a_budget_waits_by_the_new_pauses() -> None:
    def patience(maximum: float) -> Settings:
        return the_settings(eviction={"probeSeconds": 3600, "misconfiguredRetrySeconds": maximum})

    async with governed("n1", settings=patience(200)) as (stage, rule):
        two = [a_budget_manifest("web", maxUnavailable=1), a_budget_manifest("web", maxUnavailable=1)]
        two[1]["metadata"]["name"] = "web2"
        await stage.create(*two, a_pod_manifest("a", "n1", labels={"app": "web"}))
        async with ruled(stage, "n1"):
            await rule.say(100, patience(10))
            await until(stage, 239)
            asked = [round(each.instant - START, 3) for each in stage.evictions]
    assert asked == [0.0, 200.0, 210.0, 220.0, 230.0]


async def test_a_standby_takes_new_settings_over_and_leads_with_them() -> None:
    leading: dict[str, Any] = {"leaderElection": {"namespace": "kube-system"}, "drain": {"minimumSeconds": 0}}
    slow, quick = (the_settings(**leading, eviction={"qps": qps, "burst": 1}) for qps in (0.05, 1))
    async with governed("n1", settings=slow) as (stage, rule):
        await stage.create(*(a_pod_manifest(f"p{n}", "n1") for n in range(6)))
        death = anyio.Event()
        first: list[Controller] = []

        async def lead_until_killed() -> None:
            async with stage.mortal() as controller:
                first.append(controller)
                await death.wait()

        async with anyio.create_task_group() as group:
            group.start_soon(lead_until_killed)
            await stage.until(lambda: all(names.FINALIZER in finalizers_of(node) for node in stage.nodes()))
            async with stage.controller() as second:
                await second.wait_live()
                assert (leads(first[0]), leads(second)) == (True, False)
                await delete_at_start(stage, "n1")
                await until(stage, 1)
                assert evictions(stage) == [("p0", 0.0)]
                death.set()  # before it has read what comes now
                rule.said = quick
                await stage.until_gone("n1")
                assert leads(second)
    first_of_second, *others = [instant for _, instant in evictions(stage)[1:]]
    assert 10 < first_of_second < 20.5
    assert others == [round(first_of_second + n, 3) for n in range(1, 5)]
    assert set(stage.agreed().values()) == {1}


def leads(controller: Controller) -> bool:
    return any(
        each.metric.name == "gracectl_leader" and each.value == 1 for each in filter(None, controller.process.samples())
    )
