"""Which nodes a command line means: names, or a selector, exactly one of the two."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner, Result
from support.builders import a_node

from gracectl.cli.options import NodeChoice, UnknownNodes, node_arguments

NODES = [a_node("b", labels={"pool": "x"}), a_node("a", labels={"pool": "x"}), a_node("c")]


def run(*arguments: str) -> tuple[Result, list[NodeChoice]]:
    got: list[NodeChoice] = []

    @click.command()
    @node_arguments
    @click.option("--other")
    def command(nodes: NodeChoice, other: str | None) -> None:
        got.append(nodes)

    return CliRunner().invoke(command, arguments), got


def chosen(*arguments: str) -> tuple[str, ...]:
    """The names of the nodes that are meant."""
    result, (choice,) = run(*arguments)
    assert result.exit_code == 0, result.output
    return choice.among(NODES)


def test_names_or_a_selector_choose_nodes() -> None:
    assert chosen("c") == ("c",)
    assert chosen("b", "--other", "x", "a", "b") == ("a", "b")
    assert chosen("-l", "pool=x") == ("a", "b")
    assert chosen("--selector", "!pool") == ("c",)
    assert chosen("-l", "pool=y") == ()


def test_names_are_taken_as_kubectl_prints_them() -> None:
    assert chosen("node/a", "nodes/c") == ("a", "c")


def test_all_names_that_are_nowhere_are_told_at_once() -> None:
    with pytest.raises(UnknownNodes, match=r"^there are no nodes x, y; `kubectl get nodes` lists all nodes$"):
        chosen("x", "a", "y")
    with pytest.raises(UnknownNodes, match=r"^there is no node x; "):
        chosen("x")


def test_a_name_that_is_like_another_is_answered_with_it() -> None:
    with pytest.raises(UnknownNodes, match=r"^there is no node wroker-10; did you mean worker-10\? "):
        NodeChoice(("wroker-10",)).among([a_node("worker-1"), a_node("worker-10"), a_node("other")])


@pytest.mark.parametrize(("arguments", "message"), [
    ((), "name one node or more, or choose them with -l SELECTOR"),
    (("-l", ""), "name one node or more, or choose them with -l SELECTOR"),
    (("a", "-l", "pool=x"), "give names or a selector, not both (a; -l pool=x)"),
    (("-l", "pool in (x"), "Invalid value for '-l' / '--selector': the selector 'pool in (x' has its end where"),
    (("a", ""), "Invalid value for NODE: an empty name; is a variable not set?"),
])  # fmt: skip
def test_what_is_not_clear_is_refused(arguments: tuple[str, ...], message: str) -> None:
    result, got = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert got == []
