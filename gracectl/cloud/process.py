"""A command that is run to its end, with nothing of ours: no input, no shell, a little environment, and no more output
than is wanted.

Invariant: whatever happens (it takes too long, says too much, or we are told to stop), nothing of it is left when `run`
returns: neither the process, nor what it has started in its process group and still holds its outputs, nor a pipe.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from subprocess import DEVNULL
from typing import Final, Self

import anyio
import anyio.abc
import msgspec

GRACE_SECONDS: Final = 2.0
"""Between SIGTERM and SIGKILL, for what has to give back a lock of its own."""
LINGER_SECONDS: Final = 1.0
"""So long what it has left behind may go on writing when it has ended itself."""
_FULL: Final = 17
"""After so many pieces of 64 KiB a pipe has been written to meanwhile: it holds 1 MiB at most."""


class Ended(msgspec.Struct, frozen=True):
    """How it has ended: `code` is negative for a signal; the output is cut after `most` bytes."""

    code: int
    stdout: bytes
    stderr: bytes
    is_cut: bool = False


class TookTooLong(Exception):
    """It had to be killed."""


async def run(command: Sequence[str], environment: Mapping[str, str], *, seconds: float, most: int) -> Ended:
    """Run a command. Raises OSError (it cannot be started), ValueError (an argument holds a NUL), TookTooLong."""
    with _Pipe(most) as out, _Pipe(most) as err:
        # Whoever is cancelled in the midst of a start would not know what has been started.
        with anyio.CancelScope(shield=True):
            process = await anyio.open_process(
                command,
                stdin=DEVNULL,
                stdout=out.theirs,
                stderr=err.theirs,
                env=dict(environment),
                start_new_session=True,
            )
        try:
            out.hand_over()
            err.hand_over()
            code = await _finished(process, (out, err), seconds)
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process, (out, err))
        return Ended(code, bytes(out.read), bytes(err.read), out.is_cut)


async def _finished(process: anyio.abc.Process, pipes: Sequence[_Pipe], seconds: float) -> int:
    async with anyio.create_task_group() as group:
        for pipe in pipes:
            group.start_soon(pipe.drain)
        code: int | None = None
        with anyio.move_on_after(seconds):
            code = await process.wait()
        if code is not None:
            # What it has said last is still in the pipes; a child that keeps them open must not keep us.
            with anyio.move_on_after(LINGER_SECONDS):
                for pipe in pipes:
                    await pipe.ended.wait()
        group.cancel_scope.cancel()
    if code is None:
        raise TookTooLong
    return code


async def _end(process: anyio.abc.Process, pipes: Sequence[_Pipe]) -> None:
    """Nothing of it runs afterwards, and it has been waited for."""
    if process.returncode is None:
        _signal(process, signal.SIGTERM)
        with anyio.move_on_after(GRACE_SECONDS):
            await process.wait()
        # The whole group, also where its leader has obeyed and a child has not.
        _signal(process, signal.SIGKILL)
        await process.wait()
    elif any(pipe.is_held() for pipe in pipes):
        # Its leader has been waited for, but its number is not free while a member lives, who holds the pipe.
        _signal(process, signal.SIGKILL)
    await process.aclose()


def _signal(process: anyio.abc.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


class _Pipe:
    """One of its outputs, read as far as it is wanted and thrown away beyond."""

    def __init__(self, most: int) -> None:
        self.read = bytearray()
        self.is_cut = False
        self.ended = anyio.Event()
        self._most = most
        self._ours, self.theirs = os.pipe()
        self._is_handed_over = False
        os.set_blocking(self._ours, False)

    def hand_over(self) -> None:
        """The process has its end; while we keep that open as well, it never ends."""
        os.close(self.theirs)
        self._is_handed_over = True

    async def drain(self) -> None:
        """Read until nobody can write any more."""
        while True:
            await anyio.wait_readable(self._ours)
            with suppress(BlockingIOError):
                piece = os.read(self._ours, 65536)
                if not piece:
                    self.ended.set()
                    return
                room = self._most - len(self.read)
                self.is_cut = self.is_cut or len(piece) > room
                self.read += piece[:room]

    def is_held(self) -> bool:
        """Whether somebody can still write. What is read for that is thrown away."""
        with suppress(BlockingIOError):
            for _ in range(_FULL):
                if not os.read(self._ours, 65536):
                    return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._ours)
        if not self._is_handed_over:
            os.close(self.theirs)
