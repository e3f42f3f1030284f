"""Rehearsal of a shutdown: what it would do to the pods of a node; an upper bound, made of the same steps.

Every pod takes all the grace that it is granted, and no pod is created; a pod whose grace had ended before still
exists in the end. So no range can begin later than this says, unless pods outlive their grace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from gracectl.model.pod import Pod
from gracectl.policy.shutdown import (
    RangeEnded,
    RangeStarted,
    ShutdownDeletion,
    ShutdownStep,
    ShutdownView,
    begin,
    ignored_reason,
    step,
)
from gracectl.policy.waves import DrainOrder, Wave

_ROUNDING_SECONDS: Final = 1e-6


class RehearsedPod(msgspec.Struct, frozen=True):
    """Pod that is deleted at `at` with `grace` seconds, and gone by `ends`; seconds after the shutdown began.

    `at`, `grace` None: it is not deleted, because it terminates already, soon enough, or there is no time left for
    its range. `ends` None: it still exists in the end.
    """

    pod: Pod
    at: float | None
    grace: int | None
    ends: float | None


class RehearsedRange(msgspec.Struct, frozen=True):
    """Range from `begins` to `ends` (seconds after the shutdown began) of the `period` seconds that it has.

    Without pods it is skipped (None); so is one that has pods and no time left.
    """

    number: int
    wave: Wave
    period: float
    begins: float | None
    ends: float | None
    pods: tuple[RehearsedPod, ...]


class Rehearsal(msgspec.Struct, frozen=True):
    """All ranges, the first one first; the pods that are ignored, with the reason; and when all of it is over."""

    available: float
    ranges: tuple[RehearsedRange, ...]
    ignored: tuple[tuple[Pod, str], ...]
    over: float


def rehearse(
    order: DrainOrder,
    pods: Sequence[Pod],
    available: float,
    now: float,
    own_uid: str = "",
    node_deadline: float | None = None,
) -> Rehearsal:
    """What a shutdown that begins at `now` (Unix seconds) and must be over in `available` seconds would do."""
    node = _SimulatedNode(pods, now, node_deadline)
    shutdown = first = begin(order, available, node.view(), own_uid)
    while True:
        current = step(shutdown, node.view())
        shutdown = current.shutdown
        node.carry_out(current)
        if current.is_over:
            break
        node.advance(current.next_change)
    excluded = [(pod, reason) for pod in pods if (reason := ignored_reason(pod, first)) is not None]
    waited = {pod.uid for pod, _ in excluded}
    ranges = tuple(
        RehearsedRange(
            number=number,
            wave=wave,
            period=first.periods[number],
            begins=node.began.get(number),
            ends=node.over.get(number),
            pods=tuple(node.result(pod) for pod in pods if pod.uid not in waited and order.wave_of(pod) == number),
        )
        for number, wave in enumerate(order.waves)
    )
    return Rehearsal(available, ranges, tuple(excluded), node.elapsed)


class _SimulatedNode:
    """Simulated pods, as the API would show them. Instants are seconds after the shutdown began."""

    def __init__(self, pods: Sequence[Pod], now: float, node_deadline: float | None) -> None:
        self._now = now
        self._node_deadline = node_deadline
        self._there = {pod.uid: pod for pod in pods}
        self._ends: dict[str, float] = {}
        self._deleted: dict[str, tuple[float, int]] = {}
        self.elapsed = 0.0
        self.began: dict[int, float] = {}
        self.over: dict[int, float] = {}
        for pod in pods:
            if pod.deletion_timestamp is not None and pod.deletion_timestamp > now:
                self._ends[pod.uid] = pod.deletion_timestamp - now

    def view(self) -> ShutdownView:
        """The current view."""
        return ShutdownView(tuple(self._there.values()), self.elapsed, self._now + self.elapsed, self._node_deadline)

    def carry_out(self, decided: ShutdownStep) -> None:
        """Delete the pods of a step."""
        for each in decided.events:
            match each:
                case RangeStarted():
                    self.began[each.number] = each.at
                case RangeEnded():
                    self.over[each.number] = each.at
        for deletion in decided.deletions:
            self._delete(deletion)

    def _delete(self, deletion: ShutdownDeletion) -> None:
        uid = deletion.pod.uid
        self._deleted[uid] = (self.elapsed, deletion.grace)
        self._ends[uid] = min(self._ends.get(uid, math.inf), self.elapsed + deletion.grace)
        # As a server marks it: in whole seconds.
        ends = math.floor(self._now + self.elapsed) + deletion.grace
        self._there[uid] = msgspec.structs.replace(
            deletion.pod, deletion_timestamp=float(ends), deletion_grace_seconds=deletion.grace
        )

    def advance(self, latest: float) -> None:
        """Advance to the instant at which the next pod ends, and no further than `latest`."""
        self.elapsed = min((self._ends[uid] for uid in self._there if uid in self._ends), default=latest)
        self.elapsed = min(self.elapsed, latest)
        self._there = {
            uid: pod
            for uid, pod in self._there.items()
            if self._ends.get(uid, math.inf) - self.elapsed > _ROUNDING_SECONDS
        }

    def result(self, pod: Pod) -> RehearsedPod:
        """Result for one pod."""
        at, grace = self._deleted.get(pod.uid, (None, None))
        return RehearsedPod(pod, at, grace, self._ends.get(pod.uid))
