"""`gracectl uninstall`: removes everything of gracectl from a cluster, so that no node stays stuck without it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from gracectl.cli.confirm import confirm, require_confirmation, yes_option
from gracectl.cli.console import Row, Table, print_on, stdout_console
from gracectl.cli.failures import REFUSED, interruptible, print_error, reporting_errors, run_async
from gracectl.cli.format import cluster_text
from gracectl.cli.options import ClusterTarget, cluster_options, connected, namespace_option, wait_option
from gracectl.cli.output import Output, echo, is_structured, output_option
from gracectl.cli.report import structured
from gracectl.cli.uninstall.procedure import Uninstall, UninstallOptions
from gracectl.cli.uninstall.report import UninstallReport, closing_lines, orphaned_instance_text, removal_rows
from gracectl.config import Settings

INTERRUPTED = (
    "interrupted; what was removed stays removed, but the Lease expires soon, and a running controller then puts "
    "finalizers back: run this again, or delete the controller's Deployment first"
)


@click.command()
@click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")
@wait_option("Let the controller finish terminations in progress first, at most this long: 10m, 90s, or seconds.")
@namespace_option("Namespace of gracectl; default: that of its Lease.")
@output_option("table")
@yes_option
@cluster_options
def uninstall(target: ClusterTarget, output: Output, *, yes: bool, **options: Any) -> None:
    """Remove everything of gracectl from a cluster.

    Takes the Lease over, which stops a running controller; deletes the webhook configurations and the Secret of the
    admission server; removes the finalizers karpenter.sh/termination and gracectl.io/termination from every node and
    nodeclaim, except Karpenter's own; and returns pods that were released for a replacement to their ReplicaSets.
    Nodes and nodeclaims that are being deleted then disappear, but their instances remain: each one is named. The
    definitions stay. Delete the Deployment afterwards. You can run the command again at any time. docs/uninstall.md
    explains every field, and the rights it needs.

    On a terminal it first prints what would be done, as --dry-run does, and asks for confirmation.

    \b
    -o json prints one object:
      cluster {context, server}, dryRun,
      lease {namespace, name, previousHolder, heldUntil},
      removals [{kind, name, outcome [removed|wouldBeRemoved|skipped|failed],
        reason}],
      orphanedInstances [{node, claim, instance, pods, heldBy}],
      cordonedNodes [{node, commands}], definitions [name], notes [text]

    Exit code 0: nothing of gracectl remains except the printed objects. 2 also without a
    terminal and without --yes: nothing was changed. 3 also if something could not be removed: it is named, with the
    reason. 130: interrupted, or not confirmed.
    """
    chosen = msgspec.convert(options, UninstallOptions)
    if not chosen.dry_run:
        require_confirmation(yes=yes)
    asks = not (yes or chosen.dry_run)
    with reporting_errors():
        settings = target.settings()
        if asks:
            with interruptible():
                look = msgspec.structs.replace(chosen, dry_run=True)
                _ask(run_async(lambda: _uninstall(target, settings, look, shows_cluster=True)))
        with interruptible(lambda: "interrupted" if chosen.dry_run else INTERRUPTED):
            shows_cluster = not (asks or is_structured(output))
            report = run_async(lambda: _uninstall(target, settings, chosen, shows_cluster=shows_cluster))
    if is_structured(output):
        echo(structured(report, output))
    else:
        _print(report)
    if report.failures:
        print_error(f"{len(report.failures)} removals failed; fix the printed causes, then run it again")
        sys.exit(REFUSED)


async def _uninstall(
    target: ClusterTarget, settings: Settings, options: UninstallOptions, *, shows_cluster: bool
) -> UninstallReport:
    async with connected(target, shows_cluster=shows_cluster) as connection:
        return await Uninstall(connection, settings, options, print_error).run()


def _ask(report: UninstallReport) -> None:
    """Show what would be done, on stderr, and have it confirmed."""
    if not sys.stdout.isatty():
        echo(cluster_text(report.cluster), err=True)
    _print(report, err=True)
    confirm("remove gracectl from this cluster?", yes=False)


def _print(report: UninstallReport, *, err: bool = False) -> None:
    print_on(stdout_console(), Group(*_parts(report)), err=err)


def _parts(report: UninstallReport) -> Iterator[RenderableType]:
    if rows := [Row(cells) for cells in removal_rows(report)]:
        yield Table(("object", "result"), rows, has_message=True)
    else:
        yield Text("Nothing of gracectl is on any node or nodeclaim, and there is no webhook.")
    for orphan in report.orphaned_instances:
        yield Text(orphaned_instance_text(orphan, is_dry_run=report.dry_run))
    for cordoned in report.cordoned_nodes:
        yield Text(f"node {cordoned.node} stays cordoned; to uncordon it:")
        yield from (Text(f"  {command}") for command in cordoned.commands)
    yield from map(Text, closing_lines(report))
