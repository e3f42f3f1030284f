"""Traces of terminations that change hands: after kills and handovers there is one, as true as it can be."""

from __future__ import annotations

from itertools import cycle, pairwise, product

import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Refuse, Rule
from support.stage import STOPS_AFTER_5, Stage, a_pod_manifest, staged
from support.thorough import thorough
from support.traces import Collector, a_world, assert_one_trace, until_told

from gracectl.config import Settings
from gracectl.model import names


async def taken_over(stage: Stage, after: float, *, pause: float = 0.0, is_killed: bool = True) -> Collector:
    """Delete n1; so long afterwards its controller ends, killed or in an orderly way, and after the pause another one
    terminates the node to the end."""
    collector = Collector(stage)
    async with stage.mortal() if is_killed else stage.controller() as controller:
        await stage.settle(controller)
        await stage.delete_node("n1")
        await stage.clock.sleep(after)
    if pause:
        await stage.clock.sleep(pause)
    async with stage.controller():
        await until_told(stage, "n1")
    return collector


POINTS = (0.0, 0.005, 0.1, 0.45, 0.9, 1.5, 3.1, 4.0, 4.3, 5.0, 6.5, 8.0, 9.5)
LOST = (0.0, 1.0, 100.0)
"""Seconds of the trace that are lost with the process: none, the last one, all."""
REST = sorted(set(product(POINTS, LOST)) - set(zip(POINTS, cycle(LOST), strict=False)))


@pytest.mark.parametrize(("after", "lost"), [*zip(POINTS, cycle(LOST), strict=False), *thorough(*REST)])
async def test_a_kill_at_any_point_leaves_one_trace(after: float, lost: float) -> None:
    async with staged("n1", "n2", cloud=CloudSettings(terminate_delay=5.0)) as stage:
        await a_world(stage)
        collector = Collector(stage)
        async with stage.settled(mortal=True):
            await stage.delete_node("n1")
            await stage.clock.sleep(after)
            assert stage.node("n1") is not None
        collector.lose(lost)
        await stage.clock.sleep(0.2)
        async with stage.controller():
            await until_told(stage, "n1")
        assert_one_trace(collector)


async def test_a_successor_counts_its_minutes_from_the_takeover() -> None:
    async with staged("n1", objects=[a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "400s"})]) as stage:
        collector = await taken_over(stage, 150, pause=75)
        waits = [(wait.start, wait.end) for wait in collector.of("waiting")]
        assert waits == [(0, 60), (60, 120), (225, 285), (285, 345)]
        assert_one_trace(collector)


async def test_a_successor_takes_the_drain_from_the_condition_and_marks_its_spans() -> None:
    async with staged("n1", cloud=CloudSettings(terminate_delay=20.0)) as stage:
        await stage.create(a_pod_manifest("a", "n1", behaviour={"stop-seconds": 10}))
        collector = await taken_over(stage, 5)
        first, again = collector.of("cordon")
        assert ("gracectl.resumed" in first.attributes, again.attributes.get("gracectl.resumed")) == (False, True)
        drain, root = collector.the("drain"), collector.the("terminate node")
        assert (drain.start, drain.end) == (0, 10)
        assert drain.attributes["gracectl.resumed"] is root.attributes["gracectl.resumed"] is True
        asked, gone = collector.pods("a")
        assert (asked.name, asked.attributes["gracectl.pod.left"]) == ("pod evicted", "evicted")
        assert (gone.name, gone.attributes["gracectl.pod.left"]) == ("pod terminating", "already terminating")
        assert (gone.start, gone.end) == (0, 10)  # its deletionTimestamp says so


async def test_a_successor_measures_a_held_pod_from_the_takeover() -> None:
    async with staged("n1", objects=[a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "40s"})]) as stage:
        collector = await taken_over(stage, 10, pause=10)
        pod = collector.pod("job")
        assert (pod.start, pod.end) == (20, 40)
        assert pod.attributes["gracectl.protected.seconds"] == 20
        assert_one_trace(collector)


