"""Metrics of the controllers: samples of the catalogue from their statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final, get_args

import msgspec

from gracectl.controllers.disruption.pace import STATES, DisruptionStatistics
from gracectl.controllers.termination import assist, maintenance, nodeclaim, steps
from gracectl.controllers.termination.pod_counts import ProtectedPodCounts, RemainingPods
from gracectl.controllers.termination.state import Progress
from gracectl.controllers.termination.statistics import (
    REPLACEMENTS,
    TERMINATION_KINDS,
    TerminationKind,
    TerminationResult,
    TerminationStatistics,
)
from gracectl.eviction.deleter import DeleterStatistics
from gracectl.eviction.evictor import EvictorStatistics
from gracectl.eviction.metrics import deadline_samples, eviction_samples
from gracectl.eviction.pod_outcomes import PodOutcome
from gracectl.interruption.recording import Counts
from gracectl.interruption.source import Outcome, Source
from gracectl.model.nodedrain import NodeState
from gracectl.policy.disruption import HoldReason
from gracectl.policy.interruption import Kind
from gracectl.policy.voluntary import BY_HAND, REASONS, Cause
from gracectl.runtime.histogram import empty_distribution
from gracectl.runtime.queue import QueueStatistics
from gracectl.telemetry import metrics
from gracectl.telemetry.metrics import Sample
from gracectl.telemetry.runtime_metrics import queue_samples, timer_samples

STEPS: Final[Mapping[TerminationKind, tuple[str, ...]]] = {
    "node": tuple(step.name for step in steps.STEPS),
    "nodeclaim": tuple(step.name for step in nodeclaim.STEPS),
    "maintenance": tuple(step.name for step in (*maintenance.KEEPING, *maintenance.GIVING_BACK)),
    **{kind: tuple(step.name for step in assist.ASSISTING) for kind in assist.KINDS.values()},
}

RESTING: Final = maintenance.KEEPING[-1].name
"""Step of a node in maintenance that is drained."""

NOT_LOOKED_AT: Final = "queued"
"""In place of a step: no worker was free for it yet."""

QUEUES: Final = (
    "nodes",
    "nodeclaims",
    "voluntary",
    "voluntary-pending",
    "interruptions",
    "finalizers",
    "finalizers-nodeclaims",
    "finalizers-replaced",
    "released-pods",
    "invalid-annotations",
    "node-budgets",
    "nodedrains",
    "evictions-budgeted",
    "evictions-unbudgeted",
    "deletions",
)
"""Work queues. Their components name them; here, so that their series exist while this process does not lead."""

HELD: Final = ("voluntary", "nodeclaim")
"""Terminations that a node disruption budget can block."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot of all work of a manager; empty while this process does not lead. `terminations`: in progress."""

    terminations: tuple[Progress, ...] = ()
    remaining: RemainingPods = RemainingPods()
    evictor: EvictorStatistics = EvictorStatistics()
    deleter: DeleterStatistics = DeleterStatistics()
    blocked_by_node_budgets: Mapping[str, int] = {}
    """How many of HELD are blocked by a node disruption budget."""
    disruption: DisruptionStatistics = DisruptionStatistics()
    node_drains: Mapping[str, int] = {}
    """Nodes of unfinished campaigns, by state."""
    queues: Mapping[str, QueueStatistics] = msgspec.field(
        default_factory=lambda: dict.fromkeys(QUEUES, QueueStatistics())
    )
    """Statistics of each queue, by name."""


def work_samples(work: Work, statistics: TerminationStatistics, now: float) -> Iterator[Sample]:
    """Samples for every value of every label, so that no series comes and goes; those with NodeLabels come when the
    first such termination begins. `now`: Unix seconds."""
    kinds_of_nodes = statistics.labels.seen()
    yield from _samples_of_terminations(work.terminations, kinds_of_nodes, now)
    yield from _samples_of_times(statistics)
    for state, number in work.remaining.states.items():
        yield Sample(metrics.PODS_LEFT, (state,), number)
    for blocker, number in work.remaining.blocked.items():
        yield Sample(metrics.BLOCKED_PODS, (blocker,), number)
    for how, labels in product(PodOutcome, kinds_of_nodes):
        yield Sample(metrics.PODS_DRAINED, (how, *labels), statistics.pod_outcomes[how, *labels])
    for result in REPLACEMENTS:
        yield Sample(metrics.REPLACED_FIRST, (result,), statistics.replacements[result])
    for held in HELD:
        yield Sample(metrics.NODES_BLOCKED_BY_BUDGET, (held,), work.blocked_by_node_budgets.get(held, 0))
    for node_state in NodeState:
        yield Sample(metrics.NODE_DRAIN_NODES, (node_state.value,), work.node_drains.get(node_state.value, 0))
    yield from _samples_of_disruption(work.disruption, now)
    yield from eviction_samples(work.evictor)
    yield from deadline_samples(work.deleter)
    yield from timer_samples(work.deleter.wheel)
    yield from queue_samples(work.queues)


