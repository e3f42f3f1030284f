"""What the metrics of this room say: the statistics of its parts under the names of the catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gracectl.policy.protection import Kind
from gracectl.telemetry.metrics import (
    PROTECTED_PODS,
    PROTECTED_PODS_TERMINATING,
    PROTECTION_HELD,
    PROTECTION_REMAINING,
    Distribution,
    Sample,
)
from gracectl.termination.census import Census
from gracectl.termination.guards import Lapse


def protection_samples(found: Census, times: Mapping[tuple[Kind, Lapse], Distribution]) -> Iterator[Sample]:
    """For every value of every label, also where there is nothing to count: no series comes and goes."""
    for group, count in found.protected.items():
        yield Sample(PROTECTED_PODS, group, count)
    for group, count in found.terminating.items():
        yield Sample(PROTECTED_PODS_TERMINATING, group, count)
    for kind, seconds in found.longest.items():
        yield Sample(PROTECTION_REMAINING, (kind,), seconds)
    for labels, seen in times.items():
        yield Sample(PROTECTION_HELD, labels, seen)
