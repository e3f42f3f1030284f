"""Notifier: wakes present waiters; later ones wait for the next notification."""

from __future__ import annotations

import anyio
from anyio.lowlevel import checkpoint

from gracectl.runtime.notifier import Notifier, Wakeup


async def test_all_waiters_are_woken_once() -> None:
    notifier, woken = Notifier(), []

    async def wait(name: str) -> None:
        await notifier.wait()
        woken.append(name)

    async with anyio.create_task_group() as group:
        group.start_soon(wait, "a")
        group.start_soon(wait, "b")
        await anyio.wait_all_tasks_blocked()
        notifier.notify()
        await anyio.wait_all_tasks_blocked()
        assert sorted(woken) == ["a", "b"]


async def test_an_earlier_notification_wakes_no_waiter() -> None:
    notifier = Notifier()
    notifier.notify()
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(notifier.wait)
            await anyio.wait_all_tasks_blocked()
            await checkpoint()
            scope.cancel()
    assert scope.cancelled_caught


async def test_a_cancelled_waiter_takes_no_wake_up_along() -> None:
    notifier, woken = Notifier(), anyio.Event()

    async def wait() -> None:
        await notifier.wait()
        woken.set()

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        with anyio.move_on_after(0):
            await notifier.wait()
        await anyio.wait_all_tasks_blocked()
        notifier.notify()
        await anyio.wait_all_tasks_blocked()
        assert woken.is_set()


async def test_a_call_while_the_task_works_wakes_it_when_it_waits_next_and_once() -> None:
    wakeup = Wakeup()
    wakeup.set()
    wakeup.set()
    await wakeup.wait()
    assert anyio.current_time() == 0
    await wakeup.wait(5)
    assert anyio.current_time() == 5
