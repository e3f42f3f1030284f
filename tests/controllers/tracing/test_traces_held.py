"""What held a node, and for how long: the names of a trace's spans say it, as a collector receives them."""

from __future__ import annotations

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from support.collector import as_span, collecting
from support.replacing import the_pod, web
from support.stage import a_budget_manifest, staged
from support.traces import Collector, assert_one_trace, terminated

from examples.held import NODE, play, what_held
from gracectl.config import Settings
from gracectl.telemetry.spans import Span
from gracectl.telemetry.tracing import Tracing


@pytest.fixture
async def told() -> Collector:
    async with staged(NODE, settings=Settings()) as stage:
        return await play(stage)


def received(found: Collector) -> list[Span]:
    """The spans as they come out of a collector."""
    with collecting() as collector:
        tracing = Tracing([OTLPSpanExporter(endpoint=f"{collector.url}/v1/traces")], lambda: 0.0)
        for span in found.exact:
            tracing.emit(span)
        collector.wait_for_spans(len(found.exact))
        return [as_span(span) for span in collector.spans()]


async def test_names_alone_say_what_held_the_node_and_for_how_long(told: Collector) -> None:
    held = {cause: round(seconds) for cause, seconds in what_held(received(told)).items()}
    failing = told.the("instance fails: ProviderUnavailable")
    assert 45 <= held.pop("no leader") <= 49  # a contender counts the lease from when it has seen it
    assert held == {
        "protected until 2026-01-01T00:00:30Z": 30,
        "blocked by budget shop/vault": 40,  # deleted while the node drained
        "waiting for wave non-critical": 40,
        "instance fails: ProviderUnavailable": round(failing.end - failing.start),  # ten retries with jitter
    }


async def test_each_hold_is_below_what_it_held(told: Collector) -> None:
    assert_one_trace(told)
    spans = {span.id: span for span in told.spans}
    assert told.holds("job") == [("protected until 2026-01-01T00:00:30Z", 0, 30)]
    assert told.holds("vault") == [("blocked by budget shop/vault", 0, 40)]
    wave, gap = told.the("waiting for wave non-critical"), told.the("no leader")
    assert (spans[wave.parent].name, wave.start, wave.end) == ("drain", 0, 40)
    assert spans[gap.parent].name == "terminate node"
    assert 51 <= gap.start <= 53 <= 83 <= gap.end  # killed at 53, and the next one began at 83
    failing = told.the("instance fails: ProviderUnavailable")
    assert (failing.error, spans[failing.parent].name) == ("quota", "instance")


async def test_totals_are_on_drain_and_root_as_their_last_process_saw_them(told: Collector) -> None:
    held = {name: told.the(name).attributes["gracectl.held"] for name in ("drain", "terminate node")}
    gap, failing = told.the("no leader"), told.the("instance fails: ProviderUnavailable")
    totals = sorted(((each.end - each.start, each.name) for each in (gap, failing)), reverse=True)
    assert held == {
        "drain": [
            "40.0 s: waiting for wave non-critical",
            "40.0 s: blocked by budget shop/vault",
            "30.0 s: protected until 2026-01-01T00:00:30Z",
        ],
        "terminate node": [f"{seconds:.1f} s: {name}" for seconds, name in totals],
    }


async def test_a_replacement_has_a_span_of_its_own() -> None:
    async with staged("n1", objects=[web(ready=7.0), a_budget_manifest("web", minAvailable=1)]) as stage:
        await stage.add_nodes("n2")
        name = (await the_pod(stage))["metadata"]["name"]
        found = await terminated(stage, "n1")
        assert_one_trace(found)
        assert [(cause, end - start) for cause, start, end in found.holds(name)] == [("replacing", 7)]
