"""The real `kubectl drain`: one after another, as in a loop over nodes, or one for each node at once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from benchmarks.contenders.contender import Entry, Tally, Usage
from benchmarks.ground.nodes import PATIENCE
from benchmarks.ground.process import reaped
from benchmarks.ground.site import Site

PROGRAM = shutil.which("kubectl")
OPTIONS = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", f"--timeout={PATIENCE:g}s", "-v=6")
NEW = re.compile(r'verb="(?P<verb>[A-Z]+)" url="https?://[^/"]+(?P<path>[^"]*)" status="(?P<status>\d+)')
OLDER = re.compile(r" (?P<verb>GET|POST|PUT|PATCH|DELETE) https?://[^/ ]+(?P<path>/\S*) (?P<status>\d{3}) ")
"""How -v=6 tells of a request, from 1.33 on and before."""


class Kubectl:
    """`is_parallel`: a process for each node at once; else one for all, which takes node after node."""

    def __init__(self, *, is_parallel: bool) -> None:
        self.name = f"kubectl drain, {'parallel' if is_parallel else 'sequential'}"
        self._is_parallel = is_parallel

    @asynccontextmanager
    async def entered(self, site: Site, old: tuple[str, ...]) -> AsyncIterator[Entry]:
        """See Contender: it has nothing to make ready."""
        drains = [_Drain(site, nodes) for nodes in ([(node,) for node in old] if self._is_parallel else [old])]

        async def go() -> None:
            async with anyio.create_task_group() as group:
                for drain in drains:
                    group.start_soon(drain.run)

        async def usage() -> Usage:
            tally, cpu, memory = Tally(), 0.0, 0.0
            for drain in drains:
                drain.read_into(tally)
                # They run at the same time: what the machine needs is the sum.
                cpu, memory = cpu + drain.cpu, memory + drain.memory
            return tally.usage(cpu, memory)

        try:
            yield Entry(go, usage)
        finally:
            for drain in drains:
                drain.end()


class _Drain:
    def __init__(self, site: Site, nodes: tuple[str, ...]) -> None:
        self.cpu = self.memory = 0.0
        self._said = site.ground.folder / f"kubectl-{nodes[0]}.log"
        kubeconfig = f"--kubeconfig={site.way.kubeconfig}"
        self._command = [str(PROGRAM), kubeconfig, "drain", *nodes, *OPTIONS]
        # What it caches of discovery, it caches for this run.
        self._environment = {**os.environ, "HOME": str(site.ground.folder)}
        self._process: subprocess.Popen[bytes] | None = None
        # A thread for each, however many there are.
        self._one = anyio.CapacityLimiter(1)

    async def run(self) -> None:
        """Run until it ends by itself."""
        self.cpu, self.memory = await anyio.to_thread.run_sync(self._run, abandon_on_cancel=True, limiter=self._one)

    def _run(self) -> tuple[float, float]:
        with self._said.open("wb") as file:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=self._environment,
                start_new_session=True,
            )
        taken = reaped(self._process.pid)
        self._process = None
        return taken

    def end(self) -> None:
        """End it, if it still runs."""
        if self._process is not None:
            self._process.kill()

    def read_into(self, tally: Tally) -> None:
        """Count the requests of which it has told."""
        for line in Path(self._said).read_text().splitlines():
            if found := NEW.search(line) or OLDER.search(line):
                tally.add(found["verb"], found["path"], int(found["status"]))
