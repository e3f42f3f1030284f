"""Wrappers of a provider: metrics, a fence, and a dry run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

import anyio

from gracectl.cloud.provider import (
    InstanceGone,
    InstanceState,
    NodeIdentity,
    Provider,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
)
from gracectl.model.foreign import harmless
from gracectl.runtime.clock import Clock
from gracectl.runtime.fence import Fence, FenceClosed
from gracectl.runtime.histogram import Histogram
from gracectl.telemetry.metrics import PROVIDER_CALLS, PROVIDER_LATENCY, Sample

logger = logging.getLogger(__name__)

T = TypeVar("T")

CALLS: Final = ("state", "terminate")
OUTCOMES: Final = ("ok", "gone", "unavailable", "refused", "failed", "unanswered")
"""`failed`: an exception that providers should not raise; `unanswered`: timed out, or the process was stopped."""


class _Wrapper:
    """Calls that a wrapper passes to its provider."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    @property
    def name(self) -> str:
        """See Provider."""
        return self._provider.name

    @property
    def needs_provider_id(self) -> bool:
        """See Provider."""
        return self._provider.needs_provider_id

    async def aclose(self) -> None:
        """See Provider."""
        await self._provider.aclose()


class MeteredProvider(_Wrapper):
    """Provider that counts and times calls."""

    def __init__(self, provider: Provider, clock: Clock) -> None:
        super().__init__(provider)
        self._clock = clock
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._latency = {call: Histogram(PROVIDER_LATENCY.buckets) for call in CALLS}

    async def state(self, provider_id: str) -> InstanceState:
        """See Provider."""
        return await self._measure("state", lambda: self._provider.state(provider_id))

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        """See Provider."""
        await self._measure("terminate", lambda: self._provider.terminate(provider_id, node))

    def samples(self) -> Iterator[Sample]:
        """Samples for the metrics."""
        for call in CALLS:
            for outcome in OUTCOMES:
                yield Sample(PROVIDER_CALLS, (call, outcome), self._outcomes[call, outcome])
            yield Sample(PROVIDER_LATENCY, (call,), self._latency[call].statistics())

    async def _measure(self, call: str, call_provider: Callable[[], Awaitable[T]]) -> T:
        started, outcome = self._clock.monotonic(), "unanswered"
        try:
            result = await call_provider()
            outcome = "gone" if result is InstanceState.GONE else "ok"
            return result
        except Exception as error:
            outcome = _outcome_of(error)
            raise
        finally:
            self._outcomes[call, outcome] += 1
            self._latency[call].observe(self._clock.monotonic() - started)


def _outcome_of(error: Exception) -> str:
    match error:
        case InstanceGone():
            return "gone"
        case ProviderUnavailable():
            return "unavailable"
        case ProviderRefused():
            return "refused"
    return "failed"


class FencedProvider(_Wrapper):
    """Provider behind a fence: only the leader terminates instances, and not after it has lost the lease. Reads are
    free; the wrapped provider is closed by its owner."""

    def __init__(self, provider: Provider, fence: Fence) -> None:
        super().__init__(provider)
        self._fence = fence

    async def state(self, provider_id: str) -> InstanceState:
        """See Provider."""
        return await self._provider.state(provider_id)

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        """See Provider. Raises FenceClosed if it may not start, or was cancelled by the fence."""
        result: ProviderError | None = None
        with anyio.CancelScope() as scope, self._fence.passage(scope):
            try:
                await self._provider.terminate(provider_id, node)
            except ProviderError as error:
                result = error  # a result: the request has ended
        if scope.cancelled_caught:
            raise FenceClosed
        if result is not None:
            raise result


class DryRunProvider(_Wrapper):
    """Provider of a dry run: it reports an instance instead of terminating it, which then counts as gone. Reads
    are the wrapped provider's."""

    def __init__(self, provider: Provider) -> None:
        super().__init__(provider)
        self._gone: set[str] = set()

    async def state(self, provider_id: str) -> InstanceState:
        """See Provider."""
        return InstanceState.GONE if provider_id in self._gone else await self._provider.state(provider_id)

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        """See Provider."""
        if not self.needs_provider_id:
            raise InstanceGone(f"provider {self.name}: nothing to terminate")
        if provider_id not in self._gone:
            where = {} if node is None else {"node": node.name}
            logger.info("would terminate instance %s", harmless(provider_id), extra=where)
        self._gone.add(provider_id)
