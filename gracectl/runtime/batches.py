"""Many that ask the same thing at about the same time become one call.

No task of its own: the first that asks waits for the others and carries the batch out for all of them. When it is
cancelled, the next in the line takes over; what it had begun is begun again, so calls must bear being repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

import anyio

from gracectl.runtime.clock import Clock

K = TypeVar("K")
V = TypeVar("V")


class BatchesClosed(Exception):
    """It is over: nobody waits for an answer any more."""


class _Batch(Generic[K, V]):
    def __init__(self, due: float) -> None:
        self.due = due
        self.wanted: Counter[K] = Counter()
        """By key, how many wait for it."""
        self.is_open = True
        self.answers: Mapping[K, V | Exception] = {}
        self.failure: Exception | None = None
        self.is_over = False
        self.turn = anyio.Lock(fast_acquire=True)
        self.scope: anyio.CancelScope | None = None

    def answer(self, key: K) -> V:
        answer = self.failure or self.answers[key]
        if isinstance(answer, Exception):
            # One exception may be raised to many: nobody is to see the way that it took to the others.
            raise answer.with_traceback(None)
        return answer

    def fail(self, failure: Exception) -> None:
        self.failure = failure
        self.is_over = True


class Batches(Generic[K, V]):
    """Collects keys for `seconds`, at most `limit` of them, and asks for them at once with `call`.

    `call` answers for every key that it is given, with a value or with the exception that whoever asked for it gets;
    what it raises, all get. A key that nobody waits for any more when the batch leaves is not asked for.
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

    async def ask(self, key: K) -> V:
        """The answer for a key, from a call that begins after this one. Raises BatchesClosed, or what `call` says."""
        if self._is_closed:
            raise BatchesClosed
        batch = self._batch_for(key)
        batch.wanted[key] += 1
        try:
            async with batch.turn:  # first come, first served: whoever is in here carries it, unless it is over
                if not batch.is_over:
                    await self._carry(batch)
        finally:
            self._leave(batch, key)
        return batch.answer(key)

    async def aclose(self) -> None:
        """Stop what is on its way; whoever waits gets BatchesClosed. Returns when nothing is left of any call."""
        self._is_closed = True
        for batch in list(self._alive):
            batch.fail(BatchesClosed())
            if batch.scope is not None:
                batch.scope.cancel()
            async with batch.turn:
                pass

    def _batch_for(self, key: K) -> _Batch[K, V]:
        last = self._last
        if last is None or not last.is_open or (key not in last.wanted and len(last.wanted) >= self._limit):
            last = self._last = _Batch(self._clock.monotonic() + self._seconds)
            self._alive.add(last)
        return last

    def _leave(self, batch: _Batch[K, V], key: K) -> None:
        batch.wanted[key] -= 1
        if not batch.wanted[key]:
            del batch.wanted[key]
        if not batch.wanted:
            batch.is_open = False
            self._alive.discard(batch)

    async def _carry(self, batch: _Batch[K, V]) -> None:
        with anyio.CancelScope() as batch.scope:
            await self._clock.sleep(batch.due - self._clock.monotonic())
            batch.is_open = False
            try:
                batch.answers = await self._call(list(batch.wanted))
            except Exception as error:  # whatever it is, everybody who waits for the batch is told
                batch.failure = error
            batch.is_over = True
