"""Store revisions by instant: what a server with a lagging cache shows."""

from __future__ import annotations

from collections import deque

from kubesim.clock import Clock


class Revisions:
    """Versions by instant. Each entry holds from the one before it up to its own instant."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: deque[tuple[float, int]] = deque()

    def note(self, revision: int, *, keep: float) -> None:
        """The version is still this one now. What is older than `keep` seconds may be forgotten."""
        now = self._clock.monotonic()
        self._entries.append((now, revision))
        while len(self._entries) > 1 and self._entries[1][0] < now - keep:
            self._entries.popleft()

    def before(self, seconds: float) -> int:
        """The version so many seconds ago, or the oldest known. Something must have been noted."""
        instant = self._clock.monotonic() - seconds
        return next((revision for at, revision in self._entries if at >= instant), self._entries[-1][1])
