"""200,000 pending timers: our timer wheel beside asyncio's heap of `call_at` handles, and the work queue's own heap.

All of them are driven in the same way on the real event loop: in portions, between which the loop has its turn, which
is when asyncio pays for cancelled handles. The worst stall is the longest that a portion and the loop's turn took.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import repeat
from statistics import median, quantiles
from typing import Protocol

import anyio
import anyio.lowlevel
import msgspec

from benchmarks.report import Figure, Outcome
from gracectl.runtime.clock import SystemClock
from gracectl.runtime.queue import WorkQueue
from gracectl.runtime.timer_wheel import TimerWheel

PORTION = 100
NEAREST, FARTHEST = 600.0, 4200.0
"""Seconds ahead between which the pending timers lie."""
MOVES = 2
"""How often each of them is moved."""
BURST = 10_000
SPREAD = 2_000
"""Timers that become due at one instant, and within a second."""

clock = SystemClock()


class Timers(Protocol):
    """What is measured."""

    def arm(self, key: str, at: float) -> None:
        """Tell this key at this monotonic instant, and not when it was armed for before."""

    def cancel(self, key: str) -> object:
        """Do not tell this key."""

    async def run(self) -> None:
        """Tell the keys, until cancelled."""


class Handles:
    """What one would write with asyncio alone."""

    def __init__(self, fired: Callable[[str], None]) -> None:
        self._tell = fired
        self._loop = asyncio.get_running_loop()
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def arm(self, key: str, at: float) -> None:
        """See Timers."""
        before = self._handles.get(key)
        if before is not None:
            before.cancel()
        self._handles[key] = self._loop.call_at(at, self._fire, key)

    def cancel(self, key: str) -> None:
        """See Timers."""
        handle = self._handles.pop(key, None)
        if handle is not None:
            handle.cancel()

    async def run(self) -> None:
        """See Timers."""
        await anyio.sleep_forever()

    def _fire(self, key: str) -> None:
        del self._handles[key]
        self._tell(key)


class Pace(msgspec.Struct, frozen=True):
    """Microseconds per operation, and milliseconds of the worst stall."""

    each: float
    stall: float


class Costs(msgspec.Struct, frozen=True):
    """What so many timers cost: milliseconds where nothing else is said. `idle` is the share of a processor."""

    arm: Pace
    move: Pace
    cancel: Pace
    collection: float
    idle: float
    lateness: float
    burst_stall: float
    burst_lateness: float

    @property
    def stall(self) -> float:
        """The worst of all operations'."""
        return max(self.arm.stall, self.move.stall, self.cancel.stall)


def wheel(fired: Callable[[str], None]) -> TimerWheel[str]:
    """What the controller uses."""
    return TimerWheel(clock, fired)


async def run(count: int = 200_000, rounds: int = 2) -> Outcome:
    """Measure `rounds` times, in turns; the figures are medians. Memory needs no second look."""
    wheels, heaps, queues = [], [], []
    for seed in range(rounds):
        wheels.append(await _measure(wheel, count, seed))
        heaps.append(await _measure(Handles, count, seed))
        queues.append(await _queue(count, seed))
    new_wheel, moved_wheel = await _bytes(wheel, count)
    new_heap, moved_heap = await _bytes(Handles, count)
    return Outcome(
        scenario="wheel",
        about=f"{count:,} pending timers: the timer wheel beside asyncio's heap of handles",
        figures=(
            *_compared("arm", " µs", lambda costs: costs.arm.each, wheels, heaps, at_most=1.0),
            *_compared("move to another instant", " µs", lambda costs: costs.move.each, wheels, heaps, at_most=0.8),
            *_compared("cancel", " µs", lambda costs: costs.cancel.each, wheels, heaps),
            *_compared("worst stall while they change", " ms", lambda costs: costs.stall, wheels, heaps, at_most=0.1),
            *_compared("full garbage collection", " ms", lambda costs: costs.collection, wheels, heaps, at_most=0.3),
            Figure("memory of a timer, wheel vs heap", new_wheel / new_heap, " ×", at_most=0.4),
            Figure("memory of a timer: wheel", new_wheel, " B"),
            Figure("memory of a timer: heap", new_heap, " B"),
            Figure("the same when nine in ten were moved: wheel", moved_wheel, " B"),
            Figure("the same when nine in ten were moved: heap", moved_heap, " B"),
            *_compared("idle, of a processor", " %", lambda costs: 100 * costs.idle, wheels, heaps),
            Figure("lateness, p99: wheel", median(costs.lateness for costs in wheels), " ms", at_most=50.0),
            Figure("lateness, p99: heap", median(costs.lateness for costs in heaps), " ms"),
            *_compared(f"stall at {BURST:,} due at once", " ms", lambda costs: costs.burst_stall, wheels, heaps, 0.3),
            *_compared("lateness of the last of these", " ms", lambda costs: costs.burst_lateness, wheels, heaps),
            Figure("work queue: a delayed key", median(pace.each for pace in queues), " µs"),
            Figure("work queue: worst stall while they come nearer", median(pace.stall for pace in queues), " ms"),
        ),
        parameters={"timers": count, "moves": MOVES, "ahead": f"{NEAREST:g}–{FARTHEST:g} s", "rounds": rounds},
    )


