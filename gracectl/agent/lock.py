"""A lock of logind: a file descriptor, which holds for as long as it is open, whatever becomes of bus and logind."""

from __future__ import annotations

import os


class Lock:
    """Owns a descriptor and closes it exactly once: a number that is closed twice may be somebody else's by then."""

    def __init__(self, descriptor: int) -> None:
        # It came out of a socket without close-on-exec: a child would hold the lock on after us.
        os.set_inheritable(descriptor, False)
        self._descriptor: int | None = descriptor

    @property
    def is_held(self) -> bool:
        """Whether it is still open."""
        return self._descriptor is not None

    def close(self) -> None:
        """Let go. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
