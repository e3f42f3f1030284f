"""Provider that runs a user-defined command; docs/providers.md has its contract."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Annotated, Final

import anyio
import msgspec

from gracectl.cloud.process import ProcessResult, ProcessTimeout, run
from gracectl.cloud.provider import InstanceGone, InstanceState, NodeIdentity, ProviderRefused, ProviderUnavailable
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
    return {"GRACECTL_NODE_NAME": node.name, "GRACECTL_NODE_ADDRESSES": " ".join(node.addresses)}


def _reason(result: ProcessResult) -> str:
    lines = [line for line in result.stderr.decode(errors="replace").splitlines() if line.strip()]
    return display_text(lines[0]) if lines else "no reason given"
