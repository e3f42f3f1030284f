"""Flags of kubectl drain, with kubectl's meaning.

Three flags permit what kubectl refuses without them: here they are needed only with --strict. The flags of `Manner` say
how pods leave, which only a drain without a controller can do: a controller has its own rules. Source:
https://kubernetes.io/docs/reference/kubectl/generated/kubectl_drain/
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, TypeVar

import click
import msgspec

from gracectl.app.drainer import Manner
from gracectl.cli.failures import print_error
from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.model.pod import Pod
from gracectl.model.selectors import SelectorError, parse_selector
from gracectl.policy.evictability import FINISHED, is_static
from gracectl.policy.explain import listed
from gracectl.policy.waves import is_daemon

Command = TypeVar("Command", bound=Callable[..., None])

STRICT: Final = "GRACECTL_DRAIN_STRICT"

PERMITS: Final[Mapping[str, str]] = {
    "--ignore-daemonsets": "pods of DaemonSets always stay",
    "--delete-emptydir-data": "pods with emptyDir volumes are always evicted, after a warning that names them",
    "--force": "pods without a controller are always evicted, after a warning that names them",
}
"""Flags without which kubectl refuses, and the behavior of `drain` without --strict."""


class Strictness(msgspec.Struct, frozen=True, kw_only=True):
    """Which pods make a drain refuse; `is_strict` False: none."""

    is_strict: bool = False
    permitted: frozenset[str] = frozenset()

    def refusal(self, cluster: ClusterCache, node: str) -> str:
        """Why kubectl would refuse to drain the node; "" if it would not."""
        if not self.is_strict:
            return ""
        found: dict[str, list[str]] = {}
        for pod in cluster.pods_on(node):
            for flag in _needed(pod):
                if flag not in self.permitted:
                    found.setdefault(flag, []).append(pod.full_name)
        return "; ".join(f"{listed(pods)} {WHAT[flag]}: needs {flag}" for flag, pods in found.items())


WHAT: Final[Mapping[str, str]] = {
    "--ignore-daemonsets": "of a DaemonSet",
    "--delete-emptydir-data": "with emptyDir data",
    "--force": "without a controller",
}


def _needed(pod: Pod) -> Iterator[str]:
    """Flags without which kubectl does not drain the pod: static pods stay, finished ones may always go."""
    if is_static(pod) or pod.phase in FINISHED:
        return
    if is_daemon(pod):
        yield "--ignore-daemonsets"
        return
    if pod.empty_dir:
        yield "--delete-emptydir-data"
    if pod.controller is None:
        yield "--force"


class DryRunCommand(click.Command):
    """Command with values of flags as kubectl has them: `--dry-run=none|client|server`, `--force=true`. Without one, a
    flag takes no following argument.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click.Command."""
        end = args.index("--") if "--" in args else len(args)
        return super().parse_args(ctx, [*(word for each in args[:end] for word in _without_value(each)), *args[end:]])


_DRY_RUNS: Final = {"none": (), "client": ("--dry-run",), "server": ("--dry-run", "--on-server")}
_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
_FALSE: Final = ("0", "f", "F", "FALSE", "false", "False")


def _without_value(word: str) -> tuple[str, ...]:
    """The flags that a word of the command line stands for."""
    flag, equals, value = word.partition("=")
    if not equals or flag not in ("--dry-run", "--disable-eviction", *PERMITS):
        return (word,)
    if flag == "--dry-run" and value in _DRY_RUNS:
        return _DRY_RUNS[value]
    if value not in (*_TRUE, *_FALSE):
        choice = "none, client or server" if flag == "--dry-run" else "true or false"
        raise click.UsageError(f"Invalid value for '{flag}': {value!r}; give {choice}")
    return (flag,) if value in _TRUE else ()


def kubectl_flags(command: Command) -> Command:
    """The flags; `from_flags` makes options of them."""
    for option in (
        *(click.option(flag, is_flag=True, hidden=True) for flag in (*PERMITS, "--disable-eviction")),
        *(
            click.option(flag, type=int, default=0, hidden=True)
            for flag in ("--chunk-size", "--skip-wait-for-delete-timeout")
        ),
        click.option("--grace-period", type=int, default=-1, hidden=True),
        click.option("--pod-selector", default="", callback=_selector, hidden=True),
        click.option("--strict", is_flag=True, help=f"Refuse what kubectl drain refuses; also {STRICT}=1."),
    ):
        command = option(command)
    return command


def from_flags(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a drain, with `manner` and `strictness` in place of the flags."""
    permitted = frozenset(flag for flag in PERMITS if options.pop(_name(flag)))
    is_strict = options.pop("strict") or os.environ.get(STRICT, "") not in ("", "0")
    for flag in () if is_strict else (flag for flag in PERMITS if flag in permitted):
        print_error(f"{flag}: not needed: {PERMITS[flag]}")
    del options["chunk_size"]
    options["ignore_stuck"] |= options.pop("skip_wait_for_delete_timeout") > 0
    how = {name: options.pop(name) for name in ("pod_selector", "disable_eviction")}
    manner = Manner(grace_period=_grace(options.pop("grace_period")), **how)
    return {**options, "manner": manner, "strictness": Strictness(is_strict=is_strict, permitted=permitted)}


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _grace(seconds: int) -> int | None:
    """Negative: each pod's own. 0 would remove pods from the API while they still run: the shortest grace is sent."""
    return None if seconds < 0 else max(seconds, 1)


def _selector(context: click.Context, parameter: click.Parameter, text: str) -> str:
    try:
        if text:
            parse_selector(text)
    except SelectorError as error:
        raise click.BadParameter(str(error)) from error
    return text


def refused_by_controller(flags: Collection[str]) -> click.UsageError:
    """A controller drains the nodes, by its own rules."""
    return click.UsageError(f"{', '.join(flags)}: a controller drains these nodes, by its own rules; leave it out")
