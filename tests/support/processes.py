"""Processes on one event loop: each can be stopped in the middle of anything, as by SIGSTOP, and go on much later.

What a task does, it does in the context in which it was begun, and so do its timers and the tasks that it begins. So
the event loop knows of each step whose it is, and keeps those of a frozen process until that is thawed, in their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any
from weakref import WeakKeyDictionary

import anyio.abc

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
