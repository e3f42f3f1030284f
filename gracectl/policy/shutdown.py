"""Shutdown of a machine, and its rehearsal: which pods are deleted now, with how much grace, which are waited for.

The ranges of a DrainOrder leave one after the other, the lowest first, each for its period, as the kubelet has them
(KEP-2712). The agent calls `step` when something has changed or `ShutdownState.ends` has come; nothing else knows
these rules.

Invariants: a range begins when the one before it is over, and not earlier; it is over when its last pod is gone or
its period has passed, and pods left behind are not waited for again; the shutdown is over when the time that is
available has passed, whatever pods do. A pod is granted whole seconds, at least one, never more than its own grace,
and no end beyond that of its range, or of the node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from gracectl.model.pod import Pod
from gracectl.policy.deadlines import delete_at, granted
from gracectl.policy.evictability import FINISHED, is_static
from gracectl.policy.waves import DrainOrder, Wave, is_daemon, wave_deadlines

_ROUNDING_SECONDS: Final = 1e-6
"""Seconds: a shorter wait is only rounding."""

_JUMP: Final = 0.001
"""Seconds: two clocks that run together differ by less."""

_MOMENT: Final = 1.0
"""Seconds from the beginning of a shutdown: with a first step before then no time is lost."""

_NOT_BEGUN: Final = -1


class ShutdownView(msgspec.Struct, frozen=True):
    """Input of a step: the pods that the API shows on the node, `elapsed` seconds after its shutdown began, at
    `now` (Unix seconds by the server's clock). `node_deadline`: by when the node itself must have ended (Unix
    seconds); None without one.
    """

    pods: tuple[Pod, ...]
    elapsed: float
    now: float
    node_deadline: float | None = None


class ShutdownState(msgspec.Struct, frozen=True):
    """State of a shutdown; `begin` makes the first one. `available`, `since` are seconds since it began."""

    order: DrainOrder
    periods: tuple[float, ...]
    """Seconds of each range, whole: less than configured if there is too little time for all."""
    available: float
    """End of the shutdown."""
    epoch: float
    """When it began, in Unix seconds by the server's clock as it is known now."""
    known: frozenset[str]
    """UIDs of the pods that existed at the beginning."""
    own_uid: str = ""
    """UID of the pod in which this program runs, which ends with the machine; empty outside of one."""
    own_controller: str = ""
    """UID of the controller of that pod: during an update there are two of its pods on the machine, which must
    not wait for each other.
    """
    current: int = _NOT_BEGUN
    """Index of the current range in the waves; the number of waves after the end."""
    since: float = 0.0
    """When that range began."""
    left_behind: frozenset[str] = frozenset()
    """UIDs of the pods that still existed when their range was over."""

    @property
    def is_over(self) -> bool:
        """Whether the shutdown has ended: it neither deletes pods nor waits."""
        return self.current >= len(self.order.waves)

    @property
    def ends(self) -> float:
        """When the current range will be over at the latest."""
        has_period = _NOT_BEGUN < self.current < len(self.periods)
        return min(self.since + (self.periods[self.current] if has_period else 0.0), self.available)


class ShutdownDeletion(msgspec.Struct, frozen=True):
    """Pod to delete now, with `grace` seconds, so that it ends by `deadline`. Its range began at
    `begins`. Both are Unix seconds, and the same in each step until the next range begins.
    """

    pod: Pod
    wave: int
    grace: int
    begins: float
    deadline: float


class RangeEnd(StrEnum):
    """Reason why a range ended."""

    EMPTY = "all its pods are gone"
    PERIOD = "its period has expired"
    TIME = "the time for the shutdown has expired"


class RangeStarted(msgspec.Struct, frozen=True):
    """A range has begun: `at` seconds after the shutdown began, for `seconds`. `pods` are its own, including
    terminating ones.
    """

    number: int
    wave: Wave
    at: float
    seconds: float
    pods: tuple[Pod, ...]


class RangeEnded(msgspec.Struct, frozen=True):
    """A range ended, `at` seconds after the shutdown began and `seconds` after the range began; `left`: its pending
    pods.
    """

    number: int
    wave: Wave
    at: float
    seconds: float
    left: tuple[Pod, ...]
    ending: RangeEnd


