"""Reloading of the settings file: fields that may change at run time apply within seconds, others need a restart.

The file is polled rather than watched: a ConfigMap changes by the swap of a symbolic link, editors write in place or
rename, and a read costs a millisecond. Invariants: invalid settings change nothing, and are logged once; a change
applies only if it is still there a moment later, because a file that is being written may be valid but incomplete; a
change that needs a restart is logged once, with its fields.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from gracectl.config import ConfigError, Settings
from gracectl.config.changes import Change, ReloadScope, differences, is_within, with_changes
from gracectl.runtime.clock import Clock
from gracectl.telemetry.health import Check
from gracectl.telemetry.logs import set_level
from gracectl.telemetry.metrics import SETTINGS_REFUSED, SETTINGS_RESTART_NEEDED, Sample

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 5.0
"""Interval of reads."""

SETTLE_SECONDS: Final = 1.0
"""A change must be unchanged for this long."""


class ReloadStatistics(msgspec.Struct, frozen=True):
    """`error`: why the present settings are invalid; "" if they are valid. `pending`: fields whose changes need a
    restart."""

    error: str = ""
    pending: tuple[str, ...] = ()


class SettingsReloader:
    """Component that reloads settings. `read` returns the present settings, or raises ConfigError; `running` are the
    initial ones. `apply` gets the complete settings after each change."""

    def __init__(
        self,
        read: Callable[[], Settings],
        running: Settings,
        clock: Clock,
        scope: ReloadScope,
        apply: Callable[[Settings], None],
    ) -> None:
        self._read = read
        self._running = running
        self._clock = clock
        self._scope = scope
        self._apply = apply
        self._handled: Settings | str = running  # settings handled last, or their error
        self._pending: tuple[Change, ...] = ()

    async def run(self) -> None:
        """Poll until cancelled."""
        wait = POLL_SECONDS
        while True:
            await self._clock.sleep(wait)
            wait, found = POLL_SECONDS, self._try_read()
            if found != self._handled:
                await self._clock.sleep(SETTLE_SECONDS)
                wait -= SETTLE_SECONDS
                if self._try_read() == found:
                    self._handle(found)

    def statistics(self) -> ReloadStatistics:
        """Error and pending changes."""
        error = self._handled if isinstance(self._handled, str) else ""
        return ReloadStatistics(error, tuple(each.path for each in self._pending))

    def _try_read(self) -> Settings | str:
        try:
            return self._read()
        except ConfigError as error:
            return str(error)

    def _handle(self, found: Settings | str) -> None:
        before, self._handled = self._handled, found
        if isinstance(found, str):
            logger.error("invalid settings file: keeping previous settings: %s", found)
            return
        if isinstance(before, str):
            logger.info("settings file: valid again")
        running = with_changes(self._running, found, self._scope.live)
        changes, self._running = differences(self._running, running), running
        if changes:
            logger.info("settings changed: %s", _listed(changes))
            if any(each.path == "log.level" for each in changes):
                set_level(running.log.level)
            self._apply(running)
        self._log_pending(found)

    def _log_pending(self, found: Settings) -> None:
        before, all_others = self._pending, differences(self._running, found)
        self._pending = tuple(each for each in all_others if not is_within(each.path, self._scope.ignored))
        if self._pending and self._pending != before:
            logger.warning("settings changed, restart needed: %s", _listed(self._pending))
        elif before and not self._pending:
            logger.info("settings: as running again, no restart needed")


def _listed(changes: tuple[Change, ...]) -> str:
    return ", ".join(map(str, changes))


def reload_samples(reloader: SettingsReloader | None) -> Iterator[Sample]:
    """Samples of the reloader; all 0 without a file."""
    statistics = reloader.statistics() if reloader else ReloadStatistics()
    yield Sample(SETTINGS_REFUSED, (), int(bool(statistics.error)))
    yield Sample(SETTINGS_RESTART_NEEDED, (), int(bool(statistics.pending)))


def reload_checks(reloader: SettingsReloader | None) -> Iterator[Check]:
    """Checks of the reloader. Always ok: for information."""
    statistics = reloader.statistics() if reloader else ReloadStatistics()
    if statistics.error:
        yield Check("settings", True, f"invalid settings file: keeping previous settings: {statistics.error}")
    if statistics.pending:
        yield Check("settings", True, f"restart needed for {', '.join(statistics.pending)}")
