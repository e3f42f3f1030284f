"""What is counted over all ends of nodes and claims for as long as the process lives, whoever carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

from gracectl.eviction.pod_outcomes import PodOutcomeCounts
from gracectl.policy.protected_pods import ProtectionEnd
from gracectl.policy.protection import ProtectionKind
from gracectl.runtime.histogram import Distribution, Histogram
from gracectl.telemetry.metrics import PROTECTION_HELD, STEP_DURATION, TERMINATION_DURATION

TerminationKind = Literal["node", "nodeclaim", "kept"]
"""What ends: a node, a claim, or the drain of a node that is kept drained."""

TERMINATION_KINDS: Final[tuple[TerminationKind, ...]] = ("node", "nodeclaim", "kept")


class TerminationDurations:
    """How long ends have taken, as a whole and at each of their steps; noted when they are over."""

    def __init__(self) -> None:
        self._whole = {kind: Histogram(TERMINATION_DURATION.buckets) for kind in TERMINATION_KINDS}
        self._steps: dict[tuple[TerminationKind, str], Histogram] = {}

    def note(self, kind: TerminationKind, seconds: float, steps: Mapping[str, float]) -> None:
        """One is over, after so many seconds, of which each step has had its own."""
        self._whole[kind].observe(max(seconds, 0.0))
        for step, spent in steps.items():
            self._steps.setdefault((kind, step), Histogram(STEP_DURATION.buckets)).observe(max(spent, 0.0))

    def whole(self) -> Mapping[TerminationKind, Distribution]:
        """All ends so far."""
        return {kind: times.statistics() for kind, times in self._whole.items()}

    def steps(self) -> Mapping[tuple[TerminationKind, str], Distribution]:
        """Their steps, as far as any has been walked."""
        return {labels: times.statistics() for labels, times in self._steps.items()}


class ProtectionDurations:
    """How long guards have stood, over all nodes, by what protected them and how that ended."""

    def __init__(self) -> None:
        self._times = {
            (kind, how): Histogram(PROTECTION_HELD.buckets)
            for kind in get_args(ProtectionKind)
            for how in ProtectionEnd
        }

    def note(self, kind: ProtectionKind, how: ProtectionEnd, seconds: float) -> None:
        """A protection of this kind has held a drain for so long, and has ended like this."""
        self._times[kind, how].observe(max(seconds, 0.0))

    def statistics(self) -> Mapping[tuple[ProtectionKind, ProtectionEnd], Distribution]:
        """All that have ended so far."""
        return {labels: times.statistics() for labels, times in self._times.items()}


class TerminationStatistics(msgspec.Struct, frozen=True):
    """See the module; made once."""

    protection_durations: ProtectionDurations = msgspec.field(default_factory=ProtectionDurations)
    durations: TerminationDurations = msgspec.field(default_factory=TerminationDurations)
    pod_outcomes: PodOutcomeCounts = msgspec.field(default_factory=PodOutcomeCounts)
