"""What will happen to nodes if they end: beforehand, by the very decisions that will be taken then.

Nobody knows how long a pod takes to stop, or when its replacement is Ready. So two courses are followed: one in which
all goes as fast as it can, and one in which every pod uses all of its grace. What both agree on is certain, as far as
nobody interferes; of everything else it is known between which instants it lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gracectl.policy.budgets import BudgetKey
from gracectl.policy.course import Fate, Going, How, Pace, Rate, Told, course_of
from gracectl.policy.lanes import Waiting, lanes_of
from gracectl.policy.plan import Outcome, Plan, PodPlan, plan

SAME_SECONDS = 1.0
"""Two instants that lie less apart are one for people."""


class Assumptions(msgspec.Struct, frozen=True):
    """What a forecast rests on beside the cluster's objects.

    `replacement_seconds`: the longest that a replacement takes from its creation until it is Ready.
    """

    replacement_seconds: float = 30.0
    rate: Rate = Rate()


class Span(msgspec.Struct, frozen=True):
    """Between which instants something happens (Unix seconds); `latest` None: perhaps never."""

    earliest: float
    latest: float | None

    @property
    def is_certain(self) -> bool:
        """Both courses agree."""
        return self.latest is not None and self.latest - self.earliest < SAME_SECONDS


class Prospect(msgspec.Struct, frozen=True):
    """What becomes of a pod. `entry`: what is decided about it at the beginning."""

    entry: PodPlan
    quick: Fate
    slow: Fate

    @property
    def told(self) -> Span | None:
        """When it is told to leave for the first time; None: never, or it was told before."""
        return _span(_first(self.quick), _first(self.slow))

    @property
    def gone(self) -> Span | None:
        """When it has stopped; None: not before its node ends, or never."""
        return _span(self.quick.gone, self.slow.gone)

    @property
    def ways(self) -> tuple[How, ...]:
        """How it may be told: one way, or two between which nobody knows."""
        found = [fate.told[0].how for fate in (self.quick, self.slow) if fate.told]
        return tuple(dict.fromkeys(found))

    @property
    def is_certain(self) -> bool:
        """How and when it is told to leave is known to the second."""
        told = self.told
        return told is None or (told.is_certain and len(self.ways) == 1)

    @property
    def orders(self) -> tuple[Told, ...]:
        """All it is told if it takes its time: to leave, and perhaps again with less grace."""
        return self.slow.told or self.quick.told


class NodeProspect(msgspec.Struct, frozen=True):
    """What becomes of a node. `drained`: when nothing is left to wait for; None: never."""

    going: Going
    plan: Plan
    pods: tuple[Prospect, ...]
    drained: Span | None

    @property
    def name(self) -> str:
        """The node's."""
        return self.going.view.node.name

    @property
    def held(self) -> tuple[Prospect, ...]:
        """Those that keep it for ever, if nobody interferes: not even the fastest course is rid of them."""
        return tuple(
            pod
            for pod in self.pods
            if self.drained is None and pod.entry.outcome is not Outcome.IGNORED and pod.gone is None and not pod.ways
        )


class Forecast(msgspec.Struct, frozen=True):
    """What becomes of nodes that end together from the instant `at` on. `lanes`: who waits for whom at that instant."""

    at: float
    nodes: tuple[NodeProspect, ...]
    lanes: dict[tuple[BudgetKey, ...], tuple[Waiting, ...]]
    assumptions: Assumptions


def forecast(going: Iterable[Going], now: float, assumptions: Assumptions) -> Forecast:
    """Let these nodes end, fast and slowly, and join what comes of it. `now` is the server's time."""
    nodes = tuple(going)
    plans = [plan(each.view, now) for each in nodes]
    quick = course_of(nodes, now, Pace(uses_grace=False, replacement_seconds=0.0, heals=True), assumptions.rate)
    patience = assumptions.replacement_seconds
    slow = course_of(nodes, now, Pace(uses_grace=True, replacement_seconds=patience, heals=False), assumptions.rate)
    found = []
    for each, decision in zip(nodes, plans, strict=True):
        pods = tuple(
            Prospect(entry, quick.fates.get(entry.pod.uid, Fate()), slow.fates.get(entry.pod.uid, Fate()))
            for entry in decision.pods
        )
        name = each.view.node.name
        drained = _span(quick.drained.get(name), slow.drained.get(name))
        found.append(NodeProspect(each, decision, pods, drained))
    return Forecast(now, tuple(found), lanes_of(_begun(nodes, plans)), assumptions)


def _begun(nodes: Sequence[Going], plans: Sequence[Plan]) -> Iterable[tuple[float, str, Plan]]:
    return ((each.since, each.view.node.name, decision) for each, decision in zip(nodes, plans, strict=True))


def _first(fate: Fate) -> float | None:
    return fate.told[0].at if fate.told else None


def _span(quick: float | None, slow: float | None) -> Span | None:
    """What is fast for one may be slow for another, who waits for the same budget."""
    if quick is None and slow is None:
        return None
    known = [at for at in (quick, slow) if at is not None]
    return Span(min(known), None if slow is None else max(known))
