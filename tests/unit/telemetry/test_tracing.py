"""Spans on their way: what a collector receives over HTTP, and what a collector that does not cannot do to us."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import anyio
import anyio.to_thread
import pytest
from kubesim_support.patience import PATIENCE
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from support.collector import HANGING, Collector, Conduct, SeenEvent, as_span, duplicates, receiving
from support.traces import orphans

from gracectl import __version__
from gracectl.telemetry import tracing as module
from gracectl.telemetry.spans import Span, SpanEvent, SpanStatistics, Trace
from gracectl.telemetry.tracing import Tracing, over_http

pytestmark = pytest.mark.real_time

AT = 1_767_225_600.0
TRACE = Trace.of("a", AT)
LONG = PATIENCE


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """No trace settings of the account that runs the tests count."""
    for name in os.environ:
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


def a_span(name: str = "drain", trace: Trace = TRACE, **changes: Any) -> Span:
    return Span(**{"trace": trace, "name": name, "start": AT, "end": AT + 1, "parent": trace.root, **changes})


def a_root(trace: Trace = TRACE) -> Span:
    return a_span("terminate node", trace, id=trace.root, parent=None)


def to(collector: Collector, monkeypatch: pytest.MonkeyPatch, monotonic: Callable[[], float] = lambda: 0.0) -> Tracing:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    return Tracing([over_http(lambda: 0.0)], monotonic, "controller-1", "prod")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """By us: pytest also hears what the SDK says to us alone."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("gracectl")]


