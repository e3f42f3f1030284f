"""Protection of pods: a request of their owner not to disrupt them, for a time or indefinitely.

Sources: `karpenter.sh/do-not-disrupt` as its design defines it (a value that cannot be parsed protects indefinitely)
and the older `do-not-evict`, which blocks the drain of the whole node. Protection is checked before any budget.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal

import msgspec

from gracectl.model import names
from gracectl.model.durations import parse_seconds
from gracectl.model.foreign import harmless
from gracectl.model.pod import LONGEST_DURATION, Pod
from gracectl.policy.settings import ProtectionSettings

SHOWN = 60
"""Characters of an invalid value in messages: annotations may be long."""

REMEMBERED: Final = 8192
"""Size of the cache of parsed durations: thousands of pods have the same few values."""

ProtectionKind = Literal["do-not-disrupt", "do-not-evict"]
ProtectionDuration = Literal["time", "forever", "invalid"]


class Protection(msgspec.Struct, frozen=True):
    """Active protection of a pod. `until` None: its end is unknown."""

    kind: ProtectionKind
    until: float | None
    value: str
    is_valid: bool = True
    is_capped: bool = False
    """The administrator's maximum ends it earlier than requested."""

    @property
    def holds_node(self) -> bool:
        """`do-not-disrupt` protects its pod only, `do-not-evict` blocks the drain of the node."""
        return self.kind == "do-not-evict"

    @property
    def lasting(self) -> ProtectionDuration:
        """Whether it lasts for a time, indefinitely, or indefinitely because the value is invalid."""
        if not self.is_valid:
            return "invalid"
        return "forever" if self.until is None and self.value == "true" else "time"

    @property
    def description(self) -> str:
        """`protected by do-not-disrupt "4h"`; the end is added by the caller."""
        if not self.is_valid:
            problem = 'which is not "true" or a duration, so it never ends'
            return f'protected by {self.kind} "{printable(self.value)}", {problem}'
        if self.until is None and self.value == "true":
            return f"protected by {self.kind}"
        return f'protected by {self.kind} "{printable(self.value)}"'

    @property
    def limit_note(self) -> str:
        """Suffix of the end: ` (the most that protection.maximumSeconds grants)` if capped, else empty."""
        return " (the most that protection.maximumSeconds grants)" if self.is_capped else ""


def protection_of(pod: Pod, now: float, settings: ProtectionSettings) -> Protection | None:
    """Active protection of a pod that is still running; None without one."""
    for protection in (_do_not_evict(pod, settings), _do_not_disrupt(pod, settings)):
        if protection and (protection.until is None or now < protection.until):
            return protection
    return None


def do_not_disrupt_of(pod: Pod, now: float, settings: ProtectionSettings) -> Protection | None:
    """Active protection by do-not-disrupt alone."""
    found = _do_not_disrupt(pod, settings)
    return found if found is not None and (found.until is None or now < found.until) else None


def asks_for_protection(pod: Pod) -> bool:
    """Whether a pod has an annotation or label that protects, regardless of its value; cheap."""
    return (
        names.DO_NOT_DISRUPT in pod.annotations
        or names.DO_NOT_EVICT in pod.annotations
        or names.DO_NOT_EVICT in pod.labels
    )


def invalid_annotation(pod: Pod) -> str | None:
    """Value of an invalid do-not-disrupt: not "true" and not a positive duration; else None."""
    value = pod.annotations.get(names.DO_NOT_DISRUPT)
    if value is None or value == "true" or _positive_seconds(value) is not None:
        return None
    return value


def printable(value: str) -> str:
    """A value for messages, cut to SHOWN characters, without control characters."""
    return harmless(value, SHOWN)


def _do_not_evict(pod: Pod, settings: ProtectionSettings) -> Protection | None:
    # Any value except "false" protects, on the label and on the annotation.
    for value in (pod.labels.get(names.DO_NOT_EVICT), pod.annotations.get(names.DO_NOT_EVICT)):
        if value is not None and value != "false":
            return _capped(Protection("do-not-evict", None, "true"), pod, settings)
    return None


def _do_not_disrupt(pod: Pod, settings: ProtectionSettings) -> Protection | None:
    value = pod.annotations.get(names.DO_NOT_DISRUPT)
    if value is None:
        return None
    seconds = None if value == "true" else _positive_seconds(value)
    is_valid = value == "true" or seconds is not None
    # Counted from the start of a pod that has not started: protected, until an unknown instant.
    start = _reference(pod, settings)
    until = None if start is None or seconds is None else start + seconds
    return _capped(Protection("do-not-disrupt", until, value, is_valid), pod, settings)


def _positive_seconds(value: str) -> float | None:
    # Tenants write annotations of up to 256 KiB: a value longer than any duration is not parsed.
    return _seconds_of(value) if len(value) <= LONGEST_DURATION else None


@lru_cache(maxsize=REMEMBERED)
def _seconds_of(value: str) -> float | None:
    try:
        seconds = parse_seconds(value)
    except ValueError:
        return None
    return seconds if seconds > 0 else None


def _reference(pod: Pod, settings: ProtectionSettings) -> float | None:
    return pod.created if settings.reference == "creation" else pod.started


def _capped(protection: Protection, pod: Pod, settings: ProtectionSettings) -> Protection:
    start = _reference(pod, settings)
    if settings.maximum_seconds is None or start is None:
        return protection
    cap = start + settings.maximum_seconds
    if protection.until is not None and protection.until <= cap:
        return protection
    return msgspec.structs.replace(protection, until=cap, is_capped=True)
