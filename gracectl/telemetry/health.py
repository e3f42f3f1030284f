"""Liveness and readiness checks, and their report.

A failed liveness check gets the process killed, so none depends on what a new process would find just the same, such as
an API server that does not respond.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
from aiohttp import web

from gracectl.runtime.loop_monitor import LoopStatistics
from gracectl.runtime.queue import QueueStatistics
from gracectl.runtime.supervise import ComponentStatistics
from gracectl.runtime.timer_wheel import TimerWheelStatistics
from gracectl.telemetry.connections import BodyReader
from gracectl.telemetry.server import HttpHandler

LONGEST_PAUSE_SECONDS: Final = 10.0
"""The loop monitor has a turn twice a second; after this long without one the loop hangs."""

LONGEST_TURN_SECONDS: Final = 60.0
"""Timers may be as late as the event loop; not this late."""


class Check(msgspec.Struct, frozen=True):
    """Result of one check, with its reason."""

    name: str
    is_ok: bool
    reason: str


def report(checks: Iterable[Check]) -> tuple[bool, str]:
    """Whether all checks are ok, and a line for each."""
    checks = tuple(checks)
    lines = (f"{'ok' if check.is_ok else 'FAILED'} {check.name}: {check.reason}\n" for check in checks)
    return all(check.is_ok for check in checks), "".join(lines)


def check_of_event_loop(loop: LoopStatistics, now: float) -> Check:
    """Whether the event loop runs; `now`: monotonic, as the last turn."""
    if loop.last_turn is None:
        return Check("loop", True, "no turn yet")
    ago = max(now - loop.last_turn, 0.0)
    return Check("loop", ago <= LONGEST_PAUSE_SECONDS, f"last turn {ago:.1f} s ago")


def check_of_components(components: ComponentStatistics) -> Check:
    """Whether all components run."""
    if components.failed:
        count = len(components.failed) + len(components.running)
        return Check("components", False, f"{', '.join(components.failed)} failed, of {count}")
    return Check("components", True, f"{len(components.running)} running")


def check_of_queues(queues: Mapping[str, QueueStatistics], limit: float) -> Check:
    """Whether workers take keys and finish them; `limit`: the longest time in seconds that a reconcile may take."""
    wrong = []
    for name, queue in queues.items():
        if queue.stalled > limit:
            wrong.append(f"{name}: {queue.ready} keys wait, no worker progress for {queue.stalled:.0f} s")
        elif queue.longest_work > limit:
            wrong.append(f"{name}: same key in work for {queue.longest_work:.0f} s")
    if wrong:
        return Check("queues", False, "; ".join(wrong))
    working = sum(queue.processing for queue in queues.values())
    waiting = sum(queue.ready for queue in queues.values())
    return Check("queues", True, f"{waiting} keys waiting, {working} in work")


def check_of_timers(wheel: TimerWheelStatistics, now: float) -> Check:
    """Whether the timer wheel runs; `now`: monotonic."""
    behind = 0.0 if wheel.next_turn is None else max(now - wheel.next_turn, 0.0)
    if behind > LONGEST_TURN_SECONDS:
        return Check("timers", False, f"timer wheel not run for {behind:.0f} s")
    return Check("timers", True, f"{wheel.pending} armed")


logger = logging.getLogger(__name__)

ALIVE, READY = "/healthz", "/readyz"

Checks = Callable[[], Iterable[Check]]


def probes(alive: Checks, ready: Checks) -> Mapping[str, HttpHandler]:
    """Handlers by path."""
    return {ALIVE: _handler(alive), READY: _handler(ready)}


def _handler(checks: Checks) -> HttpHandler:
    async def handle(request: web.BaseRequest, _: BodyReader) -> web.Response:
        try:
            is_ok, text = report(checks())
        except Exception:  # a bug in a check is a failed check
            logger.exception("%s: unexpected failure", request.path)
            is_ok, text = False, "FAILED checks: unexpected failure; see gracectl's log\n"
        return web.Response(status=200 if is_ok else 503, text=text)

    return handle
