"""One trace per termination, as a collector receives it, from three processes, of which one is killed."""

from __future__ import annotations

import signal

import pytest
from e2e_support.story import Story
from support.collector import Collector, SeenSpan, collecting

from gracectl.model import names
from gracectl.model.times import parse_time

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]

PODS = 6
JOBS = ("early", "late")
STEPS = {"claim", "deadline", "notice", "cordon", "drain", "volumes", "instance", "finalizer"}
BATCH_SECONDS = 3.0
"""More than a span waits until it is sent."""


def told(collector: Collector) -> tuple[SeenSpan, ...]:
    """The spans of the only trace there is."""
    (trace,) = collector.traces()
    return collector.spans(trace)


def below(spans: tuple[SeenSpan, ...], parent: SeenSpan) -> list[SeenSpan]:
    return [span for span in spans if span.parent == parent.id]


async def test_a_kill_and_a_handover_leave_one_whole_trace(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first evicts what it may and is killed, the second gets SIGTERM, the third finishes."""
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        first = await story.controller()
        await first.until_said("this process leads")
        (leaving,) = await story.nodes("a")
        pods = await story.workload("Deployment", "web", PODS, replicas=PODS, behaviour={"stop-seconds": "1"})
        await story.budget("web", "web", maxUnavailable=1)
        jobs = [await story.pod(name, on=leaving, annotations={names.DO_NOT_DISRUPT: "true"}) for name in JOBS]
        await story.nodes("refuge")
        second = await story.controller()
        await second.until_said("standby: ")
        await story.delete("Node", leaving)
        await story.sight.until("web is elsewhere", lambda: len(story.pods_on(leaving)) == len(JOBS))
        await story.clock.sleep(BATCH_SECONDS)
        first.send(signal.SIGKILL)
        assert await first.ended() == -signal.SIGKILL

        await second.until_said("this process leads")
        third = await story.controller()
        await third.until_said("standby: ")
        await unprotected(story, "early")
        await second.until_said("pod evicted")
        await story.sight.until("the early one is gone", lambda: len(story.pods_on(leaving)) == 1)
        await story.clock.sleep(0.5)  # not yet sent, when it is told to stop
        second.send(signal.SIGTERM)
        assert await second.ended() == 0

        await third.until_said("this process leads")
        await unprotected(story, "late")
        node = story.sees("Node", leaving)
        await story.until_gone(leaving)
        await third.until_said("node is terminated")
        third.send(signal.SIGTERM)
        assert await third.ended() == 0
        spans = told(collector)

    (root,) = (span for span in spans if not span.parent)
    assert (root.name, root.attributes["k8s.node.name"]) == ("terminate node", leaving)
    assert root.start == parse_time(node["metadata"]["deletionTimestamp"]) * 1e9
    assert node["metadata"]["annotations"][names.TRACEPARENT] == f"00-{root.trace}-{root.id}-01"
    assert len({span.resource["service.instance.id"] for span in spans}) == 3, "each of them has told a part"
    assert {span.name for span in below(spans, root)} == {*STEPS, "no leader"}
    assert all(span.attributes["k8s.node.name"] == leaving for span in spans)
    (drain,) = {span.id: span for span in spans if span.name == "drain"}.values()
    (wave,) = {span.id: span for span in below(spans, drain)}.values()
    assert wave.name == "wave non-critical"
    # Of a second and more only: the first process, which has seen them for longest, was killed.
    assert {span.name for span in spans if span.name.startswith("protected")} <= {"protected by do-not-disrupt"}
    # The first process has seen some of the pods to their end, and the next what was left of them.
    asked = [span for span in (*below(spans, wave), *below(spans, drain)) if "gracectl.pod.left" in span.attributes]
    left = {span.attributes["k8s.pod.uid"]: span for span in asked if span.name != "pod terminating"}
    assert left.keys() == {pod["metadata"]["uid"] for pod in (*pods, *jobs)}
    assert {span.attributes["gracectl.pod.left"] for span in left.values()} <= {"evicted", "already terminating"}
    for pod in pods:
        assert left[pod["metadata"]["uid"]].attributes["gracectl.queue"] == f"{story.namespace}/web"
    for program in (first, second, third):
        ours = {entry["trace_id"] for entry in program.entries() if "trace_id" in entry}
        assert ours == {root.trace}


async def unprotected(story: Story, pod: str) -> None:
    await story.patch("Pod", pod, {"metadata": {"annotations": {names.DO_NOT_DISRUPT: None}}})
