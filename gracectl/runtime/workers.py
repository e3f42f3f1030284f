"""Workers that take keys from a queue and reconcile them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import TypeVar

import anyio
import anyio.lowlevel
import msgspec

from gracectl.runtime.fence import FenceClosed
from gracectl.runtime.news import News
from gracectl.runtime.queue import WorkQueue

logger = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)


class Requeue(msgspec.Struct, frozen=True):
    """Look at the key again after so many seconds; 0 means at once, behind those that wait already."""

    after: float


class Capacity:
    """How many keys are worked on at a time. It may be changed at any moment: what is under way goes on, and with less
    room nothing is begun until so much of it has ended.

    Not anyio's CapacityLimiter: made smaller and larger again it lets too many in, in versions that we run with
    (https://github.com/agronholm/anyio/pull/1223).
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken = 0
        self._news = News()

    def resize(self, count: int) -> None:
        """From now on so many."""
        self._count = count
        self._news.tell()

    @property
    def is_free(self) -> bool:
        """Whether there is room for one more."""
        return self._taken < self._count

    def take(self) -> None:
        """One more is under way; `is_free` has been asked."""
        self._taken += 1

    async def acquire(self) -> None:
        """Return when there was room for one more, which is taken."""
        await anyio.lowlevel.checkpoint()
        while not self.is_free:
            await self._news.wait()
        self.take()

    def release(self) -> None:
        """One less is under way."""
        self._taken -= 1
        self._news.tell()


async def run_workers(
    queue: WorkQueue[K],
    reconcile: Callable[[K], Awaitable[Requeue | None]],
    count: int | Capacity,
    expected: tuple[type[Exception], ...] = (),
    *,
    in_bursts: bool = False,
) -> None:
    """Reconcile keys, at most `count` at a time, until cancelled.

    A reconcile that raises is logged and its key tried again with backoff, so that one bad object cannot stop the work
    on all others; failures of the `expected` kinds (a server that does not answer) are logged without a traceback, and
    a closed fence hardly at all.

    One reconcile begins in a turn of the event loop, so that many that compute do not hold up everybody else.
    `in_bursts`: all that are ready begin in the same turn; for those that hardly do more than send a request, and have
    to send it in time.
    """
    places = count if isinstance(count, Capacity) else Capacity(count)

    async def work(key: K) -> None:
        is_decided = False
        try:
            await _reconcile(queue, reconcile, key, expected)
            is_decided = True
        finally:
            if not is_decided:
                queue.add(key)  # cancelled in the middle: whoever works on this queue next must look at it again
            queue.done(key)
            places.release()

    # One task takes keys and starts another for each: many tasks that wait for the same queue would all wake for a key.
    async with anyio.create_task_group() as group:
        while True:
            await places.acquire()
            group.start_soon(work, await queue.get())
            with suppress(anyio.WouldBlock):
                while in_bursts and places.is_free:
                    key = queue.get_nowait()
                    places.take()
                    group.start_soon(work, key)


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
