"""A clock that stands still until it is moved."""

from __future__ import annotations

from collections.abc import Callable

import anyio.lowlevel


class StillClock:
    """A gracectl Clock at `at` seconds, which can be set; waiting is one turn of the event loop."""

    def __init__(self, at: float = 1_000_000.0) -> None:
        self.at = at

    def now(self) -> float:
        """See Clock."""
        return self.at

    def monotonic(self) -> float:
        """See Clock."""
        return self.at

    def elapsed(self) -> float:
        """See Clock."""
        return self.at

    def is_disputed(self) -> bool:
        """See Clock."""
        return False

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        await anyio.lowlevel.checkpoint()

    def subscribe(self, callback: Callable[[], None]) -> None:
        """It never jumps."""