class ShutdownStep(msgspec.Struct, frozen=True):
    """Actions at one instant of a shutdown."""

    shutdown: ShutdownState
    """The state after this step: whether it `is_over`, and else when to look again, seconds after it began (`ends`)."""
    deletions: tuple[ShutdownDeletion, ...]
    """Pods to delete now. Includes pods of a last range without a period when the range has ended. A pod that
    terminates in time is not repeated, unless its grace must be shortened.
    """
    awaited: tuple[Pod, ...]
    """Pods that the range waits for."""
    left: tuple[Pod, ...]
    """All pods that still exist and are not ignored."""
    events: tuple[RangeStarted | RangeEnded, ...]
    """Ranges that began and ended with this step, in order; ranges without pods do not appear."""


def begin(order: DrainOrder, available: float, seen: ShutdownView, own_uid: str = "") -> ShutdownState:
    """Begin a shutdown that must end `available` seconds after its start, once its pods are known.

    Of what is left then each range has its period, or, if that is too little for all, its share of it (policy.waves).
    A moment passes before the first step in any case, and no range is to lose a whole second for that.
    """
    left = max(available - (seen.elapsed if seen.elapsed >= _MOMENT else 0.0), 0.0)
    return ShutdownState(
        order=order,
        periods=_periods(order, left),
        available=available,
        epoch=seen.now - seen.elapsed,
        known=frozenset(pod.uid for pod in seen.pods),
        own_uid=own_uid,
        own_controller=next((_controller(pod) for pod in seen.pods if own_uid and pod.uid == own_uid), ""),
    )


def step(shutdown: ShutdownState, seen: ShutdownView) -> ShutdownStep:
    """Compute the next step. With an unchanged view no range begins, and the same pods are deleted."""
    shutdown = _on_time(shutdown, seen)
    pods = tuple(pod for pod in seen.pods if ignored_reason(pod, shutdown) is None)
    events: list[RangeStarted | RangeEnded] = []
    while not shutdown.is_over:
        if shutdown.current != _NOT_BEGUN:
            awaited = _awaited(shutdown, pods)
            if awaited and shutdown.ends - seen.elapsed > _ROUNDING_SECONDS:
                break
            events.append(_ended(shutdown, awaited, seen.elapsed))
        shutdown = _next(shutdown, pods, seen.elapsed)
        if not shutdown.is_over:
            own = tuple(pod for pod in pods if shutdown.order.wave_of(pod) == shutdown.current)
            wave, period = shutdown.order.waves[shutdown.current], shutdown.ends - shutdown.since
            events.append(RangeStarted(shutdown.current, wave, seen.elapsed, period, own))
    began = {each.number for each in events if isinstance(each, RangeStarted)}
    turns = began if shutdown.is_over else set(range(shutdown.current + 1))
    found = (_deletion(shutdown, pod, seen) for pod in pods if shutdown.order.wave_of(pod) in turns)
    return ShutdownStep(
        shutdown=shutdown,
        deletions=tuple(each for each in found if each is not None),
        awaited=_awaited(shutdown, pods),
        left=pods,
        events=tuple(events),
    )


def ignored_reason(pod: Pod, shutdown: ShutdownState) -> str | None:
    """Reason why a shutdown ignores a pod; None if it does not."""
    if is_static(pod):
        return "static pod: it ends with its machine"
    if pod.phase in FINISHED:
        return f"finished: its phase is {pod.phase}"
    if shutdown.own_uid and pod.uid == shutdown.own_uid:
        return "the node agent itself: it ends with its machine"
    if shutdown.own_controller and _controller(pod) == shutdown.own_controller:
        return "another node agent, as while they are updated: it ends with its machine"
    # Creation timestamps have whole seconds; a pod that existed at the beginning replaces no other.
    if is_daemon(pod) and pod.uid not in shutdown.known and pod.created >= math.floor(shutdown.epoch):
        return "it replaces a DaemonSet pod of before the shutdown, as the next one would replace it"
    return None


def _controller(pod: Pod) -> str:
    """UID of the controller of a pod; empty if there is none."""
    return "" if pod.controller is None else pod.controller.uid


