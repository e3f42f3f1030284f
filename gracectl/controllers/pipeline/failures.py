"""Failures that last: reported once for each cause until they end."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

LASTING_SECONDS: Final = 60.0
"""Shorter failures, such as a restart of the server, are only logged."""


class Failures:
    """Failing keys: since when (monotonic), and which causes were reported."""

    def __init__(self) -> None:
        self._since: dict[Hashable, float] = {}
        self._reported: dict[Hashable, set[Hashable]] = {}

    def failed(self, key: Hashable, cause: Hashable, now: float) -> bool:
        """Record a failure; returns whether to report it now."""
        self._since.setdefault(key, now)
        reported = self._reported.setdefault(key, set())
        if not self.lasts(key, now) or cause in reported:
            return False
        reported.add(cause)
        return True

    def lasts(self, key: Hashable, now: float) -> bool:
        """Whether it has failed for LASTING_SECONDS."""
        return now - self._since.get(key, now) >= LASTING_SECONDS

    def succeeded(self, key: Hashable) -> None:
        """Forget the key: it has succeeded, or is no longer tried."""
        self._since.pop(key, None)
        self._reported.pop(key, None)
