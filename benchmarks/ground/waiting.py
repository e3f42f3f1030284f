"""Waiting that says what it waits for, and ends with the cause once nothing moves any more.

How long things take is the cluster's: a real control plane makes some twenty pods a second, an embedded one hundreds.
So no time is too long, as long as something moves.
"""

from __future__ import annotations

from collections.abc import Callable

import click

from gracectl.runtime.clock import Clock, SystemClock

STILL = 60.0
"""Seconds without a change after which nothing more is expected."""
SHOWN = 10.0
"""Seconds between two lines about the same."""
LOOK = 1.0
"""Seconds at most between two looks of those that wait."""


class Stalled(Exception):
    """Nothing moves any more; says what was waited for, what was reached, and why, as far as can be seen."""


class Waiting:
    """One wait: `what` for, `count` says what has been reached, for people. After `still` seconds without a change
    it has stalled."""

    def __init__(self, what: str, count: Callable[[], str], still: float = STILL, clock: Clock | None = None) -> None:
        self._what = what
        self._count = count
        self._still = still
        self._clock = clock or SystemClock()
        self._began = self._shown = self._moved = self._clock.monotonic()

    def moved(self) -> None:
        """Something has changed."""
        self._moved = self._clock.monotonic()

    @property
    def has_stalled(self) -> bool:
        """Whether nothing has changed for too long. Shows progress now and then."""
        now = self._clock.monotonic()
        if now - self._shown >= SHOWN:
            self._shown = now
            click.echo(f"  {self._what}: {self._count()} after {now - self._began:.0f} s", err=True)
        return now - self._moved >= self._still

    def stalled(self, cause: str) -> Stalled:
        """The failure, with its cause."""
        return Stalled(f"{self._what}: nothing has changed for {self._still:g} s: {self._count()}; {cause}")
