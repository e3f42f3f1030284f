"""Metrics of queues, timers, the event loop, connections and traces."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from typing import Final

from gracectl import __version__
from gracectl.runtime.loop_monitor import LoopStatistics
from gracectl.runtime.queue import QueueStatistics
from gracectl.runtime.timer_wheel import TimerWheelStatistics
from gracectl.telemetry.connections import DROPPED, ConnectionStatistics
from gracectl.telemetry.metrics import (
    BUILD_INFO,
    HTTP_CONNECTIONS,
    HTTP_CONNECTIONS_DROPPED,
    LOOP_LAG,
    QUEUE_ADDS,
    QUEUE_DELAYED,
    QUEUE_DEPTH,
    QUEUE_FAILING,
    QUEUE_LATENCY,
    QUEUE_OLDEST,
    QUEUE_PROCESSING,
    QUEUE_RETRIES,
    QUEUE_WORK,
    TIMER_LATENESS,
    TIMER_LATENESS_WORST,
    TIMERS,
    TIMERS_SET,
    TRACE_BACKLOG,
    TRACE_SPANS,
    Sample,
)
from gracectl.telemetry.spans import SpanStatistics

LISTENERS: Final = ("metrics", "probes", "admission")
"""Listeners; metrics and probes at one address are `metrics`."""

NO_SPANS: Final = SpanStatistics(exported=0, failed=0, dropped=0, waiting=0)
"""Without traces."""


def queue_samples(queues: Mapping[str, QueueStatistics]) -> Iterator[Sample]:
    """Samples of work queues by name."""
    for name, queue in queues.items():
        labels = (name,)
        yield Sample(QUEUE_DEPTH, labels, queue.ready)
        yield Sample(QUEUE_DELAYED, labels, queue.delayed)
        yield Sample(QUEUE_PROCESSING, labels, queue.processing)
        yield Sample(QUEUE_FAILING, labels, queue.failing)
        yield Sample(QUEUE_ADDS, labels, queue.adds)
        yield Sample(QUEUE_RETRIES, labels, queue.retries)
        yield Sample(QUEUE_LATENCY, labels, queue.latency)
        yield Sample(QUEUE_OLDEST, labels, queue.oldest_wait)
        yield Sample(QUEUE_WORK, labels, queue.work_total)


def timer_samples(wheel: TimerWheelStatistics) -> Iterator[Sample]:
    """Samples of the timer wheel."""
    yield Sample(TIMERS, (), wheel.pending)
    for operation, number in (
        ("armed", wheel.armed),
        ("rearmed", wheel.rearmed),
        ("cancelled", wheel.cancelled),
        ("fired", wheel.fired),
    ):
        yield Sample(TIMERS_SET, (operation,), number)
    yield Sample(TIMER_LATENESS, (), wheel.lateness_total)
    yield Sample(TIMER_LATENESS_WORST, (), wheel.lateness_maximum)


def process_samples(loop: LoopStatistics, spans: SpanStatistics) -> Iterator[Sample]:
    """Samples of the event loop, the build, and exported spans."""
    yield Sample(LOOP_LAG, (), loop.lag)
    for outcome, number in (("exported", spans.exported), ("failed", spans.failed), ("dropped", spans.dropped)):
        yield Sample(TRACE_SPANS, (outcome,), number)
    yield Sample(TRACE_BACKLOG, (), spans.waiting)
    yield Sample(BUILD_INFO, (__version__, platform.python_version()), 1)


def connection_samples(listeners: Mapping[str, ConnectionStatistics]) -> Iterator[Sample]:
    """Samples of connections, by the setting with the address: `metrics.listen`."""
    for listener in LISTENERS:
        statistics = listeners.get(f"{listener}.listen")
        yield Sample(HTTP_CONNECTIONS, (listener,), statistics.open if statistics else 0)
        for cause in DROPPED:
            yield Sample(HTTP_CONNECTIONS_DROPPED, (listener, cause), statistics.dropped[cause] if statistics else 0)
