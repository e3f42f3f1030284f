"""Simulated shutdowns: pods that stop as they are deleted, and the step function that deletes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from gracectl.model.pod import Pod
from gracectl.policy.shutdown import RangeEnded, RangeStarted, ShutdownState, ShutdownStep, ShutdownView, begin, step
from gracectl.policy.waves import DrainOrder, by_priority
from support.builders import NOW

KEP = by_priority([(100_000, 300.0), (10_000, 180.0), (1_000, 120.0), (0, 60.0)])
"""The KEP's first table."""


def at(elapsed: float, *pods: Pod) -> ShutdownView:
    """What is seen so many seconds after a shutdown began, which it did at NOW."""
    return ShutdownView(pods, elapsed, NOW + elapsed)


def told(order: DrainOrder, pods: Sequence[Pod], node_deadline: float | None = None) -> dict[str, int]:
    """By name, the grace of pods that are deleted when a shutdown with time enough begins."""
    seen = ShutdownView(tuple(pods), 0.0, NOW, node_deadline)
    return {notice.pod.name: notice.grace for notice in step(begin(order, 10_000, seen), seen).deletions}


class Machine:
    """Drives the step function with pods that take `seconds` (by name) to end, all of their grace if they are not in
    there, and more than that if they are `immortal`. Instants are seconds since the shutdown began."""

    def __init__(
        self,
        order: DrainOrder,
        pods: Iterable[Pod],
        available: float | None = None,
        known_at: float = 0.0,
        immortal: Iterable[str] = (),
        seconds: dict[str, float] | None = None,
    ) -> None:
        self.elapsed = known_at
        self.node_deadline: float | None = None
        self.told: list[tuple[str, float, int]] = []
        self.began: dict[int, float] = {}
        self.ended: list[RangeEnded] = []
        self.over = math.nan
        self.steps: list[ShutdownStep] = []
        self._immortal = set(immortal)
        self._seconds = seconds or {}
        self._ends: dict[str, float] = {}
        self._pods: dict[str, Pod] = {}
        self.add(*pods)
        if available is None:
            available = sum(wave.period for wave in order.waves)
        self._shutdown: ShutdownState = begin(order, available, self._seen())

    def add(self, *pods: Pod) -> None:
        """These come up."""
        for pod in pods:
            self._pods[pod.uid] = pod
            if pod.deletion_timestamp is not None:
                self._stop(pod, pod.deletion_timestamp - NOW - self.elapsed)

    def run(self) -> None:
        """Until all of it is over."""
        while not self._step().shutdown.is_over:
            self._move_on(math.inf)
        self.over = self.elapsed

    def look(self, until: float) -> None:
        """As long as nothing after that instant has happened."""
        while not self._step().shutdown.is_over:
            if self._move_on(until):
                return

    def _seen(self) -> ShutdownView:
        return ShutdownView(tuple(self._pods.values()), self.elapsed, NOW + self.elapsed, self.node_deadline)

    def _step(self) -> ShutdownStep:
        decided = step(self._shutdown, self._seen())
        self.steps.append(decided)
        self._shutdown = decided.shutdown
        for dedup_key in decided.events:
            if isinstance(dedup_key, RangeStarted):
                self.began[dedup_key.number] = dedup_key.at
            else:
                self.ended.append(dedup_key)
        for notice in sorted(decided.deletions, key=lambda each: each.pod.name):
            self.told.append((notice.pod.name, self.elapsed, notice.grace))
            self._stop(notice.pod, notice.grace)
            marked = math.floor(NOW + self.elapsed) + notice.grace
            self._pods[notice.pod.uid] = msgspec.structs.replace(
                notice.pod, deletion_timestamp=float(marked), deletion_grace_seconds=notice.grace
            )
        return decided

    def _stop(self, pod: Pod, grace: float) -> None:
        if pod.name not in self._immortal:
            ends = self.elapsed + min(grace, self._seconds.get(pod.name, grace))
            self._ends[pod.uid] = min(ends, self._ends.get(pod.uid, ends))

    def _move_on(self, until: float) -> bool:
        """To the next instant at which something happens, but no further than `until`; whether that was reached."""
        following = min((self._shutdown.ends, *(self._ends[uid] for uid in self._pods if uid in self._ends)))
        self.elapsed = max(min(following, until), self.elapsed)
        self._pods = {uid: pod for uid, pod in self._pods.items() if self._ends.get(uid, math.inf) > self.elapsed}
        return following >= until
