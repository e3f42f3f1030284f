"""The timer of deadlines alone: what it calls, and at which instants."""

from __future__ import annotations

from collections import deque

from gracectl.controllers.termination.deadline_timer import UNPLANNED_SECONDS, DeadlineTimer
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.supervise import while_running


async def test_deletions_that_are_due_are_asked_about_until_they_are_scheduled_and_no_more() -> None:
    clock, answers = LoopClock(), deque([False, False, True])
    asked: list[tuple[str, float, float]] = []

    def due(name: str, since: float) -> bool:
        asked.append((name, since, clock.monotonic()))
        return answers.popleft()

    timer = DeadlineTimer(clock, lambda name: None, due)
    async with while_running(timer.run):
        timer.changed("n1")
        await clock.sleep(20 * UNPLANNED_SECONDS)
    assert asked == [("n1", 0.0, times * UNPLANNED_SECONDS) for times in (1, 2, 3)]