class Admitter(SpanExporter):
    """An exporter that stands still until it is told how to end."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self.threads: set[int] = set()
        self.result: SpanExportResult | Exception = SpanExportResult.SUCCESS

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.threads.add(threading.get_ident())
        self.reached.set()
        assert self.open.wait(LONG)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def shutdown(self) -> None:
        self.open.set()


class TestArrival:
    async def test_a_span_arrives_as_it_was(self, monkeypatch: pytest.MonkeyPatch) -> None:
        attributes = {"k8s.pod.name": "web-1", "attempts": 2, "late": 0.25, "rewritten": True, "lanes": ["a/b", "a/c"]}
        events = (SpanEvent("evicted", AT + 0.5, {"code": 429}), SpanEvent("gone", AT + 1))
        with receiving() as collector:
            tracing = to(collector, monkeypatch)
            tracing.emit(a_span(id=7, end=AT + 1.25, attributes=attributes, events=events, error="left behind"))
            tracing.emit(a_span())
            tracing.emit(a_root())
            assert await tracing.close(LONG)
            tree = collector.tree(TRACE.hex)
            (arrived,) = (span for span in collector.spans() if span.id == f"{7:016x}")
        assert (tree.span.name, tree.span.id) == ("terminate node", f"{TRACE.root:016x}")
        assert (arrived.trace, arrived.parent, arrived.name) == (TRACE.hex, f"{TRACE.root:016x}", "drain")
        assert (arrived.start, arrived.end) == (1_767_225_600_000_000_000, 1_767_225_601_250_000_000)
        assert arrived.attributes == attributes
        assert arrived.events == (
            SeenEvent("evicted", 1_767_225_600_500_000_000, {"code": 429}),
            SeenEvent("gone", 1_767_225_601_000_000_000, {}),
        )
        assert (arrived.is_error, arrived.error) == (True, "left behind")
        assert (tree.span.is_error, tree.span.error) == (False, "")

    async def test_generated_ids_are_all_different(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with receiving() as collector:
            tracing = to(collector, monkeypatch)
            for _ in range(600):  # more than one batch
                tracing.emit(a_span())
            assert await tracing.close(LONG)
            assert len(collector.spans()) == 600
            assert duplicates(collector.spans()) == []
            assert len(orphans(map(as_span, collector.spans()))) == 600
        assert tracing.statistics() == SpanStatistics(exported=600, failed=0, dropped=0, waiting=0)

    async def test_a_clock_set_back_makes_no_negative_span(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with receiving() as collector:
            tracing = to(collector, monkeypatch)
            tracing.emit(a_span(end=AT - 5))
            await tracing.close(LONG)
            (span,) = collector.spans()
        assert span.start == span.end == 1_767_225_600_000_000_000

    async def test_they_leave_while_the_process_lives_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with receiving() as collector:
            tracing = to(collector, monkeypatch)
            tracing.emit(a_span())
            await anyio.to_thread.run_sync(collector.wait_for_spans, 1)
            assert tracing.statistics().exported == 1 or tracing.statistics().waiting == 1
            await tracing.close(LONG)


class TestVariables:
    """What the standard's variables change."""

    @pytest.mark.parametrize(("variables", "expected"), [
        ({}, {"service.name": "gracectl", "service.version": __version__, "service.instance.id": "controller-1"}),
        ({"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test"}, {"k8s.cluster.name": "prod"}),
        ({"OTEL_RESOURCE_ATTRIBUTES": "k8s.cluster.name=theirs"}, {"k8s.cluster.name": "theirs"}),
        ({"OTEL_SERVICE_NAME": "ours"}, {"service.name": "ours", "service.version": __version__}),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=theirs,deployment.environment=test"},
         {"service.name": "theirs", "deployment.environment": "test"}),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=theirs", "OTEL_SERVICE_NAME": "ours"}, {"service.name": "ours"}),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.version=7,service.instance.id=pod-1"},
         {"service.name": "gracectl", "service.version": "7", "service.instance.id": "pod-1"}),
    ])  # fmt: skip
    async def test_resource_attributes(
        self, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: dict[str, str]
    ) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with receiving() as collector:
            tracing = to(collector, monkeypatch)
            tracing.emit(a_root())
            await tracing.close(LONG)
            (span,) = collector.spans()
        assert expected.items() <= span.resource.items()
        assert span.resource.items() >= {**tracing.identity}.items()

    @pytest.mark.parametrize("is_dry_run", [True, False])
    async def test_traces_of_a_dry_run_are_marked(self, *, is_dry_run: bool) -> None:
        tracing = Tracing([], lambda: 0.0, is_dry_run=is_dry_run)
        assert ("gracectl.dry_run" in tracing.identity) is is_dry_run
        await tracing.close(LONG)

    async def test_headers_and_compression(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s%20t,tenant=7")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        with receiving() as collector:
            tracing = to(collector, monkeypatch)
            tracing.emit(a_root())
            await tracing.close(LONG)
            assert collector.traces() == [TRACE.hex]
            (headers,) = collector.headers
        assert (headers["api-key"], headers["tenant"], headers["content-encoding"]) == ("s t", "7", "gzip")

    async def test_an_endpoint_for_traces_alone_is_the_whole_url(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with receiving() as collector:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.url}/v1/traces")
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
            tracing = Tracing([over_http(lambda: 0.0)], lambda: 0.0)
            tracing.emit(a_root())
            assert await tracing.close(LONG)
            assert collector.traces() == [TRACE.hex]

    async def test_the_length_of_values(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "3")
        with receiving() as collector:
            tracing = to(collector, monkeypatch)
            tracing.emit(
                a_span(attributes={"a": "12345", "b": ["67890"]}, events=(SpanEvent("m", AT, {"c": "12345"}),))
            )
            await tracing.close(LONG)
            (span,) = collector.spans()
        assert span.attributes == {"a": "123", "b": ["678"]}
        assert span.events[0].attributes == {"c": "123"}

    async def test_what_the_sdk_cannot_read_is_said_once_and_not_obeyed(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "sometimes")
        tracing = Tracing([], lambda: 0.0)
        assert said(caplog) == ["traces: Couldn't recognize sampler sometimes."]
        assert tracing.is_sampled(TRACE)

    @pytest.mark.parametrize(("name", "value", "message"), [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many", "OTEL_BSP_MAX_QUEUE_SIZE: 'many' is not a number of spans such as 16384"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "OTEL_BSP_*: max_queue_size must be a positive integer."),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "20000",
         "OTEL_BSP_*: max_export_batch_size must be less than or equal to max_queue_size."),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "-1",
         "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT must be a non-negative integer but got -1"),
    ])  # fmt: skip
    async def test_what_makes_no_sense_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
    ) -> None:
        monkeypatch.setenv(name, value)
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            Tracing([Admitter()], lambda: 0.0)


def a_trace(number: int) -> Trace:
    return Trace.of(f"uid-{number}", AT)


