"""What will happen to nodes if they end: beforehand, by the very decisions that will be taken then.

Nobody knows how long a pod takes to stop, or when its replacement is Ready. So several courses are followed: one in
which all goes as fast as it can, one in which every pod uses all of its grace, and some in between. What all of them
agree on is certain, as far as nobody interferes; everything else lies between what the fastest and the slowest say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gracectl.policy.budgets import BudgetKey
from gracectl.policy.course import Course, Fate, Going, How, Pace, Rate, Told, course_of
from gracectl.policy.deadlines import grace_of
from gracectl.policy.lanes import Waiting, lanes_of
from gracectl.policy.plan import NodeView, Outcome, Plan, PodPlan, plan, settled_at

MIXTURES = 4
"""Courses in which some are quick and others slow."""

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
    """What becomes of a pod. `entry`: what is decided about it at the beginning.

    `told`: when it is told to leave for the first time; None: never, or it was told before. `gone`: when it has
    stopped; None: not before its node ends, or never. `ways`: how it may be told; if there are two, nobody knows which.
    `orders`: all it is told if it takes its time: to leave, and perhaps again with less grace.
    """

    entry: PodPlan
    told: Span | None = None
    gone: Span | None = None
    ways: tuple[How, ...] = ()
    orders: tuple[Told, ...] = ()

    @property
    def is_certain(self) -> bool:
        """How and when it is told to leave is known to the second."""
        return self.told is None or (self.told.is_certain and len(self.ways) == 1)


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
    lanes = lanes_of((each.since, each.view.node.name, decision) for each, decision in zip(nodes, plans, strict=True))
    is_contested = len(nodes) > 1 and any(keys for keys in lanes)
    paces = _paces(assumptions, is_contested=is_contested)
    courses = [course_of(nodes, now, pace, assumptions.rate) for pace in paces]
    rivals = _rivals(lanes, now)
    found = []
    for each, decision in zip(nodes, plans, strict=True):
        pods = tuple(_prospect(entry, courses, rivals.get(entry.pod.uid, ())) for entry in decision.pods)
        drained = _drained([course.drained.get(each.view.node.name) for course in courses], each.view, pods)
        found.append(NodeProspect(each, decision, pods, drained))
    return Forecast(now, tuple(found), lanes, assumptions)


def _paces(assumptions: Assumptions, *, is_contested: bool) -> list[Pace]:
    quick = Pace(uses_grace=False, replacement_seconds=0.0, heals=True)
    slow = Pace(uses_grace=True, replacement_seconds=assumptions.replacement_seconds, heals=False)
    mixtures = [msgspec.structs.replace(slow, mixture=number + 1) for number in range(MIXTURES)]
    contested = [msgspec.structs.replace(pace, last_first=True) for pace in (quick, slow) if is_contested]
    return [quick, slow, *contested, *mixtures]


def _rivals(lanes: Mapping[tuple[BudgetKey, ...], tuple[Waiting, ...]], now: float) -> dict[str, tuple[str, ...]]:
    """By pod uid, those who come into the same lane in the same instant from several nodes, itself among them: each may
    have the place of any other, as nobody knows whose node is looked at first."""
    found: dict[str, tuple[str, ...]] = {}
    for keys, lane in lanes.items():
        fresh = [waiting for waiting in lane if keys and waiting.since >= math.floor(now)]
        if len({waiting.node for waiting in fresh}) > 1:
            uids = tuple(waiting.entry.pod.uid for waiting in fresh)
            found |= dict.fromkeys(uids, uids)
    return found


def _prospect(entry: PodPlan, courses: Sequence[Course], rivals: Sequence[str]) -> Prospect:
    mine = [course.fates.get(entry.pod.uid, Fate()) for course in courses]
    told, gone = _span(_first_words(mine)), _span([fate.gone for fate in mine])
    if rivals and told is not None:
        theirs = [course.fates.get(uid, Fate()) for course in courses for uid in rivals]
        told = _at_the_latest(_span(_first_words(theirs)) or told, told, entry)
        gone = Span(told.earliest, None if told.latest is None else told.latest + grace_of(entry.pod))
    return Prospect(
        entry=entry,
        told=told,
        gone=gone,
        ways=tuple(dict.fromkeys(fate.told[0].how for fate in mine if fate.told)),
        orders=max((fate.told for fate in mine), key=lambda orders: orders[0].at if orders else -math.inf),
    )


def _drained(instants: Sequence[float | None], view: NodeView, pods: Iterable[Prospect]) -> Span | None:
    """Perhaps as soon as the last pod is told: one that is told early in a slow course may stop at once."""
    found = _span(instants)
    settled = settled_at(view)
    if found is None or settled is None:
        return found
    soonest = max((pod.told.earliest for pod in pods if pod.told is not None), default=settled)
    return msgspec.structs.replace(found, earliest=min(found.earliest, max(soonest, settled)))


def _at_the_latest(among: Span, alone: Span, entry: PodPlan) -> Span:
    """The span among rivals, but not beyond the pod's own deletion for the deadline."""
    if entry.delete_at is None or alone.latest is None:
        return among
    own = max(entry.delete_at, alone.latest)
    return Span(among.earliest, own if among.latest is None else min(among.latest, own))


def _first_words(fates: Iterable[Fate]) -> list[float | None]:
    return [fate.told[0].at if fate.told else None for fate in fates]


def _span(instants: Sequence[float | None]) -> Span | None:
    """What is fast for one may be slow for another, who waits for the same budget."""
    known = [at for at in instants if at is not None]
    if not known:
        return None
    return Span(min(known), None if len(known) < len(instants) else max(known))
