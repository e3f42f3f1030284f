"""Conditions as patches: what an object of Kubernetes' own kinds is to say, and what it is to say no more."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gracectl.kube.requests import StrategicPatch
from gracectl.model.foreign import visible
from gracectl.model.times import format_time


class ConditionUpdate(msgspec.Struct, frozen=True):
    """What a condition is to say."""

    type: str
    status: str
    reason: str
    message: str

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "message", visible(self.message))

    def entry(self, turned: float) -> dict[str, str]:
        """As an entry of status.conditions; `turned`: when it came to have this status (Unix seconds)."""
        return {
            "type": self.type,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": format_time(turned),
        }


def condition_patch(word: ConditionUpdate, turned: float, now: float) -> StrategicPatch:
    """The patch that says it; a strategic merge changes the entry of this type and leaves those of others alone."""
    return StrategicPatch({"status": {"conditions": [{**word.entry(turned), "lastHeartbeatTime": format_time(now)}]}})


def condition_removal(types: Iterable[str]) -> StrategicPatch:
    """The patch that takes conditions of these types off, whether or not they are there."""
    return StrategicPatch({"status": {"conditions": [{"type": type_, "$patch": "delete"} for type_ in types]}})
