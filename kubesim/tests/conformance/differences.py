"""What a difference is: some steps at which something else is there than was recorded, and why that may be.

Invariant: an entry that no longer holds fails the suite as much as a difference that is not listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from fnmatch import fnmatchcase

import msgspec
from conformance.placeholders import Deviation


class Side(Enum):
    """The servers that a difference concerns, and so where it must be seen."""

    TODAY = "today's Kubernetes answers otherwise than 1.24, and so do we"
    STILL = "today's Kubernetes answers otherwise than 1.24, the embedded server still as recorded"
    EMBEDDED = "the embedded server does not do this"
    LIVE = "this cluster is set up otherwise than the recorder's was"


TARGETS: Mapping[Side, tuple[str, ...]] = {
    Side.TODAY: ("embedded", "live"),
    Side.STILL: ("live",),
    Side.EMBEDDED: ("embedded",),
    Side.LIVE: ("live",),
}
"""Which targets must show the differences of a side."""


class Difference(msgspec.Struct, frozen=True):
    """At the steps of `places` something else is `here` in the part of the answer called `at` (both patterns as of
    fnmatch, `here` against the value's text). `places`: `crds 3; writes-patch 18, 20`."""

    side: Side
    reason: str
    places: str
    at: str
    here: str = "*"

    @property
    def steps(self) -> Mapping[str, tuple[int, ...]]:
        """By recording, the steps."""
        return steps_of(self.places)

    def covers(self, recording: str, index: int, deviation: Deviation) -> bool:
        """Whether this is the difference that was found."""
        is_here = matches(self.at, deviation.at) and matches(self.here, str(deviation.here))
        return is_here and index in self.steps.get(recording, ())


class LeftOut(msgspec.Struct, frozen=True):
    """Steps that cannot be run on a target (only if it has that trait)."""

    target: str
    reason: str
    places: str
    trait: str = ""


def steps_of(places: str) -> dict[str, tuple[int, ...]]:
    """`crds 3; writes-patch 18, 20` by recording. `8-11` are all four."""
    numbers = {}
    for place in places.split("; "):
        recording, _, steps = place.partition(" ")
        numbers[recording] = tuple(index for part in steps.split(", ") for index in _range(part))
    return numbers


def _range(part: str) -> Iterator[int]:
    first, _, last = part.partition("-")
    yield from range(int(first), int(last or first) + 1)


def matches(pattern: str, text: str) -> bool:
    """fnmatch in which brackets are ordinary characters."""
    return fnmatchcase(text, pattern.replace("[", "[[]"))
