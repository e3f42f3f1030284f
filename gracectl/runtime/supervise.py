"""Runs the parts of a process as one: they live together, and none outlives another.

A part that fails, or ends though nobody asked it to, takes the others down: a controller without its watch or its
events would limp on and look healthy. The process ends with the part's name and reason, and is started anew.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

import anyio
import msgspec

from gracectl.runtime.groups import leaves

logger = logging.getLogger(__name__)

Component = Callable[[], Awaitable[None]]

# Below the 30 s that Kubernetes grants a pod by default, so that we are done before it kills us.
GRACE_SECONDS = 20.0


class ComponentFailed(Exception):
    """A part has failed (`__cause__` says how) or has ended too early."""

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(f"{part} has died: {reason}")
        self.part = part


class RollStatistics(msgspec.Struct, frozen=True):
    """Parts by name: those that run, and those that have died; who was told to end is neither."""

    alive: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()


class ComponentStatus:
    """Which parts of a process live; several companies of parts may share one."""

    def __init__(self) -> None:
        self._alive: dict[str, bool] = {}

    def enter(self, part: str) -> None:
        """It lives."""
        self._alive[part] = True

    def leave(self, part: str, *, is_dead: bool) -> None:
        """It has died, or has ended as it was told to."""
        if is_dead:
            self._alive[part] = False
        else:
            self._alive.pop(part, None)

    def statistics(self) -> RollStatistics:
        """Who lives."""
        alive = tuple(part for part, is_alive in self._alive.items() if is_alive)
        return RollStatistics(alive, tuple(part for part in self._alive if part not in alive))


class _Life:
    def __init__(self, name: str, part: Component, roll: ComponentStatus) -> None:
        self.name = name
        self.part = part
        self.roll = roll
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()


async def run_components(
    parts: Mapping[str, Component],
    stop: anyio.Event,
    grace_seconds: float = GRACE_SECONDS,
    roll: ComponentStatus | None = None,
) -> None:
    """Run all parts until `stop` is set; then end them, the last one first, and return when all have ended.

    A part is asked to end by cancellation, and the one before it when it has ended, so that what a part needs outlives
    it (Events are still written while the controllers end). After `grace_seconds` all that are left are asked at once.
    What a part must finish (a write that is under way) it shields from the cancellation itself, for a time that it
    limits. Raises ComponentFailed for the first death; what dies after it, or while somebody else cancels us, is
    logged. `roll` is told who lives.
    """
    roll = roll or ComponentStatus()
    deaths: list[ComponentFailed] = []
    try:
        await _run_lives([_Life(name, part, roll) for name, part in parts.items()], stop, grace_seconds, deaths)
    except anyio.get_cancelled_exc_class():
        # Whoever cancels from outside gets the cancellation, as always; the log gets what went wrong meanwhile.
        _log(deaths)
        raise
    _log(deaths[1:])
    if deaths:
        raise deaths[0]


async def _run_lives(
    lives: list[_Life], stop: anyio.Event, grace_seconds: float, deaths: list[ComponentFailed]
) -> None:
    async with anyio.create_task_group() as group:

        async def live(life: _Life) -> None:
            its_own: list[ComponentFailed] = []
            life.roll.enter(life.name)
            try:
                with life.scope:
                    await life.part()
            except Exception as error:  # any failure of a part is its death; it is raised again below, with its cause
                its_own.extend(_died(life.name, leaf) for leaf in leaves(error))
            else:
                if not stop.is_set() and not _is_cancelled():
                    its_own.append(ComponentFailed(life.name, "it ended though nobody asked it to"))
            finally:
                life.roll.leave(life.name, is_dead=bool(its_own))
                deaths.extend(its_own)
            life.ended.set()
            if not stop.is_set():
                group.cancel_scope.cancel()

        for life in lives:
            group.start_soon(live, life, name=life.name)
        await stop.wait()
        logger.info("stopping: what is under way is finished first")
        await _end_in_reverse(lives, grace_seconds)
        group.cancel_scope.cancel()


def _is_cancelled() -> bool:
    """Whether a scope around the current task has been cancelled, by a death or from outside."""
    return anyio.current_effective_deadline() == float("-inf")


async def _end_in_reverse(lives: list[_Life], grace_seconds: float) -> None:
    with anyio.move_on_after(grace_seconds):
        for life in reversed(lives):
            life.scope.cancel()
            await life.ended.wait()
    left = [life.name for life in lives if not life.ended.is_set()]
    if left:
        logger.warning("not stopped after %g s: %s; what they shield is still finished", grace_seconds, ", ".join(left))


def _log(deaths: list[ComponentFailed]) -> None:
    for death in deaths:
        logger.error("%s", death, exc_info=death.__cause__)


def _died(part: str, cause: Exception) -> ComponentFailed:
    if isinstance(cause, ComponentFailed):
        return cause  # of a part that is made of parts
    death = ComponentFailed(part, f"{type(cause).__name__}: {cause}")
    death.__cause__ = cause
    return death