def _compared(
    name: str,
    unit: str,
    of: Callable[[Costs], float],
    wheels: Sequence[Costs],
    heaps: Sequence[Costs],
    at_most: float | None = None,
) -> list[Figure]:
    """The figure of both; and, where there is a budget for it, the wheel's as a multiple of the heap's."""
    figures = [
        Figure(f"{name}: wheel", median(map(of, wheels)), unit),
        Figure(f"{name}: heap", median(map(of, heaps)), unit),
    ]
    if at_most is not None:
        ratio = median(of(ours) / of(theirs) for ours, theirs in zip(wheels, heaps, strict=True))
        figures.insert(0, Figure(f"{name}, wheel vs heap", ratio, " ×", at_most))
    return figures


async def _measure(make: Callable[[Callable[[str], None]], Timers], count: int, seed: int) -> Costs:
    rng = random.Random(seed)
    keys = _keys(count)
    late: list[float] = []
    instants: dict[str, float] = {}
    timers = make(lambda key: late.append(clock.monotonic() - instants[key]))
    moved = [rng.choice(keys) for _ in range(MOVES * count)]
    gc.collect()
    async with anyio.create_task_group() as group:
        group.start_soon(timers.run)
        arm = await _in_portions(timers.arm, keys, _ahead(rng, count))
        move = await _in_portions(timers.arm, moved, _ahead(rng, len(moved)))
        began = time.perf_counter()
        gc.collect()
        collection = time.perf_counter() - began
        idle = await _idle()

        now = clock.monotonic()
        instants.update((f"spread-{number}", now + 0.1 + number / SPREAD) for number in range(SPREAD))
        for key, at in instants.items():
            timers.arm(key, at)
        await clock.sleep(1.2)
        lateness = quantiles(late, n=100)[-1]
        assert len(late) == SPREAD

        at = clock.monotonic() + 0.5
        instants.update((f"burst-{number}", at) for number in range(BURST))
        for number in range(BURST):
            timers.arm(f"burst-{number}", at)
        await clock.sleep(0.4)
        burst_stall = await _worst_gap(lambda: len(late) == SPREAD + BURST)

        rng.shuffle(keys)
        cancel = await _in_portions(lambda key, _: timers.cancel(key), keys, list(repeat(0.0, count)))
        group.cancel_scope.cancel()
    return Costs(
        arm=arm,
        move=move,
        cancel=cancel,
        collection=1e3 * collection,
        idle=idle,
        lateness=1e3 * lateness,
        burst_stall=1e3 * burst_stall,
        burst_lateness=1e3 * max(late[SPREAD:]),
    )


def _keys(count: int) -> list[str]:
    """Shaped as the UIDs of pods are."""
    return [f"0b7a2e4c-9f3d-4c51-8e6a-{number:012x}" for number in range(count)]


def _ahead(rng: random.Random, count: int) -> list[float]:
    now = clock.monotonic()
    return [now + rng.uniform(NEAREST, FARTHEST) for _ in range(count)]


async def _in_portions(
    operation: Callable[[str, float], object], keys: Sequence[str], instants: Sequence[float]
) -> Pace:
    worst, began = 0.0, time.perf_counter()
    for start in range(0, len(keys), PORTION):
        before = time.perf_counter()
        for index in range(start, min(start + PORTION, len(keys))):
            operation(keys[index], instants[index])
        await anyio.lowlevel.checkpoint()
        worst = max(worst, time.perf_counter() - before)
    return Pace(each=1e6 * (time.perf_counter() - began) / len(keys), stall=1e3 * worst)


async def _idle(seconds: float = 0.5) -> float:
    began = time.process_time()
    await clock.sleep(seconds)
    return (time.process_time() - began) / seconds


async def _worst_gap(is_over: Callable[[], bool]) -> float:
    """The longest that a task which always wants to run had to wait for it."""
    worst, before = 0.0, time.perf_counter()
    while not is_over():
        await anyio.lowlevel.checkpoint()
        now = time.perf_counter()
        worst, before = max(worst, now - before), now
    return worst


async def _bytes(make: Callable[[Callable[[str], None]], Timers], count: int) -> tuple[float, float]:
    """Bytes of one timer without its key, when they are new, and after nine in ten were moved once."""
    rng = random.Random(0)
    keys = _keys(count)
    tracemalloc.start()
    timers = make(lambda key: None)
    before, _ = tracemalloc.get_traced_memory()
    now = clock.monotonic()
    for key in keys:
        timers.arm(key, now + rng.uniform(NEAREST, FARTHEST))
    await anyio.lowlevel.checkpoint()
    fresh, _ = tracemalloc.get_traced_memory()
    for key in keys[: count * 9 // 10]:
        timers.arm(key, now + rng.uniform(NEAREST, FARTHEST))
    await anyio.lowlevel.checkpoint()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for key in keys:
        timers.cancel(key)
    await anyio.lowlevel.checkpoint()
    return (fresh - before) / count, (after - before) / count


async def _queue(count: int, seed: int) -> Pace:
    """The work queue can only bring a key nearer; a move to a later instant or a cancellation it does not know."""
    rng = random.Random(seed)
    keys = _keys(count)
    queue: WorkQueue[str] = WorkQueue(clock)
    paces = [
        await _in_portions(
            queue.add_after, keys, [(MOVES + 1 - step) * 1000 + rng.uniform(0.0, 1000.0) for _ in range(count)]
        )
        for step in range(MOVES + 1)
    ]
    return Pace(each=paces[0].each, stall=max(pace.stall for pace in paces))
