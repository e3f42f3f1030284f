"""A provider whose instances are ended only while that may be begun: by the leader, and not after it has lost."""

from __future__ import annotations

import anyio

from gracectl.cloud.provider import InstanceState, NodeIdentity, Provider, ProviderError
from gracectl.runtime.fence import Fence, FenceClosed


class FencedProvider:
    """Another provider behind a fence. Looking is free; who closes it is still whoever has made it."""

    def __init__(self, provider: Provider, fence: Fence) -> None:
        self._provider = provider
        self._fence = fence

    @property
    def name(self) -> str:
        """See Provider."""
        return self._provider.name

    @property
    def needs_provider_id(self) -> bool:
        """See Provider."""
        return self._provider.needs_provider_id

    async def state(self, provider_id: str) -> InstanceState:
        """See Provider."""
        return await self._provider.state(provider_id)

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        """See Provider. Raises FenceClosed where it may not be begun, or had to be cut."""
        answer: ProviderError | None = None
        with anyio.CancelScope() as scope, self._fence.passage(scope):
            try:
                await self._provider.terminate(provider_id, node)
            except ProviderError as error:
                answer = error  # which is an answer: nothing is on its way any more
        if scope.cancelled_caught:
            raise FenceClosed
        if answer is not None:
            raise answer

    async def aclose(self) -> None:
        """See Provider."""
        await self._provider.aclose()
