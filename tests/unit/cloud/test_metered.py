"""What is counted of a provider's calls, and that they are otherwise those of the provider within."""

from __future__ import annotations

from collections import deque

import anyio
import pytest

from gracectl.cloud.provider import InstanceGone, InstanceState, NodeIdentity, ProviderRefused, ProviderUnavailable
from gracectl.cloud.wrappers import MeteredProvider
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.histogram import Distribution


class Moody:
    """A provider that does what it is told to, after two seconds."""

    name = "moody"
    needs_provider_id = True

    def __init__(self, *moods: InstanceState | Exception) -> None:
        self.moods = deque(moods)
        self.is_closed = False

    async def state(self, provider_id: str) -> InstanceState:
        await anyio.sleep(2)
        mood = self.moods.popleft()
        if isinstance(mood, Exception):
            raise mood
        return mood

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        await self.state(provider_id)

    async def aclose(self) -> None:
        self.is_closed = True


def counted(provider: MeteredProvider) -> dict[tuple[str, ...], float]:
    counts = {}
    for sample in provider.samples():
        value = sample.value.count if isinstance(sample.value, Distribution) else sample.value
        if value:
            counts[sample.labels] = value
    return counts


@pytest.mark.parametrize(("mood", "outcome"), [
    (InstanceState.RUNNING, "ok"), (InstanceState.ENDING, "ok"), (InstanceState.GONE, "gone"),
    (InstanceGone("i-1"), "gone"),
    (ProviderUnavailable("throttled"), "unavailable"),
    (ProviderRefused("protected", "take that off"), "refused"),
    (ZeroDivisionError("a slip"), "failed"),
])  # fmt: skip
async def test_every_call_is_counted_by_what_came_of_it(mood: InstanceState | Exception, outcome: str) -> None:
    metered = MeteredProvider(Moody(mood), LoopClock())
    if isinstance(mood, Exception):
        with pytest.raises(type(mood)):
            await metered.state("i-1")
    else:
        assert await metered.state("i-1") is mood
    assert counted(metered) == {("state", outcome): 1, ("state",): 1}
    seconds = [sample.value.total for sample in metered.samples() if isinstance(sample.value, Distribution)]
    assert seconds == [2.0, 0.0]


async def test_one_without_an_answer_is_counted_too() -> None:
    metered = MeteredProvider(Moody(), LoopClock())
    with anyio.move_on_after(1):
        await metered.terminate("i-1")
    assert counted(metered) == {("terminate", "unanswered"): 1, ("terminate",): 1}


async def test_it_is_the_provider_within() -> None:
    within = Moody()
    metered = MeteredProvider(within, LoopClock())
    assert (metered.name, metered.needs_provider_id) == ("moody", True)
    await metered.aclose()
    assert within.is_closed
