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
        async for number in signals:
            if stop.is_set():
                logger.warning("%s again: ending at once", signal.Signals(number).name)
                os._exit(128 + number)
            logger.info("%s: coming to an orderly end; once more ends at once", signal.Signals(number).name)
            stop.set()
