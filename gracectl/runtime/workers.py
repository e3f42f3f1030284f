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
from gracectl.runtime.supervise import is_cancelled

logger = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)


class Requeue(msgspec.Struct, frozen=True):
    """Reconcile the key again after this many seconds; 0: immediately, behind waiting keys."""

    after: float


async def run_workers(
    queue: WorkQueue[K],
    reconcile: Callable[[K], Awaitable[Requeue | None]],
    count: int | Shares[K],
    expected: tuple[type[Exception], ...] = (),
    *,
    in_bursts: bool = False,
) -> None:
    """Reconcile keys, at most `count` at a time, until cancelled. With Shares as `count`, slow keys do not delay
    others; they belong to this queue alone and may be resized at any time.

    A reconcile that raises is logged and retried with backoff, so that one bad object cannot stop the work
    on all others; `expected` failures (a server that does not respond) are logged without a traceback, and a closed
    fence at debug level.

    One reconcile starts per turn of the event loop, so that many that compute do not block all else. `in_bursts`: all
    that are ready start in the same turn; for reconciles that do little more than send a request, and have to send it
    in time.
    """
    queue.share(Shares(queue.clock, count, has_slow_slots=False) if isinstance(count, int) else count)

    async def work(key: K) -> None:
        while True:
            is_decided = False
            try:
                await _reconcile(queue, reconcile, key, expected)
                is_decided = True
            finally:
                if not is_decided:
                    queue.add(key)  # cancelled halfway: the next workers of this queue must reconcile it again
                queue.done(key)
            if not in_bursts:
                return
            try:
                key = queue.get_nowait()  # a task costs more than the rest of all this
            except anyio.WouldBlock:
                return

    # One task takes keys and starts another for each: many tasks waiting on one queue would all wake for one key.
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
        # Expected when this process is about to stop; with permission renewed, the retry succeeds.
        logger.debug("%s: %s", key, closed, extra={"key": str(key)})
        queue.add_rate_limited(key)
    except expected as error:
        logger.warning("%s: %s; retrying with backoff", key, error, extra={"key": str(key)})
        queue.add_rate_limited(key)
    except (Exception, anyio.get_cancelled_exc_class()) as error:  # one bad object must not stop the work on all others
        if not isinstance(error, Exception) and is_cancelled():
            raise  # the workers are cancelled; otherwise a library leaked its own cancellation
        logger.exception("%s: unexpected failure; retrying with backoff", key, extra={"key": str(key)})
        queue.add_rate_limited(key)
    else:
        queue.forget(key)
        if again is not None:
            queue.add_after(key, again.after)
