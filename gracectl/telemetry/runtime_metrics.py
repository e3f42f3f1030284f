"""Metrics of queues, timers, the event loop, connections and traces."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from typing import Final

from gracectl import __version__
from gracectl.runtime.loop_monitor import LoopStatistics
from gracectl.runtime.queue import QueueStatistics
from gracectl.runtime.timer_wheel import TimerWheelStatistics
from gracectl.telemetry import metrics
from gracectl.telemetry.connections import DROPPED, ConnectionStatistics
from gracectl.telemetry.metrics import Sample
from gracectl.telemetry.spans import SpanStatistics

LISTENERS: Final = ("metrics", "probes", "admission")
"""Listeners; metrics and probes at one address are `metrics`."""

NO_SPANS: Final = SpanStatistics(exported=0, failed=0, dropped=0, waiting=0)
"""Without traces."""


def queue_samples(queues: Mapping[str, QueueStatistics]) -> Iterator[Sample]:
    """Samples of work queues by name."""
    for name, queue in queues.items():
        labels = (name,)
        yield Sample(metrics.QUEUE_DEPTH, labels, queue.ready)
        yield Sample(metrics.QUEUE_DELAYED, labels, queue.delayed)
        yield Sample(metrics.QUEUE_PROCESSING, labels, queue.processing)
        yield Sample(metrics.QUEUE_FAILING, labels, queue.failing)
        yield Sample(metrics.QUEUE_ADDS, labels, queue.adds)
        yield Sample(metrics.QUEUE_RETRIES, labels, queue.retries)
        yield Sample(metrics.QUEUE_LATENCY, labels, queue.latency)
        yield Sample(metrics.QUEUE_OLDEST, labels, queue.oldest_wait)
        yield Sample(metrics.QUEUE_WORK, labels, queue.work_total)


def timer_samples(wheel: TimerWheelStatistics) -> Iterator[Sample]:
    """Samples of the timer wheel."""
    yield Sample(metrics.TIMERS, (), wheel.pending)
    for operation, number in (
        ("armed", wheel.armed),
        ("rearmed", wheel.rearmed),
        ("cancelled", wheel.cancelled),
        ("fired", wheel.fired),
    ):
        yield Sample(metrics.TIMERS_SET, (operation,), number)
    yield Sample(metrics.TIMER_LATENESS, (), wheel.lateness_total)
    yield Sample(metrics.TIMER_LATENESS_WORST, (), wheel.lateness_maximum)


def process_samples(loop: LoopStatistics, spans: SpanStatistics) -> Iterator[Sample]:
    """Samples of the event loop, the build, and exported spans."""
    yield Sample(metrics.LOOP_LAG, (), loop.lag)
    for outcome, number in (("exported", spans.exported), ("failed", spans.failed), ("dropped", spans.dropped)):
        yield Sample(metrics.TRACE_SPANS, (outcome,), number)
    yield Sample(metrics.TRACE_BACKLOG, (), spans.waiting)
    yield Sample(metrics.BUILD_INFO, (__version__, platform.python_version()), 1)


def connection_samples(listeners: Mapping[str, ConnectionStatistics]) -> Iterator[Sample]:
    """Samples of connections, by the setting with the address: `metrics.listen`."""
    for listener in LISTENERS:
        statistics = listeners.get(f"{listener}.listen")
        yield Sample(metrics.HTTP_CONNECTIONS, (listener,), statistics.open if statistics else 0)
        for cause in DROPPED:
            yield Sample(
                metrics.HTTP_CONNECTIONS_DROPPED, (listener, cause), statistics.dropped[cause] if statistics else 0
            )
