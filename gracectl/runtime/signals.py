"""SIGTERM and SIGINT: the first asks for an orderly end, the second ends the process at once."""

from __future__ import annotations

import logging
import os
import signal

import anyio

logger = logging.getLogger(__name__)


async def set_on_signal(stop: anyio.Event) -> None:
    """Set `stop` at the first SIGTERM or SIGINT; at the second, exit at once with 128 + its number."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        is_asked = False
        async for number in signals:
            name = signal.Signals(number).name
            if is_asked:
                logger.warning("%s again: ending at once", name)
                # SystemExit would still wait for the writes that are shielded, which is what nobody wants any more.
                os._exit(128 + number)
            is_asked = True
            logger.info("%s: coming to an orderly end; once more ends at once", name)
            stop.set()
