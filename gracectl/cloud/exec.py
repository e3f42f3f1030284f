"""The provider that runs a command of your own; docs/providers.md has the contract for whoever writes one."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Annotated, Final

import anyio
import msgspec

from gracectl.cloud.answers import Action, read_answer, request_id, shown_text
from gracectl.cloud.process import Ended, TookTooLong, run
from gracectl.cloud.provider import InstanceGone, InstanceState, NodeIdentity, ProviderRefused, ProviderUnavailable

REFUSED: Final = 4
"""The exit code that says that somebody must act."""
INHERITED: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""What the command gets of our environment, where there is such a thing."""
LONGEST_OUTPUT: Final = 64 * 1024
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REMEDY: Final = "remedy:"
_SHORTAGES: Final = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ETXTBSY})
"""Why a command that can be started cannot be started at this moment."""


class ExecProvider:
    """Starts a process for every question."""

    name = "exec"
    needs_provider_id = True

    class Options(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
        """`command` is a program and its arguments, in which `{action}` and `{providerID}` are replaced; no shell reads
        it. `env` are variables with their values, `passEnv` names of ours."""

        command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
        env: Mapping[str, str] = {}
        pass_env: tuple[str, ...] = ()
        timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 30.0
        max_parallel: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 8

        def __post_init__(self) -> None:
            """Raises ValueError."""
            if not self.command[0].strip() or "{" in self.command[0]:
                raise ValueError(f'command: "{self.command[0]}" is no program; begin with its path')
            if any("\0" in each for each in (*self.command, *self.env, *self.env.values(), *self.pass_env)):
                raise ValueError("command, env: a NUL character cannot be passed on")
            for field, names in (("env", self.env), ("passEnv", self.pass_env)):
                for name in names:
                    if not name or "=" in name:
                        raise ValueError(f'{field}: "{name}" is no name of a variable')
                    if name.startswith("GRACECTL_"):
                        raise ValueError(f"{field}: {name} is ours to set")

    def __init__(self, options: Options) -> None:
        self._options = options
        self._places = anyio.Semaphore(options.max_parallel)

    async def state(self, provider_id: str) -> InstanceState:
        """See Provider."""
        answer = await self._asked("state", provider_id)
        if answer is None:
            raise ProviderUnavailable(f"{self._name} has said nothing about the state of {provider_id}")
        return answer

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        """See Provider."""
        if await self._asked("terminate", provider_id, node) is InstanceState.GONE:
            raise InstanceGone(f"{self._name} says that {provider_id} is gone")

    async def aclose(self) -> None:
        """It holds nothing: a process ends with the question that has begun it."""

    @property
    def _name(self) -> str:
        return f"command {self._options.command[0]}"

    async def _asked(self, action: Action, provider_id: str, node: NodeIdentity | None = None) -> InstanceState | None:
        """What the command says of the instance; None: nothing, and that it is content."""
        program, *arguments = self._options.command
        replaced = (each.replace("{action}", action).replace("{providerID}", provider_id) for each in arguments)
        command, environment = (program, *replaced), self._environment(action, provider_id, node)
        try:
            async with self._places:
                ended = await run(command, environment, seconds=self._options.timeout_seconds, most=LONGEST_OUTPUT)
        except TookTooLong as error:
            raise ProviderUnavailable(f"{self._name} was killed after {self._options.timeout_seconds:g} s") from error
        except OSError as error:
            if error.errno in _SHORTAGES:
                raise ProviderUnavailable(f"{self._name} cannot be started now: {error.strerror}") from error
            message = f"{self._name} cannot be started: {error.strerror or error}"
            raise ProviderRefused(message, "put it into the image, or correct provider.options.command") from error
        except ValueError as error:
            message = f"{self._name} cannot be told of {provider_id!r}: {error}"
            raise ProviderRefused(message, "correct spec.providerID of the node") from error
        return self._understood(ended)

    def _environment(self, action: Action, provider_id: str, node: NodeIdentity | None) -> dict[str, str]:
        """What the command is told, and little else: our environment may hold what it must not know."""
        wanted = (*INHERITED, *self._options.pass_env)
        about_node = {} if node is None else _told_of(node)
        return {
            "PATH": _PATH,
            **{name: os.environ[name] for name in wanted if name in os.environ},
            **self._options.env,
            **about_node,
            "GRACECTL_ACTION": action,
            "GRACECTL_PROVIDER_ID": provider_id,
            "GRACECTL_REQUEST_ID": request_id(provider_id),
        }

    def _understood(self, ended: Ended) -> InstanceState | None:
        if ended.code == REFUSED:
            raise self._refused(ended)
        if ended.code < 0:
            raise ProviderUnavailable(f"{self._name} was killed by signal {-ended.code}: {_said(ended)}")
        if ended.code:
            raise ProviderUnavailable(f"{self._name} has failed with exit code {ended.code}: {_said(ended)}")
        if ended.is_cut:
            raise ProviderUnavailable(f"{self._name} says more than {LONGEST_OUTPUT // 1024} KiB")
        if not ended.stdout.strip():
            return None
        try:
            return read_answer(ended.stdout).instance
        except ValueError as error:
            raise ProviderUnavailable(f"what {self._name} says {error}") from error

    def _refused(self, ended: Ended) -> ProviderRefused:
        lines = [line.strip() for line in ended.stderr.decode(errors="replace").splitlines() if line.strip()]
        remedies = [line for line in lines if line.lower().startswith(_REMEDY)]
        words = [line for line in lines if line not in remedies]
        message = shown_text(words[0]) if words else "it does not say why"
        remedy = shown_text(remedies[0][len(_REMEDY) :]) if remedies else "see what the command wants"
        return ProviderRefused(f"{self._name} refuses: {message}", remedy)


def _told_of(node: NodeIdentity) -> dict[str, str]:
    return {"GRACECTL_NODE_NAME": node.name, "GRACECTL_NODE_ADDRESSES": " ".join(node.addresses)}


def _said(ended: Ended) -> str:
    lines = [line for line in ended.stderr.decode(errors="replace").splitlines() if line.strip()]
    return shown_text(lines[0]) if lines else "it does not say why"
