"""Reports that clocks are in dispute: a termination that waits for them is never silent.

`kube.transport.skew` finds a dispute, and the clock passes it on to everything that acts on time. People read it in
Events on the leader's Lease and on each object whose termination has a deadline, repeated while the dispute lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gracectl.controllers.termination.events import CLOCKS_DISAGREE
from gracectl.kube.events import EventRecorder, Subject
from gracectl.kube.transport.skew import SkewStatistics, dispute_message
from gracectl.model.names import EventReason
from gracectl.runtime.clock import Clock

REPORT_SECONDS = 5.0
"""Interval at which the clock is looked at."""


class ClockReporter:
    """Records Events while `clock` is in dispute. `subjects` returns what they are about at this time."""

    def __init__(
        self,
        clock: Clock,
        recorder: EventRecorder,
        skew: Callable[[], SkewStatistics | None],
        subjects: Callable[[], Iterable[Subject]],
    ) -> None:
        self._clock = clock
        self._recorder = recorder
        self._skew = skew
        self._subjects = subjects

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self._clock.sleep(REPORT_SECONDS)
            if self._clock.is_disputed():
                for subject in self._subjects():
                    self._recorder.record(subject, EventReason.CLOCKS_DISAGREE, self._message(), "Warning")

    def _message(self) -> str:
        skew = self._skew()
        if skew is None or skew.disputed is None:
            return f"deadlines are paused: {CLOCKS_DISAGREE}"
        return dispute_message(skew)
