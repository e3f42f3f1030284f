"""Workers that take keys from a queue and reconcile them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import TypeVar

import anyio
import msgspec

from gracectl.runtime.fence import FenceClosed
from gracectl.runtime.queue import WorkQueue
from gracectl.runtime.shares import Shares

logger = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)


class Requeue(msgspec.Struct, frozen=True):
    """Look at the key again after so many seconds; 0 means at once, behind those that wait already."""

    after: float


async def run_workers(
    queue: WorkQueue[K],
    reconcile: Callable[[K], Awaitable[Requeue | None]],
    count: int | Shares[K],
    expected: tuple[type[Exception], ...] = (),
    *,
    in_bursts: bool = False,
) -> None:
    """Reconcile keys, at most `count` at a time, until cancelled. Where slow keys are not to hold up others, `count` is
    Shares, which belong to this queue alone and may be resized at any moment.

    A reconcile that raises is logged and its key tried again with backoff, so that one bad object cannot stop the work
    on all others; failures of the `expected` kinds (a server that does not answer) are logged without a traceback, and
    a closed fence hardly at all.

    One reconcile begins in a turn of the event loop, so that many that compute do not hold up everybody else.
    `in_bursts`: all that are ready begin in the same turn; for those that hardly do more than send a request, and have
    to send it in time.
    """
    queue.share(Shares(queue.clock, count, has_slow_places=False) if isinstance(count, int) else count)

    async def work(key: K) -> None:
        is_decided = False
        try:
            await _reconcile(queue, reconcile, key, expected)
            is_decided = True
        finally:
            if not is_decided:
                queue.add(key)  # cancelled in the middle: whoever works on this queue next must look at it again
            queue.done(key)

    # One task takes keys and starts another for each: many tasks that wait for the same queue would all wake for a key.
    async with anyio.create_task_group() as group:
        while True:
            group.start_soon(work, await queue.get())
            with suppress(anyio.WouldBlock):
                while in_bursts:
                    group.start_soon(work, queue.get_nowait())


async def _reconcile(
    queue: WorkQueue[K],
    reconcile: Callable[[K], Awaitable[Requeue | None]],
    key: K,
    expected: tuple[type[Exception], ...],
) -> None:
    try:
        again = await reconcile(key)
    except FenceClosed as closed:
        # Whose permission has run out is about to be ended, and who gets it back goes on by itself: no news.
        logger.debug("%s: %s", key, closed, extra={"key": str(key)})
        queue.add_rate_limited(key)
    except expected as error:
        logger.warning("%s: %s; it will be tried again", key, error, extra={"key": str(key)})
        queue.add_rate_limited(key)
    except Exception:  # whatever an object makes a reconcile raise must not stop the work on all others
        logger.exception("%s: unexpected failure; it will be tried again", key, extra={"key": str(key)})
        queue.add_rate_limited(key)
    else:
        queue.forget(key)
        if again is not None:
            queue.add_after(key, again.after)
