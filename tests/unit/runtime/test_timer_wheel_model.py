"""The timer wheel against a dictionary of instants, through random operations on virtual time.

The wheel's slots and chunks are made so small here that a few timers visit every level, and that `run` is cancelled in
the middle of slots. Each timer must fire once, at the instant of its slot, or at once when the wheel did not run then.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from unittest import mock

import anyio
import anyio.lowlevel
import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.virtual import VirtualLoop

from gracectl.runtime import timer_wheel as wheel_module
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.supervise import while_running
from gracectl.runtime.timer_wheel import TimerWheel

KEYS = st.sampled_from("abcdefgh")
AHEAD = st.one_of(
    st.integers(-300, 3000).map(lambda hundredths: hundredths / 100),
    st.integers(0, 40).map(lambda milliseconds: milliseconds / 1000),
    st.floats(-1.0, 100.0),
)
WHILE = st.integers(0, 2000).map(lambda hundredths: hundredths / 100)
SMALL_BITS, SMALL_CHUNK = 2, 2
ENOUGH = 60
"""Turns of the event loop in which every timer can be taken through every level."""


class Armed(msgspec.Struct, frozen=True):
    """A timer of the model: its instant, its slot's, and when it was armed."""

    at: float
    slot: float
    since: float

    @property
    def is_overdue(self) -> bool:
        return self.slot <= self.since


def slot_of(at: float) -> float:
    """The first hundredth of a second that is not before the instant."""
    return bisect_left(range(100_000), at, key=lambda number: number / 100) / 100


class WheelAgainstModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.patches = [
            mock.patch.object(wheel_module, "_BITS", SMALL_BITS),
            mock.patch.object(wheel_module, "_NARROW", (1 << SMALL_BITS) - 1),
            mock.patch.object(wheel_module, "_CHUNK", SMALL_CHUNK),
        ]
        for patch in self.patches:
            patch.start()
        self.wheel: TimerWheel[str] = TimerWheel(LoopClock(), self.fired)
        self.armed: dict[str, Armed] = {}
        self.now = 0.0
        self.running_since = 0.0
        self.counts = {"armed": 0, "cancelled": 0, "fired": 0}
        self.last_slot = 0.0

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.close()
            for patch in self.patches:
                patch.stop()

    def fired(self, key: str) -> None:
        timer, instant = self.armed.pop(key), anyio.current_time()
        assert timer.at <= instant == max(timer.slot, timer.since, self.running_since)
        if not timer.is_overdue:
            assert timer.slot >= self.last_slot
            self.last_slot = timer.slot
        self.counts["fired"] += 1

    @rule(key=KEYS, ahead=AHEAD)
    def arm(self, key: str, ahead: float) -> None:
        at = self.now + ahead
        self.wheel.arm(key, at)
        self.armed[key] = Armed(at, slot_of(at), self.now)
        self.counts["armed"] += 1

    @rule(key=KEYS)
    def cancel(self, key: str) -> None:
        was_armed = self.armed.pop(key, None) is not None
        assert self.wheel.cancel(key) == was_armed
        self.counts["cancelled"] += was_armed

    @rule(ahead=AHEAD)
    def count(self, ahead: float) -> None:
        instant = self.now + ahead
        assert self.wheel.due_by(instant) == sum(timer.at <= instant for timer in self.armed.values())

    @rule(seconds=WHILE)
    def nobody_runs_it(self, seconds: float) -> None:
        async def inside() -> None:
            await anyio.sleep(seconds)
            self.now = anyio.current_time()

        self.runner.run(inside())

    @rule(turns=st.integers(1, 12))
    def run_is_soon_cancelled(self, turns: int) -> None:
        async def inside() -> None:
            self.running_since = self.now
            async with while_running(self.wheel.run):
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()

        self.runner.run(inside())

    @rule(seconds=WHILE, key=KEYS, ahead=AHEAD)
    def run_while_one_is_armed(self, seconds: float, key: str, ahead: float) -> None:
        async def inside() -> None:
            self.running_since = self.now
            async with while_running(self.wheel.run):
                await anyio.sleep(seconds)
                self.now = anyio.current_time()
                self.arm(key, ahead)
                await anyio.sleep(seconds)
                self.now = anyio.current_time()
                for _ in range(ENOUGH):  # what is due at this very instant
                    await anyio.lowlevel.checkpoint()

        self.runner.run(inside())
        assert all(timer.slot > self.now for timer in self.armed.values())

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "runner"):
            statistics = self.wheel.statistics()
            assert {key: self.wheel.due_at(key) for key in self.armed} == {k: t.at for k, t in self.armed.items()}
            assert len(self.wheel) == statistics.pending == len(self.armed)
            assert (statistics.armed, statistics.cancelled, statistics.fired) == tuple(self.counts.values())
            assert statistics.armed == statistics.pending + statistics.fired + statistics.cancelled + statistics.rearmed


TestWheelAgainstModel = WheelAgainstModel.TestCase
TestWheelAgainstModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
