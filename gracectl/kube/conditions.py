"""Patches that set and remove conditions of objects of Kubernetes' own kinds."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gracectl.kube.requests import StrategicPatch
from gracectl.model.foreign import visible
from gracectl.model.meta import Condition, condition_of
from gracectl.model.times import format_time


class ConditionUpdate(msgspec.Struct, frozen=True):
    """New state of a condition."""

    type: str
    status: str
    reason: str
    message: str

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "message", visible(self.message))

    def is_shown_by(self, conditions: tuple[Condition, ...]) -> bool:
        """Whether the object with these conditions has it already."""
        shown = condition_of(conditions, self.type)
        wanted = (self.status, self.reason, self.message)
        return shown is not None and (shown.status, shown.reason, shown.message) == wanted

    def entry(self, turned: float) -> dict[str, str]:
        """Entry of status.conditions; `turned`: since when it has this status (Unix seconds)."""
        return {
            "type": self.type,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": format_time(turned),
        }


def condition_patch(word: ConditionUpdate, turned: float, now: float) -> StrategicPatch:
    """Set a condition; a strategic merge changes the entry of this type and leaves others alone."""
    return StrategicPatch({"status": {"conditions": [{**word.entry(turned), "lastHeartbeatTime": format_time(now)}]}})


def condition_removal_patch(types: Iterable[str]) -> StrategicPatch:
    """Remove the conditions of these types, whether or not they exist."""
    return StrategicPatch({"status": {"conditions": [{"type": type_, "$patch": "delete"} for type_ in types]}})
