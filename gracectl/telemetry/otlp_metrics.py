"""Export of metrics by OTLP over HTTP: the samples of a scrape, sent to a collector at an interval.

Names, labels and buckets come from the catalogue. Invariants: the event loop only reads, as for a scrape; a thread
encodes and sends; one export runs at a time. Counters are cumulative, and a series that restarts has a new start time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import anyio
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from gracectl import __version__
from gracectl.model.foreign import visible
from gracectl.runtime.clock import Clock
from gracectl.runtime.histogram import Distribution
from gracectl.telemetry.collector import bounded_session, in_daemon_thread
from gracectl.telemetry.exposition import Exposition, Families
from gracectl.telemetry.metrics import Metric, Sample
from gracectl.telemetry.tracing import Reasons, capture_sdk_logs, nanoseconds, resource_of

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

logger = logging.getLogger(__name__)

LAST_EXPORT_SECONDS: Final = 2.0
"""At the end a collector that does not answer has this long."""

_SDK_LOGGER: Final = OTLPMetricExporter.__module__
_CUMULATIVE: Final = sdk.AggregationTemporality.CUMULATIVE


class MetricExport:
    """Export every `interval` seconds to the collector that the OTEL_EXPORTER_OTLP_* variables name.

    `monotonic`, `identity` and `cluster` as for Tracing.
    """

    def __init__(
        self,
        interval: float,
        monotonic: Callable[[], float],
        identity: str = "",
        cluster: str = "",
        *,
        is_dry_run: bool = False,
    ) -> None:
        """ValueError for invalid variables."""
        self._interval = interval
        self._reasons = Reasons()
        capture_sdk_logs(self._reasons, _SDK_LOGGER)
        self._exporter = OTLPMetricExporter(session=bounded_session(monotonic))
        self._resource = resource_of(identity, cluster, is_dry_run=is_dry_run)
        self._scope = InstrumentationScope("gracectl", __version__)

    async def run(self, exposition: Exposition, clock: Clock) -> None:
        """Component: export what `exposition` reads until cancelled, and once more then."""
        starts = _Starts(nanoseconds(clock.now()))
        try:
            while True:
                await clock.sleep(self._interval)
                await self._export(exposition, clock, starts)
        finally:
            with anyio.move_on_after(LAST_EXPORT_SECONDS, shield=True):
                await self._export(exposition, clock, starts)

    async def _export(self, exposition: Exposition, clock: Clock, starts: _Starts) -> None:
        try:
            families, at = await exposition.read(), nanoseconds(clock.now())
            is_sent = await in_daemon_thread("metric export", lambda: self._send(families, at, starts))
        except Exception:  # a bug in a source must not stop the controllers
            logger.exception("metrics: unexpected failure")
            return
        if not is_sent:
            reason = self._reasons.last.rstrip(".") or "no reason given"
            logger.warning("metrics: not exported: %s; trying again in %g s", reason, self._interval)

    def _send(self, families: Families, at: int, starts: _Starts) -> bool:
        """Encode and send, in a thread; returns whether the collector has accepted them."""
        metrics = [*_ours(families, at, starts), *_of_collectors(families.others(), at, starts)]
        starts.exported_at(at)
        of_scope = sdk.ScopeMetrics(self._scope, metrics, schema_url="")
        data = sdk.MetricsData([sdk.ResourceMetrics(self._resource, [of_scope], schema_url="")])
        return self._exporter.export(data) is sdk.MetricExportResult.SUCCESS


class _Starts:
    """Since when each counter and histogram counts. Instants are Unix nanoseconds."""

    def __init__(self, began: int) -> None:
        self._last = began
        self._began = began
        self._series: dict[tuple[str, tuple[str, ...]], tuple[int, float]] = {}  # start and last count

    def start(self, name: str, labels: tuple[str, ...], count: float) -> int:
        """Start time of a series with this count: a count below the previous one means a restart."""
        start, before = self._series.get((name, labels), (self._began, 0.0))
        if count < before:
            start = self._last
        self._series[name, labels] = start, count
        return start

    def exported_at(self, at: int) -> None:
        """All series have been read at this instant."""
        self._last = at


def _ours(families: Families, at: int, starts: _Starts) -> Iterator[sdk.Metric]:
    """Metrics of the catalogue."""
    for metric, samples in families.samples():
        names = families.labels_of(metric)
        data: sdk.Sum | sdk.Gauge | sdk.Histogram
        if metric.type == "histogram":
            points = [_distribution(metric, names, sample, at, starts) for sample in samples]
            data = sdk.Histogram(points, _CUMULATIVE)
        else:
            data = _numbers(metric.name, metric.type, _values(names, samples), at, starts)
        yield sdk.Metric(metric.name, metric.help, "", data)


def _values(names: Sequence[str], samples: Iterable[Sample]) -> Iterator[tuple[Mapping[str, str], float]]:
    for sample in samples:
        assert not isinstance(sample.value, Distribution)
        yield _attributes(names, sample), sample.value


def _attributes(names: Sequence[str], sample: Sample) -> Mapping[str, str]:
    return dict(zip(names, map(visible, sample.labels), strict=True))


def _numbers(
    name: str, type_: str, values: Iterable[tuple[Mapping[str, str], float]], at: int, starts: _Starts
) -> sdk.Sum | sdk.Gauge:
    if type_ != "counter":
        return sdk.Gauge([sdk.NumberDataPoint(labels, 0, at, value) for labels, value in values])
    points = [
        sdk.NumberDataPoint(labels, starts.start(name, tuple(labels.values()), value), at, value)
        for labels, value in values
    ]
    return sdk.Sum(points, _CUMULATIVE, is_monotonic=True)


def _distribution(
    metric: Metric, names: Sequence[str], sample: Sample, at: int, starts: _Starts
) -> sdk.HistogramDataPoint:
    found = sample.value
    assert isinstance(found, Distribution)
    return sdk.HistogramDataPoint(
        attributes=_attributes(names, sample),
        start_time_unix_nano=starts.start(metric.name, sample.labels, found.count),
        time_unix_nano=at,
        count=found.count,
        sum=found.total,
        bucket_counts=found.counts,
        explicit_bounds=metric.buckets,
        min=None,  # type: ignore[arg-type]  # not known; the encoder leaves it out
        max=None,  # type: ignore[arg-type]
        exemplars=[
            Exemplar({}, each.value, nanoseconds(each.span.at), int(each.span.span_id, 16), int(each.span.trace_id, 16))
            for _, each in sorted(found.examples.items())
        ],
    )


def _of_collectors(families: Iterable[Family], at: int, starts: _Starts) -> Iterator[sdk.Metric]:
    """Metrics of prometheus_client's own collectors: gauges and counters with one name of a series each."""
    for family in families:
        name = family.samples[0].name
        values = [(each.labels, each.value) for each in family.samples]
        yield sdk.Metric(name, family.documentation, "", _numbers(name, family.type, values, at, starts))
