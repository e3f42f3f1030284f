"""Commands as a person types them: a shell, a terminal, a page of commands."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.abc
from kubesim_support.patience import PATIENCE


def run_program(program: str) -> str:
    """What a Python program prints in a process of its own. Fails as it fails."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# A terminal for the commands of a page: what is exported stays, what stays runs on until the end.

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


# A command on a terminal of its own: what a person sees of it, and how it takes an answer.

COMMAND = (sys.executable, "-W", "error", "-m", "gracectl")
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Seen(NamedTuple):
    """Exit code, and all that was printed, without colours and movements of the cursor."""

    code: int
    text: str

    @property
    def lines(self) -> list[str]:
        """The text line by line."""
        return self.text.splitlines()


def on_terminal(*arguments: str, columns: int = 80, answers: Sequence[tuple[str, str]] = ()) -> Seen:
    """Run gracectl to its end. `answers`: pairs of what must have been printed, and what is typed then."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    for variable in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(variable, None)
    left, seen = list(answers), ""
    with subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C reaches it
    ) as process:
        os.close(slave)
        try:
            while chunk := _read(master):
                seen += chunk
                if left and left[0][0] in seen:
                    os.write(master, left.pop(0)[1].encode())
            code = process.wait(PATIENCE)
        finally:
            process.kill()
            os.close(master)
    assert not left, f"never printed: {left[0][0]!r}; but: {seen}"
    return Seen(code, ANSI.sub("", seen.replace("\r\n", "\n")))


def _read(master: int) -> str:
    """The next text; empty when nothing has the terminal open any more."""
    try:
        return os.read(master, 65536).decode(errors="replace")
    except OSError:
        return ""


# A page whose commands are run: its console blocks in their order, each with what it is for.
#
# A comment above a block says so: `<!-- step: WHERE -->`, or `<!-- step: WHERE, stays -->` for what is left running.

BLOCK = re.compile(r"<!-- step: (?P<where>[\w-]+)(?P<stays>, stays)? -->\n```console\n(?P<text>.*?)^```$", re.M | re.S)


class Step(NamedTuple):
    """Lines to be typed. `where`: anywhere, or in what circumstances; `stays`: whether they run on by themselves."""

    where: str
    stays: bool
    lines: tuple[str, ...]


def steps(page: Path, wanted: Collection[str]) -> list[Step]:
    """Those for these circumstances, in their order."""
    steps_of_page = []
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        lines = tuple(line[2:] for line in block["text"].splitlines() if line.startswith("$ "))
        steps_of_page.append(Step(block["where"], bool(block["stays"]), lines))
    return [step for step in steps_of_page if step.where in wanted]


def circumstances(page: Path) -> set[str]:
    """All that the page names."""
    return {block["where"] for block in BLOCK.finditer(page.read_text(encoding="utf-8"))}
