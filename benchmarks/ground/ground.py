"""The cluster of a run: the embedded one in a process of its own, or a foreign one, named by a kubeconfig.

All that scenarios do, they do over HTTP, with the identity of the kubeconfig. On a foreign cluster the kubelets of our
nodes are ours, too, a hollow one in a process of its own, unless kwok plays them there.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import anyio
import anyio.abc
import msgspec
from kubesim.controllers.behaviour import PREFIX
from kubesim.serving import write_kubeconfig

from benchmarks.ground.cluster import ClusterSpec
from gracectl.kube.auth import lookup
from gracectl.kube.auth.credentials import Credentials
from gracectl.kube.connection import connected
from gracectl.runtime.clock import SystemClock

LABEL = "gracectl-bench"
"""On every node of ours, as label and as taint (NoSchedule); its value is the name of the site."""

Kubelet = Literal["embedded", "hollow", "kwok"]


class Pace(msgspec.Struct, frozen=True):
    """Seconds that a pod takes from bound to running, from running to Ready, and to stop. kwok has its own."""

    start: float = 0.05
    ready: float = 0.25
    stop: float = 0.4

    @property
    def annotations(self) -> Mapping[str, str]:
        """As the hollow kubelet reads them."""
        pace = {"start-seconds": self.start, "ready-seconds": self.ready, "stop-seconds": self.stop, "jitter": 0}
        return {PREFIX + name: f"{value:g}" for name, value in pace.items()}

    @property
    def in_words(self) -> dict[str, str]:
        """As a parameter of an outcome."""
        return {"a replacement takes": f"{self.start + self.ready:g} s", "a stop": f"{self.stop:g} s"}


class KarpenterFiles(msgspec.Struct, frozen=True):
    """Karpenter's binary, built with its kwok provider, and the folders of the definitions of its resources."""

    program: Path
    definitions: tuple[Path, ...]


class Ground(msgspec.Struct, frozen=True):
    """A cluster that can be used. `run` begins every name that is made up; `folder` takes files of the run; `version`
    is the server's, "" of an embedded one; `karpenter`: measured as well, if it is named."""

    kubeconfig: Path
    run: str
    kubelet: Kubelet
    folder: Path
    version: str = ""
    karpenter: KarpenterFiles | None = None

    @property
    def is_embedded(self) -> bool:
        """Whether it is ours, from its beginning to its end."""
        return self.kubelet == "embedded"

    async def credentials(self) -> Credentials:
        """Where the server is, and who we are to it."""
        return await lookup.load(str(self.kubeconfig), clock=SystemClock())

    def behind(self, kubeconfig: Path) -> Ground:
        """The same cluster, reached by another way."""
        return msgspec.structs.replace(self, kubeconfig=kubeconfig)


@asynccontextmanager
async def opened(
    kubeconfig: Path | None, *, kwok: bool = False, karpenter: KarpenterFiles | None = None
) -> AsyncIterator[Ground]:
    """The cluster of a kubeconfig, or (None) an embedded one for as long as the block runs. Raises CredentialsError,
    or an ApiError without an answer."""
    run = f"bench-{secrets.token_hex(3)}"
    with tempfile.TemporaryDirectory(prefix="gracectl-bench-") as name:
        folder = Path(name)
        if kubeconfig is None:
            async with embedded(ClusterSpec(nodes=())) as url:
                yield Ground(at(url, folder / "kubeconfig"), run, "embedded", folder)
            return
        async with connected(str(kubeconfig)) as there:
            version = await there.client.server_version()  # an unreachable server is reported now, not waited for
        if kwok:
            yield Ground(kubeconfig, run, "kwok", folder, version, karpenter)
        else:
            async with service("benchmarks.ground.hollow", str(kubeconfig), LABEL, run):
                yield Ground(kubeconfig, run, "hollow", folder, version, karpenter)


def at(url: str, file: Path) -> Path:
    """A kubeconfig for a server that asks for no credentials, written to `file`."""
    write_kubeconfig(file, url)
    return file


@asynccontextmanager
async def embedded(spec: ClusterSpec) -> AsyncIterator[str]:
    """The URL of an embedded cluster in its own process."""
    async with service("benchmarks.ground.cluster", msgspec.json.encode(spec).decode()) as one:
        yield one.said


class Service:
    """A process beside us; `said` is what it has printed as its first line, when it was ready."""

    def __init__(self, process: anyio.abc.Process) -> None:
        self._process = process
        self.said = ""

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    async def heard(self) -> None:
        """Wait until it has printed a line. Raises RuntimeError if it ends before."""
        assert self._process.stdout is not None
        line = b""
        try:
            while not line.endswith(b"\n"):
                line += await self._process.stdout.receive()
        except anyio.EndOfStream:
            raise RuntimeError(f"ended with {await self._process.wait()} before it had said a line") from None
        self.said = line.decode().strip()

    async def ask(self) -> None:
        """Give it a line, and wait for one."""
        assert self._process.stdin is not None
        await self._process.stdin.send(b"\n")
        await self.heard()

    async def end(self) -> None:
        """End it, as it ends with its standard input."""
        assert self._process.stdin is not None
        await self._process.stdin.aclose()
        with anyio.move_on_after(10):
            await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()


@asynccontextmanager
async def service(module: str, *arguments: str) -> AsyncIterator[Service]:
    """A module as a process of its own, ready, until the block ends."""
    command = [sys.executable, "-m", module, *arguments]
    # Ctrl-C is for us alone: what we take away at the end, they have to be there for.
    async with await anyio.open_process(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None, start_new_session=True
    ) as process:
        one = Service(process)
        await one.heard()
        try:
            yield one
        finally:
            with anyio.CancelScope(shield=True):
                await one.end()
