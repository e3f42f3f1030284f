"""Provider that runs a user-defined command; docs/providers.md has its contract.

The process runs isolated: no input, no shell, a minimal environment, and bounded output. Invariant: in every case
(timeout, too much output, cancellation) nothing is left when `run` returns: no process, no child in its process group
that has its outputs open, no pipe.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from subprocess import DEVNULL
from typing import Annotated, Final, Self

import anyio
import anyio.abc
import msgspec

from gracectl.cloud.provider import (
    TRACEPARENT,
    InstanceGone,
    InstanceState,
    NodeIdentity,
    ProviderRefused,
    ProviderUnavailable,
)
from gracectl.cloud.responses import Action, decode_response, display_text, request_id

REFUSED: Final = 4
"""Exit code for a refusal that needs an administrator."""
INHERITED: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""Variables that the command inherits, if they are set."""
LONGEST_OUTPUT: Final = 64 * 1024
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REMEDY: Final = "remedy:"
_SHORTAGES: Final = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ETXTBSY})
"""Errors of a start that may succeed later."""


class ExecProvider:
    """Starts a process for every call."""

    name = "exec"
    needs_provider_id = True

    class Options(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
        """`command`: program and arguments, in which `{action}` and `{providerID}` are replaced; no shell is involved.
        `env`: variables with values, `passEnv`: names of variables that are passed on."""

        command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
        env: Mapping[str, str] = {}
        pass_env: tuple[str, ...] = ()
        timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 30.0
        max_parallel: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 8

        def __post_init__(self) -> None:
            """Raises ValueError."""
            if not self.command[0].strip() or "{" in self.command[0]:
                raise ValueError(f'command: "{self.command[0]}" is not a program; start with its path')
            if any("\0" in each for each in (*self.command, *self.env, *self.env.values(), *self.pass_env)):
                raise ValueError("command, env: NUL characters are not allowed")
            for field, names in (("env", self.env), ("passEnv", self.pass_env)):
                for name in names:
                    if not name or "=" in name:
                        raise ValueError(f'{field}: "{name}" is not a name of a variable')
                    if name.startswith("GRACECTL_"):
                        raise ValueError(f"{field}: {name} is reserved")

    def __init__(self, options: Options) -> None:
        self._options = options
        self._slots = anyio.Semaphore(options.max_parallel)

    async def state(self, provider_id: str) -> InstanceState:
        """See Provider."""
        state = await self._call("state", provider_id)
        if state is None:
            raise ProviderUnavailable(f"{self._name} returned no state of {provider_id}")
        return state

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        """See Provider."""
        if await self._call("terminate", provider_id, node) is InstanceState.GONE:
            raise InstanceGone(f"{self._name}: {provider_id} is gone")

    async def aclose(self) -> None:
        """Nothing to close: a process ends with its call."""

    @property
    def _name(self) -> str:
        return f"command {self._options.command[0]}"

    async def _call(self, action: Action, provider_id: str, node: NodeIdentity | None = None) -> InstanceState | None:
        """State returned by the command; None: success without a state."""
        program, *arguments = self._options.command
        replaced = (each.replace("{action}", action).replace("{providerID}", provider_id) for each in arguments)
        command, environment = (program, *replaced), self._environment(action, provider_id, node)
        try:
            async with self._slots:
                result = await run(command, environment, seconds=self._options.timeout_seconds, most=LONGEST_OUTPUT)
        except ProcessTimeout as error:
            raise ProviderUnavailable(f"{self._name} was killed after {self._options.timeout_seconds:g} s") from error
        except OSError as error:
            if error.errno in _SHORTAGES:
                raise ProviderUnavailable(f"{self._name} cannot be started now: {error.strerror}") from error
            message = f"{self._name} cannot be started: {error.strerror or error}"
            raise ProviderRefused(message, "put it into the image, or correct provider.options.command") from error
        except ValueError as error:
            message = f"{self._name} cannot be called for {provider_id!r}: {error}"
            raise ProviderRefused(message, "correct spec.providerID of the node") from error
        return self._state_of(result)

    def _environment(self, action: Action, provider_id: str, node: NodeIdentity | None) -> dict[str, str]:
        """Environment of the command, mostly explicit: the process's own may hold secrets."""
        inherited = (*INHERITED, *self._options.pass_env)
        node_variables = {} if node is None else _node_variables(node)
        return {
            "PATH": _PATH,
            **{name: os.environ[name] for name in inherited if name in os.environ},
            **self._options.env,
            **node_variables,
            **({"TRACEPARENT": traceparent} if (traceparent := TRACEPARENT.get()) else {}),
            "GRACECTL_ACTION": action,
            "GRACECTL_PROVIDER_ID": provider_id,
            "GRACECTL_REQUEST_ID": request_id(provider_id),
        }

    def _state_of(self, result: ProcessResult) -> InstanceState | None:
        if result.code == REFUSED:
            raise self._refused(result)
        if result.code < 0:
            raise ProviderUnavailable(f"{self._name} was killed by signal {-result.code}: {_reason(result)}")
        if result.code:
            raise ProviderUnavailable(f"{self._name} failed with exit code {result.code}: {_reason(result)}")
        if result.is_cut:
            raise ProviderUnavailable(f"{self._name} wrote more than {LONGEST_OUTPUT // 1024} KiB")
        if not result.stdout.strip():
            return None
        try:
            return decode_response(result.stdout).instance
        except ValueError as error:
            raise ProviderUnavailable(f"output of {self._name} {error}") from error

    def _refused(self, result: ProcessResult) -> ProviderRefused:
        lines = [line.strip() for line in result.stderr.decode(errors="replace").splitlines() if line.strip()]
        remedies = [line for line in lines if line.lower().startswith(_REMEDY)]
        messages = [line for line in lines if line not in remedies]
        message = display_text(messages[0]) if messages else "no reason given"
        remedy = display_text(remedies[0][len(_REMEDY) :]) if remedies else "see the command's documentation"
        return ProviderRefused(f"{self._name} refused: {message}", remedy)


def _node_variables(node: NodeIdentity) -> dict[str, str]:
    return {
        "GRACECTL_NODE_NAME": node.name,
        "GRACECTL_NODE_ADDRESSES": " ".join(node.addresses),
        "GRACECTL_NODE_CLAIM": node.claim,
        "GRACECTL_NODE_CONFLICTS": " ".join(node.conflicts),
    }


def _reason(result: ProcessResult) -> str:
    lines = [line for line in result.stderr.decode(errors="replace").splitlines() if line.strip()]
    return display_text(lines[0]) if lines else "no reason given"


GRACE_SECONDS: Final = 2.0
"""Between SIGTERM and SIGKILL, for a process that releases a lock."""
LINGER_SECONDS: Final = 1.0
"""How long children may continue to write after the process has exited."""
_FULL: Final = 17
"""Number of 64 KiB chunks after which a pipe is still being written to: its capacity is 1 MiB at most."""


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
    """Stop the remaining processes, and wait for them."""
    if process.returncode is None:
        _signal(process, signal.SIGTERM)
        with anyio.move_on_after(GRACE_SECONDS):
            await process.wait()
        # The whole group, also if its leader has exited and a child has not.
        _signal(process, signal.SIGKILL)
        await process.wait()
    elif any(pipe.is_held() for pipe in pipes):
        # The leader has been reaped, but its id stays taken while a member of the group lives and has the pipe open.
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
        """Read until no process can write."""
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
