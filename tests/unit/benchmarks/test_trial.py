"""A trial, small: what stands there is made and taken away, and what happens to it is seen."""

from __future__ import annotations

import pytest

from benchmarks.contenders.alone import Alone
from benchmarks.contenders.bare import BARE
from benchmarks.contenders.contender import EVICTION, Contender
from benchmarks.contenders.gracectl import Gracectl
from benchmarks.contenders.ideal import Ideal
from benchmarks.ground.ground import opened
from benchmarks.ground.site import App
from benchmarks.trial import Load, _allowed, in_parallel
from gracectl.kube.client import KubeClient
from gracectl.kube.http import HttpTransport
from gracectl.kube.resources import NODES, PODS
from gracectl.runtime.clock import SystemClock


@pytest.mark.real_time
async def test_contenders_that_heed_budgets_are_told_from_others() -> None:
    load = Load(2, (App("chain", 4, {"maxUnavailable": 1}), App("free", 2)))
    # The bare loop asks for each pod once, and takes no refusal to heart.
    drain = Alone()
    contenders: list[Contender] = [Ideal(), Gracectl(), drain, BARE]
    async with opened(None) as ground:
        ideal, ours, alone, bare = await in_parallel(ground, load, contenders, "trial")
        clock = SystemClock()
        async with HttpTransport(await ground.credentials(), clock) as transport:
            client = KubeClient(transport, clock)
            assert [node.name async for page in client.list(NODES) for node in page.items] == []
            assert [pod.key async for page in client.list(PODS) for pod in page.items] == []
    for each in (ideal, ours, alone):
        assert (each.left, each.most_missing["chain"], each.broken) == (0, 1, ())
        assert each.usage.requests[EVICTION] >= 6
    for each in (ours, alone):
        assert each.usage.requests[EVICTION] == 6
        assert each.usage.requests.get("get pods", 0) == 0
    assert len(drain.starts) == 1
    assert (alone.usage.cpu or 0) > 0
    assert 0 < bare.left < 6
    assert bare.usage.refused == bare.left
    assert "gives" in bare.failings


@pytest.mark.parametrize(("bound", "allowed"), [
    ({"maxUnavailable": 2}, 2), ({"maxUnavailable": "20%"}, 2), ({"maxUnavailable": "100%"}, 7), (None, 7),
])  # fmt: skip
def test_what_a_budget_allows(bound: dict[str, int | str] | None, allowed: int) -> None:
    assert _allowed(App("a", 7, bound)) == allowed
