"""Whether the process is alive and ready, as a kubelet asks: checks, and the text that says what came of them.

A failed check of life gets the process killed, so none of them rests on what a new process would find just the same:
an API server that does not answer is no reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gracectl.runtime.pulse import PulseStatistics
from gracectl.runtime.queue import QueueStatistics
from gracectl.runtime.supervise import RollStatistics
from gracectl.runtime.wheel import WheelStatistics

LONGEST_BEAT_SECONDS: Final = 10.0
"""The pulse beats twice a second; after so long without one nobody feels it any more."""

LONGEST_TURN_SECONDS: Final = 60.0
"""Timers may be late by what the loop is; not by that much."""


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at, and what was seen; `is_ok` says whether it is as it should be."""

    name: str
    is_ok: bool
    seen: str


def report(checks: Iterable[Check]) -> tuple[bool, str]:
    """Whether all is as it should be, and a line for each check."""
    found = tuple(checks)
    lines = (f"{'ok' if check.is_ok else 'FAILED'} {check.name}: {check.seen}\n" for check in found)
    return all(check.is_ok for check in found), "".join(lines)


def check_of_pulse(pulse: PulseStatistics, now: float) -> Check:
    """`now`: monotonic, as the instant of the last beat."""
    if pulse.last is None:
        return Check("loop", True, "its pulse has not been felt yet")
    ago = max(now - pulse.last, 0.0)
    return Check("loop", ago <= LONGEST_BEAT_SECONDS, f"its last beat was {ago:.1f} s ago")


def check_of_parts(roll: RollStatistics) -> Check:
    """Which parts live."""
    if roll.dead:
        return Check("parts", False, f"{', '.join(roll.dead)} died, of {len(roll.dead) + len(roll.alive)}")
    return Check("parts", True, f"{len(roll.alive)} live")


def check_of_queues(queues: Mapping[str, QueueStatistics], patience: float) -> Check:
    """Whether workers take keys and finish them; `patience`: the seconds that an honest look at one may take."""
    wrong = []
    for name, queue in queues.items():
        if queue.stalled > patience:
            wrong.append(f"{queue.ready} keys of {name} wait, and no worker has moved for {queue.stalled:.0f} s")
        elif queue.longest_work > patience:
            wrong.append(f"a worker of {name} has had the same key for {queue.longest_work:.0f} s")
    if wrong:
        return Check("queues", False, "; ".join(wrong))
    working = sum(queue.processing for queue in queues.values())
    waiting = sum(queue.ready for queue in queues.values())
    return Check("queues", True, f"{waiting} keys wait, {working} are being worked on")


def check_of_timers(wheel: WheelStatistics, now: float) -> Check:
    """Whether somebody turns the wheel; `now`: monotonic."""
    behind = 0.0 if wheel.next_turn is None else max(now - wheel.next_turn, 0.0)
    if behind > LONGEST_TURN_SECONDS:
        return Check("timers", False, f"nobody has turned the wheel for {behind:.0f} s")
    return Check("timers", True, f"{wheel.pending} are armed")