class TestSampling:
    @pytest.mark.parametrize("sampler", ["always_off", "parentbased_always_off"])
    async def test_none(self, monkeypatch: pytest.MonkeyPatch, sampler: str) -> None:
        """What is not wanted counts as nothing, and does not wait for anything."""
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
        with receiving() as collector:
            tracing = to(collector, monkeypatch)
            for _ in range(3):
                tracing.emit(a_span())
            assert not tracing.is_sampled(TRACE)
            assert tracing.statistics() == SpanStatistics(exported=0, failed=0, dropped=0, waiting=0)
            await tracing.close(LONG)
            assert collector.headers == []

    @pytest.mark.parametrize("sampler", ["traceidratio", "parentbased_traceidratio"])
    async def test_a_share_of_whole_traces(self, monkeypatch: pytest.MonkeyPatch, sampler: str) -> None:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.25")
        traces = [a_trace(number) for number in range(200)]
        with receiving() as collector:
            tracing, successor = to(collector, monkeypatch), to(collector, monkeypatch)
            for trace in traces:
                tracing.emit(a_span(trace=trace))
                successor.emit(a_root(trace))
            for each in (tracing, successor):
                assert await each.close(LONG)
            wanted = {trace.hex for trace in traces if tracing.is_sampled(trace)}
            assert set(collector.traces()) == wanted
            assert 25 <= len(wanted) <= 75
            for id_ in wanted:
                assert collector.tree(id_).names() == ["drain"]

    async def test_another_process_samples_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
        script = (
            "from gracectl.telemetry.spans import Trace; from gracectl.telemetry.tracing import Tracing\n"
            f"tracing = Tracing([], lambda: 0.0)\n"
            f"print(*(int(tracing.is_sampled(Trace.of(f'uid-{{number}}', {AT}))) for number in range(50)))"
        )
        done = await anyio.run_process([sys.executable, "-c", script])
        here = Tracing([], lambda: 0.0)
        assert done.stdout.split() == [b"%d" % here.is_sampled(a_trace(number)) for number in range(50)]


