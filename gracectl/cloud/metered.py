"""A provider whose calls are counted and timed; otherwise it is the one within."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

from gracectl.cloud.provider import (
    InstanceGone,
    InstanceState,
    NodeIdentity,
    Provider,
    ProviderRefused,
    ProviderUnavailable,
)
from gracectl.runtime.clock import Clock
from gracectl.runtime.histogram import Histogram
from gracectl.telemetry.metrics import PROVIDER_CALLS, PROVIDER_LATENCY, Sample

T = TypeVar("T")

CALLS: Final = ("state", "terminate")
OUTCOMES: Final = ("ok", "gone", "unavailable", "refused", "failed", "unanswered")
"""`failed`: it raised something that no provider should; `unanswered`: we had no more patience, or were told to stop.
"""


class MeteredProvider:
    """See the module and Provider."""

    def __init__(self, within: Provider, clock: Clock) -> None:
        self._within = within
        self._clock = clock
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._latency = {call: Histogram(PROVIDER_LATENCY.buckets) for call in CALLS}

    @property
    def name(self) -> str:
        """See Provider."""
        return self._within.name

    @property
    def needs_provider_id(self) -> bool:
        """See Provider."""
        return self._within.needs_provider_id

    async def state(self, provider_id: str) -> InstanceState:
        """See Provider."""
        return await self._noted("state", lambda: self._within.state(provider_id))

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        """See Provider."""
        await self._noted("terminate", lambda: self._within.terminate(provider_id, node))

    async def aclose(self) -> None:
        """See Provider."""
        await self._within.aclose()

    def samples(self) -> Iterator[Sample]:
        """What the metrics say of it."""
        for call in CALLS:
            for outcome in OUTCOMES:
                yield Sample(PROVIDER_CALLS, (call, outcome), self._outcomes[call, outcome])
            yield Sample(PROVIDER_LATENCY, (call,), self._latency[call].statistics())

    async def _noted(self, call: str, ask: Callable[[], Awaitable[T]]) -> T:
        begun, outcome = self._clock.monotonic(), "unanswered"
        try:
            answer = await ask()
            outcome = "gone" if answer is InstanceState.GONE else "ok"
            return answer
        except Exception as error:
            outcome = _outcome_of(error)
            raise
        finally:
            self._outcomes[call, outcome] += 1
            self._latency[call].observe(self._clock.monotonic() - begun)


def _outcome_of(error: Exception) -> str:
    match error:
        case InstanceGone():
            return "gone"
        case ProviderUnavailable():
            return "unavailable"
        case ProviderRefused():
            return "refused"
    return "failed"
