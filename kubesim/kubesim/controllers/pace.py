"""Pace of a cluster: its clock, and the factor by which every delay is shortened."""

from __future__ import annotations

import random

from kubesim.clock import Clock


class Pace:
    """Simulated seconds on a real or virtual clock. Chance depends on `seed` and the names of its object, never on a
    shared sequence, so the order of events does not change it."""

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
