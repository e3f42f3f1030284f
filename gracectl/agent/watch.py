"""What is said of the machine: that it shuts down, that it does not after all, and whether it would wait for us."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Watched(msgspec.Struct, frozen=True):
    """Whether a shutdown would wait for us. `delay`, `wanted`: seconds that it would, and should; `problem`: why one is
    less than the other, for people; `others`: who else ends pods in a shutdown ("" nobody)."""

    is_locked: bool = False
    delay: float | None = None
    wanted: float | None = None
    problem: str = ""
    others: str = ""


class ShutdownListener(Protocol):
    """Is told of the machine; must not block."""

    def shutting_down(self, delay: float) -> None:
        """It shuts down, and waits for us up to `delay` seconds from now. Said once per shutdown."""

    def cancelled(self) -> None:
        """It does not after all."""

    def watched(self, state: Watched) -> None:
        """Whether, and how long, it would wait for us has changed."""
