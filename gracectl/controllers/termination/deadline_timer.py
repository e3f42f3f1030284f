"""Timers of the deadlines of nodes: they fire while a reconcile waits, or no worker is free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from gracectl.runtime.clock import Clock
from gracectl.runtime.timer_wheel import TimerWheel

UNPLANNED_SECONDS = 5.0
"""Pods that the deadline demands are deleted after the cordon, but wait no longer than this for it, or for a worker."""

_Key = tuple[Literal["deadline", "deletions"], str]


class DeadlineTimer:
    """Deadline timers of nodes; they fire even while the reconcile of the node waits.

    A node has two: one for the deadline itself, which calls `passed`; one that calls `due` UNPLANNED_SECONDS after an
    event, if the drain has not planned the deletions by then. Invariant: events and deadlines arm them, never their own
    firing while nothing happens.

    `due` gets a name and the monotonic instant of the last event of its node. It returns False to be called again after
    UNPLANNED_SECONDS.
    """

    def __init__(self, clock: Clock, passed: Callable[[str], None], due: Callable[[str, float], bool]) -> None:
        self._clock = clock
        self._passed_callback, self._due = passed, due
        self._wheel: TimerWheel[_Key] = TimerWheel(clock, self._fired)
        self._deadlines: dict[str, float] = {}  # Unix seconds
        self._changed: dict[str, float] = {}  # monotonic: the last event that no firing has followed
        self._passed: set[str] = set()

    async def run(self) -> None:
        """Fire until cancelled."""
        await self._wheel.run()

    def has_passed(self, name: str) -> bool:
        """Whether the deadline of the node has passed."""
        return name in self._passed

    def set_deadline(self, name: str, at: float | None) -> None:
        """The deadline of the node, as far as it is known (Unix seconds); an earlier one that is known stays."""
        if at is None or at >= self._deadlines.get(name, float("inf")):
            return
        self._deadlines[name] = at
        self._arm_deadline(name)

    def changed(self, name: str) -> None:
        """Note an event that a plan of this node's drain depends on."""
        now = self._clock.monotonic()
        if name not in self._changed:  # else it is armed
            self._wheel.arm(("deletions", name), now + UNPLANNED_SECONDS)
        self._changed[name] = now

    def forget(self, name: str) -> None:
        """The node is gone, or no longer terminated here."""
        self._wheel.cancel(("deadline", name))
        self._wheel.cancel(("deletions", name))
        self._deadlines.pop(name, None)
        self._changed.pop(name, None)
        self._passed.discard(name)

    def clock_jumped(self) -> None:
        """The clock of the server has turned out to be another."""
        for name in self._deadlines:
            self._passed.discard(name)
            self._arm_deadline(name)

    def _arm_deadline(self, name: str) -> None:
        self._wheel.arm(("deadline", name), self._clock.monotonic() + self._deadlines[name] - self._clock.now())

    def _fired(self, key: _Key) -> None:
        kind, name = key
        if kind == "deadline":
            self._passed.add(name)
            self._passed_callback(name)
        elif (since := self._changed.pop(name, None)) is not None and not self._due(name, since):
            self._changed[name] = since
            self._wheel.arm(key, self._clock.monotonic() + UNPLANNED_SECONDS)
