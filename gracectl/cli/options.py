"""Options and connection that the commands with a cluster share."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Any

import anyio
import click
import msgspec

from gracectl.cli.completion import complete_contexts, complete_namespaces, complete_nodes
from gracectl.cli.failures import print_error
from gracectl.cli.format import cluster_text
from gracectl.cli.output import Command
from gracectl.config import Settings, load_settings
from gracectl.kube import connection
from gracectl.kube.auth.credentials import ClusterAddress
from gracectl.kube.cache.reading import read_all
from gracectl.kube.client import KubeClient
from gracectl.kube.connection import Connection
from gracectl.kube.errors import ApiError, Forbidden, NotFound
from gracectl.kube.requests import Key, Selection
from gracectl.kube.resources import NODES
from gracectl.kube.transport.skew import LARGEST_OFFSET
from gracectl.model.durations import parse_seconds
from gracectl.model.meta import natural_key
from gracectl.model.node import Node
from gracectl.model.selectors import LabelQuery, SelectorError, parse_selector
from gracectl.model.windows import Window
from gracectl.policy.explain import listed
from gracectl.policy.windows import parse_window
from gracectl.runtime.supervise import ungrouped


class ClusterTarget(msgspec.Struct, frozen=True):
    """Cluster and settings that the command line selects."""

    kubeconfig: str | None = None
    context: str | None = None
    config: Path | None = None
    config_map: Key | None = None

    def settings(self) -> Settings:
        """Settings of the file, or the defaults, with the overrides of the environment. Raises ConfigError."""
        return load_settings(self.config, os.environ)


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which cluster a command speaks to; it gets them in one, as its argument `target`."""
    return target_options("Settings (YAML); default: all defaults.")(command)


def target_options(config_help: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Options of `cluster_options`, with this help for --config."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @click.option(
            "--kubeconfig",
            metavar="FILE",
            type=click.Path(),
            help="Kubeconfig; default: $KUBECONFIG, the pod's service account, ~/.kube/config.",
        )
        @click.option(
            "--context",
            metavar="NAME",
            shell_complete=complete_contexts,
            help="Context of the kubeconfig; default: its current one.",
        )
        @click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help=config_help)
        @wraps(command)
        def with_options(
            *arguments: Any, kubeconfig: str | None, context: str | None, config: Path | None, **others: Any
        ) -> None:
            command(*arguments, target=ClusterTarget(kubeconfig, context, config), **others)

        return with_options

    return decorated


@asynccontextmanager
async def connected(
    target: ClusterTarget,
    largest_offset: float = LARGEST_OFFSET,
    notice: Callable[[str], None] = print_error,
    *,
    shows_cluster: bool = False,
) -> AsyncIterator[Connection]:
    """A connection while the block runs; no request is sent yet. Raises CredentialsError.

    `largest_offset`: maximum credible skew, in seconds, between the server's clock and this machine's. `notice`: gets
    what is waited for while the server is silent. `shows_cluster`: a first line says on a terminal which cluster it is.
    """
    chosen = connection.connected(target.kubeconfig, target.context, largest_offset=largest_offset, notice=notice)
    async with chosen as found:
        if shows_cluster and sys.stdout.isatty():
            _show(found.cluster)
        yield found


def _show(cluster: ClusterAddress) -> None:
    from gracectl.cli.console import print_on, stdout_console  # which a controller does without

    print_on(stdout_console(), cluster_text(cluster))


class UnknownNodes(Exception):
    """Nodes with these names do not exist. The message lists the names, and similar names in `known`."""

    def __init__(self, names: Iterable[str], known: Iterable[str] = ()) -> None:
        self.names = tuple(names)
        them = "is no node" if len(self.names) == 1 else "are no nodes"
        found = sorted(known, key=natural_key)
        similar = dict.fromkeys(
            name for wrong in self.names for name in get_close_matches(wrong, found, n=1, cutoff=0.8)
        )
        meant = f"did you mean {', '.join(similar)}? " if similar else ""
        super().__init__(f"there {them} {', '.join(self.names)}; {meant}`kubectl get nodes` lists all nodes")


class NodeChoice(msgspec.Struct, frozen=True):
    """Nodes that the command line selects: by `names`, or by a `query` that was written as `selector`."""

    names: tuple[str, ...] = ()
    query: LabelQuery | None = None
    selector: str = ""

    def picks(self, node: Node) -> bool:
        """Whether the command is about this node."""
        return node.name in self.names if self.query is None else self.query.matches(node.labels)

    @property
    def no_match(self) -> str:
        """Message for a selector without a match."""
        return f"No node matches the selector {self.selector}."

    def among(self, nodes: Iterable[Node]) -> tuple[str, ...]:
        """Names of the selected nodes. Raises UnknownNodes if a named node does not exist."""
        nodes = tuple(nodes)
        found = sorted((node.name for node in nodes if self.picks(node)), key=natural_key)
        missing = [name for name in self.names if name not in found]
        if missing:
            raise UnknownNodes(missing, (node.name for node in nodes))
        return tuple(found)