def interruption_samples(sources: Iterable[Source], counts: Counts) -> Iterator[Sample]:
    """Samples of notices that machines will go, and of the sources of this process."""
    for source in sources:
        for kind, outcome in product(("", *Kind), Outcome):
            number = counts[source.name, kind, outcome]
            yield Sample(metrics.INTERRUPTION_NOTICES, (source.name, kind or "none", outcome.value), number)
        yield Sample(metrics.INTERRUPTION_SOURCE_UP, (source.name,), int(not getattr(source, "problem", "")))


def _samples_of_disruption(found: DisruptionStatistics, now: float) -> Iterator[Sample]:
    for cause in Cause:
        for hold in HoldReason:
            yield Sample(metrics.VOLUNTARY_PENDING, (cause.value, hold.value), found.pending.get((cause, hold), 0))
    since = found.pending_since
    yield Sample(metrics.VOLUNTARY_PENDING_OLDEST, (), 0.0 if since is None else max(now - since, 0.0))
    for state in STATES:
        yield Sample(metrics.VOLUNTARY_ACTIVE, (state,), found.slots.get(state, 0))
    yield Sample(metrics.VOLUNTARY_MAXIMUM, (), found.maximum)
    yield Sample(metrics.UNHEALTHY_NODES, ("unhealthy",), found.unhealthy.unhealthy)
    yield Sample(metrics.UNHEALTHY_NODES, ("recovering",), found.unhealthy.recovering)
    yield Sample(metrics.CIRCUIT_BREAKER_OPEN, (), int(found.unhealthy.excess > 0))


def _samples_of_terminations(
    terminations: tuple[Progress, ...], kinds_of_nodes: Sequence[tuple[str, ...]], now: float
) -> Iterator[Sample]:
    at_step = Counter((each.kind, each.step or NOT_LOOKED_AT, *each.labels) for each in terminations)
    stalled = Counter((each.kind, *each.labels) for each in terminations if each.is_stalled)
    oldest: dict[TerminationKind, float] = {}
    for each in terminations:
        if each.step != RESTING:
            oldest[each.kind] = max(oldest.get(each.kind, 0.0), now - each.started)
    for kind, known in STEPS.items():
        for step, labels in product((NOT_LOOKED_AT, *known), kinds_of_nodes):
            yield Sample(metrics.TERMINATIONS, (kind, step, *labels), at_step[kind, step, *labels])
        yield Sample(metrics.TERMINATION_OLDEST, (kind,), oldest.get(kind, 0.0))
        if kind != "nodeclaim":
            for labels in kinds_of_nodes:
                yield Sample(metrics.DRAINS_STALLED, (kind, *labels), stalled[kind, *labels])


def _samples_of_times(statistics: TerminationStatistics) -> Iterator[Sample]:
    whole, walked = statistics.durations.whole(), statistics.durations.steps()
    no_time = empty_distribution(metrics.STEP_DURATION.buckets)
    for labels in statistics.labels.seen():
        for pair in product((BY_HAND, *REASONS.values()), get_args(TerminationResult)):
            yield Sample(metrics.NODES_TERMINATED, (*pair, *labels), statistics.results[*pair, *labels])
        for kind in TERMINATION_KINDS:
            yield Sample(metrics.TERMINATION_DURATION, (kind, *labels), whole.get((kind, *labels), no_time))
            for step in STEPS[kind]:
                yield Sample(metrics.STEP_DURATION, (kind, step, *labels), walked.get((kind, step, *labels), no_time))


def protection_samples(found: ProtectedPodCounts, statistics: TerminationStatistics) -> Iterator[Sample]:
    """As above."""
    for group, count in found.protected.items():
        yield Sample(metrics.PROTECTED_PODS, group, count)
    for group, count in found.terminating.items():
        yield Sample(metrics.PROTECTED_PODS_TERMINATING, group, count)
    for kind, seconds in found.longest.items():
        yield Sample(metrics.PROTECTION_REMAINING, (kind,), seconds)
    for labels, seen in statistics.protection_durations.statistics().items():
        yield Sample(metrics.PROTECTION_HELD, labels, seen)
