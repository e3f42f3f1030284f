"""Who waits is woken; who comes later waits for the next."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import checkpoint

from gracectl.runtime.news import News

pytestmark = pytest.mark.anyio


async def test_everybody_who_waits_is_woken_once() -> None:
    news, woken = News(), []

    async def wait(name: str) -> None:
        await news.wait()
        woken.append(name)

    async with anyio.create_task_group() as group:
        group.start_soon(wait, "a")
        group.start_soon(wait, "b")
        await anyio.wait_all_tasks_blocked()
        news.tell()
        await anyio.wait_all_tasks_blocked()
        assert sorted(woken) == ["a", "b"]


async def test_what_was_told_before_wakes_nobody() -> None:
    news = News()
    news.tell()
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(news.wait)
            await anyio.wait_all_tasks_blocked()
            await checkpoint()
            scope.cancel()
    assert scope.cancelled_caught


async def test_who_goes_away_takes_nobodys_news_along() -> None:
    news, woken = News(), anyio.Event()

    async def wait() -> None:
        await news.wait()
        woken.set()

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        with anyio.move_on_after(0):
            await news.wait()
        await anyio.wait_all_tasks_blocked()
        news.tell()
        await anyio.wait_all_tasks_blocked()
        assert woken.is_set()
