"""How far the server's clock is from ours, learnt from the `Date` of its answers.

Deadlines are instants of the server. `Date` has whole seconds and several servers may answer, so one answer says
little: the median of a few says enough, and anything below `TOLERANCE` is taken for noise, not for a difference.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from functools import lru_cache
from statistics import median

TOLERANCE = 1.5
# An answer that took longer says too little about when its date was written.
_LONGEST_ROUND_TRIP = 2.0
_SAMPLES = 9
_ENOUGH = 3


class SkewEstimate:
    """Collects dates; `adjust(offset)` is called with server minus unadjusted local time, in seconds, when it has
    moved.

    `adjust` replaces the clock's former offset by the new one (`SystemClock.adjust`).
    """

    def __init__(self, adjust: Callable[[float], None]) -> None:
        self._adjust = adjust
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self._offset = 0.0

    @property
    def offset(self) -> float:
        """Seconds that the server is ahead of us, as last reported."""
        return self._offset

    def observe(self, date: str, received: float, round_trip: float) -> None:
        """Learn from one answer: its Date, the instant it arrived by the clock that `adjust` adjusts, seconds it
        took.
        """
        if round_trip > _LONGEST_ROUND_TRIP:
            return
        try:
            # A second is cut to its beginning, so half a second later is the best guess.
            server = _instant_of(date) + 0.5
        except ValueError:
            return
        local = received - round_trip / 2 - self._offset
        self._samples.append(server - local)
        if len(self._samples) < _ENOUGH:
            return
        offset = median(self._samples)
        if abs(offset) < TOLERANCE:
            offset = 0.0
        if abs(offset - self._offset) >= TOLERANCE:
            self._offset = offset
            self._adjust(offset)


@lru_cache(maxsize=16)
def _instant_of(date: str) -> float:
    """All answers of one second bear the same date, and reading one takes some µs. ValueError for what is none."""
    return parsedate_to_datetime(date).timestamp()
