"""Shutdown of a machine: which pods are deleted now, with how much grace, and which are waited for.

The ranges of a DrainOrder leave one after the other, the lowest first, each for its period, as the kubelet has them
(KEP-2712). The agent calls `step` when something has changed or `ShutdownStep.look_at` has come; nothing else knows
these rules.

Invariants: a range begins when the one before it is over, and not earlier; it is over when its last pod is gone or
its period has passed, and pods left behind are not waited for again; the shutdown is over when the time that is
available has passed, whatever pods do. A pod is granted whole seconds, at least one, never more than its own grace,
and no end beyond that of its range, or of the node.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final

import msgspec

from gracectl.model.pod import Pod
from gracectl.policy.deadlines import delete_at, granted
from gracectl.policy.evictability import FINISHED, is_static
from gracectl.policy.waves import DrainOrder, Wave, is_daemon, wave_deadlines

_HAIR: Final = 1e-6
"""Seconds: what is left of a wait below this is rounding."""

_JUMP: Final = 0.001
"""Seconds: two clocks that run together differ by less."""

_MOMENT: Final = 1.0
"""Seconds, from the beginning of a shutdown: who looks before then has all of its time to share out."""

_NONE_YET: Final = -1


class ShutdownView(msgspec.Struct, frozen=True):
    """What a step rests on: the pods that the API shows on the node, `elapsed` seconds after its shutdown began, at
    `now` (Unix seconds by the server's clock). `node_deadline`: by when the node itself must have ended (Unix seconds);
    None without one.
    """

    pods: tuple[Pod, ...]
    elapsed: float
    now: float
    node_deadline: float | None = None


class ShutdownState(msgspec.Struct, frozen=True):
    """Where a shutdown stands; `begin` makes the first one. `available`, `since` are seconds since it began."""

    order: DrainOrder
    periods: tuple[float, ...]
    """What each range has, in whole seconds: less than it was meant to have if there is too little for all."""
    available: float
    """When all of it is over."""
    epoch: float
    """When it began, in Unix seconds by the server's clock as that is known now."""
    known: frozenset[str]
    """The uids of the pods that were there in the beginning."""
    own_uid: str = ""
    """Of the pod in which this program runs, which ends with the machine; empty outside of one."""
    own_controller: str = ""
    """The uid of what controls that pod: while it is updated there are two on the machine, which must not wait for each
    other."""
    current: int = _NONE_YET
    """The range whose time it is, as an index into the waves: behind the last one if all of it is over."""
    since: float = 0.0
    """When that range began."""
    left_behind: frozenset[str] = frozenset()
    """The uids of the pods that were still there when their range was over."""

    @property
    def is_over(self) -> bool:
        """Nobody is told, and nobody waited for, any more."""
        return self.current >= len(self.order.waves)

    @property
    def ends(self) -> float:
        """When the range whose time it is will be over at the latest."""
        has_period = _NONE_YET < self.current < len(self.periods)
        return min(self.since + (self.periods[self.current] if has_period else 0.0), self.available)


class ShutdownDeletion(msgspec.Struct, frozen=True):
    """A pod that is to be told to leave now: it is granted `grace` seconds, so as to have ended by `deadline`. Its time
    came at `begins`. Both are Unix seconds, and the same in each step until the next range begins."""

    pod: Pod
    wave: int
    grace: int
    begins: float
    deadline: float


class RangeEnd(StrEnum):
    """Why a range is over."""

    EMPTY = "all its pods are gone"
    PERIOD = "its period is over"
    TIME = "the time for the shutdown is over"


class RangeStarted(msgspec.Struct, frozen=True):
    """The time of a range has come: `at` seconds after the shutdown began, for `seconds`. `pods` are its own, those
    that terminate already among them."""

    number: int
    wave: Wave
    at: float
    seconds: float
    pods: tuple[Pod, ...]


class RangeEnded(msgspec.Struct, frozen=True):
    """It is over, `at` seconds after the shutdown began and `seconds` after its own beginning; `left` are those that it
    was still waiting for."""

    number: int
    wave: Wave
    at: float
    seconds: float
    left: tuple[Pod, ...]
    ending: RangeEnd


class ShutdownStep(msgspec.Struct, frozen=True):
    """What is to be done at one instant of a shutdown."""

    shutdown: ShutdownState
    """Where it stands now."""
    notices: tuple[ShutdownDeletion, ...]
    """Who is to be told now. Whoever is told and terminates is in none any more, unless he must hurry."""
    awaited: tuple[Pod, ...]
    """Whom the range waits for."""
    left: tuple[Pod, ...]
    """All that are still there and not passed over."""
    news: tuple[RangeStarted | RangeEnded, ...]
    """What has begun and ended with this step, in this order. A range without a pod does neither."""

    @property
    def is_over(self) -> bool:
        """Nothing is left to wait for. A last range without a period is told all the same: see `notices`."""
        return self.shutdown.is_over

    @property
    def look_at(self) -> float:
        """When to look again if nothing changes until then: the range is over, seconds after the shutdown began."""
        return self.shutdown.ends


def begin(order: DrainOrder, available: float, seen: ShutdownView, own_uid: str = "") -> ShutdownState:
    """A shutdown that must be over `available` seconds after it began, when its pods are known for the first time.

    Of what is left then each range has its period, or, if that is too little for all, its share of it (policy.reserve).
    Up to the first look a moment passes in any case, and no range is to lose a whole second for that.
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
    """What follows from what is seen. With the same again nothing begins, and the same pods are to be told."""
    shutdown = _on_time(shutdown, seen)
    pods = tuple(pod for pod in seen.pods if ignored_reason(pod, shutdown) is None)
    news: list[RangeStarted | RangeEnded] = []
    while not shutdown.is_over:
        if shutdown.current != _NONE_YET:
            awaited = _awaited(shutdown, pods)
            if awaited and shutdown.ends - seen.elapsed > _HAIR:
                break
            news.append(_over(shutdown, awaited, seen.elapsed))
        shutdown = _next(shutdown, pods, seen.elapsed)
        if not shutdown.is_over:
            own = tuple(pod for pod in pods if shutdown.order.wave_of(pod) == shutdown.current)
            wave, period = shutdown.order.waves[shutdown.current], shutdown.ends - shutdown.since
            news.append(RangeStarted(shutdown.current, wave, seen.elapsed, period, own))
    began = {each.number for each in news if isinstance(each, RangeStarted)}
    turns = began if shutdown.is_over else set(range(shutdown.current + 1))
    found = (_notice(shutdown, pod, seen) for pod in pods if shutdown.order.wave_of(pod) in turns)
    return ShutdownStep(
        shutdown=shutdown,
        notices=tuple(notice for notice in found if notice is not None),
        awaited=_awaited(shutdown, pods),
        left=pods,
        news=tuple(news),
    )


def ignored_reason(pod: Pod, shutdown: ShutdownState) -> str | None:
    """Why a shutdown neither tells a pod to leave nor waits for it; None if it does."""
    if is_static(pod):
        return "static pod: it ends with its machine"
    if pod.phase in FINISHED:
        return f"finished: its phase is {pod.phase}"
    if shutdown.own_uid and pod.uid == shutdown.own_uid:
        return "the node agent itself: it ends with its machine"
    if shutdown.own_controller and _controller(pod) == shutdown.own_controller:
        return "another node agent, as while they are updated: it ends with its machine"
    # Creation timestamps have whole seconds; whoever was there in the beginning replaces nobody.
    if is_daemon(pod) and pod.uid not in shutdown.known and pod.created >= math.floor(shutdown.epoch):
        return "it replaces a DaemonSet pod of before the shutdown, as the next one would replace it"
    return None


def _controller(pod: Pod) -> str:
    """The uid of what controls the pod; empty if nothing does."""
    return next((owner.uid for owner in pod.owners if owner.controller), "")


def _periods(order: DrainOrder, available: float) -> tuple[float, ...]:
    """What each range has if there is so much for all of them: whole seconds, as the reserve cuts them."""
    latest = wave_deadlines(order, range(len(order.waves)), available, 0.0).latest
    before = (0.0, *latest)
    return tuple(
        float(math.floor(min(wave.period, latest[number] - before[number]) + _HAIR))
        for number, wave in enumerate(order.waves)
    )


def _on_time(shutdown: ShutdownState, seen: ShutdownView) -> ShutdownState:
    """The server's clock may turn out to be another than we thought: periods run on, their Unix instants move."""
    epoch = seen.now - seen.elapsed
    if abs(epoch - shutdown.epoch) < _JUMP:
        return shutdown
    return msgspec.structs.replace(shutdown, epoch=epoch)


def _awaited(shutdown: ShutdownState, pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    """Whom the range whose time it is waits for: its own, and those of earlier ones that came after their range."""
    return tuple(
        pod
        for pod in pods
        if not shutdown.is_over
        and (wave := shutdown.order.wave_of(pod)) <= shutdown.current
        and shutdown.periods[wave] > 0
        and pod.uid not in shutdown.left_behind
    )


def _over(shutdown: ShutdownState, awaited: tuple[Pod, ...], elapsed: float) -> RangeEnded:
    is_whole = shutdown.ends - shutdown.since >= shutdown.periods[shutdown.current] - _HAIR
    ending = (RangeEnd.PERIOD if is_whole else RangeEnd.TIME) if awaited else RangeEnd.EMPTY
    wave = shutdown.order.waves[shutdown.current]
    return RangeEnded(shutdown.current, wave, elapsed, elapsed - shutdown.since, awaited, ending)


def _next(shutdown: ShutdownState, pods: tuple[Pod, ...], elapsed: float) -> ShutdownState:
    """The next range that has a pod, if there is one and time for it; those of the last one are left behind."""
    waves = {pod.uid: shutdown.order.wave_of(pod) for pod in pods}
    following = len(shutdown.order.waves)
    if shutdown.available - elapsed > _HAIR:
        following = min((wave for wave in waves.values() if wave > shutdown.current), default=following)
    behind = frozenset(uid for uid, wave in waves.items() if wave <= shutdown.current)
    return msgspec.structs.replace(
        shutdown, current=following, since=elapsed, left_behind=shutdown.left_behind | behind
    )


def _notice(shutdown: ShutdownState, pod: Pod, seen: ShutdownView) -> ShutdownDeletion | None:
    """What a pod whose turn has come is to be told; None if it has been told already."""
    if pod.deletion_timestamp is not None and pod.uid in shutdown.left_behind:
        return None
    wave = shutdown.order.wave_of(pod)
    # A range without a period is told, and over.
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
