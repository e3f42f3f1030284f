"""A terminal for the commands of a page: what is exported stays, what stays runs on until the end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc

ROOT = Path(__file__).parents[2]
MINUTES = 1.0
"""No command on a page takes longer."""


class Shell:
    """Runs lines in bash, in the folder of the project; `instead`: replacements in the lines of the page."""

    def __init__(self, stack: AsyncExitStack, folder: Path, instead: Mapping[str, str]) -> None:
        self.variables: dict[str, str] = {"HOME": str(folder)}
        self.elsewhere: dict[str, str] = {}
        """Variables of what is started in terminals of their own."""
        self._stack = stack
        self._folder = folder
        self._instead = instead

    def typed(self, line: str) -> str:
        """A line of the page as it is typed here."""
        for words, other in self._instead.items():
            line = line.replace(words, other)
        return line

    async def run(self, line: str) -> str:
        """Type a line, which must succeed; what it prints."""
        # The last thing that a line does is to say what it has exported.
        script = f"set -euo pipefail\n{line}\nexport -p > {self._folder}/exported"
        with anyio.fail_after(60 * MINUTES):
            done = await anyio.run_process(
                ["bash", "-c", script], cwd=ROOT, env=self.environment, check=False, stderr=subprocess.STDOUT
            )
        said = done.stdout.decode()
        assert done.returncode == 0, f"$ {line}\n{said}"
        self._take_over()
        return said

    async def start(self, line: str) -> anyio.abc.Process:
        """Type a line in a terminal of its own; it is ended with the shell, if it still runs then."""
        log = (self._folder / f"terminal-{len(list(self._folder.glob('terminal-*')))}").open("wb")
        self._stack.callback(log.close)
        # exec: what ends is the program, and not the shell around it.
        words = line.split()
        variables = [word for word in words if "=" in word.partition(" ")[0] and word[0].isupper()]
        command = [word for word in words if word not in variables]
        own = dict(word.split("=", 1) for word in variables)
        process = await anyio.open_process(
            command, cwd=ROOT, env={**self.environment, **self.elsewhere, **own}, stdin=None, stdout=log, stderr=log
        )
        self._stack.push_async_callback(_ended, process)
        return process

    @property
    def environment(self) -> Mapping[str, str]:
        """What commands find: those of the project first."""
        known = {name: value for name, value in os.environ.items() if name not in ("KUBECONFIG",)}
        return {**known, "PATH": f"{Path(sys.executable).parent}:{known['PATH']}", **self.variables}

    def _take_over(self) -> None:
        for line in (self._folder / "exported").read_text().splitlines():
            name, equals, value = line.removeprefix("declare -x ").partition("=")
            if equals and name in ("KUBECONFIG",):
                self.variables[name] = value.strip('"')


async def _ended(process: anyio.abc.Process) -> None:
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            process.terminate()
        with anyio.move_on_after(15):
            await process.wait()
        if process.returncode is None:
            process.kill()
        await process.aclose()


def _show(folder: Path) -> None:
    """What has been said in terminals of their own; pytest shows it beside a failure."""
    for log in sorted(folder.glob("terminal-*")):
        print(f"the end of {log.name}:", *log.read_text().splitlines()[-40:], sep="\n")


@asynccontextmanager
async def terminal(folder: Path, instead: Mapping[str, str]) -> AsyncIterator[Shell]:
    """A terminal until the end of the block."""
    async with AsyncExitStack() as stack:
        try:
            yield Shell(stack, folder, instead)
        finally:
            await stack.aclose()
            _show(folder)
