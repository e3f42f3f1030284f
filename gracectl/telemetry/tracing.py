"""Spans on their way to a collector: OTLP over HTTP by OpenTelemetry's SDK, as the OTEL_* variables say.

Nothing here ever makes the controller wait: a span that is over is put on a bounded queue, which a thread of the SDK
empties. A collector that is dead or slow costs the spans for which there is no room, a count of them, and a warning in
a minute. The variables are the standard's (https://opentelemetry.io/docs/specs/otel/configuration/
sdk-environment-variables/); what they say and we cannot do is refused before anything begins.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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
from gracectl.telemetry.spans import Span, SpanStatistics, Trace, Value

logger = logging.getLogger(__name__)

QUEUE: Final = 16_384
"""Spans that may wait; the SDK's own 2,048 lose a quarter of them when a big cluster is drained at full speed."""

DELAY_MILLISECONDS: Final = 1000
"""What a process that is killed has not exported yet; the SDK's own 5 s are longer than many a drain."""

SECONDS_BETWEEN_COMPLAINTS: Final = 60.0
_NANOSECONDS = 1_000_000_000
_SAMPLED = api.TraceFlags(api.TraceFlags.SAMPLED)
_UNSET = api.Status(api.StatusCode.UNSET)


class Tracing:
    """A SpanSink over the SDK. `exporters` get every span, each from a thread and a queue of its own."""

    def __init__(self, exporters: Sequence[SpanExporter], monotonic: Callable[[], float], identity: str = "") -> None:
        """`identity` tells this process from its siblings. ValueError for OTEL_BSP_* that contradict each other."""
        _listen_to_the_sdk()
        # Of the provider only what it reads from the variables: its own way of making a span costs five times as much.
        provider = TracerProvider(resource=_resource(identity), shutdown_on_exit=False)  # that takes 13 s
        self._resource, self._sampler, self._limits = provider.resource, provider.sampler, SpanLimits()
        self._scope = InstrumentationScope("gracectl", __version__)
        self._ids = RandomIdGenerator()
        self._room = _queue_size()
        self._outlets = [_Outlet(exporter, monotonic) for exporter in exporters]
        try:
            self._processors = [_processor(outlet, self._room) for outlet in self._outlets]
        except ValueError as error:
            raise ValueError(f"OTEL_BSP_*: {error}") from error
        self._emitted = self._dropped = 0
        self._is_closed = False
        if _REASONS.last:
            logger.warning("traces: %s", _REASONS.last)

    @property
    def identity(self) -> Mapping[str, object]:
        """What every span says of this process."""
        return self._resource.attributes

    def samples(self, trace: Trace) -> bool:
        """See SpanSink. The same for every process: the id of the trace decides, if anything does."""
        decision = self._sampler.should_sample(Context(), trace.id, "").decision
        return decision is Decision.RECORD_AND_SAMPLE

    def emit(self, span: Span) -> None:
        """See SpanSink. What nobody wants to see of a trace that is not sampled counts nowhere."""
        if not self.samples(span.trace):
            return
        if self._is_closed or any(self._emitted - outlet.finished >= self._room for outlet in self._outlets):
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
                Event(moment.name, self._bounded(moment.attributes, self._limits.max_event_attributes), _ns(moment.at))
                for moment in span.moments
            ],
            status=api.Status(api.StatusCode.ERROR, span.error) if span.error else _UNSET,
            start_time=_ns(span.start),
            end_time=_ns(max(span.end, span.start)),
            instrumentation_scope=self._scope,
        )

    def _bounded(self, attributes: Mapping[str, Value], count: int | None) -> Mapping[str, Any]:
        """As the OTEL_*_LIMIT have it; ours are fewer than the SDK's own limit, and not long."""
        longest = self._limits.max_span_attribute_length
        if longest is None and (count is None or len(attributes) <= count):
            return attributes
        return BoundedAttributes(count, attributes, max_value_len=longest)

    async def close(self, seconds: float) -> bool:
        """Export what waits, for so long at most, and take no more; whether all of it was tried.

        In a thread that nobody waits for any longer than that: the SDK itself has more patience with a dead collector.
        """
        self._is_closed = True
        loop, is_done = asyncio.get_running_loop(), anyio.Event()

        def finish() -> None:
            for processor in self._processors:
                processor.force_flush()
                processor.shutdown()  # type: ignore[no-untyped-call]
            with suppress(RuntimeError):  # nobody waits any more, and the loop is closed
                loop.call_soon_threadsafe(is_done.set)

        threading.Thread(target=finish, name="last spans", daemon=True).start()
        with anyio.move_on_after(seconds, shield=True) as patience:
            await is_done.wait()
        if patience.cancelled_caught:
            logger.warning("traces: %d spans are not exported after %g s, and lost", self.statistics().waiting, seconds)
        return not patience.cancelled_caught

    def statistics(self) -> SpanStatistics:
        """What has become of all spans so far; of several exporters, of the one that is behind the others."""
        return SpanStatistics(
            exported=min((each.exported for each in self._outlets), default=0),
            failed=max((each.failed for each in self._outlets), default=0),
            dropped=self._dropped,
            waiting=max((self._emitted - each.finished for each in self._outlets), default=0),
        )


