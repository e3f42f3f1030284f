"""The order in which a node's pods leave (DESIGN 3.4).

What others depend on goes last. By default that is: ordinary pods, then the DaemonSets that serve them, then the
critical pods, then the critical DaemonSets (network, storage, logs). An administrator may give priority ranges instead,
as the kubelet has them for the shutdown of a machine (KEP-2712).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from gracectl.model import names
from gracectl.model.pod import Pod


class Wave(msgspec.Struct, frozen=True):
    """Pods that leave together. `name` fits a table, `pods` a sentence: `the non-critical pods`.

    `period`: the seconds that these pods are to have before a deadline when others leave before them; 0 if nobody has
    said.
    """

    name: str
    pods: str
    period: float = 0.0


class Order(msgspec.Struct, frozen=True):
    """The waves of a node, the first one first; a pod's wave is an index into them.

    `floors`: the least priority of each wave; empty where waves are told by class and owner.
    """

    waves: tuple[Wave, ...]
    floors: tuple[int, ...] = ()

    @property
    def is_timed(self) -> bool:
        """Whether it says how long pods have when the machine shuts down."""
        return bool(self.floors) and self.total > 0

    @property
    def total(self) -> float:
        """The periods of all waves together, in seconds."""
        return sum(wave.period for wave in self.waves)

    def wave_of(self, pod: Pod) -> int:
        """Which wave the pod leaves with: of ranges the highest that begins at or below its priority, else the lowest.

        Source: KEP-2712 and the kubelet's grouping (oracle shutdown-groups); no priority is 0.
        """
        if self.floors:
            return max(bisect_right(self.floors, pod.priority or 0) - 1, 0)
        return (2 if is_critical(pod) else 0) + (1 if is_daemon(pod) else 0)


DEFAULT_ORDER = Order(
    (
        Wave("non-critical", "the non-critical pods"),
        Wave("DaemonSets", "the non-critical DaemonSet pods"),
        Wave("critical", "the critical pods"),
        Wave("critical DaemonSets", "the critical DaemonSet pods"),
    )
)


def by_priority(periods: Sequence[tuple[int, float]]) -> Order:
    """The waves of priority ranges: of each the least priority and its period in seconds, in any order.

    ValueError without any range, or if two begin at the same priority.
    """
    if not periods:
        raise ValueError("there is no range")
    ranges = sorted(periods)
    floors = tuple(floor for floor, _ in ranges)
    for floor in floors:
        if floors.count(floor) > 1:
            raise ValueError(f"priority {floor} is given twice")
    waves = []
    for number, (floor, period) in enumerate(ranges):
        words = _words(floor, floors[number + 1] if number + 1 < len(floors) else None, is_lowest=number == 0)
        waves.append(Wave(words, f"the pods of {words}", period))
    return Order(tuple(waves), floors)


def _words(floor: int, following: int | None, *, is_lowest: bool) -> str:
    if is_lowest:
        return "any priority" if following is None else f"priority below {following}"
    if following is None:
        return f"priority {floor} and above"
    return f"priority {floor}" if following == floor + 1 else f"priority {floor} to {following - 1}"


def is_critical(pod: Pod) -> bool:
    """By class, and by priority for servers that show only the number."""
    return pod.priority_class in names.CRITICAL_PRIORITY_CLASSES or (pod.priority or 0) >= names.CRITICAL_PRIORITY


def is_daemon(pod: Pod) -> bool:
    """Whether a DaemonSet controls the pod."""
    return any(owner.controller and owner.kind == names.DAEMON_SET for owner in pod.owners)
