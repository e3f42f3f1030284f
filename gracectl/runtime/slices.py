"""Long computations in slices: the event loop runs at most one slice per iteration, however many computations are under
way, so that lease renewals, probes and requests wait for one slice at most."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

import anyio
import anyio.lowlevel

R = TypeVar("R")
Sliced = Generator[None, None, R]
"""Computation that yields after each slice of a few milliseconds."""


class Slices:
    """First-in, first-out scheduler of slices. Invariant: between two slices the event loop runs once."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()

    async def run(self, work: Sliced[R], before_waiting: Callable[[], None] = lambda: None) -> R:
        """Result of `work`. The first slice runs immediately: most computations have no other, and await nothing.

        `before_waiting`: called once if there are others.
        """
        done, result = _step(work)
        if not done:
            before_waiting()
        while not done:
            async with self._lock:
                await anyio.lowlevel.checkpoint()
                done, result = _step(work)
        assert result is not None
        return result


def run_at_once(work: Sliced[R]) -> R:
    """Result of `work`, for a process that does nothing else meanwhile."""
    while True:
        done, result = _step(work)
        if done:
            assert result is not None
            return result


def _step(work: Sliced[R]) -> tuple[bool, R | None]:
    try:
        next(work)
    except StopIteration as end:
        return True, end.value
    return False, None
