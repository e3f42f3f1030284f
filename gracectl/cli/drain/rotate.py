"""`gracectl rotate`: a NodeDrain that terminates nodes, a few at a time."""

from __future__ import annotations

from typing import Any

import click

from gracectl.cli.confirm import yes_option
from gracectl.cli.drain.campaign import Campaign
from gracectl.cli.drain.command import AT_ONCE, command_line, request
from gracectl.cli.drain.reading import DrainOptions
from gracectl.cli.options import ClusterTarget, NodeChoice, duration, node_arguments, window
from gracectl.cli.output import Choice
from gracectl.cli.settings import settings_options
from gracectl.model.nodedrain import OnUndrainable, Order
from gracectl.model.windows import Window

ORDERS = {"by-forecast": Order.BY_FORECAST, "oldest-first": Order.OLDEST_FIRST, "by-name": Order.BY_NAME}
UNDRAINABLE = {each.lower(): each for each in OnUndrainable}


def _windows(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[Window, ...]:
    return tuple(map(window, texts))


@click.command()
@node_arguments
@click.option("--at-once", type=AT_ONCE, default="1", metavar="N|N%", help="Nodes at the same time; default: 1.")
@click.option(
    "--on-undrainable",
    type=Choice(list(UNDRAINABLE)),
    default="wait",
    help="A node that cannot be drained: wait (default); skip: uncordon it, and try again at the end; fail: stop.",
)
@click.option("--order", type=Choice(list(ORDERS)), default="by-forecast", help="Default: by-forecast.")
@click.option(
    "--timeout",
    callback=duration(None),
    metavar="DURATION",
    help="Per node: budgets and protection end this time after its drain begins.",
)
@click.option(
    "--window",
    "windows",
    multiple=True,
    callback=_windows,
    metavar="WINDOW",
    help="Begin nodes only then, such as '0 22 * * 1-5 8h Europe/Berlin'; repeatable.",
)
@click.option("--reason", default="", metavar="TEXT", help="Why, for people; default: the command line.")
@click.option("--wait", is_flag=True, help="Follow it until it is finished.")
@click.option("--dry-run", is_flag=True, help="Print what would happen; change nothing.")
@yes_option
@settings_options
def rotate(target: ClusterTarget, nodes: NodeChoice, **options: Any) -> None:
    """Replace nodes, a few at a time: drain, then terminate each.

    Creates a NodeDrain with these nodes, which the controller works through: it cordons and drains a node, deletes it
    when it is drained, and begins the next one when its pods are Ready elsewhere. Your node group, MachineSet or
    Karpenter replaces the nodes. Nodes that join later are not touched. `drains` shows, pauses and cancels NodeDrains.

    First it prints the cluster, the nodes and pods, and what would never be drained, and asks for confirmation. The
    command may be interrupted at any moment: the NodeDrain continues. docs/rotation.md has examples, and the rights.

    Exit code 0: the NodeDrain was created, or with --wait every node is terminated; also if no node matches the
    selector. 2 also without a terminal and without --yes. 3 also if a node does not exist, if the server refused, or
    with --wait if a node was skipped, failed or canceled. 130: interrupted, or not confirmed.
    """
    campaign = Campaign(
        verb="rotate",
        reason=options["reason"] or command_line("rotate", nodes),
        at_once=options["at_once"],
        on_undrainable=UNDRAINABLE[options["on_undrainable"]],
        order=ORDERS[options["order"]],
        timeout=options["timeout"],
        windows=options["windows"],
    )
    chosen = DrainOptions(
        for_maintenance=False,
        no_wait=not (options["wait"] or options["dry_run"]),
        dry_run=options["dry_run"],
        timeout=None,
        deadline=options["timeout"],
        yes=options["yes"],
        force=True,
        at_once=options["at_once"],
        rotation=campaign,
    )
    request(target, nodes, chosen)
