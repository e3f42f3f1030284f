"""Table of all commands with their modules and summaries, and their examples.

`gracectl --help` prints it without importing a command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Entry(NamedTuple):
    """Command. `module`: has an attribute with the command's name; `summary`: as in `gracectl --help`."""

    module: str
    summary: str


GROUPS: Final[Mapping[str, Mapping[str, Entry]]] = {
    "Inspect": {
        "plan": Entry("plan.command", "Forecast what happens to nodes that are deleted now."),
        "status": Entry("status.command", "Show active nodes, and what blocks them."),
        "ui": Entry("ui.command", "Serve a page that shows terminations as they happen."),
        "drains": Entry("drains.command", "Show NodeDrains and their progress, pause and cancel them."),
        "budgets": Entry("budgets.command", "Show what budgets allow, and what they block."),
        "doctor": Entry("doctor.command", "Check whether everything that a termination needs is in place."),
        "config": Entry("config", "Print the effective settings, and where each is from."),
    },
    "Act on nodes": {
        "drain": Entry("drain.command", "Drain nodes without deleting them, and wait until they are drained."),
        "uncordon": Entry("uncordon", "Uncordon nodes that are drained for maintenance."),
        "terminate": Entry("drain.command", "Terminate nodes, and wait until they are terminated."),
        "rotate": Entry("drain.rotate", "Replace nodes, a few at a time: drain, then terminate each."),
        "freeze": Entry("freeze", "Stop everything voluntary from beginning in the whole cluster."),
        "unfreeze": Entry("freeze", "End a freeze: everything voluntary may begin again."),
    },
    "Install and run": {
        "controller": Entry("controller", "Watch a cluster and terminate its deleted nodes gracefully."),
        "agent": Entry("agent.command", "Terminate the pods of this node before its machine shuts down."),
        "crds": Entry("crds", "Print the CustomResourceDefinitions of gracectl."),
        "webhooks": Entry("webhooks", "Print the webhook configurations, or write them to the cluster."),
        "uninstall": Entry("uninstall.command", "Remove everything of gracectl from a cluster."),
        "completion": Entry("completion", "Print a completion script for bash, zsh or fish."),
        "version": Entry("version", "Print the version."),
    },
    "Try": {
        "demo": Entry("demo", "Drain nodes of an embedded cluster, and watch."),
        "simulate": Entry("simulate", "Run a simulated cluster, for kubectl and for controllers."),
    },
}

COMMANDS: Final[Mapping[str, Entry]] = {name: entry for group in GROUPS.values() for name, entry in group.items()}

EXAMPLES: Final = """\
plan worker-7  # one node, before anything is deleted
plan -l pool=batch --timeline  # a pool, as bars
status  # all nodes that are terminating, pending or in maintenance
status -w worker-7  # one node, until it is done
ui --open  # for the current cluster, in the browser
ui --bind 127.0.0.1:9000 --base-path /gracectl  # behind a proxy
drains  # all NodeDrains, the newest first
drains show rotate-3fa9c1 -w  # one, until it is finished
drains cancel rotate-3fa9c1  # asks first; nodes that are being deleted continue
budgets  # all budgets; the ones that block a termination come first
budgets shop/web  # one budget
budgets -n shop -o json  # budgets of one namespace, as JSON
doctor  # all checks, with a remedy for each that fails
doctor --config settings.yaml  # also whether the controller has these settings
config  # the defaults, with what the environment changes
config --config settings.yaml  # settings of a file; exit code 2 if it is invalid
config --schema > settings.schema.json  # for editors and checks
drain worker-7  # cordon it, and evict its pods
drain -l pool=batch --dry-run  # what that would do to a pool; changes nothing
uncordon worker-7  # let pods be scheduled on it again
uncordon -l pool=batch  # all nodes of a pool
terminate worker-7  # drain it, delete it, terminate its instance; asks for confirmation
terminate -l pool=batch --dry-run  # what that would do to a pool; changes nothing
rotate -l pool=batch --at-once 10% --dry-run  # what that would do to a pool; changes nothing
rotate -l pool=batch --at-once 10% --on-undrainable skip  # asks first; the controller continues without you
freeze --until 8h --reason 'release week'  # nothing voluntary begins in the next eight hours
freeze  # until gracectl unfreeze
unfreeze  # end the freeze
unfreeze -n gracectl  # of the controller in this namespace
controller --dry-run  # observe only: log what it would do
controller --config settings.yaml  # with settings from a file, until SIGTERM
agent --node-name worker-7 --config settings.yaml  # on the machine of the node, until SIGTERM
agent --simulate-shutdown --config settings.yaml  # preview a shutdown; changes nothing
crds | kubectl apply --server-side -f -  # install or update them in a cluster
crds | kubectl diff --server-side -f -  # preview the change
webhooks --apply  # create them, or bring them up to date
webhooks | kubectl diff --server-side -f -  # what that would change
uninstall --dry-run  # preview the removal; changes nothing
uninstall --wait 10m  # ask, then wait for terminations in progress
completion bash >~/.local/share/bash-completion/completions/gracectl  # for new shells
completion fish | source  # for this shell
version  # as text
version -o json  # as JSON
demo  # three nodes of a simulated cluster, live
demo --nodes 20 -o json  # a larger cluster, as JSON
simulate --nodes 5 --kubeconfig /tmp/sim  # until Ctrl-C
simulate --scenario node-budgets  # another scenario; --list names them all
"""
"""Command lines without the program's name, each with its purpose."""


def examples_of(name: str) -> tuple[tuple[str, str], ...]:
    """Examples of a command: a command line, and its purpose."""
    examples = (line.partition("  # ") for line in EXAMPLES.splitlines() if line.split()[0] == name)
    return tuple((line, purpose) for line, _, purpose in examples)
