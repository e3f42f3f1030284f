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

Callback = Callable[..., object]

PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)
"""The process of this step; None: the world around them."""

PROCESSES: WeakKeyDictionary[asyncio.Task[Any], Process] = WeakKeyDictionary()
"""The process of each task that belongs to one."""


class Process:
    """See the module. `install` must have been called on the running event loop."""

    def __init__(self) -> None:
        self._is_frozen = False
        self._steps_left = 0
        self._at_step: Callable[[], None] = lambda: None
        self._kept: list[tuple[asyncio.Handle, Context, Callback, tuple[Any, ...]]] = []

    def freeze(self) -> None:
        """From now on nothing happens in it; whatever should have happens when it is thawed."""
        self._is_frozen = True

    def thaw(self) -> None:
        """It goes on where it was stopped; timers whose time has come meanwhile go off now. No step is waited for any
        more."""
        self._is_frozen, self._steps_left = False, 0
        kept, self._kept = self._kept, []
        loop = asyncio.get_running_loop()
        for handle, context, callback, arguments in kept:
            if not handle.cancelled():
                loop.call_soon(callback, *arguments, context=context)

    def after_steps(self, steps: int, callback: Callable[[], None]) -> None:
        """Call back between two steps of the event loop, when it has made so many from now on."""
        self._steps_left, self._at_step = steps, callback

    def start_soon(self, group: anyio.abc.TaskGroup, function: Callable[..., Any], *arguments: Any) -> None:
        """Begin a task of this process."""
        context = copy_context()
        context.run(PROCESS.set, self)
        context.run(group.start_soon, function, *arguments)

    def take(
        self,
        handle: list[asyncio.Handle],
        context: Context,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
    ) -> None:
        """A step of it is due."""
        if self._is_frozen:
            self._kept.append((handle[0], context, callback, arguments))
            return
        callback(*arguments)
        if self._steps_left:
            self._steps_left -= 1
            if not self._steps_left:
                self._at_step()


def outside(function: Callable[..., Any], *arguments: Any) -> None:
    """Do this as the world around all processes does it."""
    context = copy_context()
    context.run(PROCESS.set, None)
    context.run(function, *arguments)


def install() -> None:
    """Let the running event loop know of processes."""
    loop: Any = asyncio.get_running_loop()
    soon, at, create = loop.call_soon, loop.call_at, loop.create_task

    def owned(
        schedule: Callable[..., asyncio.Handle], callback: Callback, arguments: Any, context: Any
    ) -> asyncio.Handle:
        context = context or copy_context()
        process = context.get(PROCESS)
        if process is None:
            return schedule(callback, *arguments, context=context)
        handle: list[asyncio.Handle] = []
        handle.append(schedule(process.take, handle, context, callback, arguments, context=context))
        return handle[0]

    def call_soon(callback: Callback, *arguments: Any, context: Any = None) -> asyncio.Handle:
        return owned(soon, callback, arguments, context)

    def call_at(when: float, callback: Callback, *arguments: Any, context: Any = None) -> asyncio.Handle:
        def schedule(*what: Any, context: Any) -> asyncio.Handle:
            handle: asyncio.Handle = at(when, *what, context=context)
            return handle

        return owned(schedule, callback, arguments, context)

    def create_task(*arguments: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = create(*arguments, **options)
        if (process := (options.get("context") or copy_context()).get(PROCESS)) is not None:
            PROCESSES[task] = process
        return task

    loop.call_soon, loop.call_at, loop.create_task = call_soon, call_at, create_task
