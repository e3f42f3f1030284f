"""Subprocess that runs isolated: no input, no shell, a minimal environment, and bounded output.

Invariant: in every case (timeout, too much output, cancellation) nothing of it is left when `run` returns: neither the
process, nor children in its process group that hold its outputs, nor a pipe.
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
"""Between SIGTERM and SIGKILL, for a process that releases a lock."""
LINGER_SECONDS: Final = 1.0
"""How long children may go on writing after the process has exited."""
_FULL: Final = 17
"""Number of 64 KiB chunks after which a pipe is still being written to: it holds 1 MiB at most."""


class ProcessResult(msgspec.Struct, frozen=True):
    """Result: `code` is negative for a signal; output is cut after `most` bytes."""

    code: int
    stdout: bytes
    stderr: bytes
    is_cut: bool = False


class ProcessTimeout(Exception):
    """The process was killed after its timeout."""


async def run(command: Sequence[str], environment: Mapping[str, str], *, seconds: float, most: int) -> ProcessResult:
    """Run a command. Raises OSError (cannot be started), ValueError (NUL in an argument), ProcessTimeout."""
    with _Pipe(most) as out, _Pipe(most) as err:
        # A cancellation during the start would lose the process.
        with anyio.CancelScope(shield=True):
            process = await anyio.open_process(
                command,
                stdin=DEVNULL,
                stdout=out.child_end,
                stderr=err.child_end,
                env=dict(environment),
                start_new_session=True,
            )
        try:
            out.close_child_end()
            err.close_child_end()
            code = await _wait(process, (out, err), seconds)
        finally:
            with anyio.CancelScope(shield=True):
                await _stop(process, (out, err))
        return ProcessResult(code, bytes(out.read), bytes(err.read), out.is_cut)


async def _wait(process: anyio.abc.Process, pipes: Sequence[_Pipe], seconds: float) -> int:
    async with anyio.create_task_group() as group:
        for pipe in pipes:
            group.start_soon(pipe.drain)
        code: int | None = None
        with anyio.move_on_after(seconds):
            code = await process.wait()
        if code is not None:
            # The last output is still in the pipes; a child that keeps them open must not block this.
            with anyio.move_on_after(LINGER_SECONDS):
                for pipe in pipes:
                    await pipe.ended.wait()
        group.cancel_scope.cancel()
    if code is None:
        raise ProcessTimeout
    return code


async def _stop(process: anyio.abc.Process, pipes: Sequence[_Pipe]) -> None:
    """Stop whatever still runs, and wait for it."""
    if process.returncode is None:
        _signal(process, signal.SIGTERM)
        with anyio.move_on_after(GRACE_SECONDS):
            await process.wait()
        # The whole group, also if its leader has exited and a child has not.
        _signal(process, signal.SIGKILL)
        await process.wait()
    elif any(pipe.is_held() for pipe in pipes):
        # The leader has been reaped, but its id stays taken while a member of the group lives, which holds the pipe.
        _signal(process, signal.SIGKILL)
    await process.aclose()


def _signal(process: anyio.abc.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


class _Pipe:
    """Output pipe, read up to `most` bytes; the rest is discarded."""

    def __init__(self, most: int) -> None:
        self.read = bytearray()
        self.is_cut = False
        self.ended = anyio.Event()
        self._most = most
        self._own_end, self.child_end = os.pipe()
        self._is_child_end_closed = False
        os.set_blocking(self._own_end, False)

    def close_child_end(self) -> None:
        """Close the child's end; while it is open here, the pipe never ends."""
        os.close(self.child_end)
        self._is_child_end_closed = True

    async def drain(self) -> None:
        """Read until no process can write any more."""
        while True:
            await anyio.wait_readable(self._own_end)
            with suppress(BlockingIOError):
                chunk = os.read(self._own_end, 65536)
                if not chunk:
                    self.ended.set()
                    return
                room = self._most - len(self.read)
                self.is_cut = self.is_cut or len(chunk) > room
                self.read += chunk[:room]

    def is_held(self) -> bool:
        """Whether a process can still write. Reads and discards."""
        with suppress(BlockingIOError):
            for _ in range(_FULL):
                if not os.read(self._own_end, 65536):
                    return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._own_end)
        if not self._is_child_end_closed:
            os.close(self.child_end)