async def read_chosen(client: KubeClient, choice: NodeChoice) -> tuple[Node, ...]:
    """The chosen nodes, in natural order. Raises ApiError, UnknownNodes.

    Nodes with names are read one by one: a list of all nodes may be large, and not permitted.
    """
    found: list[Node] = []
    if choice.query is not None:
        found = await read_all(client, NODES, Selection(labels=choice.selector), keep=choice.picks)
    elif choice.names:
        limit = anyio.CapacityLimiter(10)

        async def read(name: str) -> None:
            async with limit:
                with suppress(NotFound):
                    found.append(await client.get(NODES, ("", name)))

        try:
            with ungrouped():
                async with anyio.create_task_group() as group:
                    for name in choice.names:
                        group.start_soon(read, name)
        except Forbidden:
            found = await read_all(client, NODES, keep=choice.picks)
    if len(found) < len(choice.names):
        with suppress(ApiError):
            found = await read_all(client, NODES)  # for names that are like them
    by_name = {node.name: node for node in found}
    return tuple(by_name[name] for name in choice.among(found))


def node_arguments(command: Callable[..., None]) -> Callable[..., None]:
    """NODE… or a selector, exactly one of the two; the command gets it as its argument `nodes`."""

    @optional_node_arguments
    @wraps(command)
    def with_nodes(*arguments: Any, nodes: NodeChoice | None, **others: Any) -> None:
        if nodes is None:
            raise click.UsageError("name one node or more, or choose them with -l SELECTOR")
        command(*arguments, nodes=nodes, **others)

    return with_nodes


def optional_node_arguments(command: Callable[..., None]) -> Callable[..., None]:
    """NODE…, a selector, or neither: then the command's argument `nodes` is None."""

    @click.argument("names", nargs=-1, metavar="[NODE]...", callback=_named, shell_complete=complete_nodes)
    @click.option(
        "-l", "--selector", metavar="SELECTOR", callback=_parsed, help="Nodes by label, in the syntax of kubectl."
    )
    @wraps(command)
    def with_nodes(
        *arguments: Any, names: tuple[str, ...], selector: tuple[str, LabelQuery] | None, **others: Any
    ) -> None:
        if names and selector:
            raise click.UsageError(f"give names or a selector, not both ({listed(names)}; -l {selector[0]})")
        text, query = selector or ("", None)
        command(*arguments, nodes=NodeChoice(names, query, text) if names or selector else None, **others)

    return with_nodes


def _named(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Unique node names; `node/n1`, the form of `kubectl get -o name`, becomes `n1`."""
    found = dict.fromkeys(name.removeprefix("nodes/").removeprefix("node/") for name in names)
    if "" in found:
        raise click.BadParameter("an empty name; is a variable not set?", param_hint="NODE")
    return tuple(found)


def _parsed(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, LabelQuery] | None:
    """An empty selector is none, as kubectl drain has it: a variable that is not set must not mean all nodes."""
    if not text:
        return None
    try:
        return text, parse_selector(text)
    except SelectorError as error:
        raise click.BadParameter(str(error)) from error


Callback = Callable[[click.Context, click.Parameter, str | None], float | None]


def duration(zero: str | None) -> Callback:
    """For an option that takes a Go duration, or a bare number of seconds; `zero`: what 0 does; None: refused."""

    def parsed(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
        if text is None:
            return None
        try:
            found = float(text) if re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", text) else parse_seconds(text)
        except ValueError as error:
            raise click.BadParameter(f"{error}; write it as 10m, 1h30m or 90s, or as a number of seconds.") from error
        if found < 0 and zero is not None:
            raise click.BadParameter(f"{text} is negative; 0 {zero}.")
        if found < 1 and zero is None:
            raise click.BadParameter(f"{text} is less than a second; give 1s or more, or leave the option out.")
        return found

    return parsed


def window(text: str) -> Window:
    """Window of an option. Raises BadParameter."""
    try:
        return parse_window(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def wait_option(help: str) -> Callable[[Command], Command]:
    """`--wait`: seconds, 0 by default."""
    callback = duration("waits for nothing, the default")
    return click.option("--wait", default="0", callback=callback, metavar="DURATION", help=help)


def namespace_option(help: str) -> Callable[[Command], Command]:
    """`-n`, `--namespace`: a name, empty by default."""
    return click.option("-n", "--namespace", default="", metavar="NAME", shell_complete=complete_namespaces, help=help)
