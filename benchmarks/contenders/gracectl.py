"""gracectl as it is shipped: `gracectl controller` in a process of its own, told by deleting nodes."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.abc
import msgspec

from benchmarks.contenders.contender import Entry, Usage
from benchmarks.ground.ground import LABEL
from benchmarks.ground.nodes import delete, until_held
from benchmarks.ground.process import (
    Metrics,
    cpu_seconds,
    free_port,
    last_words,
    memory,
    metrics_at,
    peak_memory,
    started,
)
from benchmarks.ground.site import OLD, ROLE, Site
from benchmarks.ground.waiting import Stalled, Waiting

REFUSALS = ("BudgetExhausted", "Throttled")
FINE = ("ok", "NotFound", *REFUSALS)
PERCENTILES = (0.5, 0.99, 1.0)

_numbers = count(1)


class Gracectl:
    """`settings`: sections of its settings file, over those that every trial needs; `variables` of its environment.
    `quiet`: seconds that it still gets, before what it has taken is read."""

    def __init__(
        self,
        name: str = "gracectl",
        settings: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
        quiet: float = 0.0,
    ) -> None:
        self.name = name
        self._settings = settings or {}
        self._variables = variables or {}
        self._quiet = quiet

    @asynccontextmanager
    async def entered(self, site: Site, old: tuple[str, ...]) -> AsyncIterator[Entry]:
        """See Contender: it is ready when it holds the nodes."""
        settings = {**settings_of(site), **self._settings}
        async with running(site.way.kubeconfig, settings, site.ground.folder, self._variables) as program:
            await until_held(site.client, old, program.last_words)
            before = await program.reading()

            async def go() -> None:
                await delete(site.client, old)

            async def usage() -> Usage:
                await site.clock.sleep(self._quiet)
                return (await program.reading()).since(before)

            yield Entry(go, usage, goes_on=True)


def settings_of(site: Site) -> dict[str, Any]:
    """The settings of a controller that looks after the old nodes of a site, and nothing else."""
    return {
        "nodeSelector": {"matchLabels": {LABEL: site.name, ROLE: OLD}},
        "leaderElection": {"namespace": site.name},
    }


class Reading(msgspec.Struct, frozen=True):
    """What the program has done so far, from outside and from its own metrics. CPU in seconds, memory in MiB (peak)."""

    cpu: float
    memory: float
    requests: Mapping[tuple[str, str, str], float]
    """By verb, resource and outcome."""
    lateness: Mapping[float, float]
    """How many deletes for a deadline were at most so many seconds late."""

    def since(self, before: Reading) -> Usage:
        """What it has done since an earlier reading."""
        requests: Counter[str] = Counter()
        refused = failed = 0
        for key, value in self.requests.items():
            count = int(value - before.requests.get(key, 0))
            verb, resource, outcome = key
            if count:
                requests[f"{verb} {resource}"] += count
            refused += count * (outcome in REFUSALS)
            failed += count * (outcome not in FINE)
        late = {bound: value - before.lateness.get(bound, 0) for bound, value in self.lateness.items()}
        return Usage(
            requests=dict(requests),
            refused=refused,
            failed=failed,
            cpu=self.cpu - before.cpu,
            memory=self.memory,
            lateness=_percentiles(late),
        )


NOTHING = Reading(0.0, 0.0, {}, {})
"""What a program has done that has not been started yet."""


class Program:
    """A running controller. `metrics`: the address at which it tells of itself."""

    def __init__(self, process: anyio.abc.Process, metrics: str, log: Path) -> None:
        self._process = process
        self._metrics = metrics
        self.log = log

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether its process is over."""
        return self._process.returncode is not None

    @property
    def cpu(self) -> float:
        """CPU seconds so far."""
        return cpu_seconds(self.pid)

    @property
    def memory(self) -> float:
        """MiB now."""
        return memory(self.pid)

    @property
    def peak(self) -> float:
        """The most MiB so far."""
        return peak_memory(self.pid)

    def last_words(self) -> str:
        """The end of its log."""
        return f"the controller said: {last_words(self.log)}"

    async def reading(self) -> Reading:
        """See Reading."""
        values = await self.values()
        requests = {
            (labels["verb"], labels["resource"], labels["outcome"]): value
            for labels, value in values.get("gracectl_api_requests_total", ())
        }
        lateness = {
            float(labels["le"]): value for labels, value in values.get("gracectl_deadline_lateness_seconds_bucket", ())
        }
        return Reading(self.cpu, self.peak, requests, lateness)

    async def values(self) -> Metrics:
        """Its metrics now."""
        return await metrics_at(self._metrics)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait for its end; the exit code."""
        return await self._process.wait()


@asynccontextmanager
async def running(
    kubeconfig: Path,
    settings: Mapping[str, Any],
    folder: Path,
    variables: Mapping[str, str] | None = None,
    command: Sequence[str] = ("gracectl",),
) -> AsyncIterator[Program]:
    """`gracectl controller` while the block runs; its log goes to a file in `folder`. `command`: the module that is
    `gracectl`, and what it takes before the words of its own."""
    name = f"controller-{next(_numbers)}"
    config, log = folder / f"{name}.json", folder / f"{name}.log"
    address = f"127.0.0.1:{free_port()}"
    config.write_bytes(msgspec.json.encode({**settings, "metrics": {"listen": address}}))
    asked = [sys.executable, "-m", *command, "controller", "--kubeconfig", str(kubeconfig), "--config", str(config)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "GRACECTL_"))}
    async with started(asked, {**environment, **(variables or {})}, log) as process:
        program = Program(process, f"http://{address}/metrics", log)
        await _until_it_answers(program)
        yield program


async def _until_it_answers(program: Program) -> None:
    waiting = Waiting("gracectl controller", lambda: "it does not serve metrics yet")
    while True:
        try:
            await program.values()
        except aiohttp.ClientConnectionError:
            if program.has_ended:
                raise Stalled(f"gracectl controller: it has ended; {program.last_words()}") from None
            if waiting.has_stalled:
                raise waiting.stalled(program.last_words()) from None
            await anyio.sleep(0.05)
        else:
            return


def _percentiles(counts: Mapping[float, float]) -> dict[str, float]:
    """Upper bounds of percentiles, from counts up to bounds. Empty if nothing was counted."""
    total = max(counts.values(), default=0)
    if not total:
        return {}
    bounds = sorted(counts)
    return {f"p{100 * share:g}": next(b for b in bounds if counts[b] >= share * total) for share in PERCENTILES}