def _periods(order: DrainOrder, available: float) -> tuple[float, ...]:
    """Whole seconds of each range, for this number of seconds in total."""
    latest = wave_deadlines(order, range(len(order.waves)), available, 0.0).latest
    before = (0.0, *latest)
    return tuple(
        float(math.floor(min(wave.period, latest[number] - before[number]) + _ROUNDING_SECONDS))
        for number, wave in enumerate(order.waves)
    )


def _on_time(shutdown: ShutdownState, seen: ShutdownView) -> ShutdownState:
    """Follow a correction of the server's clock: periods run on, their Unix instants move."""
    epoch = seen.now - seen.elapsed
    if abs(epoch - shutdown.epoch) < _JUMP:
        return shutdown
    return msgspec.structs.replace(shutdown, epoch=epoch)


def _awaited(shutdown: ShutdownState, pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    """Pods that the current range waits for: its own, and late pods of earlier ranges."""
    return tuple(
        pod
        for pod in pods
        if not shutdown.is_over
        and (wave := shutdown.order.wave_of(pod)) <= shutdown.current
        and shutdown.periods[wave] > 0
        and pod.uid not in shutdown.left_behind
    )


def _ended(shutdown: ShutdownState, awaited: tuple[Pod, ...], elapsed: float) -> RangeEnded:
    is_whole = shutdown.ends - shutdown.since >= shutdown.periods[shutdown.current] - _ROUNDING_SECONDS
    ending = (RangeEnd.PERIOD if is_whole else RangeEnd.TIME) if awaited else RangeEnd.EMPTY
    wave = shutdown.order.waves[shutdown.current]
    return RangeEnded(shutdown.current, wave, elapsed, elapsed - shutdown.since, awaited, ending)


def _next(shutdown: ShutdownState, pods: tuple[Pod, ...], elapsed: float) -> ShutdownState:
    """The next range that has a pod, if there is one and time for it; pods of the last one are left behind."""
    waves = {pod.uid: shutdown.order.wave_of(pod) for pod in pods}
    following = len(shutdown.order.waves)
    if shutdown.available - elapsed > _ROUNDING_SECONDS:
        following = min((wave for wave in waves.values() if wave > shutdown.current), default=following)
    behind = frozenset(uid for uid, wave in waves.items() if wave <= shutdown.current)
    return msgspec.structs.replace(
        shutdown, current=following, since=elapsed, left_behind=shutdown.left_behind | behind
    )


def _deletion(shutdown: ShutdownState, pod: Pod, seen: ShutdownView) -> ShutdownDeletion | None:
    """Deletion of a pod in a range that has begun; None if it was already deleted."""
    if pod.deletion_timestamp is not None and pod.uid in shutdown.left_behind:
        return None
    wave = shutdown.order.wave_of(pod)
    # The pods of a range without a period are deleted immediately, and the range ends.
    ends = shutdown.ends if shutdown.periods[wave] > 0 else 0.0
    # The server counts in whole seconds: what ends later than the last whole one ends too late.
    deadline = float(math.floor(round(shutdown.epoch + ends, 6)))
    if seen.node_deadline is not None:
        deadline = min(deadline, float(math.floor(seen.node_deadline)))
    begins = round(shutdown.epoch + shutdown.since, 6)
    if delete_at(pod, deadline, seen.now, begins) is None:
        return None
    grace = granted(pod, deadline, max(seen.now, begins))
    return None if grace is None else ShutdownDeletion(pod, wave, grace, begins, deadline)


# Rehearsal.


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
    """All ranges in order, the ignored pods with reasons, and the end of the shutdown.

    Every pod takes all the grace that it is granted, and no pod is created; a pod whose grace had ended before still
    exists in the end. So no range can begin later than this says, unless pods outlive their grace.
    """

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
    """Simulate a shutdown that begins at `now` (Unix seconds) and must end in `available` seconds."""
    node = _SimulatedNode(pods, now, node_deadline)
    shutdown = first = begin(order, available, node.view(), own_uid)
    while True:
        current = step(shutdown, node.view())
        shutdown = current.shutdown
        node.carry_out(current)
        if shutdown.is_over:
            break
        node.advance(shutdown.ends)
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
