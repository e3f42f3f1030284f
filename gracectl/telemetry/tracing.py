"""Export of spans to a collector: OTLP over HTTP by OpenTelemetry's SDK, configured by the OTEL_* variables.

Nothing here makes the controller wait: a finished span goes to a bounded queue, which a thread of the SDK empties. A
dead or slow collector costs the spans for which there is no room, their count, and one warning a minute. The variables
are the standard's (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/); unsupported
values are rejected at start.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

import anyio
from opentelemetry import trace as api
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_QUEUE_SIZE, OTEL_BSP_SCHEDULE_DELAY
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from gracectl import __version__
from gracectl.telemetry.collector import bounded_session, in_daemon_thread
from gracectl.telemetry.spans import Span, SpanStatistics, Trace, Value

logger = logging.getLogger(__name__)

QUEUE: Final = 16_384
"""Capacity of the queue; the SDK's own 2,048 lose a quarter of the spans when a big cluster is drained at full speed.
"""

DELAY_MILLISECONDS: Final = 1000
"""Interval of exports, and so the spans that a killed process loses; the SDK's 5 s are longer than many drains."""

REMEMBERED: Final = 4096
"""Maximum traces with a remembered sampling decision."""

SECONDS_BETWEEN_WARNINGS: Final = 60.0
_NANOSECONDS = 1_000_000_000
_SAMPLED = api.TraceFlags(api.TraceFlags.SAMPLED)
_UNSET = api.Status(api.StatusCode.UNSET)


class Tracing:
    """SpanSink over the SDK. Each of the `exporters` gets every span, with its own thread and queue."""

    def __init__(
        self,
        exporters: Sequence[SpanExporter],
        monotonic: Callable[[], float],
        identity: str = "",
        cluster: str = "",
        *,
        is_dry_run: bool = False,
    ) -> None:
        """`identity` distinguishes this process from its replicas; `cluster` is its cluster's name, "" if unknown; what
        is traced has not happened if `is_dry_run`. ValueError for contradictory OTEL_BSP_*."""
        capture_sdk_logs(_REASONS, "opentelemetry")
        # Only the configuration of the provider is used: its own way of making a span costs five times as much.
        provider = TracerProvider(
            resource=resource_of(identity, cluster, is_dry_run=is_dry_run), shutdown_on_exit=False
        )  # shutdown on exit takes 13 s
        self._resource, self._sampler, self._limits = provider.resource, provider.sampler, SpanLimits()
        self._scope = InstrumentationScope("gracectl", __version__)
        self._decided = lru_cache(REMEMBERED)(self._decide)  # called for every span
        self._ids = RandomIdGenerator()
        self._room = _queue_size()
        self._exporters = [_CountingExporter(exporter, monotonic) for exporter in exporters]
        try:
            self._processors = [_processor(exporter, self._room) for exporter in self._exporters]
        except ValueError as error:
            raise ValueError(f"OTEL_BSP_*: {error}") from error
        self._emitted = self._dropped = 0
        self._is_closed = False
        if _REASONS.last:
            logger.warning("traces: %s", _REASONS.last)

    @property
    def identity(self) -> Mapping[str, object]:
        """Resource attributes of this process."""
        return self._resource.attributes

    def is_sampled(self, trace: Trace) -> bool:
        """See SpanSink. The same for every process: the id of the trace decides."""
        return self._decided(trace.id)

    def _decide(self, trace: int) -> bool:
        return self._sampler.should_sample(Context(), trace, "").decision is Decision.RECORD_AND_SAMPLE

    def emit(self, span: Span) -> None:
        """See SpanSink. Spans of a trace that is not sampled are not counted."""
        if not self.is_sampled(span.trace):
            return
        if self._is_closed or any(self._emitted - exporter.finished >= self._room for exporter in self._exporters):
            self._dropped += 1
            return
        self._emitted += 1
        readable = self._readable(span)
        for processor in self._processors:
            processor.on_end(readable)

    def _readable(self, span: Span) -> ReadableSpan:
        id_ = self._ids.generate_span_id() if span.id is None else span.id
        return ReadableSpan(
            name=span.name,
            context=api.SpanContext(span.trace.id, id_, is_remote=False, trace_flags=_SAMPLED),
            parent=None if span.parent is None else _context(span.trace, span.parent),
            resource=self._resource,
            attributes=self._bounded(span.attributes, self._limits.max_span_attributes),
            events=[
                Event(
                    event.name,
                    self._bounded(event.attributes, self._limits.max_event_attributes),
                    nanoseconds(event.at),
                )
                for event in span.events
            ],
            status=api.Status(api.StatusCode.ERROR, span.error) if span.error else _UNSET,
            start_time=nanoseconds(span.start),
            end_time=nanoseconds(max(span.end, span.start)),
            instrumentation_scope=self._scope,
        )

    def _bounded(self, attributes: Mapping[str, Value], count: int | None) -> Mapping[str, Any]:
        """Attributes within the OTEL_*_LIMITs; gracectl's are fewer than the SDK's own limit, and short."""
        longest = self._limits.max_span_attribute_length
        if longest is None and (count is None or len(attributes) <= count):
            return attributes
        return BoundedAttributes(count, attributes, max_value_len=longest)

    async def close(self, seconds: float) -> bool:
        """Export the queued spans for at most this many seconds, and accept no more; returns whether all were tried.

        The SDK itself waits longer for a dead collector.
        """
        self._is_closed = True

        def finish() -> None:
            for processor in self._processors:
                processor.force_flush()
                processor.shutdown()  # type: ignore[no-untyped-call]

        with anyio.move_on_after(seconds, shield=True) as timeout:
            await in_daemon_thread("span flush", finish)
        if timeout.cancelled_caught:
            logger.warning("traces: %d spans lost: not exported after %g s", self.statistics().waiting, seconds)
        return not timeout.cancelled_caught

    def statistics(self) -> SpanStatistics:
        """Counts so far; with several exporters, the counts of the slowest."""
        return SpanStatistics(
            exported=min((each.exported for each in self._exporters), default=0),
            failed=max((each.failed for each in self._exporters), default=0),
            dropped=self._dropped,
            waiting=max((self._emitted - each.finished for each in self._exporters), default=0),
        )


