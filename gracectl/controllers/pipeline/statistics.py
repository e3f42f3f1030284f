"""Statistics of all terminations of this process, over all times that it has led."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

from gracectl.eviction.pod_outcomes import PodOutcome
from gracectl.policy.protected_pods import ProtectionEnd
from gracectl.policy.protection import ProtectionKind
from gracectl.runtime.histogram import Distribution, Histogram
from gracectl.telemetry.metrics import PROTECTION_HELD, STEP_DURATION, TERMINATION_DURATION

TerminationKind = Literal["node", "nodeclaim", "maintenance"]
"""A termination of a node or claim, or a maintenance of a node."""

TerminationResult = Literal["drained", "deadline", "released"]
"""How the termination of a node has ended: its pods had left, its deadline had come, or its instance was gone."""

TERMINATION_KINDS: Final[tuple[TerminationKind, ...]] = ("node", "nodeclaim", "maintenance")


class TerminationDurations:
    """Durations of terminations that are over, whole and by step."""

    def __init__(self) -> None:
        self._whole = {kind: Histogram(TERMINATION_DURATION.buckets) for kind in TERMINATION_KINDS}
        self._steps: dict[tuple[TerminationKind, str], Histogram] = {}

    def note(self, kind: TerminationKind, seconds: float, steps: Mapping[str, float], trace_id: str = "") -> None:
        """Count a termination that has taken `seconds`, and each of its `steps` so long; `trace_id` if it has one."""
        self._whole[kind].observe(max(seconds, 0.0), trace_id)
        for step, spent in steps.items():
            self._steps.setdefault((kind, step), Histogram(STEP_DURATION.buckets)).observe(max(spent, 0.0), trace_id)

    def whole(self) -> Mapping[TerminationKind, Distribution]:
        """Durations of whole terminations."""
        return {kind: times.statistics() for kind, times in self._whole.items()}

    def steps(self) -> Mapping[tuple[TerminationKind, str], Distribution]:
        """Durations of the steps that were reached."""
        return {labels: times.statistics() for labels, times in self._steps.items()}


class ProtectionDurations:
    """How long protected pods have held drains, by kind of protection and how it ended."""

    def __init__(self) -> None:
        self._times = {
            (kind, how): Histogram(PROTECTION_HELD.buckets)
            for kind in get_args(ProtectionKind)
            for how in ProtectionEnd
        }

    def note(self, kind: ProtectionKind, how: ProtectionEnd, seconds: float) -> None:
        """Count a protection that has held a drain for `seconds`."""
        self._times[kind, how].observe(max(seconds, 0.0))

    def statistics(self) -> Mapping[tuple[ProtectionKind, ProtectionEnd], Distribution]:
        """Durations of the protections that have ended."""
        return {labels: times.statistics() for labels, times in self._times.items()}


class TerminationStatistics(msgspec.Struct, frozen=True):
    """The statistics of the process."""

    protection_durations: ProtectionDurations = msgspec.field(default_factory=ProtectionDurations)
    durations: TerminationDurations = msgspec.field(default_factory=TerminationDurations)
    results: Counter[tuple[str, TerminationResult]] = msgspec.field(default_factory=Counter)
    """Number of nodes that were terminated, by reason (see `reason_of`) and result."""
    pod_outcomes: Counter[PodOutcome] = msgspec.field(default_factory=Counter)
    """Number of pods that have left, over all nodes."""
