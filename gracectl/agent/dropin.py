"""The file that raises what logind grants, and the other files that may have the last word on it.

systemd reads logind.conf first, then the files of all `logind.conf.d` directories in the order of their names,
whatever directory they are in; the last one that sets a value wins. Of files of one name only the one in the first
directory counts (https://www.freedesktop.org/software/systemd/man/logind.conf.html).
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

FILE: Final = "zz-gracectl.conf"
OPTION: Final = "InhibitDelayMaxSec"

_SECTION: Final = "[Login]"
_MAIN: Final = ("etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd", "lib/systemd")
_HEADING: Final = "# Written by gracectl agent: as long as pods need to end in order before the machine goes down.\n"


class Setting(msgspec.Struct, frozen=True):
    """A value of InhibitDelayMaxSec as a file spells it."""

    file: Path
    value: str


class DropIn:
    """Our file. `directory`: where it is, logind.conf.d of the host; `root`: where the host's other files are read."""

    def __init__(self, directory: Path = Path("/etc/systemd/logind.conf.d"), root: Path = Path("/")) -> None:
        self.path = directory / FILE
        self._directory = directory
        self._root = root

    def ensure(self, seconds: float) -> bool:
        """Have the file ask for so many seconds at least; never for fewer than it asks for already.

        Written whole or not at all, and only if that changes it; True if it has been. Raises OSError.
        """
        there = _seconds(_value_in(self.path))
        wanted = math.ceil(seconds)
        if there is not None and there >= wanted:
            return False
        self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        _write(self.path, f"{_HEADING}{_SECTION}\n{OPTION}={wanted}\n")
        return True

    def winner(self) -> Setting | None:
        """Whose value counts, of the files that can be seen from here; None: nobody sets one."""
        found: Setting | None = None
        for file in self._read_in_order():
            value = _value_in(file)
            if value is not None:
                found = Setting(file, value)
        return found

    def _read_in_order(self) -> Iterator[Path]:
        directories = [self._root / place / "logind.conf.d" for place in _MAIN]
        # In a container ours may be mounted elsewhere than the others; it comes first, as it does on the host.
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
        return False  # it may not be looked at


def _configurations_in(directory: Path) -> list[Path]:
    try:
        return [file for file in directory.iterdir() if file.suffix == ".conf" and not file.name.startswith(".")]
    except OSError:
        return []  # most of them are there on no machine


def _value_in(file: Path) -> str | None:
    """The last value that the file sets; None if none, or if it cannot be read."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    value = None
    is_ours = False
    for line in (line.strip() for line in lines):
        if line.startswith("["):
            is_ours = line == _SECTION
            continue
        name, has_value, text = line.partition("=")
        if is_ours and has_value and name.strip() == OPTION:
            value = text.strip()
    return value


def _seconds(value: str | None) -> int | None:
    """Of what we write ourselves; None for anything else."""
    return int(value) if value is not None and value.isascii() and value.isdigit() else None


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
