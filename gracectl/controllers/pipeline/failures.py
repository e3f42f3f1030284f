"""What has kept failing for so long that people are to hear of it: once for each cause, until it succeeds."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

LASTING_SECONDS: Final = 60.0
"""A failure that lasts less is a server that is started anew, and in the log."""


class Failures:
    """By key, since when each has failed, and what was told of it. Instants are monotonic."""

    def __init__(self) -> None:
        self._since: dict[Hashable, float] = {}
        self._told: dict[Hashable, set[Hashable]] = {}

    def failed(self, key: Hashable, cause: Hashable, now: float) -> bool:
        """It has failed, for this cause: whether that is to be told now."""
        self._since.setdefault(key, now)
        told = self._told.setdefault(key, set())
        if not self.lasts(key, now) or cause in told:
            return False
        told.add(cause)
        return True

    def lasts(self, key: Hashable, now: float) -> bool:
        """Whether it has failed for so long that people should know."""
        return now - self._since.get(key, now) >= LASTING_SECONDS

    def succeeded(self, key: Hashable) -> None:
        """It has not failed any more, or is not tried any more."""
        self._since.pop(key, None)
        self._told.pop(key, None)
