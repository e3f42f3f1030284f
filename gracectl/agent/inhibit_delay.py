"""Raising logind's InhibitDelayMaxSec: the drop-in file, and the other files that may override it.

systemd reads logind.conf first, then the files of all `logind.conf.d` directories in the order of their names,
whichever directory they are in; the last one that sets a value wins. Of files of one name only the one in the first
directory counts (https://www.freedesktop.org/software/systemd/man/logind.conf.html). logind reads them again after a
signal, which it may see later than the next call: the delay is read again for a while before it counts.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from anyio.to_thread import run_sync
from tenacity import AsyncRetrying, retry_if_result, stop_after_attempt

from gracectl.agent.bus import AccessDenied, CallFailed, NoReply
from gracectl.agent.logind import UNIT, Logind
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock

FILE: Final = "zz-gracectl.conf"
OPTION: Final = "InhibitDelayMaxSec"

_SECTION: Final = "[Login]"
_MAIN: Final = ("etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd", "lib/systemd")
_DIGITS: Final = 20
"""A file may have more than Python converts to a number."""
_HEADING: Final = "# Written by gracectl agent: time for pods to terminate in order before the machine shuts down.\n"


class Setting(msgspec.Struct, frozen=True):
    """Value of InhibitDelayMaxSec as a file spells it."""

    file: Path
    value: str


class DropIn:
    """Drop-in of gracectl. `directory`: logind.conf.d of the host; `root`: where the host's other files are read."""

    def __init__(self, directory: Path = Path("/etc/systemd/logind.conf.d"), root: Path = Path("/")) -> None:
        self.path = directory / FILE
        self._directory = directory
        self._root = root

    def ensure(self, seconds: float) -> bool:
        """Make the file request at least this many seconds, and never fewer than before.

        Written atomically, and only if that changes it; True if it has been. Raises OSError.
        """
        current = _seconds(_value_in(self.path))
        wanted = math.ceil(seconds)
        if current is not None and current >= wanted:
            return False
        self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        _write(self.path, f"{_HEADING}{_SECTION}\n{OPTION}={wanted}\n")
        return True

    def winner(self) -> Setting | None:
        """Setting that wins, of the files visible from here; None if no file has one."""
        found: Setting | None = None
        for file in self._read_in_order():
            value = _value_in(file)
            if value is not None:
                found = Setting(file, value)
        return found

    def _read_in_order(self) -> Iterator[Path]:
        directories = [self._root / place / "logind.conf.d" for place in _MAIN]
        # In a container the drop-in may be mounted elsewhere than the other files; it comes first, as on the host.
        if self._directory not in directories:
            directories.insert(0, self._directory)
        mains = [self._root / place / "logind.conf" for place in _MAIN]
        yield from [main for main in mains if _is_there(main)][:1]
        by_name: dict[str, Path] = {}
        for directory in directories:
            for file in _configurations_in(directory):
                by_name.setdefault(file.name, file)
        yield from (by_name[name] for name in sorted(by_name))


def _is_there(file: Path) -> bool:
    try:
        return file.exists()
    except OSError:
        return False  # no permission


def _configurations_in(directory: Path) -> list[Path]:
    try:
        return [file for file in directory.iterdir() if file.suffix == ".conf" and not file.name.startswith(".")]
    except OSError:
        return []  # most of these directories do not exist


def _value_in(file: Path) -> str | None:
    """Last value that the file sets; None if none, or if it cannot be read."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    value = None
    is_login_section = False
    for line in (line.strip() for line in lines):
        if line.startswith("["):
            is_login_section = line == _SECTION
            continue
        name, has_value, text = line.partition("=")
        if is_login_section and has_value and name.strip() == OPTION:
            value = text.strip()
    return value


def _seconds(value: str | None) -> int | None:
    """Value written by `ensure`; None for any other."""
    is_number = value is not None and len(value) < _DIGITS and value.isascii() and value.isdigit()
    return int(value or "") if is_number else None


def _write(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise


_READS: Final = 7
"""How often the delay is read after a reload."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.6
"""Seconds between two reads."""


class RaisedDelay(msgspec.Struct, frozen=True):
    """Delay that logind grants now (seconds), and what keeps it from granting more: "" if it is enough."""

    delay: float
    obstacle: str


async def raise_delay(logind: Logind, drop_in: DropIn | None, wanted: float, clock: Clock) -> RaisedDelay:
    """Have logind grant `wanted` seconds, which it does not yet. Raises BusError if logind itself does not respond."""
    seconds = math.ceil(wanted)
    by_hand = f"set {OPTION}={seconds} in the host's logind.conf, then run systemctl kill --signal=HUP {UNIT}"
    if drop_in is None:
        return RaisedDelay(await logind.delay(), f"drop-in disabled; {by_hand}")
    try:
        await run_sync(drop_in.ensure, wanted)
    except OSError as error:
        why = error.strerror or str(error)
        return RaisedDelay(
            await logind.delay(), f"{drop_in.path}: cannot be written ({why}); make it writable, or {by_hand}"
        )
    try:
        await logind.reload()
    except (AccessDenied, CallFailed, NoReply) as error:
        problem = f"{drop_in.path} has {seconds} s, but logind could not be reloaded ({error})"
        return RaisedDelay(await logind.delay(), f"{problem}; run systemctl kill --signal=HUP {UNIT}")
    delay: float = await AsyncRetrying(
        sleep=clock.sleep,
        stop=stop_after_attempt(_READS),
        wait=Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, jitter=0.0),
        retry=retry_if_result(lambda delay: delay < wanted),
        retry_error_callback=lambda state: state.outcome and state.outcome.result(),
    )(logind.delay)
    return RaisedDelay(delay, "" if delay >= wanted else await run_sync(_obstacle, drop_in, seconds))


def _obstacle(drop_in: DropIn, seconds: int) -> str:
    winner = drop_in.winner()
    if winner is not None and winner.file != drop_in.path:
        return (
            f"{winner.file} overrides {drop_in.path} ({seconds} s) with {OPTION}={winner.value}; "
            f"remove or raise it there, then run systemctl kill --signal=HUP {UNIT}"
        )
    return (
        f"{drop_in.path} has {seconds} s, but logind has not applied it after a reload; check on the host "
        f"that the file exists and wins (systemd-analyze cat-config systemd/logind.conf), or restart {UNIT}"
    )
