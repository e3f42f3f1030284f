"""When a request may be asked again, and how long to wait before.

A repeat is safe where the request only reads, where the server surely did not execute it, or where executing
it twice ends as executing it once does. Everything else is handed to the caller, who knows what to look at
first. The exceptions are named: a cancellation is none of them and passes through untouched.
"""

from __future__ import annotations

import random

import msgspec
import tenacity

from gracectl.kube.errors import ApiError, RequestTimeout, ServerFault, Throttled, Unreachable
from gracectl.runtime.clock import Clock


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """At most `attempts` in all; waits double from `initial` to `maximum` seconds, each shortened by up to a half."""

    attempts: int = 5
    initial: float = 0.1
    maximum: float = 5.0


def is_surely_not_executed(error: BaseException) -> bool:
    """True when the server refused before it looked, or never saw the request."""
    return isinstance(error, Throttled) or (isinstance(error, Unreachable) and not error.sent)


def is_transient(error: BaseException) -> bool:
    """True when the same request may well succeed a little later."""
    return isinstance(error, Throttled | Unreachable | RequestTimeout | ServerFault)


class RetryAfterOrBackoff(tenacity.wait.wait_base):
    """What the server asked for, exactly; without a word from it, exponential with jitter."""

    def __init__(self, settings: RetrySettings, rng: random.Random) -> None:
        self._exponential = tenacity.wait_exponential(multiplier=settings.initial, max=settings.maximum)
        self._rng = rng

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        error = retry_state.outcome.exception() if retry_state.outcome else None
        if isinstance(error, Throttled | ServerFault | RequestTimeout) and error.retry_after is not None:
            return error.retry_after
        return self._exponential(retry_state) * self._rng.uniform(0.5, 1.0)


def retrying(clock: Clock, settings: RetrySettings, rng: random.Random, *, repeatable: bool) -> tenacity.AsyncRetrying:
    """A fresh retrier for one call (one that is shared between calls mixes up their results).

    `repeatable`: the request reads, or is idempotent by construction, so that any transient failure may be
    tried again; otherwise only what surely was not executed is. The last error is raised as it is.
    """
    return tenacity.AsyncRetrying(
        sleep=clock.sleep,
        stop=tenacity.stop_after_attempt(settings.attempts),
        wait=RetryAfterOrBackoff(settings, rng),
        retry=tenacity.retry_if_exception(is_transient if repeatable else is_surely_not_executed),
        reraise=True,
    )


def outcome_of(error: ApiError | None) -> str:
    """The name under which statistics count an attempt: `ok`, or the error's class."""
    return "ok" if error is None else type(error).__name__
