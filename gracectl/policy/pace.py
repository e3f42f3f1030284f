"""Pace of voluntary terminations: the maximum in progress, the next one to begin, and when a slot is freed.

A termination takes a slot from its DELETE on: until our finalizer is off its node and its claim and, with
`voluntary.waitForReplacement`, until the pods that it has displaced are Ready elsewhere. Terminations requested by
hand take slots as well, as they cost the same capacity, and wait for none. Sources: ADR 0035; Karpenter's graceful
termination design ("rate limiting node termination").
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from gracectl.model.budget import scaled_value
from gracectl.model.pod import Pod
from gracectl.policy.evictability import FINISHED
from gracectl.policy.plan import Blocker, Plan
from gracectl.policy.settings import VoluntarySettings
from gracectl.policy.voluntary import Cause, Trigger

K = TypeVar("K")

CREATED_WITHIN_SECONDS: Final = 5.0
"""The controllers of workloads have created the replacements of pods this long after their node is gone."""


class DisruptionRank(msgspec.Struct, frozen=True, order=True):
    """Order of the waiting terminations; the least begins first.

    Health before the label before expiry; of one cause the one that has been due for longest, then the oldest object.
    `has_failed`: its deletion was refused or failed, so it does not keep others from a slot that it cannot use.
    """

    has_failed: bool
    cause: int
    due: float
    created: float
    name: str


def rank_of(due: Sequence[Trigger], created: float, name: str, *, has_failed: bool = False) -> DisruptionRank:
    """The rank of an object with these triggers, of which there is at least one."""
    order = list(Cause)
    cause, at = min((order.index(trigger.cause), trigger.at) for trigger in due)
    return DisruptionRank(has_failed, cause, at, created, name)


def maximum_of(settings: VoluntarySettings, managed: int) -> int:
    """Maximum number of terminations in progress for a number of managed nodes.

    A percentage is rounded down, and is never less than one.
    """
    return max(1, scaled_value(settings.maximum_at_once, managed, round_up=False))


def explain_maximum(settings: VoluntarySettings, managed: int) -> str:
    """`1 of 10 managed nodes at the same time (voluntary.maximumAtOnce: 10%)`."""
    maximum = maximum_of(settings, managed)
    return (
        f"{maximum} of {managed} managed nodes at the same time (voluntary.maximumAtOnce: {settings.maximum_at_once})"
    )


def validate_maximum(value: int | str) -> None:
    """Raise ValueError if it is not a number from 1 or a percentage from 1% to 100%."""
    share = scaled_value(value, 100, round_up=False)
    if share < 1:
        raise ValueError(f"{value!r} lets no termination begin; give at least 1 or 1%")
    if isinstance(value, str) and share > 100:
        raise ValueError(f"{value!r} is more than 100%; to terminate all nodes at the same time, set 100%")


def next_to_begin(waiting: Mapping[K, DisruptionRank], places: int) -> list[K]:
    """The waiting terminations that begin now, best rank first."""
    return sorted(waiting, key=lambda key: waiting[key])[:places] if places > 0 else []


class DisruptionSlot(msgspec.Struct):
    """Slot of one termination. Instants are Unix seconds, of the server's clock."""

    since: float
    """When its deletion was requested."""
    controllers: set[str]
    """UIDs of the workload controllers that had pods on its nodes meanwhile."""
    released_at: float | None = None
    """Since when none of its objects has our finalizer; None: one has."""
    moved_at: float = 0.0
    """When the last pod left its nodes, or began to stop."""

    def is_taken(self, is_replaced: bool, now: float, settings: VoluntarySettings) -> bool:
        """Whether it counts. `is_replaced`: no replacement of its pods exists that is not Ready."""
        if self.released_at is None:
            return True
        if not settings.wait_for_replacement or not self.controllers:
            return False
        if now >= self.released_at + settings.patience_seconds:
            return False
        return not is_replaced or now < self.released_at + CREATED_WITHIN_SECONDS

    def blocked_from(self, settings: VoluntarySettings) -> float:
        """From when it does not count for nodes that are not Ready, if its drain is blocked then (`is_blocked`)."""
        return max(self.since, self.moved_at) + settings.patience_seconds

    def next_change(self, now: float, settings: VoluntarySettings) -> float | None:
        """The next instant at which the clock alone may free it; None: there is none."""
        if self.released_at is None:
            return None
        instants = (self.released_at + CREATED_WITHIN_SECONDS, self.released_at + settings.patience_seconds)
        return min((at for at in instants if at > now), default=None)


HOLDING: Final = frozenset(
    {
        Blocker.PROTECTION,
        Blocker.NEIGHBOUR,
        Blocker.BUDGET,
        Blocker.UNOBSERVED,
        Blocker.MISCONFIGURATION,
        Blocker.REFUSED,
        Blocker.UNDECODABLE,
    }
)
"""Blockers that last for as long as the pod's owner likes."""


def is_blocked(plan: Plan) -> bool:
    """Whether protection, a budget or a refusal blocks this drain, which has no deadline or is before it."""
    return not plan.overdue and any(entry.blocker in HOLDING for entry in plan.left)


def next_with_blocked(waiting: Mapping[K, DisruptionRank], lost: Collection[K], places: int, blocked: int) -> list[K]:
    """As `next_to_begin`, where `blocked` more places are for nodes that are not Ready (`lost`): a pod that
    protection or a budget keeps must not keep dead nodes as well.
    """
    chosen = next_to_begin(waiting, places)
    rest = {key: waiting[key] for key in lost if key in waiting and key not in chosen}
    return chosen + next_to_begin(rest, places - len(chosen) + blocked)


def is_starting(pod: Pod) -> bool:
    """Whether it should become Ready, and is not."""
    return not pod.ready and pod.deletion_timestamp is None and pod.phase not in FINISHED


def is_replaced(starting: Iterable[Pod], since: float) -> bool:
    """Whether none of these pods, which are not Ready, replaces one of a termination requested at `since`.

    Pods that existed before are not Ready for a reason of their own. Creation is known in whole seconds.
    """
    return all(pod.created < math.floor(since) for pod in starting)
