"""Which nodes a command is about: named one by one or chosen by their labels, as kubectl has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import click
import msgspec

from gracectl.model.node import Node
from gracectl.model.selectors import LabelQuery, SelectorError, parse_selector
from gracectl.policy.explain import listed


class UnknownNodes(Exception):
    """There are no nodes of these names; the message names them all."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        them = "is no node" if len(self.names) == 1 else "are no nodes"
        super().__init__(f"there {them} {', '.join(self.names)}; `kubectl get nodes` lists those that there are")


class NodeChoice(msgspec.Struct, frozen=True):
    """What the command line says. Either has `names`, or a `query`, which was written as `selector`."""

    names: tuple[str, ...] = ()
    query: LabelQuery | None = None
    selector: str = ""

    def picks(self, node: Node) -> bool:
        """Whether the command is about this node."""
        return node.name in self.names if self.query is None else self.query.matches(node.labels)

    @property
    def nobody(self) -> str:
        """What people are told when there is none."""
        return f"No node matches the selector {self.selector}."

    def among(self, nodes: Iterable[Node]) -> tuple[str, ...]:
        """The names of those that the command is about. Raises UnknownNodes if one of them is not there."""
        found = sorted(node.name for node in nodes if self.picks(node))
        missing = [name for name in self.names if name not in found]
        if missing:
            raise UnknownNodes(missing)
        return tuple(found)


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

    @click.argument("names", nargs=-1, metavar="[NODE]...", callback=_named)
    @click.option(
        "-l", "--selector", metavar="SELECTOR", callback=_parsed, help="Nodes by their labels, as kubectl has it."
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
    """Each once; `node/n1`, as `kubectl get -o name` prints it, is n1."""
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
