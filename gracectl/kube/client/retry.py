"""Retries of a request: whether it may be repeated, and after which delay.

A repeat is safe where the request only reads, where the server surely did not execute it, or where executing it twice
ends as executing it once does. Everything else is left to the caller, which knows what to check first. The exceptions
are named: a cancellation is none of them and passes through.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
from tenacity.wait import wait_base

from gracectl.kube.errors import ApiError, Delaying, RequestTimeout, ServerError, Throttled, Unreachable
from gracectl.runtime.backoff import Backoff, requested_wait


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """At most `attempts` in all; delays double from `initial` to `maximum` seconds, each shortened by up to a
    half. A write whose attempts have hung for `hanging` seconds is not repeated, as its caller has other work.
    """

    attempts: int = 5
    hanging: float = 10.0
    initial: float = 0.1
    maximum: float = 5.0


def is_not_executed(error: BaseException) -> bool:
    """True when the server refused before it looked, or never saw the request."""
    return isinstance(error, Throttled) or (isinstance(error, Unreachable) and not error.sent)


def is_transient(error: BaseException) -> bool:
    """True when the same request may well succeed a little later."""
    return isinstance(error, Throttled | Unreachable | RequestTimeout | ServerError)


def retryable(settings: RetrySettings, *, repeatable: bool) -> Callable[[BaseException], bool]:
    """Return which failures of a request may be repeated.

    `repeatable`: the request reads, or is idempotent by construction, so that any transient failure may be; otherwise
    only what surely was not executed.
    """
    if settings.attempts <= 1:
        return lambda error: False
    return is_transient if repeatable else is_not_executed


def retry_wait(settings: RetrySettings, rng: random.Random) -> wait_base:
    """Wait for the Retry-After, exactly, within bounds; without one, exponentially with jitter."""
    return requested_wait(_requested, Backoff(settings.initial, settings.maximum, rng=rng))


def _requested(error: BaseException | None) -> float | None:
    return (error.delay or None) if isinstance(error, Delaying) else None


def outcome_of(error: ApiError | None) -> str:
    """The name under which statistics count an attempt: `ok`, or the error's class."""
    return "ok" if error is None else type(error).__name__
