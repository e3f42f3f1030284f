"""Registry of terminations: in progress, finished, and objects that are left alone.

The controllers of nodes and claims have one each. Invariant: a termination is known under the name of its object, and
closed when another object has taken that name.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import Any, Generic, Protocol

import msgspec

from gracectl.controllers.termination.state import E, Progress
from gracectl.controllers.termination.statistics import TerminationStatistics
from gracectl.model.claim import NodeClaim
from gracectl.model.names import EventReason
from gracectl.model.node import Node
from gracectl.policy.finalizers import has_finalizer
from gracectl.runtime.clock import Clock
from gracectl.runtime.histogram import SpanRef
from gracectl.telemetry.spans import Trace

logger = logging.getLogger(__name__)

REMEMBERED = 1000
"""Finished terminations that are remembered."""

OTHERS_BEGIN_SECONDS = 20.0
"""Seconds that the controller of another release has to begin with an object that has the finalizer: longer than a
handover between its replicas takes."""


class LeftAlone(msgspec.Struct):
    """Object that is not managed here.

    `since`: when (monotonic) it was first seen without another controller's work; inf while that is seen. `was_ours`:
    it was managed here before.
    """

    uid: str
    reason: str
    since: float
    was_ours: bool
    is_reported: bool = False


class RegistryListener(Protocol):
    """Listener to a registry: may set the observer of a termination when it is opened."""

    def opened(self, state: Any) -> None:
        """The termination begins, or is resumed after a restart."""

    def closed(self, state: Any) -> None:
        """The termination is finished."""

    def abandoned(self, state: Any) -> None:
        """The termination is not finished, but no longer this controller's."""


class Registry(Generic[E]):
    """Terminations by name of the object."""

    def __init__(self, clock: Clock, statistics: TerminationStatistics) -> None:
        self._clock = clock
        self._listeners: list[RegistryListener] = []
        self._statistics = statistics
        self._in_progress: dict[str, E] = {}
        self._finished: deque[Progress] = deque(maxlen=REMEMBERED)
        self._left_alone: dict[str, LeftAlone] = {}  # by name

    def __contains__(self, name: str) -> bool:
        return name in self._in_progress

    def __len__(self) -> int:
        return len(self._in_progress)

    def states(self) -> tuple[E, ...]:
        """The terminations in progress, in the order in which they were opened."""
        return tuple(self._in_progress.values())

    def subscribe(self, listener: RegistryListener) -> None:
        """Call `listener` for every termination from now on."""
        self._listeners.append(listener)

    def get(self, name: str) -> E | None:
        """The termination in progress of the object of that name."""
        return self._in_progress.get(name)

    def open(self, state: E) -> E:
        """Register a termination that begins, or is resumed after a restart."""
        state.labels = self._statistics.labels.of(state.tracked.latest.labels)
        self._in_progress[state.tracked.name] = state
        self._left_alone.pop(state.tracked.name, None)
        for listener in self._listeners:
            listener.opened(state)
        logger.info("%s %s", state.noun, state.activity, extra={**state.tracked.log_keys, "uid": state.uid})
        return state

    def close(self, state: E) -> None:
        """Remove a finished termination."""
        del self._in_progress[state.tracked.name]
        now = self._clock.now()
        state.finish(now)
        progress = msgspec.structs.replace(state.progress(now), finished=now)
        self._finished.append(progress)
        trace = Trace.read(state.observer.traceparent or "")
        root = None if trace is None else SpanRef(trace.hex, trace.root_hex, now)
        times = self._statistics.durations
        times.note(progress.kind, now - progress.started, progress.seconds, state.labels, root)
        seconds = {step: round(spent, 3) for step, spent in progress.seconds.items()}
        extra = {**state.tracked.log_keys, "uid": state.uid, "seconds": seconds}
        logger.info("%s %s", state.noun, state.outcome, extra=extra)
        for listener in self._listeners:
            listener.closed(state)

    def leave_alone(self, thing: Node | NodeClaim, reason: EventReason, *, is_anothers: bool = False) -> float:
        """Remove an object that is not managed, or no longer. Returns the seconds until this reason is reported: 0.0
        once, inf if it was reported.

        `is_anothers`: another controller has begun with the object, so that nothing is reported. A controller that has
        not begun has OTHERS_BEGIN_SECONDS. An object that was managed here until now is reported immediately.
        """
        abandoned = self._in_progress.pop(thing.name, None)
        if abandoned is not None:
            for listener in self._listeners:
                listener.abandoned(abandoned)
        known, now = self._left_alone.get(thing.name), self._clock.monotonic()
        if known is None or (known.uid, known.reason) != (thing.uid, reason):
            was_ours = abandoned is not None or (known is not None and known.uid == thing.uid and known.was_ours)
            known = self._left_alone[thing.name] = LeftAlone(thing.uid, reason, now, was_ours)
        if is_anothers and not known.was_ours:
            known.since = math.inf
            return math.inf
        known.since = min(known.since, now)
        if known.is_reported:
            return math.inf
        is_blocked = has_finalizer(thing) and not known.was_ours
        seconds = max(known.since + OTHERS_BEGIN_SECONDS - now, 0.0) if is_blocked else 0.0
        known.is_reported = seconds == 0.0
        return seconds

    def forget(self, name: str) -> None:
        """Forget that the object of this name is left alone."""
        self._left_alone.pop(name, None)

    def in_progress(self) -> tuple[Progress, ...]:
        """Progress of each termination, oldest first."""
        now = self._clock.now()
        snapshots = (state.progress(now) for state in self._in_progress.values())
        return tuple(sorted(snapshots, key=lambda progress: (progress.started, progress.name)))

    def finished(self) -> tuple[Progress, ...]:
        """The last finished terminations, in that order."""
        return tuple(self._finished)
