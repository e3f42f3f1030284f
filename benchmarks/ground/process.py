"""Processes that are measured from outside: CPU seconds, and the most memory they have held. Linux only."""

from __future__ import annotations

import os
import time
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """CPU seconds of all threads of a running process so far; see clock_getcpuclockid(3) for what this number is."""
    return time.clock_gettime(~pid << 3 | 2)


def memory(pid: int | str = "self") -> float:
    """MiB that a running process holds now."""
    return _status(pid, "VmRSS")


def peak_memory(pid: int | str = "self") -> float:
    """The most MiB that a running process has held so far."""
    return _status(pid, "VmHWM")


def _status(pid: int | str, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(f"process {pid} has ended")


def reaped(pid: int) -> tuple[float, float]:
    """Wait for a child to end: its CPU seconds, and the most MiB it held. For a thread: it blocks."""
    _, _, usage = os.wait4(pid, 0)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
