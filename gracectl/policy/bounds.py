"""What becomes of each pod, from several courses that its node can take.

Every course is one possibility, and there are infinitely many: between them pods may stop, and others have their turn,
earlier or later than in any one that was followed. So the instants of a pod lie between bounds that follow from those
of the pods that it waits for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from gracectl.policy.budgets import FREE_PHASES
from gracectl.policy.deadlines import grace_of
from gracectl.policy.plan import Outcome, Plan, PodPlan
from gracectl.policy.simulation import PodResult, Removal, RemovalMethod, SimulationResult

SAME_SECONDS = 1.0
"""Two instants that lie less apart are one for people."""


class Window(msgspec.Struct, frozen=True):
    """Between which instants something happens (Unix seconds); `latest` None: perhaps never."""

    earliest: float
    latest: float | None

    @property
    def is_certain(self) -> bool:
        """It is known to the second."""
        return self.latest is not None and self.latest - self.earliest < SAME_SECONDS


class PodForecast(msgspec.Struct, frozen=True):
    """What becomes of a pod. `entry`: what is decided about it at the beginning.

    `told`: when it is told to leave for the first time; None: never, or it was told before. `gone`: when it has
    stopped; None: not before its node ends, or never. `ways`: how it may be told; if there are two, nobody knows which.
    `orders`: all it is told if it takes its time: to leave, and perhaps again with less grace. `kept`: what is decided
    about it in the end, if it may be that it never leaves.
    """

    entry: PodPlan
    told: Window | None = None
    gone: Window | None = None
    ways: tuple[RemovalMethod, ...] = ()
    orders: tuple[Removal, ...] = ()
    kept: PodPlan | None = None

    @property
    def is_certain(self) -> bool:
        """How and when it is told to leave is known to the second."""
        return self.told is None or (self.told.is_certain and len(self.ways) == 1)

    @property
    def is_waited_for(self) -> bool:
        """Its node does not end before it is gone, or the deadline has come."""
        return self.entry.outcome is not Outcome.IGNORED


def forecast_pods(
    decision: Plan, courses: Sequence[SimulationResult], rivals: dict[str, tuple[str, ...]]
) -> tuple[PodForecast, ...]:
    """What becomes of the pods of one node, in the plan's order. `rivals`: see `simultaneous_pods`."""
    joined = [_from_simulations(entry, courses, rivals.get(entry.pod.uid, ())) for entry in decision.pods]
    alone = [_with_grace(each, decision.deadline) for each in joined]
    if any(each.entry.protection and each.entry.protection.holds_node for each in alone):
        return tuple(alone)  # who waits for such a pod waits for nothing else
    behind = (
        _after_earlier_waves(each, [other for other in alone if _is_before(other, each)], courses) for each in alone
    )
    return tuple(_with_grace(each, decision.deadline) for each in behind)


def simultaneous_pods(plans: Iterable[Plan], courses: Iterable[SimulationResult]) -> dict[str, tuple[str, ...]]:
    """By pod uid, those whose turn under the same budgets comes in the same instant on several nodes, itself included:
    each may have the place of any other, as nobody knows whose node is looked at first."""
    entries = [(number, entry) for number, decision in enumerate(plans) for entry in decision.pods if entry.budgets]
    found: dict[str, tuple[str, ...]] = {}
    for course in courses:
        together: dict[tuple[object, float], list[tuple[int, str]]] = {}
        for number, entry in entries:
            at = course.turns.get(entry.pod.uid)
            if at is not None:
                together.setdefault((entry.budgets, at), []).append((number, entry.pod.uid))
        for group in together.values():
            if len({number for number, _ in group}) > 1:
                uids = tuple(uid for _, uid in group)
                found |= {uid: tuple(dict.fromkeys((*found.get(uid, ()), *uids))) for uid in uids}
    return found


