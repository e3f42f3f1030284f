"""`/metrics`: what the parts say of themselves when somebody asks, as Prometheus reads it.

There is no registry that parts write to: a scrape reads their statistics, so that what nobody scrapes costs nothing.
Invariant: a scrape changes nothing, and one that fails is answered with 500 and logged; the process lives on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

import anyio
from aiohttp import web
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.utils import floatToGoString

from gracectl.telemetry.metrics import CATALOGUE, Distribution, Metric, Sample

logger = logging.getLogger(__name__)

PATH = "/metrics"

Source = Callable[[], Iterable[Sample]]
"""Reads the statistics of some part; must be quick, as nothing else happens meanwhile."""


class Families:
    """A collector as prometheus_client wants one; asks the sources anew with each scrape."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = tuple(sources)

    def collect(self) -> Iterator[Family]:
        """Every metric of the catalogue that has samples, in its order. ValueError for samples of another metric."""
        found: dict[Metric, list[Sample]] = {metric: [] for metric in CATALOGUE}
        for source in self._sources:
            for sample in source():
                if sample.metric not in found:
                    raise ValueError(f"metric {sample.metric.name} is not in the catalogue")
                found[sample.metric].append(sample)
        return (family_of(metric, samples) for metric, samples in found.items() if samples)


def family_of(metric: Metric, samples: Iterable[Sample]) -> Family:
    """One metric with its samples, as prometheus_client has it."""
    if metric.type == "gauge":
        gauge = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        for sample in samples:
            assert not isinstance(sample.value, Distribution)
            gauge.add_metric(sample.labels, sample.value)
        return gauge
    histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for sample in samples:
        assert isinstance(sample.value, Distribution)
        histogram.add_metric(sample.labels, _cumulated(metric, sample.value), sample.value.total)
    return histogram


def _cumulated(metric: Metric, seen: Distribution) -> list[tuple[str, float]]:
    bounds = [*map(floatToGoString, metric.buckets), "+Inf"]
    return [(bound, float(sum(seen.counts[: n + 1]))) for n, bound in enumerate(bounds)]


class Exposition:
    """Serves the samples of some sources over HTTP."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._families = Families(sources)
        self._runner: web.AppRunner | None = None

    async def open(self, host: str | None, port: int) -> str:
        """Listen there (see MetricsSettings.address) and answer, until closed; returns the URL.

        OSError or UnicodeError if that is not possible.
        """
        application = web.Application()
        application.router.add_get(PATH, self._answer)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        bound = self._runner.addresses[0]
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        return f"http://{shown}:{bound[1]}{PATH}"

    async def run(self) -> None:
        """A part: once open, answer until cancelled."""
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await self.close()

    async def close(self) -> None:
        """Listen no more."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """What is shown now, and its content type, in the best format that the `Accept` header takes."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._families), content_type

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            body, content_type = self.render(request.headers.get("Accept", ""))
        except Exception:  # whatever a source makes of what it sees, the controllers must not die of it
            logger.exception("the metrics could not be read")
            return web.Response(status=500, text="the metrics could not be read; the log of gracectl says why\n")
        return web.Response(body=body, headers={"Content-Type": content_type})
