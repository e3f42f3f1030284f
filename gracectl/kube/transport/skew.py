"""Offset of the server's clock from ours, learnt from the `Date` of its responses.

Deadlines are instants of the server. `Date` has whole seconds and several servers may answer, so one answer says
little: the median of a few says enough, and anything below `TOLERANCE` is taken for noise, not for a difference.

A header is easily written wrong, by a server or by whatever stands before it, and pods are deleted by what is learnt
here. So two things bound it. What is further away than `largest` is never believed. And what is believed changes only
when the new one has been shown for `CONFIRMED_SECONDS` without a break: the monotonic clock says how much time has
passed between two dates, and a server whose clock runs does not contradict it for a moment only. The machine itself may
know better: what it has slept while its monotonic clock stood still needs no confirmation, and no bound.

When a few of the last dates are further away than `largest`, one of the clocks is wrong, and nothing here can say
which. Then the clocks are in dispute: the earliest of them counts, so that nothing is taken away too early, and the
clock shows it (`Clock.is_disputed`). A dispute ends when all answers of `CONFIRMED_SECONDS` have agreed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import lru_cache
from statistics import median
from typing import Final

import msgspec

logger = logging.getLogger(__name__)

TOLERANCE: Final = 1.5

CONFIRMED_SECONDS: Final = 30.0
"""Time for which all responses must show a new difference before it is accepted."""

LARGEST_OFFSET: Final = 300.0
"""Seconds. Kubernetes itself (tokens, certificates, leases) suffers from clocks that are further apart."""

# An answer that took longer says too little about when its date was written.
_LONGEST_ROUND_TRIP = 2.0
_SAMPLES = 9
_ENOUGH = 3


class SkewStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot. Seconds that the server is ahead of us: `offset`, as believed; `disputed`, as an answer says that is
    further away than `largest`, None unless the clocks are in dispute. `refusals`: how many answers were."""

    offset: float
    largest: float
    refusals: int
    disputed: float | None = None


class SkewEstimate:
    """Collects dates; `adjust(offset, is_disputed)` is called with server minus unadjusted local time, in seconds, when
    it has moved, and when a dispute begins or ends.

    `adjust` replaces the clock's former offset by the new one (`SystemClock.adjust`). `largest`: seconds, see above.
    """

    def __init__(self, adjust: Callable[[float, bool], None], largest: float = LARGEST_OFFSET) -> None:
        self._adjust = adjust
        self._largest = largest
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self._offset = 0.0
        self._is_believed = False  # else the offset is what we began with
        self._awake = 0.0  # the offset without suspensions of the machine
        self._doubted: tuple[float, float] | None = None  # another offset, and since when (unadjusted local time)
        self._refusals = 0
        self._applied = 0.0  # what `adjust` was called with last
        self._recent: deque[float | None] = deque(maxlen=_SAMPLES)  # refused differences; None: an accepted response
        self._disputed: float | None = None
        self._agreed_since: float | None = None  # unadjusted local time

    def statistics(self) -> SkewStatistics:
        """Offsets that are believed, and refused."""
        return SkewStatistics(
            offset=self._offset,
            largest=self._largest,
            refusals=self._refusals,
            disputed=self._disputed,
        )

    def observe(self, date: str, received: float, round_trip: float, missed: float = 0.0) -> None:
        """Learn from one answer: its Date, the instant it arrived by the clock that `adjust` adjusts, seconds it
        took. `missed`: seconds for which this clock has stood still so far, as the machine knows.
        """
        if round_trip > _LONGEST_ROUND_TRIP:
            return
        try:
            # A second is cut to its beginning, so half a second later is the best guess.
            server = max(_instant_of(date), 0.0) + 0.5
        except (ValueError, OverflowError):  # no date, or numbers that no date has
            return
        local = received - round_trip / 2 - self._applied
        sample = server - local
        is_possible = min(abs(sample), abs(sample - missed)) <= self._largest
        self._refusals += not is_possible
        self._recent.append(None if is_possible else sample)
        self._judge(local)
        if not is_possible:
            return
        self._samples.append(sample)
        if len(self._samples) < _ENOUGH:
            return
        offset = median(self._samples)
        if abs(offset) < TOLERANCE:
            offset = 0.0
        if self._is_confirmed(offset, local, missed):
            is_news = abs(offset - self._offset) >= TOLERANCE
            if is_news or not self._is_believed:
                self._awake = offset - missed
            self._is_believed, self._doubted = True, None
            if is_news:
                self._offset = offset
                self._apply(is_news=True)

    def _judge(self, local: float) -> None:
        """Begin or end a dispute at `local`; the first responses of a process count like later ones."""
        refused = [each for each in self._recent if each is not None]
        if refused:
            self._agreed_since = None
        elif self._agreed_since is None:
            self._agreed_since = local
        before = self._disputed
        if len(refused) >= _ENOUGH:
            self._disputed = refused[-1]
        elif self._agreed_since is not None and local - self._agreed_since >= CONFIRMED_SECONDS:
            self._disputed = None
        if self._disputed is None and before is not None:
            logger.info("the clocks: they agree again: deadlines count again")
        elif self._disputed is not None and before is None:
            logger.error("the clocks: %s", dispute_message(self.statistics()))
        self._apply(is_news=(before is None) is not (self._disputed is None))

    def _apply(self, *, is_news: bool) -> None:
        """Adjust the clock: to the earliest time of all during a dispute. Small moves are noise."""
        offset = self._offset
        if self._disputed is not None:
            offset = min(offset, *(each for each in self._recent if each is not None), self._disputed)
        if is_news or abs(offset - self._applied) >= TOLERANCE:
            self._applied = offset
            self._adjust(offset, self._disputed is not None)

    def _is_confirmed(self, offset: float, local: float, missed: float) -> bool:
        """Whether `offset` may be believed at `local`: it is what was believed, or the first, or as the machine
        itself says, or has been shown for long."""
        if not self._is_believed or abs(offset - self._offset) < TOLERANCE:
            return True
        if abs(offset - self._awake - missed) < 2 * TOLERANCE:
            return True
        if self._doubted is None or abs(offset - self._doubted[0]) >= 2 * TOLERANCE:
            self._doubted = offset, local
        return local - self._doubted[1] >= CONFIRMED_SECONDS


def dispute_message(skew: SkewStatistics) -> str:
    """State, consequence and remedy while clocks are in dispute, for messages without a subject."""
    ahead = skew.disputed or 0.0
    direction = "ahead of" if ahead >= 0 else "behind"
    return (
        f"the API server's Date is {abs(ahead):.0f} s {direction} this machine's clock, more than "
        f"client.maximumClockOffsetSeconds ({skew.largest:g}): deadlines are paused, and the earlier time counts; "
        "set right the wrong clock; if it is this machine's, restart gracectl then"
    )


@lru_cache(maxsize=16)
def _instant_of(date: str) -> float:
    """All answers of one second bear the same date, and reading one takes some µs. ValueError or OverflowError for
    what is none."""
    read = parsedate_to_datetime(date)
    return read.replace(tzinfo=read.tzinfo or UTC).timestamp()