def window_of(instants: Sequence[float | None]) -> Window | None:
    """From the first to the last; what is fast for one may be slow for another, who waits for the same budget."""
    known = [at for at in instants if at is not None]
    if not known:
        return None
    return Window(min(known), None if len(known) < len(instants) else max(known))


def _from_simulations(entry: PodPlan, courses: Sequence[SimulationResult], rivals: Sequence[str]) -> PodForecast:
    """What the courses say, where each rival's place may be the pod's own."""
    mine = [course.fates.get(entry.pod.uid, PodResult()) for course in courses]
    told = window_of(_first_removals(mine))
    if rivals and told is not None:
        theirs = [course.fates.get(uid, PodResult()) for course in courses for uid in rivals]
        told = _capped(window_of(_first_removals(theirs)) or told, told, entry)
    return PodForecast(
        entry=entry,
        told=told,
        gone=window_of([fate.gone for fate in mine]),
        ways=tuple(dict.fromkeys(fate.told[0].how for fate in mine if fate.told)),
        orders=max((fate.told for fate in mine), key=lambda orders: orders[0].at if orders else -math.inf),
        kept=next((course.kept[entry.pod.uid] for course in courses if entry.pod.uid in course.kept), None),
    )


def _after_earlier_waves(
    pod: PodForecast, before: Sequence[PodForecast], courses: Sequence[SimulationResult]
) -> PodForecast:
    """The same, if those who leave before it are gone as early or as late as they can be."""
    if pod.told is None or not before or RemovalMethod.EVICTED not in pod.ways:
        return pod
    freed = _last_of([each.gone for each in before])
    earliest = min(pod.told.earliest, max(freed.earliest, _protected_until(pod)))
    latest = None
    if pod.told.latest is not None and freed.latest is not None:
        in_courses = max(_freed(before, course) for course in courses)
        latest = pod.told.latest + max(freed.latest - in_courses, 0.0)
    return msgspec.structs.replace(pod, told=_capped(Window(earliest, latest), pod.told, pod.entry))


def _is_before(other: PodForecast, pod: PodForecast) -> bool:
    return other.is_waited_for and other.entry.wave < pod.entry.wave


def _last_of(spans: Sequence[Window | None]) -> Window:
    """When all of it has happened; what is not known to happen may do so at once, or never."""
    latest = [math.inf if span is None or span.latest is None else span.latest for span in spans]
    earliest = max((span.earliest for span in spans if span is not None), default=-math.inf)
    return Window(earliest, None if math.inf in latest else max(latest))


def _freed(before: Sequence[PodForecast], course: SimulationResult) -> float:
    instants = (course.fates.get(pod.entry.pod.uid, PodResult()).gone for pod in before)
    return max((at for at in instants if at is not None), default=-math.inf)


def _protected_until(pod: PodForecast) -> float:
    protection = pod.entry.protection
    if protection is None:
        return -math.inf
    return math.inf if protection.until is None else protection.until


def _capped(span: Window, own: Window, entry: PodPlan) -> Window:
    """A span that followed from others, but not beyond the pod's own deletion for the deadline."""
    if entry.delete_at is None or own.latest is None:
        return span
    last = max(entry.delete_at, own.latest)
    return Window(span.earliest, last if span.latest is None else min(span.latest, last))


def _with_grace(pod: PodForecast, deadline: float | None) -> PodForecast:
    """The same, stopping at once or when its grace is over, whenever it is told; no later than the node's deadline."""
    told, gone = pod.told, pod.gone
    if told is None or gone is None or pod.entry.pod.phase in FREE_PHASES:
        return pod
    latest = None
    if told.latest is not None and gone.latest is not None:
        latest = max(gone.latest, told.latest + grace_of(pod.entry.pod))
        latest = latest if deadline is None else min(latest, max(deadline, gone.latest))
    return msgspec.structs.replace(pod, gone=Window(min(gone.earliest, told.earliest), latest))


def _first_removals(fates: Iterable[PodResult]) -> list[float | None]:
    return [fate.told[0].at if fate.told else None for fate in fates]
