"""Traces of terminations: their tree to the instant, and the page about them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Refuse, Rule
from support.stage import (
    STOPS_AFTER_5,
    a_budget_manifest,
    a_pod_manifest,
    a_workload,
    staged,
    the_settings,
    unregistered,
)
from support.stories import lasting
from support.traces import CRITICAL, Collector, a_world, assert_one_trace, critical_path, roots, terminated, until_told

import gracectl
from gracectl.cloud.provider import ProviderUnavailable
from gracectl.controllers.termination.steps import STEPS
from gracectl.controllers.tracing.pods import WORDS
from gracectl.model import names


async def test_the_tree_of_a_termination() -> None:
    async with staged("n1", "n2", cloud=CloudSettings(terminate_delay=7.0)) as stage:
        await stage.create(
            a_pod_manifest("slow", "n1", **STOPS_AFTER_5),
            a_pod_manifest("web", "n1", behaviour={"stop-seconds": 2}),
            a_pod_manifest("dns", "n1", priorityClassName=CRITICAL, behaviour={"stop-seconds": 1}),
        )
        start = stage.clock.monotonic()
        collector = await terminated(stage, "n1")
        assert start == 0
        end = collector.the("finalizer").end  # the instance is looked at with jitter
        assert 13 <= end <= 20
        assert collector.tree() == [
            f"terminate node 0-{end:.5g}",
            "  claim 0-0",
            "  deadline 0-0",
            "  notice 0-0",
            "  cordon 0-0",
            "  drain 0-6",
            "    wave non-critical 0-5",
            "      pod evicted 0-0",
            "      pod evicted 0-0",
            "      pod terminating 0-2",
            "      pod terminating 0-5",
            "    waiting for wave non-critical 0-5",
            "    wave critical 5-6",
            "      pod evicted 5-5",
            "      pod terminating 5-6",
            "  volumes 6-6",
            f"  instance 6-{end:.5g}",
            f"  finalizer {end:.5g}-{end:.5g}",
        ]


async def test_node_and_claim_name_the_trace() -> None:
    async with staged("n1", objects=[a_pod_manifest("a", "n1", **STOPS_AFTER_5)]) as stage:
        await stage.create_claim("c1", {"nodeName": "n1"})
        collector = Collector(stage)
        async with stage.settled():
            await stage.delete_node("n1")
            await stage.clock.sleep(3)
            node, claim = stage.node("n1"), stage.claim("c1")
            assert node is not None
            assert claim is not None
            written = node["metadata"]["annotations"][names.TRACEPARENT]
            assert claim["metadata"]["annotations"][names.TRACEPARENT] == written
            await stage.until_claims_gone("c1")
            await stage.clock.sleep(1)
        root = collector.the("terminate node")
        assert written == f"00-{root.trace.hex}-{root.trace.root:016x}-01"
        assert root.attributes["k8s.nodeclaim.name"] == "c1"
        assert collector.the("claim finalizer").parent == root.id
        assert len(roots(collector.spans)) == 1


async def test_a_pod_names_its_queue_and_how_long_it_waited_there() -> None:
    async with staged("n1", "n2") as stage:
        behaviour = {"ready-seconds": 4, "stop-seconds": 1}
        await stage.create(
            a_workload("Deployment", "web", 4, behaviour=behaviour), a_budget_manifest("web", maxUnavailable=1)
        )
        on_n1 = [pod["metadata"]["name"] for pod in stage.pods_on("n1")]
        collector = await terminated(stage, "n1")
        pods = sorted((collector.pod(name) for name in on_n1), key=lambda span: span.end)
        assert len(pods) >= 2
        for number, pod in enumerate(pods):
            assert pod.attributes["gracectl.queue"] == "shop/web"
            # The replacement of the one before is Ready 4 s after its eviction.
            assert pod.attributes["gracectl.queue.wait_seconds"] == pytest.approx(4.0 * number, abs=0.1)
            assert pod.attributes["gracectl.eviction.attempts"] == 1
            assert [event.name for event in pod.events] == ["evicted"]


async def test_a_refusal_is_a_moment_of_its_pod() -> None:
    async with staged("n1", objects=[a_pod_manifest("a", "n1")]) as stage:
        stage.transport.before.add(Rule(fault=Refuse(403), path="eviction", count=1))
        collector = await terminated(stage, "n1")
        pod = collector.pod("a")
        assert [event.name for event in pod.events] == ["refused", "evicted"]
        assert pod.events[0].attributes["gracectl.refusal"] == "Forbidden"
        assert pod.attributes["gracectl.eviction.attempts"] == 2
        assert pod.attributes["gracectl.eviction.refusals"] == ["Forbidden: 1"]


async def test_a_protected_pod_has_its_end_and_its_wave_waits_for_it() -> None:
    async with staged("n1") as stage:
        await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "40s"}, **STOPS_AFTER_5))
        collector = await terminated(stage, "n1")
        pod = collector.pod("job")
        assert (pod.start, pod.end) == (0, 40)
        assert collector.holds("job") == [("protected until 2026-01-01T00:00:40Z", 0, 40)]
        assert collector.terminating("job").end == 45
        assert collector.the("drain").attributes["gracectl.held"] == ["40.0 s: protected until 2026-01-01T00:00:40Z"]
        assert pod.attributes["gracectl.protected.by"] == "do-not-disrupt"
        assert pod.attributes["gracectl.protected.until"] == "2026-01-01T00:00:40Z"
        assert pod.attributes["gracectl.protected.seconds"] == pytest.approx(40, abs=0.01)
        assert collector.the("wave non-critical").end == 45


async def test_a_pod_that_is_deleted_for_the_deadline_has_its_granted_grace() -> None:
    async with staged("n1") as stage:
        await stage.create(
            a_pod_manifest(
                "job",
                "n1",
                annotations={names.DO_NOT_DISRUPT: "true"},
                terminationGracePeriodSeconds=100,
                behaviour={"stop-seconds": 30},
            )
        )
        await stage.create_claim("c1", {"nodeName": "n1"}, terminationGracePeriod="60s")
        collector = await terminated(stage, "n1", claims=("c1",))
        pod = collector.pod("job")
        assert pod.name == "pod deleted for the deadline"
        assert pod.attributes["gracectl.grace.requested_seconds"] == 100
        assert collector.terminating("job").end == 30
        assert pod.events[0].attributes["gracectl.grace.granted_seconds"] == 60
        root = collector.the("terminate node")
        assert root.attributes["gracectl.deadline"] == "2026-01-01T00:01:00Z"


async def test_the_root_of_a_node_that_left_pods_behind_says_so() -> None:
    async with staged("n1", objects=[a_pod_manifest("stuck", "n1", behaviour={"stop-seconds": 5000})]) as stage:
        await stage.create_claim("c1", {"nodeName": "n1"}, terminationGracePeriod="0s")
        collector = await terminated(stage, "n1", claims=("c1",))
        root = collector.the("terminate node")
        assert root.attributes["gracectl.deadline.passed"] is True
        assert "stuck" in root.error
        deleted, behind = collector.pods("stuck")
        assert (deleted.name, behind.name) == ("pod deleted for the deadline", "pod left behind")
        assert (deleted.error, behind.error) == ("", "still there")


async def test_pods_that_other_clients_terminate_are_distinguished() -> None:
    async with staged("n1") as stage:
        await stage.create(
            a_pod_manifest("mine", "n1", behaviour={"stop-seconds": 3}),
            a_pod_manifest("theirs", "n1", behaviour={"stop-seconds": 30}),
            a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}, behaviour={"stop-seconds": 1}),
        )
        await stage.call("DELETE", "/api/v1/namespaces/shop/pods/theirs")
        collector = Collector(stage)
        async with stage.settled():
            await stage.delete_node("n1")
            await stage.clock.sleep(10)
            await stage.call("DELETE", "/api/v1/namespaces/shop/pods/job")
            await stage.until_gone("n1")
            await stage.clock.sleep(1)
        assert collector.pod("mine").attributes["gracectl.pod.left"] == "evicted"
        assert collector.terminating("theirs").attributes["gracectl.pod.left"] == "already terminating"
        assert collector.pod("job").attributes["gracectl.pod.left"] == "terminated by another client"


# -- what takes long ---------------------------------------------------------------------------------------------------


async def test_a_long_termination_exports_a_span_per_minute() -> None:
    async with staged("n1", objects=[a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "190s"})]) as stage:
        collector = await terminated(stage, "n1")
        waits = collector.of("waiting")
        assert [(wait.start, wait.end) for wait in waits] == [(0, 60), (60, 120), (120, 180)]
        assert all(wait.attributes["gracectl.step"] == "drain" for wait in waits)
        assert waits[0].attributes["gracectl.pods.held"] == ["1 protected"]
        assert "shop/job (protected by" in str(waits[0].attributes["gracectl.explained"])
        assert [wait.attributes["gracectl.held"] for wait in waits] == [
            [f"{seconds}.0 s: protected until 2026-01-01T00:03:10Z"] for seconds in (60, 120, 180)
        ]


async def test_the_longer_it_takes_the_rarer_are_the_spans() -> None:
    async with lasting("n1") as stage:
        await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "4h"}))
        collector = await terminated(stage, "n1")
        waits = collector.of("waiting")
        assert len(waits) == 43
        spans = [wait.end - wait.start for wait in waits]
        assert spans[:10] == [60.0] * 10
        assert all(later >= earlier for earlier, later in itertools.pairwise(spans))
        assert spans[-1] < 0.1 * 4 * 3600
        assert [wait.start for wait in waits[1:]] == [wait.end for wait in waits[:-1]]


async def test_failures_of_the_provider_are_events_of_its_step() -> None:
    async with staged("n1") as stage:
        stage.provider.moods.extend([ProviderUnavailable("quota"), ProviderUnavailable("quota")])
        collector = await terminated(stage, "n1")
        step = collector.the("instance")
        assert step.attributes["gracectl.failures"] == 2
        assert [event.name for event in step.events] == ["exception", "exception"]
        assert [event.attributes["exception.message"] for event in step.events] == ["quota", "quota"]


# -- tracing is off ----------------------------------------------------------------------------------------------------


async def test_without_tracing_nothing_is_written() -> None:
    objects = [a_pod_manifest("a", "n1", **STOPS_AFTER_5)]
    async with staged("n1", objects=objects) as stage, stage.settled() as controller:
        await stage.delete_node("n1")
        await stage.clock.sleep(3)
        node = stage.node("n1")
        assert node is not None
        assert names.TRACEPARENT not in node["metadata"].get("annotations", {})
        assert controller.trace_id({"node": "n1"}) is None
        await stage.until_gone("n1")


async def test_lines_of_the_log_find_the_trace_while_the_node_ends() -> None:
    async with staged("n1", objects=[a_pod_manifest("a", "n1", **STOPS_AFTER_5)]) as stage:
        await stage.create_claim("c1", {"nodeName": "n1"})
        collector = Collector(stage)
        async with stage.settled() as controller:
            assert controller.trace_id({"node": "n1"}) is None
            await stage.delete_node("n1")
            await stage.clock.sleep(3)
            found = controller.trace_id({"node": "n1", "pod": "shop/a"})
            assert controller.trace_id({"nodeclaim": "c1"}) == found
            assert controller.trace_id({"node": "n2"}) is None
            await stage.until_gone("n1")
            await stage.clock.sleep(1)
            assert controller.trace_id({"node": "n1"}) is None
        assert found == collector.the("terminate node").trace.hex


# -- claims without a node, nodes without a drain ----------------------------------------------------------------------


async def test_a_claim_that_never_had_a_node_has_a_trace_of_its_own() -> None:
    async with staged("n1", claim=ClaimSpec(), cloud=CloudSettings(terminate_delay=3.0)) as stage:
        await stage.patch_claim("n1-claim", {"status": unregistered()}, "/status")
        collector = Collector(stage)
        async with stage.settled():
            await stage.delete_claim("n1-claim")
            await stage.until_claims_gone("n1-claim")
            await stage.until_gone("n1")  # its owner is gone
            await stage.clock.sleep(1)
        claim = collector.the("terminate node claim")
        assert claim.attributes["k8s.nodeclaim.name"] == "n1-claim"
        assert {span.name for span in collector.spans if span.parent == claim.id} >= {"nodes", "instance", "finalizer"}
        (instance,) = (span for span in collector.of("instance") if span.parent == claim.id)
        assert instance.end - instance.start >= 3.0


async def test_settings_name_the_waves() -> None:
    settings = the_settings(
        shutdownGracePeriodByPodPriority=[
            {"priority": 0, "shutdownGracePeriodSeconds": 10},
            {"priority": 2_000_000_000, "shutdownGracePeriodSeconds": 10},
        ]
    )
    async with staged("n1", settings=settings) as stage:
        await stage.create(a_pod_manifest("low", "n1"), a_pod_manifest("high", "n1", priorityClassName=CRITICAL))
        collector = await terminated(stage, "n1")
        assert [span.name for span in collector.spans if span.name.startswith("wave")] == [
            "wave priority below 2000000000",
            "wave priority 2000000000 and above",
        ]


async def test_jaegers_critical_path_misses_no_step() -> None:
    async with staged("n1", "n2", cloud=CloudSettings(terminate_delay=5.0)) as stage:
        await a_world(stage)
        path = critical_path((await terminated(stage, "n1")).exact)
        assert [name for name in path if name in {step.name for step in STEPS}] == [step.name for step in STEPS][::-1]
        assert [name for name in path if name.startswith("wave")] == ["wave critical", "wave non-critical"]


async def test_a_late_pod_is_a_child_of_the_root() -> None:
    async with staged("n1", objects=[a_pod_manifest("a", "n1")], cloud=CloudSettings(terminate_delay=10.0)) as stage:
        collector = Collector(stage)
        async with stage.settled():
            await stage.delete_node("n1")
            await stage.clock.sleep(4)
            await stage.create(a_pod_manifest("late", "n1", **STOPS_AFTER_5))
            await until_told(stage, "n1")
        assert_one_trace(collector)
        assert collector.pod("late").parent == collector.the("terminate node").id


ROOM = Path(gracectl.__file__).parent / "controllers" / "tracing"
PAGE = (Path(gracectl.__file__).parents[1] / "docs" / "tracing.md").read_text()
NAMES = ("pods", "holds", "trace", "tracer", "../../agent/reporting")
SOURCES = "".join((ROOM / f"{name}.py").read_text() for name in NAMES)
DOCUMENTED = set(re.findall(r"`((?:gracectl|k8s)\.[a-z_.]+)`", PAGE))
ELSEWHERE = {"gracectl.io", "k8s.cluster.name"}
"""The annotation's domain, and what the resource has."""


def written() -> set[str]:
    """As the sources spell them, in both ways that there are."""
    keywords = {name.replace("__", ".") for name in re.findall(r"\b((?:gracectl|k8s)__[a-z_]+)=", SOURCES)}
    return keywords | set(re.findall(r'"((?:gracectl|k8s)\.[a-z_.]+)"', SOURCES))


def test_every_attribute_is_on_the_page_and_none_that_is_not_there() -> None:
    assert written() - ELSEWHERE == DOCUMENTED - ELSEWHERE


@pytest.mark.parametrize(
    "words", [*WORDS.values(), "gone", "finished", "ignored", "already terminating", "terminated by another client"]
)
def test_every_way_in_which_a_pod_has_left_is_on_the_page(words: str) -> None:
    assert f"`{words}`" in PAGE
    assert f'"{words}"' in SOURCES


def test_every_step_is_on_the_page() -> None:
    tree = PAGE[PAGE.index("```text") :]
    tree = tree[: tree.index("```\n")]
    assert [step.name for step in STEPS if step.name not in tree] == []
