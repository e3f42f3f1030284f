"""Runs the parts of a process as one: they live together, and none outlives another.

A part that fails, or ends though nobody asked it to, takes the others down: a controller without its watch or its
events would limp on and look healthy. The process ends with the part's name and reason, and is started anew.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

import anyio

logger = logging.getLogger(__name__)

Part = Callable[[], Awaitable[None]]


class PartDied(Exception):
    """A part has failed (`__cause__` says how) or has ended too early."""

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(f"{part} has died: {reason}")
        self.part = part


async def run_parts(parts: Mapping[str, Part], stop: anyio.Event) -> None:
    """Run all parts until `stop` is set; then cancel them and return when they have ended.

    What a part must finish (a write that is under way) it shields from the cancellation itself. Raises PartDied.
    """
    deaths: list[PartDied] = []
    async with anyio.create_task_group() as group:

        async def live(name: str, part: Part) -> None:
            try:
                await part()
            except Exception as error:  # any failure of a part is its death; it is raised again below, with its cause
                deaths.append(_died(name, error))
            else:
                deaths.append(PartDied(name, "it ended though nobody asked it to"))
            group.cancel_scope.cancel()

        for name, part in parts.items():
            group.start_soon(live, name, part, name=name)
        await stop.wait()
        logger.info("stopping: what is under way is finished first")
        group.cancel_scope.cancel()
    if deaths:
        raise deaths[0]


def _died(part: str, error: Exception) -> PartDied:
    cause = _first(error)
    death = PartDied(part, f"{type(cause).__name__}: {cause}")
    death.__cause__ = cause
    return death


def _first(error: Exception) -> Exception:
    """The failure inside the groups that task groups wrap it in."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
