"""How long to wait before the next try: exponential, bounded, with jitter."""

from __future__ import annotations

import random

import tenacity


class Backoff:
    """Waits that grow from `initial` to `maximum` seconds by `multiplier`.

    `jitter`: the share (0 to 1) of each wait that is left to chance; a wait lies between (1 - jitter) times and once
    its size. tenacity computes the sizes; the chance is our own, because tenacity's comes from the module `random` and
    cannot be seeded. Raises ValueError for a share that would make waits negative.
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
        """From the next wait on these sizes, for as many failures as there have been."""
        self._sizes = tenacity.wait_exponential(multiplier=initial, max=maximum, exp_base=self._multiplier)

    def next(self) -> float:
        """The seconds to wait now."""
        self._attempts += 1
        size = self._sizes(_attempt(self._attempts))
        return size * (1 - self._jitter * self._rng.random())

    def reset(self) -> None:
        """It worked: the next wait is the initial one again."""
        self._attempts = 0


def _attempt(number: int) -> tenacity.RetryCallState:
    state = tenacity.RetryCallState(_NOBODY, None, (), {})
    state.attempt_number = number
    return state


_NOBODY = tenacity.Retrying()
