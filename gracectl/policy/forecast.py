"""What will happen to nodes if they end: beforehand, by the very decisions that will be taken then.

Nobody knows how long a pod takes to stop, or when its replacement is Ready. So several courses are followed: one in
which all goes as fast as it can, one in which every pod uses all of its grace, and some in between. What all of them
agree on is certain, as far as nobody interferes; of everything else it is known between which instants it lies.
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
"""Courses in which some are quick and others slow."""


class Assumptions(msgspec.Struct, frozen=True):
    """What a forecast rests on beside the cluster's objects.

    `replacement_seconds`: the longest that a replacement takes from its creation until it is Ready.
    """

    replacement_seconds: float = 30.0
    rate: EvictionRate = EvictionRate()


class NodeForecast(msgspec.Struct, frozen=True):
    """What becomes of a node. `drained`: when nothing is left to wait for; None: never."""

    going: DrainingNode
    plan: Plan
    pods: tuple[PodForecast, ...]
    drained: Window | None

    @property
    def name(self) -> str:
        """The node's."""
        return self.going.view.node.name

    @property
    def held(self) -> tuple[PodForecast, ...]:
        """Those that keep it for ever, if nobody interferes: not even the fastest course is rid of them."""
        if self.drained is not None:
            return ()
        return tuple(pod for pod in self.pods if pod.is_waited_for and pod.gone is None and not pod.ways)


class Forecast(msgspec.Struct, frozen=True):
    """What becomes of nodes that end together from the instant `at` on. `lanes`: who waits for whom at that instant."""

    at: float
    nodes: tuple[NodeForecast, ...]
    lanes: dict[tuple[BudgetKey, ...], tuple[QueuedPod, ...]]
    assumptions: Assumptions


def forecast(going: Iterable[DrainingNode], now: float, assumptions: Assumptions) -> Forecast:
    """Let these nodes end in several ways, and join what comes of it. `now` is the server's time."""
    nodes = tuple(going)
    plans = [plan(each.view, now) for each in nodes]
    courses = [simulate(nodes, now, pace, assumptions.rate) for pace in _scenarios(plans, assumptions)]
    rivals = simultaneous_pods(plans, courses)
    found = []
    for each, decision in zip(nodes, plans, strict=True):
        pods = forecast_pods(decision, courses, rivals)
        drained = _drained([course.drained.get(each.view.node.name) for course in courses], each.view, pods)
        found.append(NodeForecast(each, decision, pods, drained))
    begun = ((each.since, each.view.node.name, decision) for each, decision in zip(nodes, plans, strict=True))
    return Forecast(now, tuple(found), queues_of(begun), assumptions)


def _scenarios(plans: Sequence[Plan], assumptions: Assumptions) -> list[Scenario]:
    quick = Scenario(uses_grace=False, replacement_seconds=0.0, heals=True)
    slow = Scenario(uses_grace=True, replacement_seconds=assumptions.replacement_seconds, heals=False)
    is_contested = len(plans) > 1 and any(entry.budgets for decision in plans for entry in decision.pods)
    contested = [msgspec.structs.replace(pace, last_first=True) for pace in (quick, slow) if is_contested]
    mixtures = [msgspec.structs.replace(slow, mixture=number + 1) for number in range(MIXED_SCENARIOS)]
    return [quick, slow, *contested, *mixtures]


def _drained(instants: Sequence[float | None], view: NodeView, pods: Iterable[PodForecast]) -> Window | None:
    """From when the last pod may be gone until when it is, but no later than the deadline."""
    found, settled = window_of(instants), settled_at(view)
    if found is None or settled is None:
        return found
    gone = [pod.gone for pod in pods if pod.gone is not None and pod.is_waited_for]
    soonest = max([settled, *(span.earliest for span in gone)])
    latest = found.latest
    if latest is not None:
        latest = max([latest, *(span.latest for span in gone if span.latest is not None)])
        latest = latest if view.deadline is None else min(latest, max(view.deadline, found.earliest))
    return Window(min(found.earliest, soonest), latest)
