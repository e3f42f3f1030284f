"""Health checks, and their report."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from aiohttp.test_utils import make_mocked_request

from gracectl.runtime.clock import LoopClock
from gracectl.runtime.loop_monitor import LoopStatistics
from gracectl.runtime.queue import QueueStatistics
from gracectl.runtime.supervise import ComponentStatistics
from gracectl.runtime.timer_wheel import TimerWheelStatistics
from gracectl.telemetry.connections import BodyReader, Limits
from gracectl.telemetry.health import (
    ALIVE,
    READY,
    Check,
    check_of_components,
    check_of_event_loop,
    check_of_queues,
    check_of_timers,
    probes,
    report,
)

NOW, LIMIT = 1000.0, 900.0
NO_BODIES = BodyReader(Limits(), LoopClock())


@pytest.mark.parametrize(("check", "is_ok", "reason"), [
    (check_of_event_loop(LoopStatistics(), NOW), True, "no turn yet"),
    (check_of_event_loop(LoopStatistics(last_turn=999.5), NOW), True, "last turn 0.5 s ago"),
    (check_of_event_loop(LoopStatistics(last_turn=989.9), NOW), False, "last turn 10.1 s ago"),
    (check_of_components(ComponentStatistics(("a", "b"))), True, "2 running"),
    (check_of_components(ComponentStatistics(("a",), ("b", "c"))), False, "b, c failed, of 3"),
    (check_of_timers(TimerWheelStatistics(), NOW), True, "0 armed"),
    (check_of_timers(TimerWheelStatistics(pending=7, next_turn=1300.0), NOW), True, "7 armed"),
    (check_of_timers(TimerWheelStatistics(pending=7, next_turn=990.0), NOW), True, "7 armed"),
    (check_of_timers(TimerWheelStatistics(next_turn=930.0), NOW), False, "timer wheel not run for 70 s"),
    (check_of_queues({}, LIMIT), True, "0 keys waiting, 0 in work"),
    (check_of_queues({"nodes": QueueStatistics(ready=9, oldest_wait=5000.0, processing=10)}, LIMIT), True,
     "9 keys waiting, 10 in work"),
    (check_of_queues({"nodes": QueueStatistics(ready=9, stalled=901.0)}, LIMIT), False,
     "nodes: 9 keys wait, no worker progress for 901 s"),
    (check_of_queues({"a": QueueStatistics(), "b": QueueStatistics(processing=1, longest_work=901.0)}, LIMIT), False,
     "b: same key in work for 901 s"),
])  # fmt: skip
def test_ok_and_failed(check: Check, is_ok: bool, reason: str) -> None:
    assert (check.is_ok, check.reason) == (is_ok, reason)


def test_a_line_for_each_check_and_one_that_failed_fails_all() -> None:
    good, bad = Check("loop", True, "turns"), Check("components", False, "b failed, of 3")
    assert report((good,)) == (True, "ok loop: turns\n")
    assert report((good, bad, good)) == (False, "ok loop: turns\nFAILED components: b failed, of 3\nok loop: turns\n")


@pytest.mark.anyio
async def test_each_path_has_its_checks() -> None:
    answers = probes(lambda: [Check("loop", True, "turns")], lambda: [Check("running", False, "stopping")])
    found = {path: await answers[path](make_mocked_request("GET", path), NO_BODIES) for path in (ALIVE, READY)}
    assert {path: (answer.status, answer.text) for path, answer in found.items()} == {
        "/healthz": (200, "ok loop: turns\n"),
        "/readyz": (503, "FAILED running: stopping\n"),
    }
    assert {answer.content_type for answer in found.values()} == {"text/plain"}


@pytest.mark.anyio
async def test_a_check_that_cannot_be_made_has_failed_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Iterable[Check]:
        raise ZeroDivisionError("broken")

    answer = await probes(broken, broken)[ALIVE](make_mocked_request("GET", ALIVE), NO_BODIES)
    assert answer.status == 503
    assert "broken" not in (answer.text or "")
    assert "/healthz: unexpected failure" in caplog.text
