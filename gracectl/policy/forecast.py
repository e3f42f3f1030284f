"""Forecast of drains: computed beforehand, by the very decisions that will be taken then.

How long a pod takes to terminate, or its replacement to become Ready, is not known. So several scenarios are
simulated: the fastest, the slowest, in which every pod uses all of its grace, and some in between. What they agree on
is certain unless something interferes; for everything else there is a window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gracectl.policy.bounds import PodForecast, Window, forecast_pods, simultaneous_pods, window_of
from gracectl.policy.budgets import BudgetKey
from gracectl.policy.eviction_queues import QueuedPod, queues_of
from gracectl.policy.plan import NodeView, Plan, plan, settled_at
from gracectl.policy.simulation import DrainingNode, EvictionRate, Scenario, simulate

MIXED_SCENARIOS = 2
"""Scenarios in which some pods are quick and others slow."""


class Assumptions(msgspec.Struct, frozen=True):
    """Assumptions of a forecast beside the cluster's objects.

    `replacement_seconds`: the longest time from the creation of a replacement until it is Ready.
    """

    replacement_seconds: float = 30.0
    rate: EvictionRate = EvictionRate()


class NodeForecast(msgspec.Struct, frozen=True):
    """Forecast of one node. `drained`: when nothing is left to wait for; None: never."""

    draining: DrainingNode
    plan: Plan
    pods: tuple[PodForecast, ...]
    drained: Window | None

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.draining.view.node.name

    @property
    def held(self) -> tuple[PodForecast, ...]:
        """The pods that hold it for ever unless something changes: not even the fastest scenario removes them."""
        if self.drained is not None:
            return ()
        return tuple(pod for pod in self.pods if pod.is_waited_for and pod.terminated is None and not pod.methods)


class Forecast(msgspec.Struct, frozen=True):
    """Forecast of nodes that are drained together from the instant `at` on, and the queues of budgets at that
    instant.
    """

    at: float
    nodes: tuple[NodeForecast, ...]
    queues: dict[tuple[BudgetKey, ...], tuple[QueuedPod, ...]]
    assumptions: Assumptions


def forecast(draining: Iterable[DrainingNode], now: float, assumptions: Assumptions) -> Forecast:
    """Simulate the drain of these nodes in several scenarios, and join the results. `now` is the server's time."""
    nodes = tuple(draining)
    plans = [plan(each.view, now) for each in nodes]
    results = [simulate(nodes, now, scenario, assumptions.rate) for scenario in _scenarios(plans, assumptions)]
    simultaneous = simultaneous_pods(plans, results)
    found = []
    for each, decision in zip(nodes, plans, strict=True):
        pods = forecast_pods(decision, results, simultaneous)
        drained = _drained([result.drained.get(each.view.node.name) for result in results], each.view, pods)
        found.append(NodeForecast(each, decision, pods, drained))
    begun = ((each.since, each.view.node.name, decision) for each, decision in zip(nodes, plans, strict=True))
    return Forecast(now, tuple(found), queues_of(begun), assumptions)


def _scenarios(plans: Sequence[Plan], assumptions: Assumptions) -> list[Scenario]:
    quick = Scenario(uses_grace=False, replacement_seconds=0.0, pods_recover=True)
    slow = Scenario(uses_grace=True, replacement_seconds=assumptions.replacement_seconds, pods_recover=False)
    is_contested = len(plans) > 1 and any(entry.budgets for decision in plans for entry in decision.pods)
    contested = [msgspec.structs.replace(scenario, last_first=True) for scenario in (quick, slow) if is_contested]
    mixtures = [msgspec.structs.replace(slow, mixture=number + 1) for number in range(MIXED_SCENARIOS)]
    return [quick, slow, *contested, *mixtures]


def _drained(instants: Sequence[float | None], view: NodeView, pods: Iterable[PodForecast]) -> Window | None:
    """From when the last pod may be gone until when it is, but no later than the deadline."""
    found, settled = window_of(instants), settled_at(view)
    if found is None or settled is None:
        return found
    terminated = [pod.terminated for pod in pods if pod.terminated is not None and pod.is_waited_for]
    soonest = max([settled, *(window.earliest for window in terminated)])
    latest = found.latest
    if latest is not None:
        latest = max([latest, *(window.latest for window in terminated if window.latest is not None)])
        latest = latest if view.deadline is None else min(latest, max(view.deadline, found.earliest))
    return Window(min(found.earliest, soonest), latest)
