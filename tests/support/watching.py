"""A shutdown watch that runs, and its listener."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from kubesim_support.patience import PATIENCE

from gracectl.agent.inhibit_delay import DropIn
from gracectl.agent.watch import ShutdownWatch, Timeouts, WatchState
from gracectl.runtime.clock import LoopClock
from support.logind import Machine

WHY = "pods of this node end in order"
QUICK = Timeouts(initial_pause=0.01, maximum_pause=0.05)


class Listener:
    """Records its calls, as words, and the state that comes with each."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.delays: list[float] = []
        self.state = WatchState()
        self.states: list[WatchState] = []
        self.when_cancelled: Callable[[], None] = lambda: None
        self._changed = anyio.Event()

    def shutting_down(self, delay: float) -> None:
        self.delays.append(delay)
        self._tell("shutting down")

    def cancelled(self) -> None:
        self.when_cancelled()
        self._tell("cancelled")

    def state_changed(self, state: WatchState) -> None:
        self.state = state
        self.states.append(state)
        self._changed.set()

    def _tell(self, word: str) -> None:
        self.told.append(word)
        self._changed.set()

    async def until(self, condition: Callable[[WatchState], bool]) -> None:
        """Return when the state is such."""
        await self._wait(lambda: condition(self.state))

    async def until_told(self, *told: str) -> None:
        """Return when that, and nothing else, was reported."""
        await self._wait(lambda: len(self.told) >= len(told))
        assert self.told == list(told)

    async def _wait(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE):
            while not condition():
                self._changed = anyio.Event()
                await self._changed.wait()


@asynccontextmanager
async def watching(
    machine: Machine,
    *,
    wanted: float | None = 3.0,
    drop_in: DropIn | None = None,
    timeouts: Timeouts = QUICK,
    may_write: bool = True,
) -> AsyncIterator[tuple[ShutdownWatch, Listener]]:
    """A watch over that machine; with `wanted` seconds from the beginning, unless that is None."""
    listener = Listener()
    file = (drop_in or machine.drop_in) if may_write else None
    watch = ShutdownWatch(machine.bus.address, file, LoopClock(), listener, timeouts=timeouts)
    if wanted is not None:
        watch.want(wanted, WHY)
    async with anyio.create_task_group() as group:
        group.start_soon(watch.run)
        yield watch, listener
        group.cancel_scope.cancel()


def is_locked(state: WatchState) -> bool:
    """Whether the machine waits for the agent."""
    return state.is_locked


def has_problem(state: WatchState) -> bool:
    """Whether something is amiss."""
    return bool(state.problem)


def is_well(state: WatchState) -> bool:
    """Whether all is as it should be."""
    return state.is_locked and not state.problem and state.delay is not None
