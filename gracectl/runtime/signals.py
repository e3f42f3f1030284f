"""SIGTERM and SIGINT: the first asks for an orderly end, the second ends the process at once."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

logger = logging.getLogger(__name__)


@asynccontextmanager
async def stop_on_signal() -> AsyncGenerator[anyio.Event]:
    """Inside, the event is set at the first SIGTERM or SIGINT, and the second ends the process; see set_on_signal.

    What the body raises comes out as it is, not in the ExceptionGroup of the task group that listens.
    """
    stop = anyio.Event()
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(set_on_signal, stop)
        try:
            yield stop
        except Exception as error:  # it is raised again below, outside the group
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure


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