@pytest.mark.parametrize("after", [4.5, 8.0], ids=["while it drains", "while its instance terminates"])
async def test_an_orderly_handover_is_continued_in_the_same_way(after: float) -> None:
    async with staged("n1", "n2", settings=Settings(), cloud=CloudSettings(terminate_delay=5.0)) as stage:
        await a_world(stage)
        collector = await taken_over(stage, after, is_killed=False)
        assert len(collector.outlets) == 2
        assert all(outlet.emitted for outlet in collector.outlets)
        assert any("gracectl.resumed" in span.attributes for span in collector.spans)
        assert_one_trace(collector)


async def test_another_node_of_the_same_name_has_another_trace() -> None:
    async with staged("n1", objects=[a_pod_manifest("a", "n1")]) as stage:
        collector = Collector(stage)
        async with stage.settled() as controller:
            await stage.delete_node("n1")
            await until_told(stage, "n1")
            await stage.add_nodes("n1")
            await stage.settle(controller)
            await stage.delete_node("n1")
            await until_told(stage, "n1")
        first, second = collector.of("terminate node")
        assert first.trace != second.trace
        assert all(one.end <= other.start for one, other in pairwise((first, second)))


async def test_a_drain_that_was_over_before_the_takeover_ends_before_the_next_step_begins() -> None:
    async with staged("n1", objects=[a_pod_manifest("a", "n1")], cloud=CloudSettings(terminate_delay=30.0)) as stage:
        collector = await taken_over(stage, 5)
        first, again = sorted(span.end for span in collector.exact if span.name == "drain")
        volumes = min(span.start for span in collector.exact if span.name == "volumes")
        assert first <= again < volumes


async def test_a_claim_that_outlives_the_controller_of_its_node_adds_nothing_after_the_root() -> None:
    async with staged("n1", claim=ClaimSpec(), settings=Settings()) as stage:
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        collector = Collector(stage)
        async with stage.settled():
            await stage.delete_claim("n1-claim")
            await stage.clock.sleep(3)
            stage.transport.before.add(Rule(fault=Refuse(500), path="nodeclaims/n1-claim", method="PATCH"))
            await stage.until_gone("n1")
            await stage.clock.sleep(5)
            assert stage.claim("n1-claim") is not None
        stage.transport.before.clear()
        await stage.clock.sleep(20)
        async with stage.controller():
            await stage.until_claims_gone("n1-claim")
            await stage.clock.sleep(1)
        assert_one_trace(collector)
        assert collector.of("claim finalizer") == []


async def test_a_drain_that_was_surely_exported_is_not_written_again() -> None:
    async with staged("n1", settings=Settings(), cloud=CloudSettings(terminate_delay=20.0)) as stage:
        await stage.create(a_pod_manifest("a", "n1"))
        collector = await taken_over(stage, 10, is_killed=False)
        assert len(collector.of("drain")) == len(collector.of("wave non-critical")) == 1
        assert_one_trace(collector)


async def test_a_wave_that_was_over_before_the_takeover_does_not_last_through_the_time_without_a_leader() -> None:
    async with staged("n1", "n2", settings=Settings()) as stage:
        await stage.create(
            a_pod_manifest("web", "n1"),
            a_pod_manifest(
                "dns",
                "n1",
                priorityClassName=names.SYSTEM_CLUSTER_CRITICAL,
                behaviour={"stop-seconds": 60},
                terminationGracePeriodSeconds=90,
            ),
        )
        collector = await taken_over(stage, 10)
        gap, *waves = collector.the("no leader"), *collector.of("wave non-critical")
        assert gap.end - gap.start > 10
        assert all(wave.end <= gap.start for wave in waves)
        assert any(wave.attributes.get("gracectl.resumed") for wave in waves)
        assert_one_trace(collector)
