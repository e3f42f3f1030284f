"""`gracectl drain` with nothing installed: one process for all nodes, from its start to its end.

    python -m benchmarks.contenders.alone FILE drain --kubeconfig …

runs the shipped command, and writes a Drained to FILE when it ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from benchmarks.contenders.contender import Entry, Tally, Usage
from benchmarks.ground.process import last_words, peak_memory, reaped
from benchmarks.ground.site import Site
from benchmarks.ground.waiting import Stalled
from gracectl.cli import main
from gracectl.kube.http import HttpTransport
from gracectl.kube.transport import Request, Response, Stream


class Drained(msgspec.Struct, frozen=True):
    """One run. `first`: when its first request was sent (monotonic, of the machine). `acting`: seconds from then until
    its first eviction was sent; None: it has sent none. `memory`: MiB at its peak."""

    usage: Usage
    first: float
    acting: float | None
    memory: float


class Alone:
    """The command as a contender. `starts`: seconds of each run until its first request."""

    name = "gracectl drain, nothing installed"

    def __init__(self) -> None:
        self.starts: list[float] = []

    @asynccontextmanager
    async def entered(self, site: Site, old: tuple[str, ...]) -> AsyncIterator[Entry]:
        """See Contender: it has nothing to make ready. A Lease of other sites is not seen."""
        settings = site.ground.folder / f"{site.name}-alone.json"
        settings.write_bytes(msgspec.json.encode({"leaderElection": {"namespace": site.name}}))
        run = Run(site.way.kubeconfig, site.ground.folder / f"{site.name}-alone", *old, "--config", str(settings))
        try:
            yield Entry(run.ended, run.usage)
            self.starts.append(run.drained.first - run.began)
        finally:
            run.kill()


class Run:
    """One run of `gracectl drain`. `kept`: where its files go, without their endings."""

    def __init__(self, kubeconfig: Path, kept: Path, *arguments: str) -> None:
        self._file, self._log = kept.with_suffix(".json"), kept.with_suffix(".log")
        command = [sys.executable, "-m", "benchmarks.contenders.alone", str(self._file)]
        self._command = [*command, "drain", "--kubeconfig", str(kubeconfig), *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._cpu = 0.0
        self.began = 0.0

    async def ended(self) -> None:
        """Start it, and wait for its end."""
        self._cpu, _ = await anyio.to_thread.run_sync(self._run, abandon_on_cancel=True)

    def _run(self) -> tuple[float, float]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GRACECTL_")}
        self.began = time.monotonic()
        with self._log.open("wb") as file:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment
            )
        taken = reaped(self._process.pid)
        self._process.returncode = 0  # else it is waited for once more
        self._process = None
        return taken

    @property
    def drained(self) -> Drained:
        """What it has done. Raises Stalled if it has not come to its end."""
        if not self._file.exists():
            raise Stalled(f"gracectl drain: it has failed: {last_words(self._log)}")
        return msgspec.json.decode(self._file.read_bytes(), type=Drained)

    async def usage(self) -> Usage:
        """See Entry."""
        drained = self.drained
        return msgspec.structs.replace(drained.usage, cpu=self._cpu, memory=drained.memory)

    def kill(self) -> None:
        """End it, if it still runs."""
        if self._process is not None:
            self._process.kill()


class Witness:
    """Counts what the transport of this process sends."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.first: float | None = None
        self.evicting: float | None = None
        self._send, self._stream = HttpTransport.send, HttpTransport.stream

    async def send(self, transport: HttpTransport, request: Request) -> Response:
        """As ever, and counted."""
        self._begins(request)
        answer = await self._send(transport, request)
        self.tally.add(request.method, _target(request), answer.status)
        return answer

    def stream(self, transport: HttpTransport, request: Request) -> AbstractAsyncContextManager[Stream]:
        """The same."""
        self._begins(request)
        self.tally.add(request.method, _target(request), 200)
        return self._stream(transport, request)

    def _begins(self, request: Request) -> None:
        now = time.monotonic()
        self.first = now if self.first is None else self.first
        if self.evicting is None and request.path.endswith("/eviction"):
            self.evicting = now

    def drained(self) -> Drained:
        """Until now."""
        acting = None if self.first is None or self.evicting is None else self.evicting - self.first
        return Drained(self.tally.usage(None, None), self.first or time.monotonic(), acting, peak_memory())


def _target(request: Request) -> str:
    return f"{request.path}?{'&'.join(f'{name}={value}' for name, value in request.query)}"


if __name__ == "__main__":
    file, witness = Path(sys.argv.pop(1)), Witness()

    async def send(self: HttpTransport, request: Request) -> Response:
        """See Witness."""
        return await witness.send(self, request)

    def stream(self: HttpTransport, request: Request) -> AbstractAsyncContextManager[Stream]:
        """See Witness."""
        return witness.stream(self, request)

    HttpTransport.send = send  # type: ignore[method-assign]  # the command makes it
    HttpTransport.stream = stream  # type: ignore[assignment, method-assign]
    try:
        main()
    finally:
        file.write_bytes(msgspec.json.encode(witness.drained()))
