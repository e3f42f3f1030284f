"""Supervision of the components of a process: they run together, and none outlives another.

A component that fails, or returns before it was stopped, stops the others: a controller without its watch or its Events
would continue and look healthy. The process exits with the component's name and reason, and is restarted.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any

import anyio
import msgspec

logger = logging.getLogger(__name__)

Component = Callable[[], Awaitable[None]]

# Below the 30 s that Kubernetes grants a pod by default, so that the process exits before it is killed.
GRACE_SECONDS = 20.0


class ComponentFailed(Exception):
    """A component has failed (`__cause__` has the error) or has returned too early."""

    def __init__(self, component: str, reason: str) -> None:
        super().__init__(f"{component} failed: {reason}")
        self.component = component


class ComponentStatistics(msgspec.Struct, frozen=True):
    """Running and failed components by name; stopped components are in neither set."""

    running: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class ComponentStatus:
    """Which components of a process run; several `run_components` may share one."""

    def __init__(self) -> None:
        self._is_running: dict[str, bool] = {}

    def started(self, name: str) -> None:
        """Record that a component runs."""
        self._is_running[name] = True

    def ended(self, name: str, *, has_failed: bool) -> None:
        """Record that a component has failed or was stopped."""
        if has_failed:
            self._is_running[name] = False
        else:
            self._is_running.pop(name, None)

    def statistics(self) -> ComponentStatistics:
        """Running and failed components."""
        running = tuple(name for name, is_running in self._is_running.items() if is_running)
        return ComponentStatistics(running, tuple(name for name in self._is_running if name not in running))


class _Run:
    def __init__(self, name: str, component: Component, status: ComponentStatus) -> None:
        self.name = name
        self.component = component
        self.status = status
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()


async def run_components(
    components: Mapping[str, Component],
    stop: anyio.Event,
    grace_seconds: float = GRACE_SECONDS,
    status: ComponentStatus | None = None,
) -> None:
    """Run all components until `stop` is set; then stop them, the last one first, and return when all have ended.

    A component is stopped by cancellation, and the previous one after it has ended, so that a component's dependencies
    outlive it (Events are still written while the controllers stop). After `grace_seconds` all remaining components are
    cancelled. A component shields its own writes in progress from the cancellation for a limited time. Raises
    ComponentFailed for the first failure; later failures, and those during a cancellation from outside, are logged.
    """
    status = status or ComponentStatus()
    failures: list[ComponentFailed] = []
    try:
        runs = [_Run(name, component, status) for name, component in components.items()]
        await _run_all(runs, stop, grace_seconds, failures)
    except anyio.get_cancelled_exc_class():
        _log(failures)
        raise
    _log(failures[1:])
    if failures:
        raise failures[0]


async def _run_all(runs: list[_Run], stop: anyio.Event, grace_seconds: float, failures: list[ComponentFailed]) -> None:
    async with anyio.create_task_group() as group:

        async def supervise(run: _Run) -> None:
            own: list[ComponentFailed] = []
            run.status.started(run.name)
            try:
                with run.scope:
                    await run.component()
            except Exception as error:  # raised again by `run_components`, with its cause
                own.extend(_failure(run.name, leaf) for leaf in leaves(error))
            else:
                if not stop.is_set() and not is_cancelled():
                    own.append(ComponentFailed(run.name, "ended before it was stopped"))
            finally:
                run.status.ended(run.name, has_failed=bool(own))
                failures.extend(own)
            run.ended.set()
            if not stop.is_set():
                group.cancel_scope.cancel()

        for run in runs:
            group.start_soon(supervise, run, name=run.name)
        await stop.wait()
        logger.info("stopping: finishing writes in progress")
        await _stop_in_reverse(runs, grace_seconds)
        group.cancel_scope.cancel()


def is_cancelled() -> bool:
    """Whether a scope around the current task has been cancelled, by a failure or from outside."""
    return anyio.current_effective_deadline() == float("-inf")


async def _stop_in_reverse(runs: list[_Run], grace_seconds: float) -> None:
    with anyio.move_on_after(grace_seconds):
        for run in reversed(runs):
            run.scope.cancel()
            await run.ended.wait()
    left = [run.name for run in runs if not run.ended.is_set()]
    if left:
        logger.warning("not stopped after %g s: %s; finishing shielded work only", grace_seconds, ", ".join(left))


def _log(failures: list[ComponentFailed]) -> None:
    for failure in failures:
        logger.error("%s", failure, exc_info=failure.__cause__)


def _failure(name: str, cause: Exception) -> ComponentFailed:
    if isinstance(cause, ComponentFailed):
        return cause  # the failure of a nested component
    failure = ComponentFailed(name, f"{type(cause).__name__}: {cause}")
    failure.__cause__ = cause
    return failure


def leaves(error: Exception) -> Iterator[Exception]:
    """The exceptions in a group, in order; an exception that is no group is its own leaf."""
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


@contextmanager
def ungrouped() -> Iterator[None]:
    """Raise the first exception of a group as it was raised, where it cancels all others."""
    try:
        yield
    except ExceptionGroup as group:
        first = next(leaves(group))
        raise first from first.__cause__


@asynccontextmanager
async def while_running(*tasks: Callable[[], Coroutine[Any, Any, object]]) -> AsyncIterator[None]:
    """Run tasks while the block runs; its end cancels them."""
    async with anyio.create_task_group() as group:
        for task in tasks:
            group.start_soon(task)
        yield
        group.cancel_scope.cancel()


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def set_on_signal(stop: anyio.Event) -> None:
    """Set `stop` at the first SIGTERM or SIGINT; at the second, exit immediately with 128 + its number.

    Runs until cancelled; then signals have their default effect again. Main thread only.
    """
    is_asked = False

    def count(number: int, _frame: FrameType | None) -> None:
        nonlocal is_asked
        if is_asked:
            # SystemExit would still wait for shielded scopes, and a log line for the lock of the stream.
            os._exit(128 + number)
        is_asked = True

    with anyio.open_signal_receiver(*_SIGNALS) as signals:
        # The event loop learns of signals through a file descriptor, and the handlers that it installs do nothing. This
        # one runs between any two steps of the interpreter, even if the loop is busy.
        for number in _SIGNALS:
            signal.signal(number, count)
        async for received in signals:
            logger.info("%s: shutting down gracefully; signal again to force", received.name)
            stop.set()
