"""The freeze: a ConfigMap that stops everything voluntary from beginning, in the whole cluster.

A ConfigMap that exists is a freeze: without `until` it has no end, and with an `until` that cannot be read it is in
force as well, since a person wanted it. What has begun continues.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gracectl.model.budget import NodeDisruptionBudget
from gracectl.model.foreign import harmless
from gracectl.model.node import Node
from gracectl.model.times import format_time, parse_time
from gracectl.model.windows import Window
from gracectl.policy.disruption import Hold, HoldReason
from gracectl.policy.nodebudgets import selects_node
from gracectl.policy.windows import explain_closed, invalid_window, window_state

UNTIL: Final = "until"
REASON: Final = "reason"
BY: Final = "by"
"""Keys of the ConfigMap's data."""

_SHOWN: Final = 200
_UNFREEZE: Final = "run gracectl unfreeze to end it"


class Freeze(msgspec.Struct, frozen=True):
    """A freeze. `until`: Unix seconds; None: until a person ends it. `problem`: why its end cannot be read."""

    until: float | None = None
    reason: str = ""
    by: str = ""
    problem: str = ""

    def is_in_force(self, now: float) -> bool:
        """Whether it stops what would begin at `now`."""
        return self.until is None or now < self.until

    def __str__(self) -> str:
        """`frozen until 2026-11-28T22:00:00Z by jane (release week)`."""
        until = f" until {format_time(self.until)}" if self.until is not None else ""
        by = f" by {self.by}" if self.by else ""
        reason = f" ({self.reason})" if self.reason else ""
        problem = f"; {self.problem}" if self.problem else ""
        return f"frozen{until}{by}{reason}{problem}"


def read_freeze(data: Mapping[str, str]) -> Freeze:
    """The freeze in the data of its ConfigMap. Raises nothing."""
    reason, by = (harmless(data.get(key, "").strip(), _SHOWN) for key in (REASON, BY))
    text = data.get(UNTIL, "").strip()
    if not text:
        return Freeze(None, reason, by)
    try:
        return Freeze(parse_time(text), reason, by)
    except ValueError as error:
        return Freeze(None, reason, by, f"no end: its {UNTIL} cannot be read: {error}")


def hold_to_begin(freeze: Freeze | None, windows: Sequence[Window], field: str, now: float) -> Hold | None:
    """What keeps everything voluntary from beginning at `now`; None if nothing does. `field`: where the windows are
    written, for messages. The hold's `until` is the instant at which to ask again.
    """
    if freeze is not None and freeze.is_in_force(now):
        return Hold(HoldReason.FROZEN, f"{freeze}; {_UNFREEZE}", freeze.until)
    return _hold_of_windows(windows, field, now)


def hold_of_budget_windows(
    budgets: Iterable[NodeDisruptionBudget], nodes: Collection[Node], now: float
) -> tuple[str, Hold] | None:
    """The first node disruption budget over any of these nodes that is outside of its windows, by name, and its
    hold."""
    for budget in budgets:
        if not budget.windows or not any(selects_node(budget, node) for node in nodes):
            continue
        hold = _hold_of_windows(budget.windows, "spec.windows", now)
        if hold is not None:
            text = f"node disruption budget {budget.name} is {hold.text}"
            return budget.name, Hold(hold.reason, text, hold.until)
    return None


def _hold_of_windows(windows: Sequence[Window], field: str, now: float) -> Hold | None:
    state = window_state(windows, now)
    if state.is_open:
        return None
    remedy = invalid_window(windows, field) or f"wait, or change {field}"
    return Hold(HoldReason.OUTSIDE_WINDOW, f"{explain_closed(state)}; {remedy}", state.until)
