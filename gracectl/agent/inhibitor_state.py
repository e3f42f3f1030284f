"""State of the inhibitor lock: pure, fed by the watch with what logind says.

Invariants: a new lock is taken before the old one is released; the listener gets `shutting_down` once per shutdown, and
`cancelled` once after it, never without it; a lock released at the end of a sequence is not taken again before the
shutdown is cancelled or a new request comes.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from gracectl.agent.logind import InhibitorLock
from gracectl.runtime.clock import Clock


class InhibitorRequest(msgspec.Struct, frozen=True):
    """Request for a lock: seconds of delay, and the reason that `systemd-inhibit --list` shows."""

    seconds: float
    reason: str


class InhibitorListener(Protocol):
    """Listener for shutdowns."""

    def shutting_down(self, delay: float) -> None:
        """The machine waits this many seconds from now; math.inf: until the lock is released."""

    def cancelled(self) -> None:
        """The shutdown was cancelled."""


class InhibitorState:
    """The lock held, and the shutdown under way, if any."""

    def __init__(self, clock: Clock, listener: InhibitorListener) -> None:
        self._clock = clock
        self._listener = listener
        self._lock: InhibitorLock | None = None
        self._request: InhibitorRequest | None = None
        self._is_stale = False
        self._is_released = False
        self._is_preparing = False
        self._began = 0.0
        self._disconnected_since: float | None = None
        self._has_notified = False
        self._is_cancel_pending = False
        self.delay: float | None = None
        """Seconds that logind grants, as far as known; math.inf: unlimited."""

    @property
    def is_locked(self) -> bool:
        """Whether a shutdown waits for a lock held here."""
        return self._lock is not None

    @property
    def is_preparing(self) -> bool:
        """Whether the machine is shutting down, as far as known."""
        return self._is_preparing

    def needs_lock(self, request: InhibitorRequest) -> bool:
        """Whether a lock is to be taken for that request now."""
        if self._is_released:
            return False
        if self._lock is None:
            return True
        # logind gives none during a shutdown; the one that is held counts.
        return not self._is_preparing and (self._is_stale or request != self._request)

    def take(self, lock: InhibitorLock, request: InhibitorRequest) -> None:
        """Hold this lock, and release the one before it."""
        if self._is_released:
            lock.close()
            return
        before, self._lock = self._lock, lock
        self._request = request
        self._is_stale = False
        if before is not None:
            before.close()
        self._notify_shutdown()

    def release(self) -> None:
        """Release the lock, and take none until the next request. Idempotent.

        Ignored while a cancellation is still to be notified: the lock is for the next shutdown already.
        """
        if self._is_cancel_pending:
            return
        self._is_released = True
        self.close()

    def request(self) -> None:
        """Allow a lock to be taken again."""
        self._is_released = False

    def close(self) -> None:
        """Release the lock. Idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def mark_stale(self) -> None:
        """The lock outlives the logind that gave it; one of the new logind is to replace it."""
        self._is_stale = True

    def disconnected(self) -> None:
        """Signals may be missed from here on: a shutdown that is found later may have begun now."""
        self.mark_stale()
        if self._disconnected_since is None:
            self._disconnected_since = self._clock.monotonic()

    def prepare(self, is_preparing: bool) -> None:
        """Update whether the machine is shutting down, from a signal or a property."""
        if is_preparing and not self._is_preparing:
            self.notify_cancelled()
            self._began = self._clock.monotonic() if self._disconnected_since is None else self._disconnected_since
        self._is_preparing = is_preparing
        self._disconnected_since = None
        if self._has_notified and not is_preparing:
            self._is_cancel_pending = True
            self._is_released = False
            self._is_stale = True
        self._notify_shutdown()

    def notify_cancelled(self) -> None:
        """Notify of a cancelled shutdown, if that is pending; a new lock is held by now, or cannot be had."""
        if self._is_cancel_pending:
            self._is_cancel_pending = self._has_notified = False
            self._listener.cancelled()

    def _notify_shutdown(self) -> None:
        if self._is_preparing and self._lock is not None and not self._has_notified:
            self._has_notified = True
            delay = self.delay or 0.0
            self._listener.shutting_down(max(delay - (self._clock.monotonic() - self._began), 0.0))
