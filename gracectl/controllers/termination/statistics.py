"""Statistics of all terminations of this process, over all its terms of leadership."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

from gracectl.policy.protected_pods import ProtectionEnd
from gracectl.policy.protection import ProtectionKind
from gracectl.runtime.histogram import Distribution, Histogram, SpanRef
from gracectl.telemetry.metrics import PROTECTION_HELD, STEP_DURATION, TERMINATION_DURATION
from gracectl.telemetry.node_labels import NodeLabels

TerminationKind = Literal["node", "nodeclaim", "maintenance", "karpenter", "cluster-autoscaler", "cluster-api"]
"""A termination of a node or claim, a maintenance of a node, or the drain of another owner that gracectl assists."""

TerminationResult = Literal["drained", "deadline", "released"]
"""How the termination of a node has ended: its pods had left, its deadline had come, or its instance was gone."""

TERMINATION_KINDS: Final[tuple[TerminationKind, ...]] = get_args(TerminationKind)


class TerminationDurations:
    """Durations of finished terminations, whole and by step."""

    def __init__(self) -> None:
        self._whole: dict[tuple[str, ...], Histogram] = {}
        self._steps: dict[tuple[str, ...], Histogram] = {}

    def note(
        self,
        kind: TerminationKind,
        seconds: float,
        steps: Mapping[str, float],
        labels: tuple[str, ...] = (),
        span: SpanRef | None = None,
    ) -> None:
        """Count a termination that has taken `seconds`, and its `steps` (seconds by name).

        `labels`: its NodeLabels; `span`: its root, if it has a trace.
        """
        whole = self._whole.setdefault((kind, *labels), Histogram(TERMINATION_DURATION.buckets))
        whole.observe(max(seconds, 0.0), span)
        for step, spent in steps.items():
            times = self._steps.setdefault((kind, step, *labels), Histogram(STEP_DURATION.buckets))
            times.observe(max(spent, 0.0), span)

    def whole(self) -> Mapping[tuple[str, ...], Distribution]:
        """Durations of whole terminations, by kind and NodeLabels."""
        return {labels: times.statistics() for labels, times in self._whole.items()}

    def steps(self) -> Mapping[tuple[str, ...], Distribution]:
        """Durations of the steps that were reached, by kind, step and NodeLabels."""
        return {labels: times.statistics() for labels, times in self._steps.items()}


class ProtectionDurations:
    """How long protected pods have blocked drains, by kind of protection and how it ended."""

    def __init__(self) -> None:
        self._times = {
            (kind, how): Histogram(PROTECTION_HELD.buckets)
            for kind in get_args(ProtectionKind)
            for how in ProtectionEnd
        }

    def note(self, kind: ProtectionKind, how: ProtectionEnd, seconds: float) -> None:
        """Count a protection that has blocked a drain for `seconds`."""
        self._times[kind, how].observe(max(seconds, 0.0))

    def statistics(self) -> Mapping[tuple[ProtectionKind, ProtectionEnd], Distribution]:
        """Durations of the protections that have ended."""
        return {labels: times.statistics() for labels, times in self._times.items()}


REPLACEMENTS: Final = ("released", "returned", "failed")
"""Results of replacements before an eviction."""


class TerminationStatistics(msgspec.Struct, frozen=True):
    """The statistics of the process."""

    protection_durations: ProtectionDurations = msgspec.field(default_factory=ProtectionDurations)
    durations: TerminationDurations = msgspec.field(default_factory=TerminationDurations)
    results: Counter[tuple[str, ...]] = msgspec.field(default_factory=Counter)
    """Number of nodes that were terminated, by reason (see `reason_of`), TerminationResult and NodeLabels."""
    pod_outcomes: Counter[tuple[str, ...]] = msgspec.field(default_factory=Counter)
    """Number of pods that have left, over all nodes, by PodOutcome and NodeLabels."""
    replacements: Counter[str] = msgspec.field(default_factory=Counter)
    """Number of pods, by REPLACEMENTS."""
    labels: NodeLabels = msgspec.field(default_factory=NodeLabels)
