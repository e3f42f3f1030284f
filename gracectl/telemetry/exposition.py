"""`/metrics`: statistics of the components, read at each scrape, in Prometheus' format.

There is no registry that components write to, so metrics without a scrape cost nothing. Invariants: a scrape changes
nothing; one that fails gets status 500 and is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, Final

import anyio
import anyio.lowlevel
from aiohttp import web
from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from gracectl.model.foreign import visible
from gracectl.runtime.clock import Clock
from gracectl.runtime.histogram import Distribution
from gracectl.telemetry.connections import BodyReader
from gracectl.telemetry.metrics import CATALOGUE, Metric, Sample

logger = logging.getLogger(__name__)

PATH = "/metrics"

PROCESS_COLLECTOR: Final = ProcessCollector(registry=None)
"""Metrics of the process that every Prometheus client library has: CPU, memory, file descriptors, start time."""

REUSE_FACTOR: Final = 4

Source = Callable[[], Iterable[Sample | None]]
"""Reads the statistics of a component. A None is not a sample: it lets other tasks run."""


class Families:
    """Collector for prometheus_client, of samples read before. `node_labels`: the optional labels of metrics."""

    def __init__(self, collectors: Iterable[Collector] = (), node_labels: tuple[str, ...] = ()) -> None:
        self._samples: dict[Metric, list[Sample]] = {metric: [] for metric in CATALOGUE}
        self._collectors = collectors
        self._node_labels = node_labels

    def add(self, samples: Iterable[Sample]) -> None:
        """Add samples. ValueError for a metric that is not in the catalogue."""
        for sample in samples:
            if sample.metric not in self._samples:
                raise ValueError(f"metric {sample.metric.name} is not in the catalogue")
            self._samples[sample.metric].append(sample)

    def samples(self) -> Iterator[tuple[Metric, Sequence[Sample]]]:
        """Every metric of the catalogue that has samples, in its order."""
        return ((metric, samples) for metric, samples in self._samples.items() if samples)

    def labels_of(self, metric: Metric) -> tuple[str, ...]:
        """Names of the labels of its samples."""
        return _labels(metric, self._node_labels)

    def others(self) -> Iterator[Family]:
        """Metrics of the other collectors."""
        return chain.from_iterable(each.collect() for each in self._collectors)

    def collect(self) -> Iterator[Family]:
        """All metrics for prometheus_client, the catalogue first."""
        ours = (family_of(metric, samples, self._node_labels) for metric, samples in self.samples())
        return chain(ours, self.others())


def family_of(metric: Metric, samples: Iterable[Sample], node_labels: tuple[str, ...] = ()) -> Family:
    """One metric with its samples, for prometheus_client."""
    labels = _labels(metric, node_labels)
    if metric.type != "histogram":
        kind = GaugeMetricFamily if metric.type == "gauge" else CounterMetricFamily
        family = kind(metric.name, metric.help, labels=labels)
        for sample in samples:
            assert not isinstance(sample.value, Distribution)
            family.add_metric([*map(visible, sample.labels)], sample.value)
        return family
    histogram = HistogramMetricFamily(metric.name, metric.help, labels=labels)
    for sample in samples:
        assert isinstance(sample.value, Distribution)
        histogram.add_metric([*map(visible, sample.labels)], _cumulated(metric, sample.value), sample.value.total)
    return histogram


def _labels(metric: Metric, node_labels: tuple[str, ...]) -> tuple[str, ...]:
    return (*metric.labels, *(node_labels if metric.of_nodes else ()))


def _cumulated(metric: Metric, distribution: Distribution) -> list[tuple[Any, ...]]:
    """Buckets, with exemplars, which only OpenMetrics shows."""
    bounds = (*map(floatToGoString, metric.buckets), "+Inf")
    counts = map(float, accumulate(distribution.counts))
    examples = (distribution.examples.get(index) for index in range(len(bounds)))
    return [
        (bound, count)
        if example is None
        else (bound, count, Exemplar({"trace_id": example.span.trace_id}, example.value))
        for bound, count, example in zip(bounds, counts, examples, strict=True)
    ]


class Exposition:
    """Serves scrapes with the samples of some sources; `collectors`: prometheus_client's own. `node_labels`: names of
    the optional labels, whose values the samples have.

    One reading runs at a time, serves all scrapes that came before it, and is reused for REUSE_FACTOR times as long
    as it took: scrapes never take more than a fifth of the event loop's time.
    """

    def __init__(
        self,
        clock: Clock,
        sources: Iterable[Source],
        collectors: Iterable[Collector] = (),
        node_labels: tuple[str, ...] = (),
    ) -> None:
        self._clock = clock
        self._node_labels = node_labels
        self._sources = tuple(sources)
        self._collectors = tuple(collectors)
        self._lock = anyio.Lock()
        self._reading: _Reading | None = None
        self._made = 0

    async def render(self, accept: str = "") -> tuple[bytes, str]:
        """Current exposition, and its content type, in the best format that the `Accept` header allows.

        Other tasks run between two sources, and when a source yields None.
        """
        encoder, content_type = choose_encoder(accept)
        made = self._made
        async with self._lock:
            reading = await self._current(made)
            if content_type not in reading.bodies:
                began = self._clock.monotonic()
                reading.bodies[content_type] = encoder(reading.families)
                reading.until += (self._clock.monotonic() - began) * (REUSE_FACTOR + 1)
            return reading.bodies[content_type], content_type

    async def read(self) -> Families:
        """Current samples; see `render`."""
        made = self._made
        async with self._lock:
            return (await self._current(made)).families

    async def _current(self, made: int) -> _Reading:
        """Reading for a caller that came after `made` readings; the caller has the lock."""
        reading = self._reading
        if reading is None or (self._made == made and self._clock.monotonic() >= reading.until):
            reading = self._reading = await self._read()
            self._made += 1
        return reading

    async def handle(self, request: web.BaseRequest, _: BodyReader) -> web.Response:
        """HTTP handler of a scrape."""
        try:
            body, content_type = await self.render(request.headers.get("Accept", ""))
        except Exception:  # a bug in a source must not stop the controllers
            logger.exception("metrics: unexpected failure")
            return web.Response(status=500, text="metrics: unexpected failure; see gracectl's log\n")
        response = web.Response(body=body, headers={"Content-Type": content_type})
        response.enable_compression()  # if the request accepts it
        return response

    async def _read(self) -> _Reading:
        began = self._clock.monotonic()
        families = Families(self._collectors, self._node_labels)
        for source in self._sources:
            for sample in source():
                if sample is None:
                    await anyio.lowlevel.checkpoint()
                else:
                    families.add((sample,))
            await anyio.lowlevel.checkpoint()
        ended = self._clock.monotonic()
        return _Reading(families, ended + (ended - began) * REUSE_FACTOR)


class _Reading:
    """Samples of one reading, encoded per content type, and until when they are reused."""

    def __init__(self, families: Families, until: float) -> None:
        self.families = families
        self.until = until
        self.bodies: dict[str, bytes] = {}
