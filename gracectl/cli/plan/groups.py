"""Pods of one node of whom the same is to be said: a node has a hundred, and nobody reads a hundred lines.

Where that are still too many, what is alike in the large is told together. Invariants: every pod is in exactly one
group, and the groups stand in the order in which their pods leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from gracectl.cli.plan.messages import Ground, called, how, how_in_short, when_told
from gracectl.policy.bounds import PodForecast, Window
from gracectl.policy.deadlines import grace_of
from gracectl.policy.explain import listed
from gracectl.policy.plan import Outcome
from gracectl.policy.simulation import RemovalMethod

FEW = 3
"""So many are told one by one, even if the same is said of them."""

MANY = 16
"""More lines than these about one wave of a node are too many."""


class Group(msgspec.Struct, frozen=True):
    """Pods that leave in the same way, in their order. `told`, `gone`: between which instants all of them do.

    `is_coarse`: they are alike in the large only, each with its own budget and grace.
    """

    pods: tuple[PodForecast, ...]
    told: Window | None
    gone: Window | None
    is_coarse: bool = False

    @property
    def first(self) -> PodForecast:
        """Speaks for all of them."""
        return self.pods[0]

    @property
    def is_alone(self) -> bool:
        """It is one pod."""
        return len(self.pods) == 1

    @property
    def name(self) -> str:
        """`shop/web-1`, or `12 pods: shop/web-1, shop/web-2, and 10 more`; of whom little is said, the number."""
        if self.is_alone:
            return called(self.first)
        count = f"{len(self.pods)} pods"
        if self.is_coarse or is_free(self.first):
            return count
        return f"{count}: {listed([called(pod) for pod in self.pods], 2)}"

    def when(self, at: float) -> str:
        """When they are told to leave."""
        return when_told(self.told, self.first.entry.outcome, at)

    def how(self, ground: Ground) -> str:
        """How, and why."""
        if self.is_alone:
            return how(self.first, ground)
        if is_free(self.first):
            budgets = ", as their budgets allow it now" if any(pod.entry.budgets for pod in self.pods) else ""
            is_slow = self.told is not None and not self.told.is_certain
            return f"evicted{budgets}{', as fast as eviction.qps lets them go' if is_slow else ''}"
        return how_in_short(self.first) if self.is_coarse else how(self.first, ground, of_many=True)


def groups_of(pods: Iterable[PodForecast], ground: Ground, *, verbose: bool) -> tuple[Group, ...]:
    """The pods of one wave. `verbose`: each of them for itself."""
    one_by_one = in_order(pods, ground)
    if verbose:
        return tuple(_grouped([pod]) for pod in one_by_one)
    found = _by(_likeness, one_by_one)
    if len(found) > MANY:
        found = [msgspec.structs.replace(group, is_coarse=True) for group in _by(_likeness_in_the_large, one_by_one)]
    return tuple(sorted(found, key=lambda group: _order(group.first, ground)))


def in_order(pods: Iterable[PodForecast], ground: Ground) -> list[PodForecast]:
    """Wave by wave, as they leave."""
    return sorted(pods, key=lambda pod: (pod.entry.wave, _order(pod, ground)))


def is_free(pod: PodForecast) -> bool:
    """Nothing but the rate of evictions holds it."""
    return pod.entry.outcome is Outcome.EVICT and (pod.is_certain or not pod.entry.budgets)


def _by(likeness: Callable[[PodForecast], Any], pods: Iterable[PodForecast]) -> list[Group]:
    alike: dict[Any, list[PodForecast]] = {}
    for pod in pods:
        alike.setdefault(likeness(pod), []).append(pod)
    parts = [part for same in alike.values() for part in ([same] if len(same) > FEW else [[pod] for pod in same])]
    return [_grouped(part) for part in parts]


def _grouped(pods: Sequence[PodForecast]) -> Group:
    return Group(tuple(pods), _around([pod.removal for pod in pods]), _around([pod.terminated for pod in pods]))


def _around(spans: Sequence[Window | None]) -> Window | None:
    """From the first to the last of them."""
    known = [span for span in spans if span is not None]
    if not known:
        return None
    latest = [math.inf if span.latest is None else span.latest for span in known]
    last = None if math.inf in latest or len(known) < len(spans) else max(latest)
    return Window(min(span.earliest for span in known), last)


def _order(pod: PodForecast, ground: Ground) -> tuple[float, float, int, str]:
    told = pod.removal or (pod.terminated if pod.entry.outcome is Outcome.TERMINATING else None)
    place = ground.places.get(pod.entry.pod.uid)
    earliest, latest = (math.inf, None) if told is None else (told.earliest, told.latest)
    return earliest, math.inf if latest is None else latest, place.number if place else 0, called(pod)


def _likeness(pod: PodForecast) -> Any:
    """Equal for pods of whom the same can be said."""
    if is_free(pod):
        return "free"
    entry = pod.entry
    protection = entry.protection and (entry.protection.description, entry.protection.until)
    # A budget says of each how many it allows just now: who waits for the same is alike all the same.
    reason = "" if entry.budgets else entry.reason
    deadline: Any = None
    if RemovalMethod.DELETED in pod.methods or (entry.delete_at is not None and not pod.is_certain):
        orders = [(order.at, order.grace) for order in pod.removals if order.method is RemovalMethod.DELETED]
        deadline = (entry.delete_at, grace_of(entry.pod), orders)
    return repr(
        (entry.outcome, pod.methods, entry.budgets, protection, reason, deadline, pod.removal is None, entry.until)
    )


def _likeness_in_the_large(pod: PodForecast) -> Any:
    return "free" if is_free(pod) else how_in_short(pod)