class _CountingExporter(SpanExporter):
    """Exporter that counts, and warns at most once a minute."""

    def __init__(self, exporter: SpanExporter, monotonic: Callable[[], float]) -> None:
        self._exporter = exporter
        self._monotonic = monotonic
        self._warned: float | None = None
        self.exported = self.failed = 0

    @property
    def finished(self) -> int:
        return self.exported + self.failed

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # any error loses these spans, and nothing else
            _REASONS.last = f"{type(error).__name__}: {error}"
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
        else:
            self.failed += len(spans)
            self._warn()
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def _warn(self) -> None:
        now = self._monotonic()
        if self._warned is None or now - self._warned >= SECONDS_BETWEEN_WARNINGS:
            self._warned = now
            logger.warning("traces: %d spans lost so far: %s", self.failed, _REASONS.last or "no reason given")


class Reasons(logging.Handler):
    """Keeps the SDK's last log message: it logs much when a collector is dead, gracectl once a minute."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):  # not worth an error
            message = record.getMessage()
            # "retrying" has the reason, "Failed … max retries" does not.
            if not self.last or "max retries" not in message:
                self.last = message


_REASONS = Reasons()


def capture_sdk_logs(reasons: Reasons, name: str) -> None:
    """Let `reasons`, and nothing else, have what this logger of the SDK says."""
    sdk_logger = logging.getLogger(name)
    sdk_logger.propagate = False
    sdk_logger.handlers[:] = [reasons]
    reasons.last = ""


def over_http(monotonic: Callable[[], float]) -> SpanExporter:
    """Exporter of OTLP over HTTP, configured by the OTEL_EXPORTER_OTLP_* variables. ValueError for invalid ones."""
    return OTLPSpanExporter(session=bounded_session(monotonic))


def resource_of(identity: str, cluster: str, *, is_dry_run: bool) -> Resource:
    """Resource of this process: the variables come first, then gracectl's attributes, then the SDK's defaults."""
    attributes: dict[str, str | bool] = {"service.name": "gracectl", "service.version": __version__}
    if is_dry_run:
        attributes["gracectl.dry_run"] = True
    if cluster:
        attributes["k8s.cluster.name"] = cluster
    if identity:
        attributes["service.instance.id"] = identity
    return Resource.create().merge(Resource(attributes)).merge(OTELResourceDetector().detect())


def _queue_size() -> int:
    """Capacity of the queue in spans. ValueError for an invalid value."""
    value = os.environ.get(OTEL_BSP_MAX_QUEUE_SIZE, "").strip()
    if value and not value.isdecimal():
        raise ValueError(f"{OTEL_BSP_MAX_QUEUE_SIZE}: {value!r} is not a number of spans such as {QUEUE}")
    return int(value) if value else QUEUE


def _processor(exporter: SpanExporter, room: int) -> BatchSpanProcessor:
    """Processor with gracectl's defaults where the variables leave a choice. ValueError for contradictory ones."""
    delay = None if os.environ.get(OTEL_BSP_SCHEDULE_DELAY) else DELAY_MILLISECONDS
    return BatchSpanProcessor(exporter, max_queue_size=room, schedule_delay_millis=delay)


def _context(trace: Trace, span: int) -> api.SpanContext:
    return api.SpanContext(trace.id, span, is_remote=False, trace_flags=_SAMPLED)


def nanoseconds(at: float) -> int:
    """Convert seconds to nanoseconds; one multiplication would need more digits than a float has."""
    whole = int(at)
    return whole * _NANOSECONDS + round((at - whole) * _NANOSECONDS)
