"""Lower bound of a drain under budgets: each budget's pods one after another, each the moment the watch shows
that its budget allows it; pods without a budget as fast as a bare loop asks. Knows nothing else, keeps nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio

from benchmarks.contenders.bare import AT_ONCE
from benchmarks.contenders.contender import EVICTION, Entry, Usage
from benchmarks.ground.nodes import together
from benchmarks.ground.site import Site
from gracectl.kube.errors import BudgetExhausted
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod


class Ideal:
    """In the process of the benchmark itself, whose watch it shares: so its CPU is not told."""

    name = "ideal: back to back"

    @asynccontextmanager
    async def entered(self, site: Site, old: tuple[str, ...]) -> AsyncIterator[Entry]:
        """See Contender."""
        asked = refused = 0

        async def evict(pod: Pod) -> bool:
            nonlocal asked, refused
            asked += 1
            try:
                await site.client.evict(pod.key, uid=pod.uid)
            except BudgetExhausted:
                refused += 1
                return False
            return True

        async def chain(pods: list[Pod]) -> None:
            before = ""
            for pod in pods:
                is_gone = False
                while not is_gone:
                    await site.until(partial(_allows_anew, site, pod, before), f"the budget of {pod.name}")
                    before = _budget(site, pod).resource_version
                    # A budget that allows several may still show what it allowed before the last one: then it refuses.
                    is_gone = await evict(pod)

        async def go() -> None:
            await site.cordon(old)
            pods = [pod for pod in site.pods.values() if pod.node_name in old]
            chains: dict[str, list[Pod]] = {}
            for pod in pods:
                chains.setdefault(site.app_of(pod), []).append(pod)
            async with anyio.create_task_group() as group:
                free = []
                for app, of_app in chains.items():
                    if site.budgets.get(site.name, app) is None:
                        free += of_app
                    else:
                        group.start_soon(chain, of_app)
                await together([partial(evict, pod) for pod in free], at_once=AT_ONCE)

        async def usage() -> Usage:
            return Usage(requests={EVICTION: asked}, refused=refused)

        yield Entry(go, usage)


def _allows_anew(site: Site, pod: Pod, before: str) -> bool:
    # The eviction itself makes a newer state of the budget, which allows one less.
    budget = _budget(site, pod)
    return budget.resource_version != before and budget.disruptions_allowed > 0


def _budget(site: Site, pod: Pod) -> PodDisruptionBudget:
    budget = site.budgets.get(site.name, site.app_of(pod))
    assert budget is not None
    return budget
