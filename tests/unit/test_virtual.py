"""The virtual event loop of simulations (support.virtual)."""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar

from support.virtual import VirtualLoop

SENDER: ContextVar[str] = ContextVar("SENDER", default="")


def test_a_task_that_is_woken_keeps_its_own_context_even_an_empty_one() -> None:
    """An empty Context is false."""
    loop = VirtualLoop()
    event, seen = asyncio.Event(), []

    async def wait() -> None:
        await event.wait()
        seen.append(SENDER.get())
        later: asyncio.Future[None] = loop.create_future()
        loop.call_later(1.0, later.set_result, None)
        await later
        seen.append(SENDER.get())

    async def wake() -> None:
        SENDER.set("waker")
        event.set()

    tasks = [loop.create_task(each, context=Context()) for each in (wait(), wake())]
    loop.run_until_complete(_all(tasks))
    loop.close()
    assert seen == ["", ""]


async def _all(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)
