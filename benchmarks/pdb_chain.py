"""k pods under one `maxUnavailable: 1` budget, spread over three nodes that are deleted at once.

The ideal is measured on the same cluster, just before: pods of another Deployment are evicted one after another, each
the moment the watch shows that its budget allows it, by a bare loop that knows nothing else. What gracectl needs beyond
that is its own doing.
"""

from __future__ import annotations

from functools import partial
from statistics import median

import anyio
import msgspec

from benchmarks.cluster import ClusterSpec
from benchmarks.report import Figure, Outcome
from benchmarks.stage import Stage, stage
from gracectl.app.controller import Controller
from gracectl.cloud.none import NoneProvider
from gracectl.config import Settings
from gracectl.config.settings import NodeSelector
from gracectl.kube.resources import NODES
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.names import FINALIZER
from gracectl.model.pod import Pod
from gracectl.sim.cluster import NodeSpec

IDEAL, MANAGED = "ideal", "managed"
OLD = 3


class Run(msgspec.Struct, frozen=True):
    """Seconds from the first act to the last replacement's readiness; what was asked of the API server."""

    ideal: float
    managed: float
    requests: int
    refusals: int
    most_unavailable: int


async def run(pods: int = 9, rounds: int = 3) -> Outcome:
    """Measure `rounds` times on fresh clusters; the figures are medians, but for those that must never be exceeded."""
    runs = [await _round(pods) for _ in range(rounds)]
    return Outcome(
        scenario="pdb-chain",
        about=f"{pods} pods under one maxUnavailable 1 budget leave three nodes deleted at once",
        figures=(
            Figure("drain vs back-to-back replacements", median(r.managed / r.ideal for r in runs), " ×", 1.15),
            Figure("eviction requests per pod", max(r.requests / pods for r in runs), "", 1.05),
            Figure("most pods unavailable at once", max(r.most_unavailable for r in runs), "", 1),
            Figure("back-to-back replacements", median(r.ideal for r in runs), " s"),
            Figure("drain", median(r.managed for r in runs), " s"),
            Figure("refused evictions", max(r.refusals for r in runs)),
        ),
        parameters={"pods": pods, "nodes": OLD, "rounds": rounds, "replacement": "0.3 s"},
    )


async def _round(pods: int) -> Run:
    nodes = tuple(
        NodeSpec(name=f"{pool}-{number}", labels={"pool": pool})
        for pool in (IDEAL, MANAGED)
        for number in range(OLD + 1)
    )
    async with stage(ClusterSpec(nodes=nodes)) as one:
        for pool in (IDEAL, MANAGED):
            await one.set_schedulable(f"{pool}-{OLD}", False)
            await one.deploy(pool, pods, bound={"maxUnavailable": 1})
            await one.set_schedulable(f"{pool}-{OLD}", True)
        ideal = await _ideal(one, pods)
        return await _managed(one, pods, ideal)


async def _ideal(one: Stage, pods: int) -> float:
    for number in range(OLD):
        await one.set_schedulable(f"{IDEAL}-{number}", False)
    began = one.clock.monotonic()
    for pod in one.of(IDEAL):
        before = _budget(one, IDEAL).resource_version
        await one.client.evict(pod.key, uid=pod.uid)
        await one.until(partial(_allows_again, one, before))
    await one.until(lambda: one.is_settled(IDEAL, pods))
    return one.clock.monotonic() - began


def _allows_again(one: Stage, before: str) -> bool:
    # The eviction itself makes a newer state of the budget, which allows none.
    budget = _budget(one, IDEAL)
    return budget.resource_version != before and budget.disruptions_allowed > 0


def _budget(one: Stage, name: str) -> PodDisruptionBudget:
    budget = one.budgets.get(name, name)
    assert budget is not None
    return budget


async def _managed(one: Stage, pods: int, ideal: float) -> Run:
    settings = Settings(node_selector=NodeSelector(match_labels={"pool": MANAGED}))
    program = Controller(settings, one.transport, one.clock, NoneProvider(NoneProvider.Options()))
    stop, least = anyio.Event(), pods

    def witness(old: Pod | None, new: Pod | None) -> None:
        nonlocal least
        least = min(least, one.healthy(MANAGED))

    async with anyio.create_task_group() as group:
        group.start_soon(program.run, stop)
        await program.wait_live()
        for number in range(OLD + 1):
            await _held(one, f"{MANAGED}-{number}")
        old = {pod.uid for pod in one.of(MANAGED)}
        unsubscribe = one.pods.subscribe(witness)
        began = one.clock.monotonic()
        for number in range(OLD):
            await one.client.delete(NODES, ("", f"{MANAGED}-{number}"))
        await one.until(
            lambda: (
                one.is_settled(MANAGED, pods)
                and old.isdisjoint(p.uid for p in one.of(MANAGED) if p.deletion_timestamp is None)
            )
        )
        seconds = one.clock.monotonic() - began
        unsubscribe()
        statistics = program.statistics().client
        stop.set()
    requests = statistics.count("create", "pods/eviction")
    return Run(
        ideal=ideal,
        managed=seconds,
        requests=requests,
        refusals=requests - statistics.count("create", "pods/eviction", "ok"),
        most_unavailable=pods - least,
    )


async def _held(one: Stage, node: str) -> None:
    """Wait until the controller has put its finalizer on the node."""
    with anyio.fail_after(30):
        while FINALIZER not in (await one.client.get(NODES, ("", node))).finalizers:
            await one.clock.sleep(0.05)
