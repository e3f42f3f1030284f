"""Parts of objects as they are kept: cut where others may write more than any decision needs.

A part is cut so that decisions and patches stay right: what patches address by its place keeps its place, and a name is
never cut to another name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Final

import msgspec

from gracectl.model import names, wire
from gracectl.model.bounds import LONGEST_TEXT, SELECTOR_BYTES, OverLimit, check_object, cut, selector_size
from gracectl.model.meta import Condition
from gracectl.model.node import Taint
from gracectl.model.selectors import LabelSelector, Requirement, SelectorError
from gracectl.model.sharing import Sharing
from gracectl.model.times import EARLIEST, LATEST, in_range
from gracectl.model.windows import LONGEST_TEXT as LONGEST_FIELD
from gracectl.model.windows import MOST_WINDOWS, Window

MOST_ADDRESSES: Final = 32
"""Maximum number on a node; a kubelet may write any number."""
_ADDRESS: Final = re.compile(r"[0-9A-Za-z._:-]{1,253}")

LONGEST_NAME: Final = 253
"""Characters: no object has a longer one, so a volume of a longer one is never mounted."""

LONGEST_VOLUME_ID: Final = 1024
"""Characters: no cloud has a longer one."""

LONGEST_MESSAGE: Final = 32 * 1024
"""Maximum characters of our own condition, which is compared with the written text."""

MOST_CONDITIONS: Final = 128
MOST_ENTRIES: Final = 256
"""Taints or finalizers of an object that are kept, as they are few: of the others their number and places are."""
MOST_DISRUPTED: Final = 2_000
"""MaxDisruptedPodSize of the eviction API."""

UNREAD: Final = "(not read)"
"""Stands for a finalizer behind too many others."""
_UNREAD_TAINT: Final = Taint(UNREAD, "", names.NO_SCHEDULE)

EVERY_NODE: Final = LabelSelector({}, (Requirement(UNREAD, "DoesNotExist"),))
"""An empty selector selects no node."""

_NEEDED: Final = frozenset(
    {
        names.READY,
        names.DRAINED,
        names.VOLUMES_DETACHED,
        names.INSTANCE_TERMINATING,
        names.TERMINATION_PENDING,
        names.SHUTTING_DOWN,
        names.REGISTERED,
        names.DISRUPTION_ALLOWED,
    }
)
"""Types of conditions that decisions read."""


def instant(moment: datetime | None) -> float | None:
    """Seconds since the epoch; None stays None."""
    return None if moment is None else in_range(moment.timestamp())


def created(moment: datetime | None) -> float:
    """Seconds since the epoch of an instant that every stored object has."""
    # Null only in objects that no server has stored: older than everything, as Go's zero time is.
    if moment is None:
        return 0.0
    seconds = moment.timestamp()
    return seconds if EARLIEST <= seconds <= LATEST else in_range(seconds)  # a call less for each pod event


def conditions(status: wire.Conditions | None, kept: Callable[[str | None], str]) -> tuple[Condition, ...]:
    """Keep the order; if there are too many, keep the first ones and the ones that decisions read."""
    found = (status.conditions if status else None) or []
    if len(found) > MOST_CONDITIONS:
        found = [*found[:MOST_CONDITIONS], *[each for each in found[MOST_CONDITIONS:] if each.type in _NEEDED]]
        found = found[: 2 * MOST_CONDITIONS]
    moment, at, result = None, None, []
    for read in found:
        if read.last_transition_time != moment:  # of most nodes they are equal, and one number then
            moment = read.last_transition_time
            at = instant(moment)
        message = cut(read.message, LONGEST_MESSAGE if read.type in _NEEDED else LONGEST_TEXT)
        words = (kept(cut(read.type)), kept(cut(read.status)), kept(cut(read.reason)), kept(message))
        result.append(Condition(*words, at))
    return tuple(result)


def taints(found: Sequence[wire.Taint], share: Sharing) -> tuple[Taint, ...]:
    """All entries at their index, which patches need to remove ours; beyond the limit only ours are kept."""
    kept = [
        Taint(share.string(cut(each.key)), share.string(cut(each.value)), share.string(cut(each.effect)))
        if place < MOST_ENTRIES or each.key == names.DISRUPTED_TAINT_KEY
        else _UNREAD_TAINT
        for place, each in enumerate(found)
    ]
    return tuple(kept)


def identity_of(meta: wire.Meta) -> tuple[str, str, str]:
    """Name, uid and resource version: the first fields of a ClusterObject."""
    return meta.name, meta.uid or "", meta.resource_version or ""


def identity_in_namespace(meta: wire.Meta) -> tuple[str, str, str, str]:
    """Namespace, name, uid and resource version: the first fields of a NamespacedObject."""
    return (meta.namespace or "", *identity_of(meta))


def finalizers(meta: wire.Meta) -> tuple[str, ...]:
    """All entries at their index, which patches need to remove ours; beyond the limit only ours are kept."""
    found = meta.finalizers or ()
    if len(found) <= MOST_ENTRIES and max(map(len, found), default=0) <= LONGEST_TEXT:
        return found
    return tuple(
        cut(each) if place < MOST_ENTRIES else each if each in names.FINALIZERS else UNREAD
        for place, each in enumerate(found)
    )


def identity(field: str, text: str | None) -> str:
    """The name in this field. Raises OverLimit if it is longer than any name: cut, it would be that of another."""
    if text is not None and len(text) > LONGEST_VOLUME_ID:
        raise OverLimit(f"{field} has {len(text):,} characters; a name has {LONGEST_VOLUME_ID:,} at most")
    return text or ""


def cut_or_none(text: str | None) -> str | None:
    """The first characters; None stays None."""
    return None if text is None else cut(text)


def bound(value: int | str | None) -> int | str | None:
    """minAvailable or maxUnavailable; too long a text stays as invalid as it is."""
    return cut(value) if isinstance(value, str) else value


def windows(found: Sequence[wire.Window] | None) -> tuple[Window, ...]:
    """Windows as written; too many, or too long a text, stay as invalid as they are."""
    return tuple(
        Window(*(cut(each, LONGEST_FIELD + 1) for each in (read.schedule, read.duration, read.time_zone or "UTC")))
        for read in (found or ())[: MOST_WINDOWS + 1]
    )


def disrupted(found: Mapping[str, datetime | None] | None) -> dict[str, float]:
    """Keep the first ones: the server allows no more, and no longer names."""
    first = islice((found or {}).items(), MOST_DISRUPTED)
    return {cut(name, LONGEST_NAME): created(moment) for name, moment in first}


def addresses(status: wire.NodeStatus | None) -> tuple[str, ...]:
    """The first few that can be addresses."""
    found = (each.address or "" for each in (status.addresses if status else None) or ())
    return tuple(islice((each for each in found if _ADDRESS.fullmatch(each)), MOST_ADDRESSES))


def checked_selector(raw: msgspec.Raw) -> tuple[LabelSelector | None, str]:
    """The selector, and why it is none if it is invalid. Raises OverLimit before it decodes or checks too much."""
    if (size := len(memoryview(raw))) > SELECTOR_BYTES:
        raise OverLimit(f"its selector has {size:,} bytes, more than the {SELECTOR_BYTES:,} of one; make it smaller")
    read = wire.read_selector(raw)
    if read is None:
        return None, ""
    selector = read.selector()
    check_object(selector_size(selector))
    try:
        selector.validate()
    except SelectorError as error:
        return None, cut(str(error))
    return selector, ""
