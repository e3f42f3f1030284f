"""Sources `taints` and `conditions`: what clouds and node agents write on a node whose machine will go. Pure.

Defaults are what a document of the cloud, or of Kubernetes, says; docs/interruptions.md names each. A taint has no time
of its own that could be relied on, so its deadline counts from when it is seen first, which the annotation keeps.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

from gracectl.model.durations import parse_seconds
from gracectl.model.meta import Condition
from gracectl.model.node import Node, Taint
from gracectl.model.times import parse_time
from gracectl.policy.interruption import Interruption, Kind, all_merged, interruption

LONGEST_MESSAGE: Final = 1000
"""Characters of a message that are searched for a time."""

_TIMES: Final = re.compile(
    r"[A-Z][a-z]{2}, [0-9]{1,2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?Z"
)


class Entry(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """What a taint or condition means. `deadline`: how long the machine stays (a Go duration); none: unknown."""

    kind: Kind
    deadline: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if self.deadline is not None and parse_seconds(self.deadline) < 0:
            raise ValueError(f"deadline: {self.deadline!r} is negative; give a duration such as 30s")

    def ends_at(self, since: float) -> float | None:
        """When the machine goes, if this is so since then (Unix seconds)."""
        return None if self.deadline is None else since + parse_seconds(self.deadline)


class TaintEntry(Entry, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Meaning of a taint with this key, and value if it is given, on nodes that have `label` if it is given."""

    key: str
    value: str = ""
    label: str = ""

    def matches(self, node: Node, taint: Taint) -> bool:
        """Whether this is such a taint on such a node."""
        has_label = not self.label or self.label in node.labels
        return taint.key == self.key and self.value in ("", taint.value) and has_label


class ConditionEntry(Entry, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Meaning of a condition with this status, and a message that begins with `message`. `time_in_message`: the message
    says when, and `deadline` counts only if it does not."""

    type: str
    status: str = "True"
    message: str = ""
    time_in_message: bool = False

    def matches(self, condition: Condition) -> bool:
        """Whether this is such a condition."""
        is_same = (condition.type, condition.status) == (self.type, self.status)
        return is_same and condition.message.startswith(self.message)


GKE_TERMINATION: Final = "cloud.google.com/impending-node-termination"
TAINTS: Final = (
    TaintEntry(key=GKE_TERMINATION, label="cloud.google.com/gke-spot", kind=Kind.SPOT, deadline="30s"),
    TaintEntry(key=GKE_TERMINATION, label="cloud.google.com/gke-preemptible", kind=Kind.SPOT, deadline="30s"),
    TaintEntry(key=GKE_TERMINATION, kind=Kind.OTHER, deadline="1h"),
    TaintEntry(key="cloudprovider.azure.microsoft.com/draining", value="spot-eviction", kind=Kind.SPOT, deadline="30s"),
)
CONDITIONS: Final = (
    ConditionEntry(type="PreemptionScheduled", kind=Kind.SPOT, deadline="30s", time_in_message=True),
    *(
        ConditionEntry(type="VMEventScheduled", message=word, kind=kind, deadline=deadline, time_in_message=True)
        for word, kind, deadline in (
            ("Preempt", Kind.SPOT, "30s"),
            ("Terminate", Kind.OTHER, "5m"),
            ("Redeploy", Kind.MAINTENANCE, "10m"),
        )
    ),
    ConditionEntry(type="MaintenancePlanned", kind=Kind.MAINTENANCE),
)


class TaintSource:
    """Source `taints`."""

    name = "taints"

    class Options(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
        """`entries`: before the defaults, unless `defaults` is false. The first that matches a taint counts."""

        entries: tuple[TaintEntry, ...] = ()
        defaults: bool = True

    def __init__(self, options: Options) -> None:
        self._entries = (*options.entries, *(TAINTS if options.defaults else ()))
        self._keys = frozenset(entry.key for entry in self._entries)

    def notice_of(self, node: Node, now: float) -> Interruption | None:
        """See ReadsNodes."""
        found = []
        for taint in node.taints:
            if taint.key in self._keys:
                entry = next((each for each in self._entries if each.matches(node, taint)), None)
                if entry is not None:
                    found.append(interruption(entry.kind, entry.ends_at(now), self.name, f"taint {taint.key}"))
        return all_merged(found)


class ConditionSource:
    """Source `conditions`."""

    name = "conditions"

    class Options(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
        """See TaintSource.Options."""

        entries: tuple[ConditionEntry, ...] = ()
        defaults: bool = True

    def __init__(self, options: Options) -> None:
        self._entries = (*options.entries, *(CONDITIONS if options.defaults else ()))
        self._types = frozenset(entry.type for entry in self._entries)

    def notice_of(self, node: Node, now: float) -> Interruption | None:
        """See ReadsNodes."""
        found = []
        for condition in node.conditions:
            if condition.type in self._types:
                entry = next((each for each in self._entries if each.matches(condition)), None)
                if entry is not None:
                    since = now if condition.last_transition is None else condition.last_transition
                    at = time_in(condition.message) if entry.time_in_message else None
                    text = f"condition {condition.type}: {condition.message}"
                    found.append(interruption(entry.kind, entry.ends_at(since) if at is None else at, self.name, text))
        return all_merged(found)


def time_in(message: str) -> float | None:
    """The first time in a message, as RFC 1123 or RFC 3339 has it (Unix seconds); None: there is none."""
    found = _TIMES.search(message[:LONGEST_MESSAGE])
    if found is None:
        return None
    try:
        return parsedate_to_datetime(found[0]).timestamp() if "," in found[0] else parse_time(found[0])
    except (ValueError, OverflowError):
        return None
