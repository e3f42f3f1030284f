"""Exponential backoff: tenacity's wait strategies with a random source that can be seeded.

The only arithmetic of growing waits. A state machine takes them from `Backoff.next`; a loop that repeats one call is
tenacity's AsyncRetrying with the clock's sleep, built by `retried` when the call fails.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_never
from tenacity.wait import wait_base, wait_exponential

T = TypeVar("T")

_UNSEEDED = random.Random()


class Backoff(wait_exponential):
    """Waits that grow from `initial` to `maximum` seconds by `multiplier`.

    `jitter`: the random share (0 to 1) of each wait, which lies between (1 - jitter) times and once its size. `rng` may
    be seeded, so that waits are reproducible. Raises ValueError for a jitter that would make waits negative.
    """

    def __init__(
        self,
        initial: float,
        maximum: float,
        *,
        multiplier: float = 2.0,
        jitter: float = 0.5,
        rng: random.Random | None = None,
    ) -> None:
        if not 0 <= jitter <= 1:
            raise ValueError(f"jitter must be a share between 0 and 1, not {jitter}")
        super().__init__(initial, maximum, multiplier)
        self._jitter = jitter
        self._rng = rng or _UNSEEDED
        self._failures = 0

    def __call__(self, retry_state: RetryCallState) -> float:
        """Seconds to wait after this attempt."""
        seconds = super().__call__(retry_state)
        return seconds * (1 - self._jitter * self._rng.random()) if self._jitter else seconds

    def configure(self, initial: float, maximum: float) -> None:
        """Change the sizes from the next wait on; the number of failures so far still counts."""
        self.multiplier, self.max = initial, maximum

    def after(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        return self(_Attempt(failures))

    def next(self) -> float:
        """Seconds to wait now, after one more failure."""
        self._failures += 1
        return self.after(self._failures)

    def reset(self) -> None:
        """Start again with the initial wait, after a success."""
        self._failures = 0


class requested_wait(wait_base):  # noqa: N801  # as tenacity names its strategies
    """Waits for as long as the failure requests; if it requests nothing, for as long as `otherwise` says.

    `requested` returns the seconds of an exception, None if it names none.
    """

    def __init__(self, requested: Callable[[BaseException | None], float | None], otherwise: wait_base) -> None:
        self._requested = requested
        self._otherwise = otherwise

    def __call__(self, retry_state: RetryCallState) -> float:
        """Seconds to wait after this attempt."""
        seconds = self._otherwise(retry_state)
        requested = self._requested(retry_state.outcome.exception() if retry_state.outcome else None)
        return seconds if requested is None else requested


async def retried(
    call: Callable[[], Awaitable[T]],
    *,
    may_repeat: Callable[[BaseException], bool],
    wait: Callable[[], wait_base],
    sleep: Callable[[float], Awaitable[None]],
    stop: Callable[[RetryCallState], bool] = stop_never,
) -> T:
    """Return the result of `call`, which is repeated after failures that `may_repeat` accepts, until `stop` is true.

    A call that succeeds costs nothing more: `wait` makes the waits of one series of attempts after the first failure.
    Raises the last failure.
    """
    first: Exception | None
    try:
        return await call()
    except Exception as error:
        if not may_repeat(error):
            raise
        first = error

    async def attempt() -> T:
        nonlocal first
        if first is None:
            return await call()
        failure, first = first, None
        raise failure

    retrying = AsyncRetrying(sleep=sleep, stop=stop, wait=wait(), retry=retry_if_exception(may_repeat), reraise=True)
    return await retrying(attempt)


class _Attempt(RetryCallState):
    """All that a wait reads of an attempt that no AsyncRetrying made."""

    def __init__(self, number: int) -> None:
        self.attempt_number = number
