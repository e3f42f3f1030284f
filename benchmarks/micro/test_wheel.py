"""The timer wheel with 10,000 deadlines within an hour: what arming, moving, cancelling and firing one costs."""

from __future__ import annotations

import asyncio
import random

import anyio
import anyio.lowlevel

from benchmarks.micro.conftest import Measure
from benchmarks.micro.pods import uid_of
from benchmarks.micro.still import StillClock
from gracectl.runtime.timer_wheel import TimerWheel

TIMERS = 10_000
HOUR = 3600.0


class Armed:
    """A wheel on a clock that stands still, and its keys; `armed` makes it new."""

    def __init__(self) -> None:
        self.clock = StillClock()
        self.keys = [uid_of(number) for number in range(TIMERS)]
        chance = random.Random(1)
        self.first, self.second = (
            [self.clock.at + chance.uniform(60.0, HOUR) for _ in self.keys] for _ in ("first", "second")
        )
        self.wheel: TimerWheel[str] = TimerWheel(self.clock, lambda key: None)

    def empty(self) -> None:
        """A wheel without timers."""
        self.clock.at = min(*self.first, *self.second) - 60.0
        self.wheel = TimerWheel(self.clock, lambda key: None)

    def armed(self) -> None:
        """A wheel with all of them."""
        self.empty()
        self.arm()

    def arm(self) -> None:
        """Arm each."""
        for key, at in zip(self.keys, self.first, strict=True):
            self.wheel.arm(key, at)

    def move(self) -> None:
        """Arm each for another instant."""
        for key, at in zip(self.keys, self.second, strict=True):
            self.wheel.arm(key, at)

    def cancel(self) -> None:
        """Cancel each."""
        for key in self.keys:
            self.wheel.cancel(key)

    async def fire(self) -> None:
        """Let the hour pass, in a hundred steps."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.wheel.run)
            while len(self.wheel):
                self.clock.at += HOUR / 100
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()


def test_arm(measure: Measure) -> None:
    one = Armed()
    measure("timer wheel: arm", TIMERS, one.arm, one.empty)


def test_move(measure: Measure) -> None:
    one = Armed()
    measure("timer wheel: move", TIMERS, one.move, one.armed)


def test_cancel(measure: Measure) -> None:
    one = Armed()
    measure("timer wheel: cancel", TIMERS, one.cancel, one.armed)


def test_fire(measure: Measure) -> None:
    one = Armed()
    with asyncio.Runner() as runner:
        measure("timer wheel: fire", TIMERS, lambda: runner.run(one.fire()), one.armed)
    assert one.wheel.statistics().fired == TIMERS
