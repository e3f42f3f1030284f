"""Something may have changed: whoever waits for it is woken."""

from __future__ import annotations

import anyio


class News:
    """Wakes everybody who waits at that moment; who comes later waits for the next. Nobody waits, it costs nothing:
    queues tell of every key, and mostly to nobody."""

    __slots__ = ("_awaited",)

    def __init__(self) -> None:
        self._awaited: anyio.Event | None = None

    def tell(self) -> None:
        """There is some."""
        if self._awaited is not None:
            self._awaited.set()
            self._awaited = None

    async def wait(self) -> None:
        """Return when there is some, told after this was called."""
        if self._awaited is None:
            self._awaited = anyio.Event()
        await self._awaited.wait()
