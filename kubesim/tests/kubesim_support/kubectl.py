"""The real kubectl as people type it, where it is on PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.abc
import orjson
import pytest
from anyio.streams.text import TextReceiveStream

from kubesim_support.patience import PATIENCE

PROGRAM = shutil.which("kubectl")
needs_kubectl = pytest.mark.skipif(PROGRAM is None, reason="kubectl is not on PATH")


class Printed(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


class Kubectl:
    """Runs kubectl, each time as a process of its own."""

    def __init__(self, kubeconfig: Path, home: Path) -> None:
        """`home`: a folder of the test; what kubectl caches goes there."""
        self._command = [str(PROGRAM), f"--kubeconfig={kubeconfig}"]
        self._environment = {**os.environ, "HOME": str(home)}

    async def run(self, *arguments: str, stdin: str = "", editor: str = "") -> Printed:
        """Run one command, whatever comes of it."""
        environment = {**self._environment, **({"KUBE_EDITOR": editor} if editor else {})}
        with anyio.fail_after(PATIENCE):
            done = await anyio.run_process(
                [*self._command, *arguments], input=stdin.encode(), env=environment, check=False
            )
        return Printed(done.returncode, done.stdout.decode(), done.stderr.decode())

    async def __call__(self, *arguments: str, stdin: str = "", editor: str = "") -> str:
        """Run one command that must succeed; returns what it printed."""
        printed = await self.run(*arguments, stdin=stdin, editor=editor)
        assert printed.code == 0, f"kubectl {' '.join(arguments)}: {printed.err}"
        return printed.out

    async def json(self, *arguments: str) -> Any:
        """What a command prints with `-o json`."""
        return orjson.loads(await self(*arguments, "-o", "json"))

    async def apply(self, *manifests: Any, options: tuple[str, ...] = ()) -> str:
        """`kubectl apply -f -`."""
        text = "\n---\n".join(orjson.dumps(manifest).decode() for manifest in manifests)
        return await self("apply", "-f", "-", *options, stdin=text)

    @asynccontextmanager
    async def running(self, *arguments: str) -> AsyncIterator[Lines]:
        """A command that goes on by itself, and what it prints."""
        async with await anyio.open_process(
            [*self._command, *arguments], env=self._environment, stderr=subprocess.STDOUT
        ) as process:
            try:
                assert process.stdout is not None
                yield Lines(process.stdout)
            finally:
                process.terminate()


class Lines:
    """The lines that a command prints, as they come."""

    def __init__(self, stream: anyio.abc.ByteReceiveStream) -> None:
        self._stream = TextReceiveStream(stream)
        self._rest = ""

    async def until(self, *words: str) -> str:
        """The first line from here on that holds all of these words. Fails the test after PATIENCE."""
        seen: list[str] = []
        with anyio.move_on_after(PATIENCE):
            while True:
                line = await self._next()
                if all(word in line for word in words):
                    return line
                seen.append(line)
        raise AssertionError(f"no line with {words} in {seen}")

    async def _next(self) -> str:
        while "\n" not in self._rest:
            self._rest += await self._stream.receive()
        line, _, self._rest = self._rest.partition("\n")
        return line
