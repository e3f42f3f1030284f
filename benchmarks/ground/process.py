"""Processes that are measured from outside: CPU seconds, the most memory they have held, their metrics. Linux only."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import anyio.abc

LINE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
LABELS = re.compile(r'(\w+)="([^"]*)"')
ENDING = 30.0
"""Seconds that a program may take to end, as Kubernetes lets it: a controller waits for the answers to its writes."""

Metrics = dict[str, list[tuple[dict[str, str], float]]]
"""Labels and value of each series, by name."""


@asynccontextmanager
async def started(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> AsyncIterator[anyio.abc.Process]:
    """A program while the block runs; what it says goes to `log`. It is asked to end, then made to."""
    with log.open("wb") as file:
        process = await anyio.open_process(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, start_new_session=True
        )
        try:
            yield process
        finally:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    process.terminate()
                    with anyio.move_on_after(ENDING):
                        await process.wait()
                    if process.returncode is None:
                        process.kill()
                await process.aclose()


async def metrics_at(url: str) -> Metrics:
    """The metrics that are served there now."""
    async with aiohttp.ClientSession(trust_env=False) as session, session.get(url) as answer:
        text = await answer.text()
    found: Metrics = {}
    for line in text.splitlines():
        if series := LINE.match(line):
            labels = dict(LABELS.findall(series["labels"] or ""))
            found.setdefault(series["name"], []).append((labels, float(series["value"])))
    return found


def last_words(log: Path) -> str:
    """The end of what a program has said."""
    return log.read_text()[-2000:].strip() or "nothing"


def free_port() -> int:
    """A port without a listener."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def cpu_seconds(pid: int) -> float:
    """CPU seconds of all threads of a running process so far; see clock_getcpuclockid(3) for what this number is."""
    return time.clock_gettime(~pid << 3 | 2)


def memory(pid: int | str = "self") -> float:
    """MiB that a running process holds now."""
    return _status(pid, "VmRSS")


def peak_memory(pid: int | str = "self") -> float:
    """The most MiB that a running process has held so far."""
    return _status(pid, "VmHWM")


def wakeups(pid: int) -> int:
    """How often threads of a running process have waited for something so far: each wait ends with a wake-up."""
    return sum(
        int(line.split()[1])
        for status in Path(f"/proc/{pid}/task").glob("*/status")
        for line in status.read_text().splitlines()
        if line.startswith("voluntary_ctxt_switches:")
    )


def _status(pid: int | str, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(f"process {pid} has ended")


def reaped(pid: int) -> tuple[float, float]:
    """Wait for a child to end: its CPU seconds, and the most MiB it held. For a thread: it blocks."""
    _, _, usage = os.wait4(pid, 0)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
