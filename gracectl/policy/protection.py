"""What a pod's owner has asked for: to be left alone, for a time or for ever.

Source: the do-not-disrupt seed (its fail-safe: what cannot be understood protects for ever) and the older
`do-not-evict`, which holds the drain of the whole node. Protection is looked at before any budget.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gracectl.model import names
from gracectl.model.durations import parse_seconds
from gracectl.model.pod import Pod
from gracectl.policy.settings import ProtectionSettings


class Protection(msgspec.Struct, frozen=True):
    """A protection that holds now. `until` None means that no instant is known at which it ends."""

    kind: Literal["do-not-disrupt", "do-not-evict"]
    until: float | None
    value: str
    is_valid: bool = True

    @property
    def holds_node(self) -> bool:
        """`do-not-disrupt` protects its pod only, `do-not-evict` stops the drain of the node."""
        return self.kind == "do-not-evict"

    @property
    def words(self) -> str:
        """`protected by do-not-disrupt "4h"`, for people; until when is for the caller to say."""
        if not self.is_valid:
            return f'protected for ever: {self.kind} is "{self.value}", which is neither "true" nor a duration'
        if self.until is None:
            return f"protected by {self.kind}"
        return f'protected by {self.kind} "{self.value}"'


def protection_of(pod: Pod, now: float, settings: ProtectionSettings) -> Protection | None:
    """The protection of a pod that neither has finished nor is terminating; None when it has none, or no longer."""
    for protection in (_do_not_evict(pod, settings), _do_not_disrupt(pod, settings)):
        if protection and (protection.until is None or now < protection.until):
            return protection
    return None


def _do_not_evict(pod: Pod, settings: ProtectionSettings) -> Protection | None:
    # Like nonsense in do-not-disrupt: whatever is not plainly a "no" protects, in either place.
    for value in (pod.labels.get(names.DO_NOT_EVICT), pod.annotations.get(names.DO_NOT_EVICT)):
        if value is not None and value != "false":
            return Protection("do-not-evict", _capped(None, pod, settings), value)
    return None


def _do_not_disrupt(pod: Pod, settings: ProtectionSettings) -> Protection | None:
    value = pod.annotations.get(names.DO_NOT_DISRUPT)
    if value is None:
        return None
    if value == "true":
        return Protection("do-not-disrupt", _capped(None, pod, settings), value)
    asked = _positive_seconds(value)
    if asked is None:
        return Protection("do-not-disrupt", _capped(None, pod, settings), value, is_valid=False)
    start = _reference(pod, settings)
    # Not started yet and counted from the start: it is protected, and its end is not known yet.
    until = None if start is None else start + asked
    return Protection("do-not-disrupt", _capped(until, pod, settings), value)


def _positive_seconds(value: str) -> float | None:
    try:
        seconds = parse_seconds(value)
    except ValueError:
        return None
    return seconds if seconds > 0 else None


def _reference(pod: Pod, settings: ProtectionSettings) -> float | None:
    return pod.created if settings.reference == "creation" else pod.started


def _capped(until: float | None, pod: Pod, settings: ProtectionSettings) -> float | None:
    start = _reference(pod, settings)
    if settings.maximum_seconds is None or start is None:
        return until
    cap = start + settings.maximum_seconds
    return cap if until is None else min(until, cap)
