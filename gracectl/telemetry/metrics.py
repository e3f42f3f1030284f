"""Every metric that gracectl shows, once: name, type, labels, help text.

Dashboards and alerts are made of these names, so a test pins them, and no other module spells one. What a label can
say is bounded by what its samples are made from (enumerations, never names of objects). Invariant: nothing here counts;
the parts do, and say how much in their frozen statistics, which are read when somebody asks.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

MINUTE: Final = 60.0
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR


class Metric(msgspec.Struct, frozen=True):
    """One entry of the catalogue. `buckets`: of a histogram, their upper bounds in growing order, without infinity."""

    name: str
    type: Literal["gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class Distribution(msgspec.Struct, frozen=True):
    """What a histogram has seen: how often up to each bound of its metric, how often beyond the last; the sum."""

    counts: tuple[int, ...]
    total: float


class Sample(msgspec.Struct, frozen=True):
    """What a metric says now for these values of its labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | Distribution


PROTECTED_PODS: Final = Metric(
    "gracectl_protected_pods",
    "gauge",
    "Pods on managed nodes that are protected now: by what, and whether for a time, for ever, or for ever because "
    "nobody understands the value.",
    ("kind", "until"),
)
PROTECTED_PODS_TERMINATING: Final = Metric(
    "gracectl_protected_pods_terminating",
    "gauge",
    "Those of the protected pods whose node is being terminated.",
    ("kind", "until"),
)
PROTECTION_REMAINING: Final = Metric(
    "gracectl_protection_remaining_seconds_max",
    "gauge",
    "How long the longest protection that has a known end still lasts; 0 if there is none.",
    ("kind",),
)
PROTECTION_HELD: Final = Metric(
    "gracectl_protection_held_seconds",
    "histogram",
    "How long a protected pod has held the drain of its node, and why that ended: its time elapsed, it was lifted, "
    "the pod left by itself, or was deleted for the node's deadline.",
    ("kind", "ended"),
    (1.0, 10.0, MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, DAY, 3 * DAY),
)

CATALOGUE: Final = (PROTECTED_PODS, PROTECTED_PODS_TERMINATING, PROTECTION_REMAINING, PROTECTION_HELD)
"""In the order in which they are shown."""
