"""`/metrics`: what the parts say of themselves when somebody asks, as Prometheus reads it.

There is no registry that parts write to: a scrape reads their statistics, so that what nobody scrapes costs nothing.
Invariant: a scrape changes nothing, and one that fails is answered with 500 and logged; the process lives on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, chain
from typing import Final

import anyio
import anyio.lowlevel
from aiohttp import web
from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gracectl.model.foreign import visible
from gracectl.runtime.clock import Clock
from gracectl.runtime.histogram import Distribution
from gracectl.telemetry.connections import Bodies
from gracectl.telemetry.metrics import CATALOGUE, Metric, Sample

logger = logging.getLogger(__name__)

PATH = "/metrics"

OF_PROCESS: Final = ProcessCollector(registry=None)
"""The metrics that every Prometheus client library has of its process: CPU, memory, file descriptors, its start."""

REST: Final = 4

Source = Callable[[], Iterable[Sample | None]]
"""Reads the statistics of some part. It blocks the event loop up to the next None, which is no sample."""


class Families:
    """A collector as prometheus_client wants one, of samples that were read already."""

    def __init__(self, others: Iterable[Collector] = ()) -> None:
        self._found: dict[Metric, list[Sample]] = {metric: [] for metric in CATALOGUE}
        self._others = others

    def take(self, samples: Iterable[Sample]) -> None:
        """Add these. ValueError for samples of a metric that is not in the catalogue."""
        for sample in samples:
            if sample.metric not in self._found:
                raise ValueError(f"metric {sample.metric.name} is not in the catalogue")
            self._found[sample.metric].append(sample)

    def collect(self) -> Iterator[Family]:
        """Every metric of the catalogue that has samples, in its order, and then what others collect."""
        ours = (family_of(metric, samples) for metric, samples in self._found.items() if samples)
        return chain(ours, *(other.collect() for other in self._others))


def family_of(metric: Metric, samples: Iterable[Sample]) -> Family:
    """One metric with its samples, as prometheus_client has it."""
    if metric.type != "histogram":
        kind = GaugeMetricFamily if metric.type == "gauge" else CounterMetricFamily
        figures = kind(metric.name, metric.help, labels=metric.labels)
        for sample in samples:
            assert not isinstance(sample.value, Distribution)
            figures.add_metric([*map(visible, sample.labels)], sample.value)
        return figures
    histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for sample in samples:
        assert isinstance(sample.value, Distribution)
        histogram.add_metric([*map(visible, sample.labels)], _cumulated(metric, sample.value), sample.value.total)
    return histogram


def _cumulated(metric: Metric, seen: Distribution) -> list[tuple[str, float]]:
    return [*zip((*map(floatToGoString, metric.buckets), "+Inf"), map(float, accumulate(seen.counts)), strict=True)]


class Exposition:
    """Answers scrapes with the samples of some sources; `others` are collectors that prometheus_client has.

    However many ask, one reading is made at a time, all who asked before it was made are answered by it, and it is used
    again for REST times as long as it took: scrapes never take more than a fifth of the event loop's time.
    """

    def __init__(self, clock: Clock, sources: Iterable[Source], others: Iterable[Collector] = ()) -> None:
        self._clock = clock
        self._sources = tuple(sources)
        self._others = tuple(others)
        self._lock = anyio.Lock()
        self._reading: _Reading | None = None
        self._made = 0

    async def render(self, accept: str = "") -> tuple[bytes, str]:
        """What is shown now, and its content type, in the best format that the `Accept` header takes.

        Other tasks run between two sources, and wherever one gives None.
        """
        encoder, content_type = choose_encoder(accept)
        made = self._made
        async with self._lock:
            reading = self._reading
            if reading is None or (self._made == made and self._clock.monotonic() >= reading.until):
                reading = self._reading = await self._read()
                self._made += 1
            if content_type not in reading.bodies:
                began = self._clock.monotonic()
                reading.bodies[content_type] = encoder(reading.families)
                reading.until += (self._clock.monotonic() - began) * (REST + 1)
            return reading.bodies[content_type], content_type

    async def answer(self, request: web.BaseRequest, _: Bodies) -> web.Response:
        """A scrape."""
        try:
            body, content_type = await self.render(request.headers.get("Accept", ""))
        except Exception:  # whatever a source makes of what it sees, the controllers must not die of it
            logger.exception("the metrics could not be read")
            return web.Response(status=500, text="the metrics could not be read; the log of gracectl says why\n")
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _read(self) -> _Reading:
        began = self._clock.monotonic()
        families = Families(self._others)
        for source in self._sources:
            for sample in source():
                if sample is None:
                    await anyio.lowlevel.checkpoint()
                else:
                    families.take((sample,))
            await anyio.lowlevel.checkpoint()
        ended = self._clock.monotonic()
        return _Reading(families, ended + (ended - began) * REST)


class _Reading:
    """What the sources said, as it was written for each content type, and until when it is used again."""

    def __init__(self, families: Families, until: float) -> None:
        self.families = families
        self.until = until
        self.bodies: dict[str, bytes] = {}