class _Outlet(SpanExporter):
    """An exporter that counts, and complains once in a while."""

    def __init__(self, exporter: SpanExporter, monotonic: Callable[[], float]) -> None:
        self._exporter = exporter
        self._monotonic = monotonic
        self._complained: float | None = None
        self.exported = self.failed = 0

    @property
    def finished(self) -> int:
        return self.exported + self.failed

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # whatever it is, the spans are lost, and no more
            _REASONS.last = f"{type(error).__name__}: {error}"
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
        else:
            self.failed += len(spans)
            self._complain()
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def _complain(self) -> None:
        now = self._monotonic()
        if self._complained is None or now - self._complained >= SECONDS_BETWEEN_COMPLAINTS:
            self._complained = now
            logger.warning("traces: %d spans are lost so far: %s", self.failed, _REASONS.last or "no reason given")


class _Reasons(logging.Handler):
    """Remembers what the SDK has said last: it says much when a collector is dead, and we say it once in a minute."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):  # whatever it is, it is not worth more than a warning
            message = record.getMessage()
            # "retrying" tells why, "Failed … max retries" does not.
            if not self.last or "max retries" not in message:
                self.last = message


_REASONS = _Reasons()


def _listen_to_the_sdk() -> None:
    chatter = logging.getLogger("opentelemetry")
    chatter.propagate = False
    if _REASONS not in chatter.handlers:
        chatter.addHandler(_REASONS)
    _REASONS.last = ""


def over_http() -> SpanExporter:
    """The exporter of OTLP over HTTP, as the OTEL_EXPORTER_OTLP_* variables have it. ValueError for some that make no
    sense."""
    return OTLPSpanExporter()


def _resource(identity: str) -> Resource:
    """What the variables say counts for more than what we do, and that for more than what the SDK makes up."""
    ours = {"service.name": "gracectl", "service.version": __version__}
    if identity:
        ours["service.instance.id"] = identity
    return Resource.create().merge(Resource(ours)).merge(OTELResourceDetector().detect())


def _queue_size() -> int:
    """Spans. ValueError for what is no number."""
    said = os.environ.get(OTEL_BSP_MAX_QUEUE_SIZE, "").strip()
    if said and not said.isdecimal():
        raise ValueError(f"{OTEL_BSP_MAX_QUEUE_SIZE}: {said!r} is no number of spans such as {QUEUE}")
    return int(said) if said else QUEUE


def _processor(exporter: SpanExporter, room: int) -> BatchSpanProcessor:
    """What the variables leave open, as we want it. ValueError for some that contradict each other."""
    delay = None if os.environ.get(OTEL_BSP_SCHEDULE_DELAY) else DELAY_MILLISECONDS
    return BatchSpanProcessor(exporter, max_queue_size=room, schedule_delay_millis=delay)


def _context(trace: Trace, span: int) -> api.SpanContext:
    return api.SpanContext(trace.id, span, is_remote=True, trace_flags=_SAMPLED)


def _ns(at: float) -> int:
    """Nanoseconds; all at once multiplied, they would have more digits than a float."""
    whole = int(at)
    return whole * _NANOSECONDS + round((at - whole) * _NANOSECONDS)
