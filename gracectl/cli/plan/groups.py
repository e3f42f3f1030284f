"""Groups of pods of one node with similar forecasts: a table of a hundred pods is unreadable.

If there are still too many, groups become coarser. Invariants: every pod is in exactly one group; groups are in the
order in which their pods leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from gracectl.cli.plan.messages import TimeOrigin, pod_name, removal_text, removal_time, short_removal_text
from gracectl.model.meta import natural_key
from gracectl.policy.answers import Answer, Window, last_of
from gracectl.policy.deadlines import grace_of
from gracectl.policy.forecast import Bounds, PodForecast
from gracectl.policy.plan import Outcome
from gracectl.policy.scenario import RemovalMethod

FEW = 3
"""Up to this number, similar pods are shown one by one."""

MANY = 16
"""Maximum lines for one wave of a node before groups become coarser."""


class PodGroup(msgspec.Struct, frozen=True):
    """Pods with similar forecasts, in order, and the bounds of their removals and terminations.

    `is_coarse`: budgets and grace periods differ.
    """

    pods: tuple[PodForecast, ...]
    removal_window: Bounds | None
    terminated_window: Bounds | None
    leaves: Answer | None
    is_coarse: bool = False

    @property
    def first(self) -> PodForecast:
        """The pod that represents them."""
        return self.pods[0]

    @property
    def name(self) -> str:
        """`shop/web-1`, or `shop/web-1 and 11 more`; where their names do not matter, `12 pods`."""
        if len(self.pods) == 1:
            return pod_name(self.first)
        if self.is_coarse or is_free(self.first):
            return f"{len(self.pods)} pods"
        return f"{pod_name(self.first)} and {len(self.pods) - 1} more"

    def when(self, at: float) -> str:
        """When they are evicted or deleted."""
        return removal_time(self.leaves, self.first.entry.outcome, at)

    def text(self, origin: TimeOrigin) -> str:
        """How they leave, and why."""
        if len(self.pods) == 1:
            return removal_text(self.first, origin)
        if is_free(self.first):
            budgets = ", as their budgets allow it now" if any(pod.entry.budgets for pod in self.pods) else ""
            is_slow = self.removal_window is not None and not self.removal_window.is_certain
            return f"evicted{budgets}{', limited by eviction.qps' if is_slow else ''}"
        return short_removal_text(self.first) if self.is_coarse else removal_text(self.first, origin, of_many=True)


def groups_of(pods: Iterable[PodForecast], origin: TimeOrigin, *, verbose: bool) -> tuple[PodGroup, ...]:
    """The pods of one wave. `verbose`: a group for each pod."""
    one_by_one = in_order(pods, origin)
    if verbose:
        return tuple(_grouped([pod]) for pod in one_by_one)
    found = _by(_likeness, one_by_one)
    if len(found) > MANY:
        found = [msgspec.structs.replace(group, is_coarse=True) for group in _by(_likeness_in_the_large, one_by_one)]
    return tuple(sorted(found, key=lambda group: _order(group.first, origin)))


def in_order(pods: Iterable[PodForecast], origin: TimeOrigin) -> list[PodForecast]:
    """Wave by wave, as they leave."""
    return sorted(pods, key=lambda pod: (pod.entry.wave, _order(pod, origin)))


def is_free(pod: PodForecast) -> bool:
    """Whether only the rate of evictions delays it."""
    return pod.entry.outcome is Outcome.EVICT and (pod.is_certain or not pod.entry.budgets)


def _by(likeness: Callable[[PodForecast], Any], pods: Iterable[PodForecast]) -> list[PodGroup]:
    alike: dict[Any, list[PodForecast]] = {}
    for pod in pods:
        alike.setdefault(likeness(pod), []).append(pod)
    parts = [part for same in alike.values() for part in ([same] if len(same) > FEW else [[pod] for pod in same])]
    return [_grouped(part) for part in parts]


def _grouped(pods: Sequence[PodForecast]) -> PodGroup:
    removal = _around([pod.removal for pod in pods])
    leaves = last_of(pod.leaves for pod in pods if pod.leaves is not None)
    if isinstance(leaves, Window) and removal is not None:
        leaves = Window(removal.earliest, leaves.latest)
    return PodGroup(tuple(pods), removal, _around([pod.terminated for pod in pods]), leaves)


def _around(windows: Sequence[Bounds | None]) -> Bounds | None:
    """Bounds around all windows."""
    known = [window for window in windows if window is not None]
    if not known:
        return None
    latest = [math.inf if window.latest is None else window.latest for window in known]
    last = None if math.inf in latest or len(known) < len(windows) else max(latest)
    return Bounds(min(window.earliest for window in known), last)


def _order(pod: PodForecast, origin: TimeOrigin) -> tuple[Any, ...]:
    window = pod.removal or (pod.terminated if pod.entry.outcome is Outcome.TERMINATING else None)
    position = origin.positions.get(pod.entry.pod.uid)
    earliest, latest = (math.inf, None) if window is None else (window.earliest, window.latest)
    number = position.number if position else 0
    return earliest, math.inf if latest is None else latest, number, natural_key(pod_name(pod))


def _likeness(pod: PodForecast) -> Any:
    """Key that is equal for pods with similar forecasts."""
    if is_free(pod):
        return "free"
    entry = pod.entry
    protection = entry.protection and (entry.protection.description, entry.protection.until)
    # The reason of a budget names what it allows each pod now, which does not matter in a queue.
    reason = "" if entry.budgets else entry.reason
    deadline: Any = None
    if RemovalMethod.DELETED in pod.methods or (entry.delete_at is not None and not pod.is_certain):
        requests = [(request.at, request.grace) for request in pod.removals if request.method is RemovalMethod.DELETED]
        deadline = (entry.delete_at, grace_of(entry.pod), requests)
    is_never = pod.removal is None
    return repr((entry.outcome, pod.methods, entry.budgets, protection, reason, deadline, is_never, entry.until))


def _likeness_in_the_large(pod: PodForecast) -> Any:
    return "free" if is_free(pod) else short_removal_text(pod)
