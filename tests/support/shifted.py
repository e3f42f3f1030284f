"""A clock that is set back and forth."""

from __future__ import annotations

from collections.abc import Callable

from gracectl.runtime.clock import Clock, RelayedClock


class ShiftedClock(RelayedClock):
    """Another clock with a time of day that is off by `offset` seconds, which may change at any time."""

    def __init__(self, clock: Clock, offset: float = 0.0) -> None:
        super().__init__(clock)
        self._offset = offset
        self._is_disputed = False

    @property
    def offset(self) -> float:
        """Seconds that this clock is ahead of the other."""
        return self._offset

    @offset.setter
    def offset(self, offset: float) -> None:
        self._offset = offset
        self.jumped()

    def adjust(self, offset: float, is_disputed: bool) -> None:
        """Set the offset, and whether other clocks contradict this one."""
        self._is_disputed = is_disputed
        self.offset = offset

    def now(self) -> float:
        """See Clock."""
        return super().now() + self._offset

    def is_disputed(self) -> bool:
        """See Clock."""
        return self._is_disputed

    def subscribe(self, callback: Callable[[], None]) -> None:
        """See Clock. The other clock may jump as well."""
        super().subscribe(callback)
        self._clock.subscribe(callback)
