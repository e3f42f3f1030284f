"""Statistics of the requests of a client: attempts, results and durations, counted with every attempt."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from gracectl.kube.client.retry import outcome_of
from gracectl.kube.errors import ApiError, Delaying, RequestTimeout, Throttled
from gracectl.kube.transport.operation import Operation
from gracectl.runtime.histogram import Distribution, Histogram
from gracectl.telemetry.metrics import API_LATENCY

logger = logging.getLogger(__name__)

_WARNING_INTERVAL_SECONDS = 600.0
"""Minimum interval of log messages about a Retry-After that is too long."""

VERBS: Final = ("get", "list", "watch", "create", "update", "patch", "delete")
"""All verbs that are used."""

NO_ANSWER: Final = "none"
"""Code of a response that did not come."""

OTHER_CODE: Final = "other"
_CODES: Final = {
    code: str(code) for code in (200, 201, 202, 400, 401, 403, 404, 405, 409, 410, 415, 422, 429, 500, 502, 503, 504)
}


class ClientStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts by (verb, resource, outcome: `ok` or the name of the error, HTTP status: "none" without a response,
    "other" for one that no API server is known to send); pauses requested by a busy server.

    `capped_delays`: responses whose Retry-After was longer than what is waited. `silenced`: since when every response
    has been such a pause, and when the last of them ends (monotonic); None if the last response was another.

    `latency`: by verb, the seconds to the response or to the timeout; of a watch, to its beginning.
    """

    attempts: Mapping[tuple[str, str, str, str], int]
    retries: int
    throttle_pauses: int
    throttled_seconds: float
    capped_delays: int
    silenced: tuple[float, float] | None
    latency: Mapping[str, Distribution]

    def count(self, verb: str, resource: str, outcome: str = "") -> int:
        """Attempts of `verb` on `resource` (`pods/eviction`), with any outcome unless one is named."""
        return sum(
            number
            for (its_verb, its_resource, its_outcome, _), number in self.attempts.items()
            if (its_verb, its_resource) == (verb, resource) and outcome in {"", its_outcome}
        )


class RequestRecorder:
    """Recorder of the requests of a client and its fenced sibling."""

    def __init__(self) -> None:
        self.in_flight = 0
        """Requests that wait for their response."""
        self._attempts: Counter[tuple[str, str, str, str]] = Counter()
        self._latency = {verb: Histogram(API_LATENCY.buckets) for verb in VERBS}
        self._retries = 0
        self._throttle_pauses = 0
        self._throttled_seconds = 0.0
        self._patience_cut = 0
        self._warned_at = -math.inf
        self._silenced: tuple[float, float] | None = None

    def note(
        self, operation: Operation, error: ApiError | None, status: int | None, *, began: float, now: float
    ) -> None:
        """Count an attempt: its error if any, its HTTP status if there was a response, and from when to when
        (monotonic).
        """
        seconds = now - began
        code = NO_ANSWER if status is None else _CODES.get(status, OTHER_CODE)
        self._attempts[operation.verb, operation.resource, outcome_of(error), code] += 1
        if status is not None or isinstance(error, RequestTimeout):
            self._latency[operation.verb].observe(seconds)
        if isinstance(error, Delaying) and error.is_capped:
            self._note_capped(error, now)
        if isinstance(error, Throttled):
            self._throttle_pauses += 1
            self._throttled_seconds += error.delay
            self._silenced = (self._silenced[0] if self._silenced else now), now + error.delay
        elif status is not None:
            self._silenced = None

    def _note_capped(self, error: Delaying, now: float) -> None:
        self._patience_cut += 1
        if now - self._warned_at >= _WARNING_INTERVAL_SECONDS:
            self._warned_at = now
            logger.warning(
                "%s: Retry-After is %g s: only %g s are waited; look for a proxy between here and the API server that "
                "answers in its place",
                error,
                error.asked_for,
                error.delay,
            )

    def note_retry(self) -> None:
        """Count a repeat."""
        self._retries += 1

    def statistics(self) -> ClientStatistics:
        """All so far."""
        return ClientStatistics(
            attempts=dict(self._attempts),
            retries=self._retries,
            throttle_pauses=self._throttle_pauses,
            throttled_seconds=self._throttled_seconds,
            capped_delays=self._patience_cut,
            silenced=self._silenced,
            latency={verb: times.statistics() for verb, times in self._latency.items()},
        )
