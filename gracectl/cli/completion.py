"""Shell completion: the scripts, and values from a cluster or a file.

Invariants: a completion prints no error and ends within DEADLINE_SECONDS, even if the cluster does not answer; values
that cannot be read complete to nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Final

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

from gracectl.cli.output import NAME, Choice, echo

SHELLS: Final[dict[str, type[ShellComplete]]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
VARIABLE: Final = "_GRACECTL_COMPLETE"
"""Set by the scripts: click then prints the completions of COMP_WORDS."""

READ_SECONDS: Final = 2.0
DEADLINE_SECONDS: Final = 5.0
"""Time limit of the process, even if a credential plugin blocks it."""

MOST: Final = 500
"""Maximum number of names to read from a cluster."""


@click.command()
@click.argument("shell", type=Choice(tuple(SHELLS)))
def completion(shell: str) -> None:
    """Print a completion script for bash, zsh or fish.

    It completes commands and options, and the names of nodes, contexts, namespaces and scenarios. For `kubectl grace`,
    kubectl's own completion runs the program kubectl_complete-grace, which is installed with this one.
    """
    from gracectl.cli.root import root

    # Not the class's own method: that of bash checks the version of the running bash.
    echo(ShellComplete.source(SHELLS[shell](root, {}, NAME, VARIABLE)))


def become_quiet() -> None:
    """Silence stderr and end this process in time."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    watchdog = threading.Timer(DEADLINE_SECONDS, os._exit, [0])
    watchdog.daemon = True
    watchdog.start()


def complete_for_kubectl(words: list[str]) -> None:
    """Print completions of the last word in the format that kubectl expects of kubectl_complete-grace.

    https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/#shell-completion-for-plugins
    """
    from gracectl.cli.root import root

    *before, last = words or [""]
    items = ShellComplete(root, {}, "kubectl grace", VARIABLE).get_completions(before, last)
    for item in items:
        if item.type == "plain":
            echo(f"{item.value}\t{item.help}" if item.help else str(item.value))
    wants_files = any(item.type != "plain" for item in items)
    echo(":0" if wants_files else ":4")  # 0: complete files; 4: do not


def complete_nodes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Complete nodes of the cluster that are not on the command line yet."""
    given = context.params.get("names") or ()
    return [item for item in _of_cluster(context, "nodes", incomplete) if item.value not in given]


def complete_namespaces(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Complete namespaces of the cluster."""
    return _of_cluster(context, "namespaces", incomplete)


def complete_contexts(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Complete contexts of the kubeconfig."""

    def read() -> Iterable[str]:
        from gracectl.kube.auth.lookup import contexts

        return contexts(context.params.get("kubeconfig"), os.environ)

    return _items(read, incomplete)


def _of_cluster(context: click.Context, plural: str, incomplete: str) -> list[CompletionItem[str]]:
    def read() -> Iterable[str]:
        from gracectl.cli.failures import run_async

        return run_async(lambda: _names(context, plural))

    return _items(read, incomplete)


def _items(read: Callable[[], Iterable[str]], incomplete: str) -> list[CompletionItem[str]]:
    """Values with this prefix; empty if they cannot be read."""
    try:
        found = sorted(set(read()))
    except Exception:  # an error message would garble the command line
        return []
    return [CompletionItem(name) for name in found if name.startswith(incomplete) and name.isprintable()]


async def _names(context: click.Context, plural: str) -> list[str]:
    """Names of the first objects of this kind, as many as arrive within READ_SECONDS."""
    import anyio

    from gracectl.kube.connection import connected
    from gracectl.kube.resources import Resource, untyped

    kind = Resource("", "v1", plural, "", untyped, namespaced=False)
    found: list[str] = []
    with anyio.move_on_after(READ_SECONDS):
        async with connected(context.params.get("kubeconfig"), context.params.get("context")) as connection:
            async for page in connection.client.list(kind):
                found.extend(str(item["metadata"]["name"]) for item in page.items)
                if len(found) >= MOST:
                    break
    return found
