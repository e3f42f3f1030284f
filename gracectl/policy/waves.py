"""Waves: the order in which a node's pods are removed, and the deadline of each wave.

Pods that others depend on leave last. By default: ordinary pods, then the DaemonSets that serve them, then critical
pods, then critical DaemonSets (network, storage, logs). An administrator may set priority ranges instead, as for the
kubelet's graceful shutdown (KEP-2712).

A wave must end when the periods of later waves begin, so its deadline is the node's minus those periods. A wave without
pods needs no time. Invariants: no wave's deadline is after the node's or before that of an earlier wave; it moves later
when pods of later waves leave, and earlier only when such pods arrive.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Sequence

import msgspec

from gracectl.model import names
from gracectl.model.pod import Pod


class Wave(msgspec.Struct, frozen=True):
    """Pods that are removed together. `name` fits a table, `pods` a sentence: `the non-critical pods`.

    `period`: seconds that these pods have before a deadline when there are others before them; 0 if not given.
    """

    name: str
    pods: str
    period: float = 0.0


class DrainOrder(msgspec.Struct, frozen=True):
    """Waves of a node, the first one first; a pod's wave is an index into them.

    `lowest_priorities`: the least priority of each wave; empty where waves are decided by class and owner.
    """

    waves: tuple[Wave, ...]
    lowest_priorities: tuple[int, ...] = ()

    @property
    def is_timed(self) -> bool:
        """Whether it says how long pods have when the machine shuts down."""
        return bool(self.lowest_priorities) and self.total > 0

    @property
    def total(self) -> float:
        """The periods of all waves together, in seconds."""
        return sum(wave.period for wave in self.waves)

    def wave_of(self, pod: Pod) -> int:
        """The wave of a pod: of ranges the highest that begins at or below its priority, else the lowest.

        Source: KEP-2712 and the kubelet's grouping (oracle shutdown-groups); no priority is 0.
        """
        if self.lowest_priorities:
            return max(bisect_right(self.lowest_priorities, pod.priority or 0) - 1, 0)
        return (2 if is_critical(pod) else 0) + (1 if is_daemon(pod) else 0)


DEFAULT_ORDER = DrainOrder(
    (
        Wave("non-critical", "the non-critical pods"),
        Wave("DaemonSets", "the non-critical DaemonSet pods"),
        Wave("critical", "the critical pods"),
        Wave("critical DaemonSets", "the critical DaemonSet pods"),
    )
)


def by_priority(periods: Sequence[tuple[int, float]]) -> DrainOrder:
    """Waves by priority ranges: of each the least priority and its period in seconds, in any order.

    ValueError without any range, or if two begin at the same priority.
    """
    if not periods:
        raise ValueError("there is no range")
    ranges = sorted(periods)
    lowest = tuple(priority for priority, _ in ranges)
    for priority in lowest:
        if lowest.count(priority) > 1:
            raise ValueError(f"priority {priority} is given twice")
    waves = []
    for number, (priority, period) in enumerate(ranges):
        next_lowest = lowest[number + 1] if number + 1 < len(lowest) else None
        words = _words(priority, next_lowest, is_lowest=number == 0)
        waves.append(Wave(words, f"the pods of {words}", period))
    return DrainOrder(tuple(waves), lowest)


def _words(lowest: int, following: int | None, *, is_lowest: bool) -> str:
    if is_lowest:
        return "any priority" if following is None else f"priority below {following}"
    if following is None:
        return f"priority {lowest} and above"
    return f"priority {lowest}" if following == lowest + 1 else f"priority {lowest} to {following - 1}"


def is_critical(pod: Pod) -> bool:
    """Whether the pod is critical: by class, or by priority if the server shows only the number."""
    return pod.priority_class in names.CRITICAL_PRIORITY_CLASSES or (pod.priority or 0) >= names.CRITICAL_PRIORITY


def is_daemon(pod: Pod) -> bool:
    """Whether a DaemonSet controls the pod."""
    owner = pod.controller
    return owner is not None and owner.kind == names.DAEMON_SET


class WaveDeadlines(msgspec.Struct, frozen=True):
    """By when the pods of each wave must have ended (Unix seconds); None without a deadline.

    `earliest`: as if there were pods in every later wave. Since these come and go, a pod may have been deleted for a
    deadline as early as that.
    """

    node: float | None
    latest: tuple[float, ...] = ()
    earliest: tuple[float, ...] = ()

    def of(self, wave: int) -> float | None:
        """The deadline of a wave."""
        return None if self.node is None else self.latest[wave]

    def earliest_of(self, wave: int) -> float | None:
        """The earliest deadline for which a pod of this wave can have been deleted."""
        return None if self.node is None else self.earliest[wave]


def wave_deadlines(
    order: DrainOrder, occupied: Collection[int], deadline: float | None, began: float | None
) -> WaveDeadlines:
    """Deadlines of the waves of which `occupied` have pods, on a node that must be over at `deadline`.

    `began`: when the node was deleted (None: unknown). If that leaves less time than all periods together, each
    shrinks in proportion: otherwise the first waves would have none at all.
    """
    if deadline is None:
        return WaveDeadlines(None)
    share = period_share(order, deadline, began)
    periods = [wave.period * share for wave in order.waves]
    needed = [period if wave in occupied else 0.0 for wave, period in enumerate(periods)]
    return WaveDeadlines(deadline, _before(deadline, needed), _before(deadline, periods))


def period_share(order: DrainOrder, deadline: float, began: float | None) -> float:
    """Share of its period that each wave gets: 1 unless there is too little time for all waves."""
    wanted = order.total
    if began is None or wanted <= 0:
        return 1.0
    return min(max((deadline - began) / wanted, 0.0), 1.0)


def _before(deadline: float, periods: list[float]) -> tuple[float, ...]:
    """For each wave the deadline minus the periods behind it, in whole seconds."""
    return tuple(deadline - math.floor(sum(periods[wave + 1 :])) for wave in range(len(periods)))
