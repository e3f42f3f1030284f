"""A memory cgroup for a program under attack, as a pod has one: with swap off, what exceeds it is killed.

Linux with the memory controller, and a user who may make cgroups (root of a machine or of a privileged container).
Elsewhere there is none, and peaks are peaks of resident memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path("/sys/fs/cgroup")
MIB: Final = 1 << 20


class Cgroup(NamedTuple):
    """A cgroup with a limit of memory."""

    folder: Path
    peak_file: str

    def command(self, *arguments: str) -> tuple[str, ...]:
        """A command that runs another one in the cgroup, as the same process."""
        return ("sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh", *arguments)

    def peak(self) -> float:
        """The most MiB that it has held, with pages of files that it has read or written."""
        return int((self.folder / self.peak_file).read_text()) / MIB


@contextmanager
def memory_cgroup(name: str, limit: float) -> Iterator[Cgroup | None]:
    """A cgroup with a limit in MiB; None where none can be made."""
    found = _made(name, int(limit * MIB))
    try:
        yield found
    finally:
        if found is not None:
            with suppress(OSError):  # a killed process may still be leaving
                found.folder.rmdir()


def _made(name: str, limit: int) -> Cgroup | None:
    is_second = (ROOT / "cgroup.controllers").exists()
    parent = ROOT if is_second else ROOT / "memory"
    limit_file, peak_file = (
        ("memory.max", "memory.peak") if is_second else ("memory.limit_in_bytes", "memory.max_usage_in_bytes")
    )
    folder = parent / f"gracectl-{name}-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        return None
    try:
        (folder / limit_file).write_text(str(limit))
        (folder / peak_file).read_text()
    except OSError:
        folder.rmdir()
        return None
    return Cgroup(folder, peak_file)
