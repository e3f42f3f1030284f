"""Instances are ended by the leader alone; looking at them is free."""

from __future__ import annotations

import math

import anyio
import pytest

from gracectl.cloud.provider import (
    InstanceGone,
    InstanceState,
    NodeIdentity,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
)
from gracectl.cloud.wrappers import FencedProvider
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.fence import Fence, FenceClosed


class Cloud:
    """A provider that takes its time."""

    name = "slow"
    needs_provider_id = True

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.seconds = 0.0
        self.error: ProviderError | None = None
        self.is_closed = False

    async def state(self, provider_id: str) -> InstanceState:
        return InstanceState.RUNNING

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        self.asked.append(provider_id)
        await anyio.sleep(self.seconds)
        if self.error:
            raise self.error

    async def aclose(self) -> None:
        self.is_closed = True


async def test_nothing_is_ended_while_the_fence_is_closed() -> None:
    cloud, fence = Cloud(), Fence(LoopClock())
    provider = FencedProvider(cloud, fence)
    with pytest.raises(FenceClosed):
        await provider.terminate("i-1")
    assert cloud.asked == []
    assert await provider.state("i-1") is InstanceState.RUNNING
    fence.open()
    await provider.terminate("i-1")
    assert cloud.asked == ["i-1"]


async def test_a_call_under_way_is_cut_and_is_no_failure_of_the_provider() -> None:
    cloud, fence = Cloud(), Fence(LoopClock())
    cloud.seconds = 60.0
    fence.extend(fence.mark(), 2.0, 4.0)
    with pytest.raises(FenceClosed):
        await FencedProvider(cloud, fence).terminate("i-1")
    assert anyio.current_time() == 4.0
    assert fence.unanswered == 4.0


@pytest.mark.parametrize(
    "error", [InstanceGone("gone"), ProviderUnavailable("busy"), ProviderRefused("protected", "take it off")]
)
async def test_what_the_provider_says_is_passed_on_and_is_an_answer(error: ProviderError) -> None:
    cloud, fence = Cloud(), Fence(LoopClock())
    cloud.error = error
    fence.open()
    with pytest.raises(type(error)):
        await FencedProvider(cloud, fence).terminate("i-1")
    assert fence.unanswered == -math.inf


async def test_it_is_the_other_provider_in_everything_else() -> None:
    cloud = Cloud()
    provider = FencedProvider(cloud, Fence(LoopClock()))
    assert (provider.name, provider.needs_provider_id) == ("slow", True)
    await provider.aclose()
    assert cloud.is_closed
