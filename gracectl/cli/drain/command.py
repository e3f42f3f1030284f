"""`gracectl drain` and `gracectl terminate`: arguments and options, and the forecast that `--dry-run` prints."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from gracectl.cli.confirm import confirm, require_confirmation, yes_option
from gracectl.cli.drain.request import DrainOptions, DrainRequest, Undrainable, check
from gracectl.cli.failures import REFUSED, interruptible, reporting_errors, run_async
from gracectl.cli.options import ClusterTarget, NodeChoice, UnknownNodes, cluster_options, duration, node_arguments
from gracectl.cli.output import echo
from gracectl.cli.plan.command import forecast_plan, read_input, show
from gracectl.cli.plan.text import Detail
from gracectl.config import Settings

Command = TypeVar("Command", bound=Callable[..., None])


def request_options(command: Command) -> Command:
    """The options that both commands have."""
    # The last one that is added comes first in the help.
    for option in (
        click.option(
            "--timeout",
            callback=duration("means no limit"),
            metavar="DURATION",
            help="How long to wait: 10m, 90s, or seconds; 0: no limit, the default.",
        ),
        click.option("--dry-run", is_flag=True, help="Print the forecast, as plan does; nothing is changed."),
        click.option("--no-wait", is_flag=True, help="Do not wait until it is done."),
    ):
        command = option(command)
    return command


@click.command()
@node_arguments
@request_options
@cluster_options
def drain(target: ClusterTarget, nodes: NodeChoice, **options: Any) -> None:
    """Drain nodes, which stay, and wait until it is done.

    Cordons each NODE and drains it under budgets and protection. Its DaemonSet pods stay, and it stays cordoned until
    `uncordon`. `terminate` also deletes the node, and terminates its instance.

    All nodes are checked first: if one of them would not be drained, nothing is requested of any. The controller does
    the work, so this command may be interrupted at any moment (Ctrl-C, --timeout): what was requested goes on.
    docs/drain.md says how it differs from kubectl drain, and which rights it needs.

    Exit code 0: every node is drained, or with --no-wait requested; also if no node matches the selector. 3 also if a
    node does not exist, if one would not be drained, if the server refused for one of them, or if one was uncordoned or
    deleted meanwhile. 4: the timeout is over. 130: interrupted.
    """
    _run(target, nodes, DrainOptions(for_maintenance=True, **options))


@click.command()
@node_arguments
@request_options
@yes_option
@cluster_options
def terminate(target: ClusterTarget, nodes: NodeChoice, *, yes: bool, **options: Any) -> None:
    """Terminate nodes, and wait until it is done.

    Deletes each NODE: the controller drains it under budgets and protection, and then terminates its instance. That
    cannot be undone, so it asks for confirmation. `drain` leaves the node where it is.

    All nodes are checked first: if one of them would not be drained, nothing is requested of any. The controller does
    the work, so this command may be interrupted at any moment (Ctrl-C, --timeout): what was requested goes on.
    docs/drain.md says which rights it needs.

    Exit code 0: every node is terminated, or with --no-wait requested; also if no node matches the selector. 2 also
    without a terminal and without --yes: nothing was changed. 3 also if a node does not exist, if one would not be
    drained, or if the server refused for one of them. 4: the timeout is over. 130: interrupted, or not confirmed.
    """
    _run(target, nodes, DrainOptions(for_maintenance=False, yes=yes, **options))


def _run(target: ClusterTarget, nodes: NodeChoice, options: DrainOptions) -> None:
    if options.no_wait and options.timeout is not None:
        raise click.UsageError("--timeout and --no-wait exclude each other")
    if options.dry_run and (options.no_wait or options.timeout is not None):
        raise click.UsageError("--dry-run waits for nothing: leave out --no-wait and --timeout")
    if not options.for_maintenance and not options.dry_run:
        require_confirmation(yes=options.yes)
    with reporting_errors({UnknownNodes: REFUSED, Undrainable: REFUSED}):
        settings = target.settings()
        if options.dry_run:
            _show_forecast(target, nodes, settings, for_maintenance=options.for_maintenance)
            return
        request = DrainRequest(target, settings, options)
        with interruptible(request.interrupted):
            if not options.for_maintenance:
                confirm(f"terminate {nodes.spelt}? This cannot be undone.", yes=options.yes)
            code = run_async(lambda: request.run(nodes))
    if code:
        sys.exit(code)


def _show_forecast(target: ClusterTarget, nodes: NodeChoice, settings: Settings, *, for_maintenance: bool) -> None:
    by_default = target.config is None
    with interruptible():
        inputs = run_async(lambda: read_input(target, nodes, settings, shows_cluster=True))
        if not inputs.asked:
            echo(nodes.no_match, err=True)
            return
        show(forecast_plan(inputs, settings, for_maintenance=for_maintenance), Detail(by_default=by_default))
    asked = [node for node in inputs.cluster.nodes.values() if node.name in inputs.asked]
    check(asked, settings, inputs.now, for_maintenance=for_maintenance, by_default=by_default)
