"""Generated values: uids, names, timestamps, all from one seeded source, so that a run can be repeated."""

from __future__ import annotations

import random
import uuid

from kubesim.clock import Clock
from kubesim.values import format_time

SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
SUFFIX_LENGTH = 5


class Stamps:
    """Hands out uids, name suffixes and the present instant as text."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._second = -1
        self._text = ""

    def uid(self) -> str:
        """A fresh random uid."""
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    def suffix(self) -> str:
        """Five letters and digits for a generated name."""
        return "".join(self._rng.choices(SUFFIX_ALPHABET, k=SUFFIX_LENGTH))

    @property
    def seconds(self) -> float:
        """The present instant, seconds since the epoch."""
        return self._clock.now()

    @property
    def now(self) -> str:
        """The present instant as metav1.Time, to the second."""
        second = int(self._clock.now())
        if second != self._second:
            self._second, self._text = second, format_time(second)
        return self._text
