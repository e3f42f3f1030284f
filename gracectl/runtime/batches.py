"""Batching of concurrent requests: keys that are requested at about the same time become one call.

It has no task: the first caller waits for the others and makes the call for all. When it is
cancelled, the next in line takes over and repeats the call, so calls must be idempotent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

import anyio

from gracectl.runtime.clock import Clock

K = TypeVar("K")
V = TypeVar("V")


class BatcherClosed(Exception):
    """The batcher was closed; there are no more results."""


class _Batch(Generic[K, V]):
    def __init__(self, due: float) -> None:
        self.due = due
        self.waiters: Counter[K] = Counter()
        """Number of waiters by key."""
        self.is_open = True
        self.results: Mapping[K, V | Exception] = {}
        self.failure: Exception | None = None
        self.is_over = False
        self.turn = anyio.Lock(fast_acquire=True)
        self.scope: anyio.CancelScope | None = None

    def result(self, key: K) -> V:
        result = self.failure or self.results[key]
        if isinstance(result, Exception):
            # One exception may be raised to several callers: none sees the traceback of another.
            raise result.with_traceback(None)
        return result

    def fail(self, failure: Exception) -> None:
        self.failure = failure
        self.is_over = True


class Batcher(Generic[K, V]):
    """Collects keys for `seconds`, at most `limit` of them, and passes them to `call` together.

    `call` maps every key to a value or to the exception that its callers get; an exception that it raises goes to all.
    A key is left out if all of its callers were cancelled before the call.
    """

    def __init__(
        self,
        clock: Clock,
        call: Callable[[Sequence[K]], Awaitable[Mapping[K, V | Exception]]],
        *,
        seconds: float,
        limit: int,
    ) -> None:
        self._clock = clock
        self._call = call
        self._seconds = seconds
        self._limit = limit
        self._last: _Batch[K, V] | None = None
        self._alive: set[_Batch[K, V]] = set()
        self._is_closed = False

    async def get(self, key: K) -> V:
        """Value for a key, from a call that begins after this one. Raises BatcherClosed, or what `call` says."""
        if self._is_closed:
            raise BatcherClosed
        batch = self._batch_for(key)
        batch.waiters[key] += 1
        try:
            async with batch.turn:  # fair: the holder makes the call, unless it is over
                if not batch.is_over:
                    await self._make_call(batch)
        finally:
            self._leave(batch, key)
        return batch.result(key)

    async def aclose(self) -> None:
        """Cancel calls in progress; callers get BatcherClosed. Returns when all calls have ended."""
        self._is_closed = True
        for batch in list(self._alive):
            batch.fail(BatcherClosed())
            if batch.scope is not None:
                batch.scope.cancel()
            async with batch.turn:
                pass

    def _batch_for(self, key: K) -> _Batch[K, V]:
        last = self._last
        if last is None or not last.is_open or (key not in last.waiters and len(last.waiters) >= self._limit):
            last = self._last = _Batch(self._clock.monotonic() + self._seconds)
            self._alive.add(last)
        return last

    def _leave(self, batch: _Batch[K, V], key: K) -> None:
        batch.waiters[key] -= 1
        if not batch.waiters[key]:
            del batch.waiters[key]
        if not batch.waiters:
            batch.is_open = False
            self._alive.discard(batch)

    async def _make_call(self, batch: _Batch[K, V]) -> None:
        with anyio.CancelScope() as batch.scope:
            await self._clock.sleep(batch.due - self._clock.monotonic())
            batch.is_open = False
            try:
                batch.results = await self._call(list(batch.waiters))
            except Exception as error:  # raised to every caller of the batch
                batch.failure = error
            batch.is_over = True
