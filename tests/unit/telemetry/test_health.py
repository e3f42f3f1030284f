"""What a check makes of what parts say of themselves, and how a kubelet and people read it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from aiohttp.test_utils import make_mocked_request

from gracectl.runtime.clock import LoopClock
from gracectl.runtime.pulse import PulseStatistics
from gracectl.runtime.queue import QueueStatistics
from gracectl.runtime.supervise import RollStatistics
from gracectl.runtime.wheel import WheelStatistics
from gracectl.telemetry.connections import Bodies, Limits
from gracectl.telemetry.health import (
    Check,
    check_of_parts,
    check_of_pulse,
    check_of_queues,
    check_of_timers,
    report,
)
from gracectl.telemetry.probes import ALIVE, READY, probes

NOW, PATIENCE = 1000.0, 900.0
NO_BODIES = Bodies(Limits(), LoopClock())


@pytest.mark.parametrize(
    ("check", "is_ok", "seen"),
    [
        (check_of_pulse(PulseStatistics(), NOW), True, "its pulse has not been felt yet"),
        (check_of_pulse(PulseStatistics(last=999.5), NOW), True, "its last beat was 0.5 s ago"),
        (check_of_pulse(PulseStatistics(last=989.9), NOW), False, "its last beat was 10.1 s ago"),
        (check_of_parts(RollStatistics(("a", "b"))), True, "2 live"),
        (check_of_parts(RollStatistics(("a",), ("b", "c"))), False, "b, c died, of 3"),
        (check_of_timers(WheelStatistics(), NOW), True, "0 are armed"),
        (check_of_timers(WheelStatistics(pending=7, next_turn=1300.0), NOW), True, "7 are armed"),
        (check_of_timers(WheelStatistics(pending=7, next_turn=990.0), NOW), True, "7 are armed"),
        (check_of_timers(WheelStatistics(next_turn=930.0), NOW), False, "nobody has turned the wheel for 70 s"),
        (check_of_queues({}, PATIENCE), True, "0 keys wait, 0 are being worked on"),
        (
            check_of_queues({"nodes": QueueStatistics(ready=9, oldest_wait=5000.0, processing=10)}, PATIENCE),
            True,
            "9 keys wait, 10 are being worked on",
        ),
        (
            check_of_queues({"nodes": QueueStatistics(ready=9, stalled=901.0)}, PATIENCE),
            False,
            "9 keys of nodes wait, and no worker has moved for 901 s",
        ),
        (
            check_of_queues({"a": QueueStatistics(), "b": QueueStatistics(processing=1, longest_work=901.0)}, PATIENCE),
            False,
            "a worker of b has had the same key for 901 s",
        ),
    ],
)
def test_what_is_as_it_should_be_and_what_is_not(check: Check, is_ok: bool, seen: str) -> None:
    assert (check.is_ok, check.seen) == (is_ok, seen)


def test_a_line_for_each_check_and_one_that_failed_fails_all() -> None:
    good, bad = Check("loop", True, "turns"), Check("parts", False, "b died, of 3")
    assert report((good,)) == (True, "ok loop: turns\n")
    assert report((good, bad, good)) == (False, "ok loop: turns\nFAILED parts: b died, of 3\nok loop: turns\n")


@pytest.mark.anyio
async def test_each_path_has_its_checks() -> None:
    answers = probes(lambda: [Check("loop", True, "turns")], lambda: [Check("running", False, "told to stop")])
    found = {path: await answers[path](make_mocked_request("GET", path), NO_BODIES) for path in (ALIVE, READY)}
    assert {path: (answer.status, answer.text) for path, answer in found.items()} == {
        "/healthz": (200, "ok loop: turns\n"),
        "/readyz": (503, "FAILED running: told to stop\n"),
    }
    assert {answer.content_type for answer in found.values()} == {"text/plain"}


@pytest.mark.anyio
async def test_a_check_that_cannot_be_made_has_failed_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Iterable[Check]:
        raise ZeroDivisionError("broken")

    answer = await probes(broken, broken)[ALIVE](make_mocked_request("GET", ALIVE), NO_BODIES)
    assert answer.status == 503
    assert "broken" not in (answer.text or "")
    assert "/healthz could not be answered" in caplog.text
