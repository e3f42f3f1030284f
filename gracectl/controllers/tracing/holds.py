"""Holds: causes that kept a pod or a node waiting, by name, with durations.

A hold is named while it lasts, so a budget that is deleted later is still named. Invariant: time that this process has
not observed is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gracectl.model.times import format_time
from gracectl.policy.plan import Blocker, Outcome, Plan, PodPlan

SHORTEST_SECONDS: Final = 1.0
"""A shorter hold is counted, but has no span."""

SHOWN: Final = 20
"""Causes in an attribute; the longest come first."""

UNNAMED: Final = "other causes"

REMEMBERED: Final = 500
"""Causes of one drain that have names; the time of further ones counts as UNNAMED."""


class Hold(msgspec.Struct, frozen=True):
    """A hold that has ended. Instants are Unix seconds."""

    name: str
    start: float
    end: float

    @property
    def lasted(self) -> bool:
        """Whether it is worth a span."""
        return self.end - self.start >= SHORTEST_SECONDS


def hold_of(entry: PodPlan, plan: Plan, wave: int) -> str | None:
    """Cause that blocks a pod in its plan; `wave`: the current one. None: it only has to terminate."""
    if entry.blocker is Blocker.UNDECODABLE:
        return "blocked by an object that cannot be decoded"
    if entry.blocker is Blocker.WAVE:
        return f"waiting for wave {plan.order.waves[wave].name}"
    if entry.blocker is Blocker.OWNER:
        return "waiting for the owner of the drain"
    if entry.blocker is Blocker.VOLUME:
        return "waiting for volumes to detach"
    if entry.blocker is Blocker.NEIGHBOUR:
        return "protected by do-not-evict of another pod"
    if entry.protection is not None and entry.blocker is Blocker.PROTECTION:
        until = entry.protection.until
        return f"protected by {entry.protection.kind}" if until is None else f"protected until {format_time(until)}"
    if entry.blocker is Blocker.RETURNED:
        return "made after the cordon"
    if entry.blocker is Blocker.REPLACEMENT:
        return "replacing"
    if entry.blocker is Blocker.SETTLING:
        return "waiting for a change of its budget to settle"
    if entry.blocker is Blocker.REFUSED:
        return "eviction refused"
    if entry.outcome is Outcome.BLOCKED:
        budgets = ", ".join(f"{namespace}/{name}" for namespace, name in entry.budgets)
        return f"blocked by {'budget' if len(entry.budgets) == 1 else 'budgets'} {budgets}"
    return None


class HoldTimer:
    """The hold of one pod, from one plan to the next."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._since = 0.0
        self._over: list[Hold] = []

    def update(self, name: str | None, now: float) -> None:
        """Record the blocker from `now` on; None: no blocker."""
        if name == self._name:
            return
        if self._name is not None:
            self._over.append(Hold(self._name, self._since, now))
        self._name, self._since = name, now

    def end(self, now: float) -> list[Hold]:
        """All holds so far; the last ends `now`."""
        self.update(None, now)
        return self._over


class HoldTotals:
    """Time in which at least one pod of a node was held by each cause."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._seconds: dict[str, float] = {}

    def update(self, causes: Iterable[str], now: float) -> list[Hold]:
        """Record the causes that block pods from `now` on; returns the holds of the node that end."""
        current = dict.fromkeys(causes)
        ended = [self._end(cause, now) for cause in list(self._since) if cause not in current]
        for cause in current:
            self._since.setdefault(cause, now)
        return ended

    def add(self, hold: Hold) -> None:
        """Count a hold that has ended."""
        known = hold.name in self._seconds or len(self._seconds) < REMEMBERED
        name = hold.name if known else UNNAMED
        self._seconds[name] = self._seconds.get(name, 0.0) + max(hold.end - hold.start, 0.0)

    def seconds(self, now: float | None = None) -> Mapping[str, float]:
        """Seconds of the ended holds, by cause; with `now`, also the running holds, counted until then."""
        if now is None:
            return self._seconds
        lasting = {cause: max(now - since, 0.0) for cause, since in self._since.items()}
        return {
            cause: self._seconds.get(cause, 0.0) + lasting.get(cause, 0.0) for cause in {**self._seconds, **lasting}
        }

    def _end(self, cause: str, now: float) -> Hold:
        hold = Hold(cause, self._since.pop(cause), now)
        self.add(hold)
        return hold


def listed_holds(seconds: Mapping[str, float]) -> list[str]:
    """`["1968.0 s: blocked by budget bank/vault"]`, the longest first; without holds below 1 s."""
    lasting = sorted(((spent, cause) for cause, spent in seconds.items() if spent >= SHORTEST_SECONDS), reverse=True)
    return [f"{spent:.1f} s: {cause}" for spent, cause in lasting[:SHOWN]]
