"""Failures of commands: one message on stderr, and an exit code that scripts can rely on.

0: done. 1: gracectl itself failed. 2: bad usage or configuration; nothing was changed. 3: the cluster refused, could
not be reached or failed. 4: the timeout has expired; a leader continues.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import NoReturn, TypeVar

import anyio

from gracectl.cli.output import echo, program
from gracectl.config import ConfigError
from gracectl.controllers.rbac import MissingPermissions
from gracectl.kube.auth.credentials import CredentialsError
from gracectl.kube.errors import ApiError, RequestTimeout, Unreachable
from gracectl.runtime.supervise import ComponentFailed, leaves

T = TypeVar("T")

FAILED, MISUSED, REFUSED, UNFINISHED = 1, 2, 3, 4


@contextlib.contextmanager
def reporting_errors(also: Mapping[type[Exception], int] | None = None) -> Iterator[None]:
    """Turn failures that a person can act upon into their message and exit code; others keep their traceback.

    `also`: further failures of a command, with their exit codes.
    """
    try:
        yield
    except Exception as error:  # raised again below unless it is explained
        cause = next(leaves(error))
        explained = _explained(cause) or _listed(cause, also or {})
        if explained is None:
            raise
        fail(*explained)


@contextlib.contextmanager
def interruptible(message: Callable[[], str] = lambda: "interrupted") -> Iterator[None]:
    """Ctrl-C ends the command with this message, built in that moment, and 128 + the signal's number."""
    try:
        yield
    except KeyboardInterrupt:
        fail(message(), 128 + signal.SIGINT)


def _explained(error: Exception) -> tuple[str, int] | None:
    """The message and the exit code; None for an unexpected failure."""
    match error:
        case ConfigError() | CredentialsError():
            return str(error), MISUSED
        case MissingPermissions(rights=rights):
            listed = "\n".join(f"  - {right}" for right in rights)
            return f"the credentials do not allow all that the controller does; grant them:\n{listed}", REFUSED
        case Unreachable():
            return f"{error}; {error.remedy}", REFUSED
        case RequestTimeout():
            return f"{error}; check that the server runs, and the network between", REFUSED
        case ApiError():
            return str(error), REFUSED
        case ComponentFailed(__cause__=ApiError() as cause):
            return str(cause), REFUSED
        case ComponentFailed():
            return str(error), FAILED
    return None


def _listed(error: Exception, codes: Mapping[type[Exception], int]) -> tuple[str, int] | None:
    return next(((str(error), code) for kind, code in codes.items() if isinstance(error, kind)), None)


def fail(message: str, code: int) -> NoReturn:
    """Print the message to stderr and exit."""
    print_error(message)
    sys.exit(code)


def print_error(message: str) -> None:
    """Print a message to stderr, behind the name of the program."""
    echo(f"{program()}: {message}", err=True)


def run_async(command: Callable[[], Awaitable[T]]) -> T:
    """Run a command's coroutine, on uvloop where it is installed."""
    use_uvloop = find_spec("uvloop") is not None
    return anyio.run(command, backend_options={"use_uvloop": use_uvloop})
