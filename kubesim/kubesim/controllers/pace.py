"""Pace of a cluster: its clock, and the factor by which every delay is shortened."""

from __future__ import annotations

import random

from kubesim.clock import Clock


class Pace:
    """Delays in simulated seconds on a clock in real (or virtual) ones. Time stamps are the clock's own.

    Chance is drawn from `seed` and the name of the thing it happens to, never from a shared sequence, so that the
    order of events cannot change what happens.
    """

    def __init__(self, clock: Clock, *, speed: float = 1.0, seed: int = 0) -> None:
        """`speed` 10 makes every delay ten times shorter. Raises ValueError if it is not positive."""
        if speed <= 0:
            raise ValueError(f"speed must be greater than 0, not {speed}")
        self.clock = clock
        self.speed = speed
        self.seed = seed

    def real(self, seconds: float) -> float:
        """What `seconds` of simulated time take on the clock."""
        return seconds / self.speed

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds` of simulated time."""
        await self.clock.sleep(seconds / self.speed)

    def chance(self, *names: object) -> random.Random:
        """A source of chance that belongs to these names alone."""
        return random.Random("/".join(map(str, (self.seed, *names))))
