"""Metrics on their way: what a collector receives over HTTP, and what one that fails cannot do to us."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.to_thread
import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from support.collector import HANGING, WILLING, Collector, Conduct, SeenMetrics, attributes_of, collecting

from gracectl.runtime.clock import LoopClock
from gracectl.runtime.histogram import Distribution, Histogram, SpanRef
from gracectl.runtime.supervise import while_running
from gracectl.telemetry.exposition import PROCESS_COLLECTOR, Exposition
from gracectl.telemetry.metrics import LEADER, PODS_DRAINED, TERMINATION_DURATION, Sample
from gracectl.telemetry.otlp_metrics import MetricExport

pytestmark = pytest.mark.real_time

SPAN = SpanRef("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1_767_225_600.5)
OFTEN, NEVER = 0.02, 600.0


class World:
    """What is measured; it may change."""

    def __init__(self) -> None:
        self.drained = 3
        self.durations = Histogram(TERMINATION_DURATION.buckets)
        self.durations.observe(0.2)
        self.durations.observe(90.0, SPAN)
        self.read_by: set[str] = set()

    def samples(self) -> Iterator[Sample]:
        self.read_by.add(threading.current_thread().name)
        distribution: Distribution = self.durations.statistics()
        yield Sample(LEADER, (), 1)
        yield Sample(PODS_DRAINED, ("evicted", "a\x1b"), self.drained)
        yield Sample(TERMINATION_DURATION, ("node", "web"), distribution)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of the account that runs the tests count."""
    for name in os.environ:
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        yield found


@asynccontextmanager
async def exporting(world: World, interval: float) -> AsyncIterator[None]:
    """While the block runs; at its end the last export has been made."""
    clock = LoopClock()
    export = MetricExport(interval, lambda: 0.0, "controller-1", "prod", is_dry_run=True)
    exposition = Exposition(clock, (world.samples,), (PROCESS_COLLECTOR,), ("nodepool",))
    async with while_running(partial(export.run, exposition, clock)):
        await anyio.lowlevel.checkpoint()
        yield


async def received(collector: Collector, count: int) -> list[SeenMetrics]:
    return await anyio.to_thread.run_sync(collector.wait_for_metrics, count)


def drained(seen: SeenMetrics) -> tuple[float, int, int]:
    """Value, start and time of the counter."""
    (point,) = seen.metrics["gracectl_pods_drained_total"].sum.data_points
    return point.as_int, point.start_time_unix_nano, point.time_unix_nano


async def test_the_collector_has_what_a_scrape_has(collector: Collector) -> None:
    world = World()
    async with exporting(world, NEVER):
        pass
    (export,) = await received(collector, 1)
    identity = {"service.name": "gracectl", "service.instance.id": "controller-1", "k8s.cluster.name": "prod"}
    assert {**identity, "gracectl.dry_run": True}.items() <= export.resource.items()
    (leader,) = export.metrics["gracectl_leader"].gauge.data_points
    assert leader.as_int == 1
    counter = export.metrics["gracectl_pods_drained_total"]
    assert counter.description == PODS_DRAINED.help
    assert counter.sum.is_monotonic
    assert counter.sum.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    (point,) = counter.sum.data_points
    assert attributes_of(point.attributes) == {"how": "evicted", "nodepool": "a\\x1b"}
    assert (point.as_int, 0 < point.start_time_unix_nano < point.time_unix_nano) == (3, True)
    assert export.metrics["process_start_time_seconds"].gauge.data_points[0].as_double > 1e9
    assert export.metrics["process_cpu_seconds_total"].sum.is_monotonic
    assert world.read_by == {threading.current_thread().name}


async def test_histograms_have_buckets_and_exemplars(collector: Collector) -> None:
    async with exporting(World(), NEVER):
        pass
    (export,) = await received(collector, 1)
    histogram = export.metrics["gracectl_termination_duration_seconds"].histogram
    assert histogram.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    (point,) = histogram.data_points
    assert attributes_of(point.attributes) == {"kind": "node", "nodepool": "web"}
    assert tuple(point.explicit_bounds) == TERMINATION_DURATION.buckets
    assert len(point.bucket_counts) == len(TERMINATION_DURATION.buckets) + 1
    assert (point.count, point.sum, sum(point.bucket_counts)) == (2, 90.2, 2)
    assert not point.HasField("min")
    (exemplar,) = point.exemplars
    assert (exemplar.trace_id.hex(), exemplar.span_id.hex()) == (SPAN.trace_id, SPAN.span_id)
    assert (exemplar.as_double, exemplar.time_unix_nano) == (90.0, 1_767_225_600_500_000_000)


async def test_a_counter_that_begins_again_has_a_new_start(collector: Collector) -> None:
    """As those of a term of leadership do."""
    world = World()
    async with exporting(world, OFTEN):
        first, second = map(drained, (await received(collector, 2))[:2])
        world.drained = 1
        count = len(await received(collector, 1))
        *_, last = map(drained, await received(collector, count + 3))
    assert first[:2] == second[:2]
    assert first[2] < second[2]
    assert last[0] == 1
    assert last[1] >= second[2], "it counts from an export before"


async def test_a_refused_export_is_a_warning(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    collector.conduct = Conduct(status=400)
    caplog.set_level(logging.WARNING)
    async with exporting(World(), OFTEN):
        await anyio.to_thread.run_sync(collector.wait_for_requests, 2)
        collector.conduct = WILLING
        await received(collector, 1)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("gracectl")]
    assert said
    assert said[0].startswith("metrics: not exported: ")
    assert "400" in said[0]
    assert said[0].endswith("; trying again in 0.02 s")


async def test_one_that_hangs_delays_neither_the_loop_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting(HANGING) as hanging:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{hanging.url}/v1/metrics")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "3600")
        clock = LoopClock()
        async with exporting(World(), OFTEN):
            await anyio.to_thread.run_sync(hanging.wait_for_requests, 1)
            for _ in range(10):  # the loop runs, and no second export begins beside the first
                await clock.sleep(OFTEN)
            assert len(hanging.headers) == 1
        # It has ended, and the collector answers at the end of its own block only.


async def test_variables_set_headers_and_timeout(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "api-key=s%20t")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    async with exporting(World(), NEVER):
        pass
    assert await received(collector, 1)
    assert (collector.headers[0]["api-key"], collector.headers[0]["content-encoding"]) == ("s t", "gzip")
