"""Exponential backoff with an upper bound and jitter."""

from __future__ import annotations

import random


class Backoff:
    """Waits that grow from `initial` to `maximum` seconds by `multiplier`.

    `jitter`: the random share (0 to 1) of each wait, which lies between (1 - jitter) times and once its size. `rng` may
    be seeded, so that waits are reproducible. Raises ValueError for a jitter that would make waits negative.
    """

    def __init__(
        self,
        initial: float,
        maximum: float,
        *,
        multiplier: float = 2.0,
        jitter: float = 0.5,
        rng: random.Random | None = None,
    ) -> None:
        if not 0 <= jitter <= 1:
            raise ValueError(f"jitter must be a share between 0 and 1, not {jitter}")
        self._multiplier = multiplier
        self.configure(initial, maximum)
        self._jitter = jitter
        self._rng = rng or random.Random()
        self._attempts = 0

    def configure(self, initial: float, maximum: float) -> None:
        """Change the sizes from the next wait on; the number of failures so far still counts."""
        self._initial, self._maximum = initial, maximum

    def next(self) -> float:
        """Seconds to wait now."""
        try:
            size = min(self._initial * self._multiplier**self._attempts, self._maximum)
        except OverflowError:
            size = self._maximum
        self._attempts += 1
        return size * (1 - self._jitter * self._rng.random())

    def reset(self) -> None:
        """Start again with the initial wait, after a success."""
        self._attempts = 0
