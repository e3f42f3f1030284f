"""How a command ends: one clear message on stderr, and an exit code that scripts can rely on.

0: done. 1: gracectl itself failed. 2: bad usage or configuration, or a live Karpenter on the cluster; nothing was
changed. 3: the cluster refused, could not be reached or failed. 4: the time that was given is over; the work goes on.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import NoReturn, TypeVar

import anyio

from gracectl.cli.output import program, say
from gracectl.config import ConfigError
from gracectl.controllers.karpenter import LiveKarpenter
from gracectl.controllers.rbac import MissingPermissions
from gracectl.kube.credentials import CredentialsError
from gracectl.kube.errors import ApiError, Unreachable
from gracectl.runtime.supervise import ComponentFailed, leaves

T = TypeVar("T")

FAILED, MISUSED, REFUSED, UNFINISHED = 1, 2, 3, 4


@contextlib.contextmanager
def told_to_people(also: Mapping[type[Exception], int] | None = None) -> Iterator[None]:
    """Turn the failures that a person can act upon into their message and exit code; others keep their traceback.

    `also`: what else is told, and its exit code, by a command that can meet more than the controller can.
    """
    try:
        yield
    except Exception as error:  # whatever is not explained here is raised again as it came
        cause = next(leaves(error))
        explained = _explained(cause) or _told(cause, also or {})
        if explained is None:
            raise
        end(*explained)


@contextlib.contextmanager
def interruptible(words: Callable[[], str] = lambda: "interrupted") -> Iterator[None]:
    """Ctrl-C ends the command with these words, asked for in that moment, and 128 + the signal's number."""
    try:
        yield
    except KeyboardInterrupt:
        end(words(), 128 + signal.SIGINT)


def _explained(error: Exception) -> tuple[str, int] | None:
    """What to say of a failure, and the exit code; None for one that nobody foresaw."""
    match error:
        case ConfigError() | CredentialsError() | LiveKarpenter():
            return str(error), MISUSED
        case MissingPermissions(rights=rights):
            listed = "\n".join(f"  - {right}" for right in rights)
            return f"the credentials do not allow all that the controller does; grant them:\n{listed}", REFUSED
        case Unreachable():
            return f"{error}; check the server's address in the kubeconfig, and that it runs", REFUSED
        case ApiError():
            return str(error), REFUSED
        case ComponentFailed(__cause__=ApiError() as cause):
            return str(cause), REFUSED
        case ComponentFailed():
            return str(error), FAILED
    return None


def _told(error: Exception, codes: Mapping[type[Exception], int]) -> tuple[str, int] | None:
    return next(((str(error), code) for kind, code in codes.items() if isinstance(error, kind)), None)


def end(message: str, code: int) -> NoReturn:
    """Print the message to stderr and exit."""
    complain(message)
    sys.exit(code)


def complain(message: str) -> None:
    """Print the message to stderr, and go on."""
    say(f"{program()}: {message}", err=True)


def run_async(command: Callable[[], Awaitable[T]]) -> T:
    """Run a command's coroutine, on uvloop where it is installed."""
    use_uvloop = find_spec("uvloop") is not None
    return anyio.run(command, backend_options={"use_uvloop": use_uvloop})
