"""What a node's deadline leaves to each wave: time is kept for the pods that go last (DESIGN 3.4).

A wave has to be over when the time of those behind it begins, so its own deadline is the node's minus their periods. A
wave without a pod needs no time. Invariants: no wave's deadline lies after the node's, none before that of an earlier
wave; it moves later when the pods behind it leave, and earlier only when others come.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import msgspec

from gracectl.policy.waves import Order


class Limits(msgspec.Struct, frozen=True):
    """By when the pods of each wave must have ended (Unix seconds); None without a deadline.

    `earliest`: as if there were pods in every later wave. Since these come and go, a pod may have been told as early an
    end as that.
    """

    node: float | None
    latest: tuple[float, ...] = ()
    earliest: tuple[float, ...] = ()

    def of(self, wave: int) -> float | None:
        """The deadline of a wave."""
        return None if self.node is None else self.latest[wave]

    def earliest_of(self, wave: int) -> float | None:
        """The earliest deadline that a pod of this wave can have been told of while the node had this one."""
        return None if self.node is None else self.earliest[wave]


def limits_of(order: Order, occupied: Collection[int], deadline: float | None, began: float | None) -> Limits:
    """The deadlines of the waves of which `occupied` have pods, on a node that must be over at `deadline`.

    `began`: when the node was deleted (None: nobody knows). If that leaves less time than all periods together, each
    shrinks in proportion: else the first waves would have none at all.
    """
    if deadline is None:
        return Limits(None)
    share = share_of(order, deadline, began)
    periods = [wave.period * share for wave in order.waves]
    needed = [period if wave in occupied else 0.0 for wave, period in enumerate(periods)]
    return Limits(deadline, _before(deadline, needed), _before(deadline, periods))


def share_of(order: Order, deadline: float, began: float | None) -> float:
    """The part of its period that each wave can have: 1 unless there is too little time for all of them."""
    wanted = order.total
    if began is None or wanted <= 0:
        return 1.0
    return min(max((deadline - began) / wanted, 0.0), 1.0)


def _before(deadline: float, periods: list[float]) -> tuple[float, ...]:
    """For each wave the deadline minus what is kept for those behind it, in whole seconds."""
    return tuple(deadline - math.floor(sum(periods[wave + 1 :])) for wave in range(len(periods)))
