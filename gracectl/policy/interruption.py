"""Interruptions: notices that a machine will go, and what follows for its node.

The newest knowledge is one annotation of the node, so that it survives every restart. Notices come repeatedly, late,
and in any order: `merged` is commutative, associative and idempotent, so the order makes no difference. Two classes:

    urgent   spot, scale-in, state-change, other     the machine goes anyway: no budget for nodes, pace or protection
                                                     delays the DELETE
    paced    rebalance, maintenance                  a voluntary termination like others, until `urgent_at`
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

from gracectl.model import names
from gracectl.model.foreign import harmless, visible
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.model.times import format_time, parse_time


class Kind(StrEnum):
    """What happens to the machine; the more certain first."""

    SPOT = "spot"
    STATE_CHANGE = "state-change"
    SCALE_IN = "scale-in"
    OTHER = "other"
    MAINTENANCE = "maintenance"
    REBALANCE = "rebalance"


PACED: Final = frozenset({Kind.MAINTENANCE, Kind.REBALANCE})

LONGEST_TEXT: Final = 200
"""Characters of a notice's own words that are kept."""
UNKNOWN_TIME: Final = "unknown"

SOURCE: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


class Interruption(msgspec.Struct, frozen=True):
    """What is known about the end of a machine. `at`: when it goes (Unix seconds, whole), None if unknown; `source`:
    who has said so first in order; `text`: its words, harmless."""

    kind: Kind
    at: float | None
    source: str
    text: str = ""

    def __str__(self) -> str:
        """`spot notice from aws: the machine goes at …`, with the text of the notice."""
        when = "at an unknown time" if self.at is None else f"at {format_time(self.at)}"
        return f"{self.kind} notice from {self.source}: the machine goes {when}{self.text and f' ({self.text})'}"


def interruption(kind: Kind, at: float | None, source: str, text: str = "") -> Interruption:
    """Interruption with a foreign text, as it will be read again: whole seconds, one short line."""
    # Escapes are longer than what they stand for.
    words = harmless(visible(" ".join(text[: 5 * LONGEST_TEXT].split())), LONGEST_TEXT).rstrip()
    return Interruption(kind, None if at is None else float(math.floor(at)), source, words)


def merged(known: Interruption | None, heard: Interruption) -> Interruption:
    """Both notices as one: the more certain kind, and the earliest end."""
    if known is None:
        return heard
    first = min((known, heard), key=lambda each: (list(Kind).index(each.kind), each.source, each.text))
    ends = [each.at for each in (known, heard) if each.at is not None]
    return msgspec.structs.replace(first, at=min(ends, default=None))


def all_merged(heard: Iterable[Interruption | None]) -> Interruption | None:
    """Several notices as one; None: there is none."""
    found: Interruption | None = None
    for each in heard:
        found = found if each is None else merged(found, each)
    return found


def encode(found: Interruption) -> str:
    """Value of the annotation: `spot 2026-01-01T00:02:00Z aws its own words`."""
    when = UNKNOWN_TIME if found.at is None else format_time(found.at)
    return f"{found.kind} {when} {found.source} {found.text}".rstrip()


def decode(value: str) -> Interruption:
    """Interruption of an annotation, which any client may have written. Raises ValueError."""
    kind, when, source, text = (*value.split(" ", 3), "", "", "", "")[:4]
    if kind not in list(Kind):
        raise ValueError(f'"{harmless(kind)}" is none of ' + ", ".join(Kind))
    if SOURCE.fullmatch(source) is None:
        raise ValueError(f'"{harmless(source)}" is no source: lower-case letters, digits and hyphens')
    at = None if when == UNKNOWN_TIME else parse_time(when)
    return interruption(Kind(kind), at, source, text)


def interruption_of(node: Node) -> Interruption | None:
    """What the node's annotation says; None without one, or if it cannot be read: a typing error ends no machine."""
    value = node.annotations.get(names.INTERRUPTION)
    try:
        return None if value is None else decode(value)
    except ValueError:
        return None


def urgent_at(found: Interruption, lead_seconds: float) -> float:
    """Instant from which nothing delays the DELETE of the node: now for urgent kinds, some time before the end for
    paced ones, infinity without an end."""
    if found.kind not in PACED:
        return -math.inf
    return math.inf if found.at is None else found.at - lead_seconds


def is_drained(node: Node) -> bool:
    """Whether the termination of a node that is being deleted has come to its instance: pods and volumes have left, or
    their deadline has passed."""
    detached = condition_of(node.conditions, names.VOLUMES_DETACHED)
    ending = condition_of(node.conditions, names.INSTANCE_TERMINATING)
    has_ended = ending is not None and ending.reason != names.STEP_FAILING
    return node.deletion_timestamp is not None and (
        has_ended or (detached is not None and detached.status == names.TRUE)
    )


def is_urgent(node: Node, now: float, lead_seconds: float) -> bool:
    """Whether the machine of this node goes regardless of what its termination would break."""
    found = interruption_of(node)
    return found is not None and urgent_at(found, lead_seconds) <= now
