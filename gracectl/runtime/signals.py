"""SIGTERM and SIGINT: the first asks for an orderly end, the second ends the process at once.

Invariant: the second needs no event loop. An end that hangs (a write that is shielded, code that never awaits) is just
when somebody sends it.
"""

from __future__ import annotations

import logging
import os
import signal
from types import FrameType

import anyio

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def set_on_signal(stop: anyio.Event) -> None:
    """Set `stop` at the first SIGTERM or SIGINT; at the second, exit at once with 128 + its number.

    Runs until cancelled; then signals do again what they do by default. Main thread only.
    """
    is_asked = False

    def count(number: int, _frame: FrameType | None) -> None:
        nonlocal is_asked
        if is_asked:
            # SystemExit would still wait for what is shielded, and a log line for whoever holds the stream.
            os._exit(128 + number)
        is_asked = True

    with anyio.open_signal_receiver(*_SIGNALS) as signals:
        # The event loop learns of signals through a file descriptor, and the handlers that it installs do nothing. In
        # their place ours runs between any two steps of the interpreter, whatever the loop is busy with.
        for number in _SIGNALS:
            signal.signal(number, count)
        async for received in signals:
            logger.info("%s: coming to an orderly end; once more ends at once", received.name)
            stop.set()
