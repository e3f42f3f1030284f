"""The lock that we have, and who has been told what: pure state, which the watch feeds with what logind says.

Invariants: a new lock is there before the old one is let go; the listener hears `shutting_down` once per shutdown, and
`cancelled` once after it, never without it; a lock that was let go at the end of a sequence is not taken again before
the shutdown is cancelled or somebody wants one.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from gracectl.agent.lock import Lock
from gracectl.runtime.clock import Clock


class Purpose(msgspec.Struct, frozen=True):
    """What a lock is for: so many seconds, and why, in words that whoever lists locks can read."""

    seconds: float
    why: str


class Told(Protocol):
    """Who is told of shutdowns."""

    def shutting_down(self, delay: float) -> None:
        """The machine waits for us for so many seconds more, from now; math.inf: for as long as we like."""

    def cancelled(self) -> None:
        """It does not go down after all."""


class Hold:
    """Our lock, and the shutdown that is under way, if any."""

    def __init__(self, clock: Clock, told: Told) -> None:
        self._clock = clock
        self._listener = told
        self._lock: Lock | None = None
        self._purpose: Purpose | None = None
        self._is_stale = False
        self._is_released = False
        self._is_preparing = False
        self._began = 0.0
        self._deaf_since: float | None = None
        self._has_told = False
        self._owes_cancelled = False
        self.delay: float | None = None
        """Seconds that logind grants, as far as we know; math.inf: for ever."""

    @property
    def is_locked(self) -> bool:
        """Whether the machine waits for us when it goes down."""
        return self._lock is not None

    @property
    def is_preparing(self) -> bool:
        """Whether the machine is going down, as far as we have heard."""
        return self._is_preparing

    def needs(self, purpose: Purpose) -> bool:
        """Whether a lock is to be taken for that purpose now."""
        if self._is_released:
            return False
        if self._lock is None:
            return True
        # logind gives none while the machine goes down; the one that we have is the one that counts.
        return not self._is_preparing and (self._is_stale or purpose != self._purpose)

    def take(self, lock: Lock, purpose: Purpose) -> None:
        """Hold this lock, and let go the one before it."""
        if self._is_released:
            lock.close()
            return
        before, self._lock = self._lock, lock
        self._purpose = purpose
        self._is_stale = False
        if before is not None:
            before.close()
        self._consider()

    def release(self) -> None:
        """Let the lock go, and take none before there is a reason to. Idempotent.

        Who has not heard yet that the shutdown is called off means that one: the lock is for the next one already.
        """
        if self._owes_cancelled:
            return
        self._is_released = True
        self.close()

    def want(self) -> None:
        """There is a reason to have one again."""
        self._is_released = False

    def close(self) -> None:
        """Let the lock go. Idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def become_stale(self) -> None:
        """The lock outlives the logind that gave it; one of the new logind is to take its place."""
        self._is_stale = True

    def become_deaf(self) -> None:
        """Nothing is heard from here on: a shutdown that we learn of later may have begun now."""
        self.become_stale()
        if self._deaf_since is None:
            self._deaf_since = self._clock.monotonic()

    def prepare(self, is_preparing: bool) -> None:
        """Logind says whether the machine is going down, by a signal or because it was asked."""
        if is_preparing and not self._is_preparing:
            self.settle_up()
            self._began = self._clock.monotonic() if self._deaf_since is None else self._deaf_since
        self._is_preparing = is_preparing
        self._deaf_since = None
        if self._has_told and not is_preparing:
            self._owes_cancelled = True
            self._is_released = False
            self._is_stale = True
        self._consider()

    def settle_up(self) -> None:
        """Tell of a cancelled shutdown, if that is due; a new lock is there by now, or cannot be had."""
        if self._owes_cancelled:
            self._owes_cancelled = self._has_told = False
            self._listener.cancelled()

    def _consider(self) -> None:
        if self._is_preparing and self._lock is not None and not self._has_told:
            self._has_told = True
            delay = self.delay or 0.0
            self._listener.shutting_down(max(delay - (self._clock.monotonic() - self._began), 0.0))
