"""What the metrics of this room say: whether the machine waits for its pods, how long, and how its shutdowns went."""

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


class Outcome(StrEnum):
    """How a shutdown has gone, as far as it concerns pods."""

    FINISHED = "finished"
    OVERDUE = "overdue"
    CANCELLED = "cancelled"


class AgentStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot. `is_locked`: a shutdown would wait for us, and we would hear of it. `granted`, `wanted`: seconds that
    the machine waits for its pods, and should; `began`, `ended`: Unix seconds of the last shutdown, None if there was
    none, or it has not ended; `awaited`: pods that it waits for."""

    is_locked: bool = False
    granted: float | None = None
    wanted: float | None = None
    outcomes: Mapping[Outcome, int] = msgspec.field(default_factory=Counter)
    began: float | None = None
    ended: float | None = None
    awaited: int = 0


def agent_samples(agent: AgentStatistics) -> Iterator[Sample]:
    """For every value of every label."""
    yield Sample(SHUTDOWN_LOCK, (), int(agent.is_locked))
    yield Sample(SHUTDOWN_DELAY, ("granted",), agent.granted or 0)
    yield Sample(SHUTDOWN_DELAY, ("wanted",), agent.wanted or 0)
    for outcome in Outcome:
        yield Sample(SHUTDOWNS, (outcome.value,), agent.outcomes.get(outcome, 0))
    yield Sample(SHUTDOWN_BEGAN, (), agent.began or 0)
    yield Sample(SHUTDOWN_ENDED, (), agent.ended or 0)
    yield Sample(SHUTDOWN_PODS, (), agent.awaited)
