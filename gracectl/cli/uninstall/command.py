"""`gracectl uninstall`: takes everything of gracectl's off a cluster, so that no node stays stuck without it."""

from __future__ import annotations

import sys
from typing import Any, Literal

import click
import msgspec
from rich.table import Table
from rich.text import Text

from gracectl.cli.console import paper, put
from gracectl.cli.failures import REFUSED, complain, interruptible, run_async, told_to_people
from gracectl.cli.options import ClusterChoice, cluster_options, connected, duration
from gracectl.cli.output import say
from gracectl.cli.plan.report import as_json
from gracectl.cli.uninstall.procedure import Uninstall, Wanted
from gracectl.cli.uninstall.report import Report, last_words, of_ending, removal_rows
from gracectl.config import Settings

INTERRUPTED = (
    "interrupted; what came off stays off, but the Lease runs out soon, and a controller that still runs then puts "
    "finalizers back: run this again, or delete the controller's Deployment first"
)


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would be done; nothing is changed.")
@click.option(
    "--wait",
    default="0",
    callback=duration("waits for nothing, the default"),
    metavar="DURATION",
    help="Let the controller finish the terminations under way first, for so long at most: 10m, 90s, or seconds.",
)
@click.option(
    "-n", "--namespace", default="", metavar="NAME", help="Where gracectl runs; default: where its Lease is found."
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="json: one object.")
@cluster_options
def uninstall(cluster: ClusterChoice, output: Literal["table", "json"], **wanted: Any) -> None:
    """Take everything of gracectl's off a cluster.

    Takes the Lease over, so that a controller that runs does nothing more; deletes the webhook configurations and the
    Secret of the admission server; and takes the finalizer karpenter.sh/termination off every node and node claim.
    What is being deleted vanishes with that, without its instance: each of those is named. The definitions stay. The
    Deployment is to be deleted afterwards. Where a live Karpenter leads, nothing is done, as that finalizer is its own
    as well. It may be run again at any time. The page docs/uninstall.md explains every word, and the rights it needs.

    \b
    -o json prints one object:
      dryRun, lease {namespace, name, previousHolder, heldUntil},
      removals [{kind, name, outcome [removed|wouldBeRemoved|left|failed],
        why}],
      endings [{node, claim, instance, pods, heldBy}],
      kept [{node, commands}], definitions [name], notes [text]

    Exit code 0: nothing of gracectl's is left but what is said. 2 also if a live Karpenter leads: nothing was changed.
    3 also if something could not be removed: it is named, with the reason.
    """
    told = msgspec.convert(wanted, Wanted)
    with told_to_people(), interruptible(lambda: "interrupted" if told.dry_run else INTERRUPTED):
        settings = cluster.settings()
        report = run_async(lambda: _uninstall(cluster, settings, told))
    if output == "json":
        say(as_json(report))
    else:
        _print(report)
    if report.failures:
        complain(
            f"{len(report.failures)} of gracectl's things could not be removed; mend what is said, and run it again"
        )
        sys.exit(REFUSED)


async def _uninstall(cluster: ClusterChoice, settings: Settings, wanted: Wanted) -> Report:
    async with connected(cluster) as there:
        return await Uninstall(there.client, there.clock, settings, wanted, complain).run()


def _print(report: Report) -> None:
    console = paper()
    rows = list(removal_rows(report))
    if rows:
        table = Table.grid(padding=(0, 2))
        for what, outcome in rows:
            table.add_row(Text(what), Text(outcome))
        put(console, table)
    else:
        say("Nothing of gracectl's is on any node or claim, and no webhook is there.")
    for ending in report.endings:
        put(console, Text(of_ending(ending, is_foretold=report.dry_run)))
    for kept in report.kept:
        put(console, Text(f"node {kept.node} stays cordoned, and nothing gives it back any more; to give it back:"))
        for command in kept.commands:
            put(console, Text(f"  {command}"))
    for sentence in last_words(report):
        put(console, Text(sentence))