class TestNobodyTakesThem:
    """Dead, slow, and hanging collectors."""

    async def test_to_emit_only_puts_on_a_queue(self) -> None:
        """While the exporter stands still, in another thread, spans go on being taken."""
        gate = Admitter()
        tracing = Tracing([gate], lambda: 0.0)
        tracing.emit(a_span())
        await anyio.to_thread.run_sync(gate.reached.wait, LONG)
        for _ in range(1000):
            tracing.emit(a_span())
        assert tracing.statistics() == SpanStatistics(exported=0, failed=0, dropped=0, waiting=1001)
        assert threading.get_ident() not in gate.threads
        gate.open.set()
        assert await tracing.close(LONG)
        assert tracing.statistics() == SpanStatistics(exported=1001, failed=0, dropped=0, waiting=0)

    async def test_what_finds_no_room_is_dropped_and_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
        gate = Admitter()
        tracing = Tracing([gate], lambda: 0.0)
        for _ in range(25):
            tracing.emit(a_span())
        assert tracing.statistics() == SpanStatistics(exported=0, failed=0, dropped=15, waiting=10)
        gate.open.set()
        assert await tracing.close(LONG)
        assert tracing.statistics() == SpanStatistics(exported=10, failed=0, dropped=15, waiting=0)

    async def test_after_the_end_no_span_is_taken(self) -> None:
        gate = Admitter()
        gate.open.set()
        tracing = Tracing([gate], lambda: 0.0)
        assert await tracing.close(LONG)
        tracing.emit(a_span())
        assert tracing.statistics() == SpanStatistics(exported=0, failed=0, dropped=1, waiting=0)

    @pytest.mark.parametrize("result", [SpanExportResult.FAILURE, RuntimeError("no such thing")])
    async def test_an_exporter_that_fails_loses_what_it_had(
        self, result: SpanExportResult | Exception, caplog: pytest.LogCaptureFixture
    ) -> None:
        gate, other = Admitter(), Admitter()
        gate.result = result
        for each in (gate, other):
            each.open.set()
        tracing = Tracing([gate, other], lambda: 0.0)
        tracing.emit(a_span())
        assert await tracing.close(LONG)
        assert tracing.statistics() == SpanStatistics(exported=0, failed=1, dropped=0, waiting=0)
        reason = "no reason given" if isinstance(result, SpanExportResult) else "RuntimeError: no such thing"
        assert said(caplog) == [f"traces: 1 spans lost so far: {reason}"]

    async def test_one_warning_in_a_minute_with_the_reason(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        now = count(0, 30)  # seconds, of each look at the clock
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
        with receiving(Conduct(status=400)) as collector:
            tracing = to(collector, monkeypatch, lambda: float(next(now)))
            for _ in range(5):
                tracing.emit(a_span())
            assert await tracing.close(LONG)
            assert len(collector.headers) == 5, "what is refused for good is not tried again"
        reason = "Failed to export spans batch code: 400, reason: Bad Request"
        assert said(caplog) == [f"traces: {lost} spans lost so far: {reason}" for lost in (1, 3, 5)]
        ours = [record for record in caplog.records if record.name.startswith("gracectl")]
        assert {record.levelno for record in ours} == {logging.WARNING}
        assert tracing.statistics() == SpanStatistics(exported=0, failed=5, dropped=0, waiting=0)

    @pytest.mark.parametrize("status", [429, 503])
    async def test_a_busy_collector_is_asked_again_when_it_says(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, status: int
    ) -> None:
        with receiving(Conduct(status=status, retry_after=0, then=Conduct())) as collector:
            tracing = to(collector, monkeypatch)
            tracing.emit(a_root())
            await anyio.to_thread.run_sync(collector.wait_for_requests, 1)
            assert await tracing.close(LONG)
            assert collector.traces() == [TRACE.hex]
        assert said(caplog) == []
        assert tracing.statistics() == SpanStatistics(exported=1, failed=0, dropped=0, waiting=0)

    async def test_a_slow_collector_gets_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with receiving(Conduct(seconds=0.2)) as collector:
            tracing = to(collector, monkeypatch)
            for _ in range(1100):  # three batches
                tracing.emit(a_span())
            assert await tracing.close(LONG)
            assert len(collector.spans()) == 1100

    async def test_a_dead_collector(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        with receiving() as collector:
            pass
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")  # seconds, of all its tries
        tracing = to(collector, monkeypatch)
        tracing.emit(a_span())
        assert await tracing.close(LONG)
        assert tracing.statistics() == SpanStatistics(exported=0, failed=1, dropped=0, waiting=0)
        (message,) = said(caplog)
        assert message.startswith("traces: 1 spans lost so far: ")

    async def test_a_collector_that_hangs_is_not_waited_for(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with receiving(HANGING) as collector:
            tracing = to(collector, monkeypatch)
            tracing.emit(a_span())
            await anyio.to_thread.run_sync(collector.wait_for_requests, 1)
            assert not await tracing.close(0.05)
            assert said(caplog) == ["traces: 1 spans lost: not exported after 0.05 s"]


ENDING = """
import asyncio, sys
from gracectl.telemetry.spans import Span, Trace
from gracectl.telemetry.tracing import Tracing, over_http

async def main():
    tracing = Tracing([over_http(lambda: 0.0)], lambda: 0.0)
    trace = Trace.of("a", 0.0)
    tracing.emit(Span(trace=trace, name="terminate node", start=0.0, end=1.0, id=trace.root))
    print(await tracing.close(float(sys.argv[1])))

asyncio.run(main(), debug=False)
"""


LOST = "traces: 1 spans lost so far: Failed to export spans batch code: 400, reason: Bad Request\n"
NOT_EXPORTED = "traces: 1 spans lost: not exported after 0.1 s\n"


@pytest.mark.parametrize(("conduct", "seconds", "is_done", "warning"), [
    pytest.param(Conduct(), LONG, True, "", id="willing"),
    pytest.param(Conduct(status=400), LONG, True, LOST, id="refusing"),
    pytest.param(HANGING, 0.1, False, NOT_EXPORTED, id="hanging"),
    pytest.param(None, 0.1, False, NOT_EXPORTED, id="dead"),
])  # fmt: skip
async def test_nothing_keeps_the_process_from_ending(
    monkeypatch: pytest.MonkeyPatch, conduct: Conduct | None, seconds: float, is_done: bool, warning: str
) -> None:
    """No thread, and no socket of which Python warns that it is left open; and we say no more than what we say."""
    with receiving(conduct or Conduct()) as collector:
        url = collector.url if conduct else "http://127.0.0.1:1"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        command = [sys.executable, "-X", "dev", "-W", "error", "-c", ENDING, str(seconds)]
        with anyio.fail_after(LONG):
            done = await anyio.run_process(command, check=False, stderr=subprocess.PIPE)
    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == (0, f"{is_done}\n", warning)


def test_the_room_is_that_of_a_big_cluster() -> None:
    assert (module.QUEUE, module.DELAY_MILLISECONDS, module.SECONDS_BETWEEN_WARNINGS) == (16_384, 1000, 60.0)
