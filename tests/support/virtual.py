"""Virtual time: an event loop, processes that can be stopped on it, and clocks that a test sets."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVarTuple
from weakref import WeakKeyDictionary

import anyio.abc

from gracectl.runtime.clock import Clock, LoopClock, RelayedClock

# Clocks that a test sets.


class ShiftedClock(RelayedClock):
    """Another clock with a time of day that is off by `offset` seconds, which may change at any time."""

    def __init__(self, clock: Clock, offset: float = 0.0) -> None:
        super().__init__(clock)
        self._offset = offset
        self._is_disputed = False

    @property
    def offset(self) -> float:
        """Seconds that this clock is ahead of the other."""
        return self._offset

    @offset.setter
    def offset(self, offset: float) -> None:
        self._offset = offset
        self.jumped()

    def adjust(self, offset: float, is_disputed: bool) -> None:
        """Set the offset, and whether other clocks contradict this one."""
        self._is_disputed = is_disputed
        self.offset = offset

    def now(self) -> float:
        """See Clock."""
        return super().now() + self._offset

    def is_disputed(self) -> bool:
        """See Clock."""
        return self._is_disputed

    def subscribe(self, callback: Callable[[], None]) -> None:
        """See Clock. The other clock may jump as well."""
        super().subscribe(callback)
        self._clock.subscribe(callback)


class BlockedClock(LoopClock):
    """Shows that the event loop was blocked: `missed` seconds have passed in which no task had a turn."""

    missed = 0.0

    def monotonic(self) -> float:
        """See Clock."""
        return super().monotonic() + self.missed


class HandClock(LoopClock):
    """Time passes only by hand and in sleeps, which return at once."""

    seconds = 0.0

    def now(self) -> float:
        """See Clock."""
        return self._epoch + self.seconds

    def monotonic(self) -> float:
        """See Clock."""
        return self.seconds

    def elapsed(self) -> float:
        """See Clock."""
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        self.seconds += seconds


# Processes on one event loop: each can be stopped in the middle of anything, as by SIGSTOP, and go on much later.
#
# What a task does, it does in the context in which it was begun, and so do its timers and the tasks that it begins.
# So the event loop knows of each step whose it is, and keeps those of a frozen process until that is thawed, in their
# order.

PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)
"""The process of this step; None: the world around them."""

PROCESSES: WeakKeyDictionary[asyncio.Task[Any], Process] = WeakKeyDictionary()
"""The process of each task that belongs to one."""


class Process:
    """See the module. The running event loop must be a `support.virtual.VirtualLoop`."""

    def __init__(self) -> None:
        self._is_frozen = False
        self._steps_left = 0
        self._at_step: Callable[[], None] = lambda: None
        self._kept: list[asyncio.Handle] = []

    def freeze(self) -> None:
        """From now on nothing happens in it; whatever should have happens when it is thawed."""
        self._is_frozen = True

    def thaw(self) -> None:
        """It goes on where it was stopped; timers whose time has come meanwhile go off now. No step is waited for any
        more."""
        self._is_frozen, self._steps_left = False, 0
        kept, self._kept = self._kept, []
        loop: Any = asyncio.get_running_loop()
        loop.resume(kept)

    def after_steps(self, steps: int, callback: Callable[[], None]) -> None:
        """Call back between two steps of the event loop, when it has made so many from now on."""
        self._steps_left, self._at_step = steps, callback

    def start_soon(self, group: anyio.abc.TaskGroup, function: Callable[..., Any], *arguments: Any) -> None:
        """Begin a task of this process."""
        context = copy_context()
        context.run(PROCESS.set, self)
        context.run(group.start_soon, function, *arguments)

    def keeps(self, step: asyncio.Handle) -> bool:
        """Whether it is frozen: then it keeps a step that is due until it is thawed."""
        if self._is_frozen:
            self._kept.append(step)
        return self._is_frozen

    def stepped(self, context: Context) -> None:
        """It has made a step, in this context."""
        if self._steps_left:
            self._steps_left -= 1
            if not self._steps_left:
                context.run(self._at_step)


def outside(function: Callable[..., Any], *arguments: Any) -> None:
    """Do this as the world around all processes does it."""
    context = copy_context()
    context.run(PROCESS.set, None)
    context.run(function, *arguments)


# Event loop on virtual time, for what has no sockets and no threads: whole simulations, many of them.
#
# Its time moves only when everything waits, and then to the next timer. It does the same steps at the same instants
# as a loop of looptime, and costs less. Timers of the same instant go off in the order in which they were set.

Arguments = TypeVarTuple("Arguments")
Callback = Callable[..., object]

TICKS = 1_000_000
"""In a second. Time moves by whole ticks, so that sums of floating-point numbers do not differ by a hair."""
SAME_INSTANT = 1e-9


def nothing() -> None:
    """What is left of a step that was cancelled."""


class Step(asyncio.Handle):
    """What the loop is to do soon."""

    __slots__ = ()

    def __init__(self, callback: Callback, arguments: tuple[Any, ...], context: Context) -> None:
        self._context = context
        self._callback = callback
        self._args = arguments
        self._cancelled = False

    def cancel(self) -> None:
        """Let it not be done. What it would have called is let go."""
        self._cancelled = True
        self._callback, self._args = nothing, ()

    def __repr__(self) -> str:
        return f"Step({self._callback})"


class Alarm(Step, asyncio.TimerHandle):
    """What the loop is to do at an instant."""

    __slots__ = ()

    def __init__(self, when: float, callback: Callback, arguments: tuple[Any, ...], context: Context) -> None:
        super().__init__(callback, arguments, context)
        self._when = when


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module. It knows of processes: each step belongs to that in whose context it was scheduled."""

    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._ticks, self._now = 0, 0.0
        self._soon: deque[Step] = deque()
        self._alarms: list[tuple[float, int, Alarm]] = []
        self._order = itertools.count()

    def time(self) -> float:
        """Seconds that have passed."""
        return self._now

    def call_soon(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> Step:
        """See asyncio."""
        step = Step(callback, args, copy_context() if context is None else context)
        self._soon.append(step)
        return step

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> Alarm:
        """See asyncio."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> Alarm:
        """See asyncio."""
        alarm = Alarm(when, callback, args, copy_context() if context is None else context)
        heapq.heappush(self._alarms, (when, next(self._order), alarm))
        return alarm

    def create_task(self, *args: Any, context: Context | None = None, **options: Any) -> asyncio.Task[Any]:
        """See asyncio."""
        task: asyncio.Task[Any] = super().create_task(*args, context=context, **options)
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            PROCESSES[task] = process
        return task

    def resume(self, steps: Iterable[Step]) -> None:
        """Do soon what a process has kept."""
        self._soon.extend(steps)

    def _run_once(self) -> None:
        """All that is to be done now, and nothing that this schedules."""
        self._ring()
        soon = self._soon
        for _ in range(len(soon)):
            step = soon.popleft()
            if step._cancelled:
                continue
            process = step._context.get(PROCESS)
            if process is not None and process.keeps(step):
                continue
            try:
                step._context.run(step._callback, *step._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"Exception in {step}", "exception": error})
            if process is not None:
                process.stepped(step._context)

    def _ring(self) -> None:
        """Move the time on if there is nothing to do now; what is due is to be done."""
        alarms, soon = self._alarms, self._soon
        while alarms and alarms[0][2]._cancelled:
            heapq.heappop(alarms)
        if not soon and not self._stopping:
            if not alarms:
                raise RuntimeError("everything waits, and nothing will ever happen")
            self._move(alarms[0][0] - self._now)
        due = self._now + SAME_INSTANT
        while alarms and alarms[0][0] < due:
            soon.append(heapq.heappop(alarms)[2])

    def _move(self, seconds: float) -> None:
        if seconds > 0.0:
            ticks = seconds * TICKS
            self._ticks += round(ticks) + (ticks < 1.0)
            self._now = self._ticks / TICKS
