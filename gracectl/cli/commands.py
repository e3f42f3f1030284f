"""Table of all commands with their modules, summaries and examples.

`gracectl --help` prints it without importing a command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Entry(NamedTuple):
    """Command. `module`: has an attribute with the command's name; `summary`: as in `gracectl --help`; `examples`:
    command lines without the program's name, each with its purpose."""

    module: str
    summary: str
    examples: tuple[tuple[str, str], ...]


GROUPS: Final[Mapping[str, Mapping[str, Entry]]] = {
    "Inspect": {
        "plan": Entry(
            "plan.command",
            "Forecast what happens to nodes that are deleted now.",
            (
                ("plan worker-7", "one node, before anything is deleted"),
                ("plan -l pool=batch --timeline", "a pool, as bars"),
            ),
        ),
        "status": Entry(
            "status.command",
            "Show active nodes, and what blocks them.",
            (
                ("status", "all nodes that are terminating, pending or in maintenance"),
                ("status -w worker-7", "one node, until it is done"),
            ),
        ),
        "ui": Entry(
            "ui.command",
            "Serve a page that shows terminations as they happen.",
            (
                ("ui --open", "for the current cluster, in the browser"),
                ("ui --bind 127.0.0.1:9000 --base-path /gracectl", "behind a proxy"),
            ),
        ),
        "budgets": Entry(
            "budgets.command",
            "Show what budgets allow, and what they block.",
            (
                ("budgets", "all budgets; the ones that block a termination come first"),
                ("budgets shop/web", "one budget"),
                ("budgets -n shop -o json", "budgets of one namespace, as JSON"),
            ),
        ),
        "doctor": Entry(
            "doctor.command",
            "Check whether everything that a termination needs is in place.",
            (
                ("doctor", "all checks, with a remedy for each that fails"),
                ("doctor --config settings.yaml", "also whether the controller has these settings"),
            ),
        ),
        "config": Entry(
            "config",
            "Print the effective settings, and where each is from.",
            (
                ("config", "the defaults, with what the environment changes"),
                ("config --config settings.yaml", "settings of a file; exit code 2 if it is invalid"),
                ("config --schema > settings.schema.json", "for editors and checks"),
            ),
        ),
    },
    "Act on nodes": {
        "drain": Entry(
            "drain.command",
            "Drain nodes without deleting them, and wait until it is done.",
            (
                ("drain worker-7", "cordon it, and evict its pods"),
                ("drain -l pool=batch --dry-run", "what that would do to a pool; changes nothing"),
            ),
        ),
        "uncordon": Entry(
            "uncordon",
            "Uncordon nodes that are drained for maintenance.",
            (
                ("uncordon worker-7", "let pods be scheduled on it again"),
                ("uncordon -l pool=batch", "all nodes of a pool"),
            ),
        ),
        "terminate": Entry(
            "drain.command",
            "Terminate nodes, and wait until it is done.",
            (
                ("terminate worker-7", "drain it, delete it, terminate its instance; asks for confirmation"),
                ("terminate -l pool=batch --dry-run", "what that would do to a pool; changes nothing"),
            ),
        ),
    },
    "Install and run": {
        "controller": Entry(
            "controller",
            "Watch a cluster and terminate its deleted nodes gracefully.",
            (
                ("controller --dry-run", "observe only: log what it would do"),
                ("controller --config settings.yaml", "with settings from a file, until SIGTERM"),
            ),
        ),
        "agent": Entry(
            "agent.command",
            "Terminate the pods of this node before its machine shuts down.",
            (
                ("agent --node-name worker-7 --config settings.yaml", "on the machine of the node, until SIGTERM"),
                ("agent --simulate-shutdown --config settings.yaml", "preview a shutdown; changes nothing"),
            ),
        ),
        "crds": Entry(
            "crds",
            "Print the CustomResourceDefinitions of gracectl.",
            (
                ("crds | kubectl apply --server-side -f -", "install or update them in a cluster"),
                ("crds | kubectl diff --server-side -f -", "preview the change"),
            ),
        ),
        "webhooks": Entry(
            "webhooks",
            "Print the webhook configurations, or write them to the cluster.",
            (
                ("webhooks --apply", "create them, or bring them up to date"),
                ("webhooks | kubectl diff --server-side -f -", "what that would change"),
            ),
        ),
        "uninstall": Entry(
            "uninstall.command",
            "Remove everything of gracectl from a cluster.",
            (
                ("uninstall --dry-run", "preview the removal; changes nothing"),
                ("uninstall --wait 10m", "ask, then wait for terminations in progress"),
            ),
        ),
        "completion": Entry(
            "completion",
            "Print a completion script for bash, zsh or fish.",
            (
                ("completion bash >~/.local/share/bash-completion/completions/gracectl", "for new shells"),
                ("completion fish | source", "for this shell"),
            ),
        ),
        "version": Entry(
            "version",
            "Print the version.",
            (
                ("version", "as text"),
                ("version -o json", "as JSON"),
            ),
        ),
    },
    "Try": {
        "demo": Entry(
            "demo",
            "Drain nodes of an embedded cluster, and watch.",
            (
                ("demo", "three nodes of a simulated cluster, live"),
                ("demo --nodes 20 -o json", "a larger cluster, as JSON"),
            ),
        ),
        "simulate": Entry(
            "simulate",
            "Run a simulated cluster, for kubectl and for controllers.",
            (
                ("simulate --nodes 5 --kubeconfig /tmp/sim", "until Ctrl-C"),
                ("simulate --scenario node-budgets", "another scenario; --list names them all"),
            ),
        ),
    },
}

COMMANDS: Final[Mapping[str, Entry]] = {name: entry for group in GROUPS.values() for name, entry in group.items()}
