"""How many pods still hold nodes that are under way, in what state, and what keeps those that do not move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gracectl.policy.plan import Blocker, Outcome, Plan

STATES: Final = tuple(outcome for outcome in Outcome if outcome is not Outcome.IGNORED)
"""Of pods that hold their node."""


class RemainingPods(msgspec.Struct, frozen=True):
    """Pods by what their plan says of them, and by what keeps them; every key is there."""

    states: Mapping[Outcome, int] = msgspec.field(default_factory=lambda: dict.fromkeys(STATES, 0))
    blocked: Mapping[Blocker, int] = msgspec.field(default_factory=lambda: dict.fromkeys(Blocker, 0))


def count_remaining(plans: Iterable[Plan]) -> RemainingPods:
    """Count the pods of these plans."""
    found = Counter((entry.outcome, entry.blocker) for plan in plans for entry in plan.pods)
    states: dict[Outcome, int] = dict.fromkeys(STATES, 0)
    blocked = dict.fromkeys(Blocker, 0)
    for (outcome, blocker), number in found.items():
        if outcome is not Outcome.IGNORED:
            states[outcome] += number
        if blocker is not None:
            blocked[blocker] += number
    return RemainingPods(states, blocked)
