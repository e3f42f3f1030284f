"""Follows the settings file: what may change while a program runs counts within seconds, for the rest it must restart.

The file is read again and again rather than watched: a ConfigMap changes by the swap of a symbolic link, editors write
in place or rename, and a look costs a millisecond. Invariants: settings that cannot be used change nothing, and are
told once; what is seen counts only if it is still so a moment later, because a file that is being written may well read
as a valid one that says less; what needs a restart is told once for each change, with its fields.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from gracectl.config import ConfigError, Settings
from gracectl.config.changes import Change, Reach, adopted, differences, is_among
from gracectl.runtime.clock import Clock
from gracectl.telemetry.health import Check
from gracectl.telemetry.logs import set_level
from gracectl.telemetry.metrics import SETTINGS_REFUSED, SETTINGS_RESTART_NEEDED, Sample

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0
"""How often the settings are read."""

STILL_SECONDS: Final = 1.0
"""What is new must be the same after this long."""


class FollowingStatistics(msgspec.Struct, frozen=True):
    """`complaint`: why the settings that are there now cannot be used; "" if they can. `awaiting`: the fields that
    differ from those that run and count from the next start."""

    complaint: str = ""
    awaiting: tuple[str, ...] = ()


class SettingsFollower:
    """A part of a program. `read` gives the settings of now, or raises ConfigError; `running` are those with which it
    has begun. `take` gets the whole settings that run from now on, whenever they have changed."""

    def __init__(
        self,
        read: Callable[[], Settings],
        running: Settings,
        clock: Clock,
        reach: Reach,
        take: Callable[[Settings], None],
    ) -> None:
        self._read = read
        self._running = running
        self._clock = clock
        self._reach = reach
        self._take = take
        self._seen: Settings | str = running  # what was judged last: settings, or why they cannot be used
        self._awaiting: tuple[Change, ...] = ()

    async def run(self) -> None:
        """Follow until cancelled."""
        wait = LOOK_SECONDS
        while True:
            await self._clock.sleep(wait)
            wait, found = LOOK_SECONDS, self._look()
            if found != self._seen:
                await self._clock.sleep(STILL_SECONDS)
                wait -= STILL_SECONDS
                if self._look() == found:
                    self._judge(found)

    def statistics(self) -> FollowingStatistics:
        """What stands between the file and the program."""
        complaint = self._seen if isinstance(self._seen, str) else ""
        return FollowingStatistics(complaint, tuple(each.path for each in self._awaiting))

    def _look(self) -> Settings | str:
        try:
            return self._read()
        except ConfigError as error:
            return str(error)

    def _judge(self, found: Settings | str) -> None:
        before, self._seen = self._seen, found
        if isinstance(found, str):
            logger.error("%s; the settings from before still count", found)
            return
        if isinstance(before, str):
            logger.info("the settings can be used again")
        running = adopted(self._running, found, self._reach.live)
        changes, self._running = differences(self._running, running), running
        if changes:
            logger.info("the settings have changed, and count from now on: %s", _listed(changes))
            if any(each.path == "log.level" for each in changes):
                set_level(running.log.level)
            self._take(running)
        self._tell_of_the_rest(found)

    def _tell_of_the_rest(self, found: Settings) -> None:
        before, all_others = self._awaiting, differences(self._running, found)
        self._awaiting = tuple(each for each in all_others if not is_among(each.path, self._reach.idle))
        if self._awaiting and self._awaiting != before:
            logger.warning("settings that count from the next start have changed: %s", _listed(self._awaiting))
        elif before and not self._awaiting:
            logger.info("the settings are those with which this process runs: no restart is needed any more")


def _listed(changes: tuple[Change, ...]) -> str:
    return ", ".join(map(str, changes))


def following_samples(follower: SettingsFollower | None) -> Iterator[Sample]:
    """Whether the file and the program agree; they do where there is no file."""
    known = follower.statistics() if follower else FollowingStatistics()
    yield Sample(SETTINGS_REFUSED, (), int(bool(known.complaint)))
    yield Sample(SETTINGS_RESTART_NEEDED, (), int(bool(known.awaiting)))


def following_checks(follower: SettingsFollower | None) -> Iterator[Check]:
    """What people are to know who ask whether the program is ready; it is, all the same."""
    known = follower.statistics() if follower else FollowingStatistics()
    if known.complaint:
        yield Check("settings", True, f"those from before still count: {known.complaint}")
    if known.awaiting:
        yield Check("settings", True, f"a restart is needed for {', '.join(known.awaiting)}")
