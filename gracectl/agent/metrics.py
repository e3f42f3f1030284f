"""Metrics of the agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum

import msgspec

from gracectl.telemetry.metrics import (
    SHUTDOWN_BEGAN,
    SHUTDOWN_DELAY,
    SHUTDOWN_ENDED,
    SHUTDOWN_LOCK,
    SHUTDOWN_PODS,
    SHUTDOWNS,
    Sample,
)


class ShutdownOutcome(StrEnum):
    """Outcome of a shutdown, as far as pods are concerned."""

    FINISHED = "finished"
    OVERDUE = "overdue"
    CANCELLED = "cancelled"


class AgentStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot. `is_locked`: a shutdown would be noticed, and would wait. `granted`, `wanted`: seconds that a shutdown
    waits, and should; `began`, `ended`: Unix seconds of the last shutdown, None if there was none, or it has not ended;
    `waiting_pods`: pods that it waits for."""

    is_locked: bool = False
    granted: float | None = None
    wanted: float | None = None
    outcomes: Mapping[ShutdownOutcome, int] = msgspec.field(default_factory=Counter)
    began: float | None = None
    ended: float | None = None
    waiting_pods: int = 0


def agent_samples(agent: AgentStatistics) -> Iterator[Sample]:
    """Samples for every value of every label."""
    yield Sample(SHUTDOWN_LOCK, (), int(agent.is_locked))
    yield Sample(SHUTDOWN_DELAY, ("granted",), agent.granted or 0)
    yield Sample(SHUTDOWN_DELAY, ("wanted",), agent.wanted or 0)
    for outcome in ShutdownOutcome:
        yield Sample(SHUTDOWNS, (outcome.value,), agent.outcomes.get(outcome, 0))
    yield Sample(SHUTDOWN_BEGAN, (), agent.began or 0)
    yield Sample(SHUTDOWN_ENDED, (), agent.ended or 0)
    yield Sample(SHUTDOWN_PODS, (), agent.waiting_pods)
