"""What is counted over all ends of nodes and claims for as long as the process lives, whoever carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

from gracectl.eviction.pod_outcomes import DepartureCounts
from gracectl.policy.protected_pods import Lapse
from gracectl.policy.protection import Kind
from gracectl.runtime.histogram import Distribution, Histogram
from gracectl.telemetry.metrics import PROTECTION_HELD, STEP_DURATION, TERMINATION_DURATION

EndKind = Literal["node", "nodeclaim", "kept"]
"""What ends: a node, a claim, or the drain of a node that is kept drained."""

END_KINDS: Final[tuple[EndKind, ...]] = ("node", "nodeclaim", "kept")


class EndTimes:
    """How long ends have taken, as a whole and at each of their steps; noted when they are over."""

    def __init__(self) -> None:
        self._whole = {kind: Histogram(TERMINATION_DURATION.buckets) for kind in END_KINDS}
        self._steps: dict[tuple[EndKind, str], Histogram] = {}

    def note(self, kind: EndKind, seconds: float, steps: Mapping[str, float]) -> None:
        """One is over, after so many seconds, of which each step has had its own."""
        self._whole[kind].observe(max(seconds, 0.0))
        for step, spent in steps.items():
            self._steps.setdefault((kind, step), Histogram(STEP_DURATION.buckets)).observe(max(spent, 0.0))

    def whole(self) -> Mapping[EndKind, Distribution]:
        """All ends so far."""
        return {kind: times.statistics() for kind, times in self._whole.items()}

    def steps(self) -> Mapping[tuple[EndKind, str], Distribution]:
        """Their steps, as far as any has been walked."""
        return {labels: times.statistics() for labels, times in self._steps.items()}


class GuardTimes:
    """How long guards have stood, over all nodes, by what protected them and how that ended."""

    def __init__(self) -> None:
        self._times = {(kind, how): Histogram(PROTECTION_HELD.buckets) for kind in get_args(Kind) for how in Lapse}

    def note(self, kind: Kind, how: Lapse, seconds: float) -> None:
        """A protection of this kind has held a drain for so long, and has ended like this."""
        self._times[kind, how].observe(max(seconds, 0.0))

    def statistics(self) -> Mapping[tuple[Kind, Lapse], Distribution]:
        """All that have ended so far."""
        return {labels: times.statistics() for labels, times in self._times.items()}


class Tallies(msgspec.Struct, frozen=True):
    """See the module; made once."""

    guard_times: GuardTimes = msgspec.field(default_factory=GuardTimes)
    end_times: EndTimes = msgspec.field(default_factory=EndTimes)
    departures: DepartureCounts = msgspec.field(default_factory=DepartureCounts)
