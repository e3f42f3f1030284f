"""`gracectl drain` and `gracectl terminate`: options, preview and confirmation."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from gracectl.cli.confirm import confirm, require_confirmation, yes_option
from gracectl.cli.console import print_on, stdout_console
from gracectl.cli.drain.campaign import concurrency
from gracectl.cli.drain.here import MissingRights, without_controller
from gracectl.cli.drain.kubectl import DryRunCommand, from_flags, kubectl_flags
from gracectl.cli.drain.preview import DEADLINE_ENDS, NeverDrained, Preview, endless
from gracectl.cli.drain.reading import DrainOptions, ReadNodes, Undrainable, check, read_nodes
from gracectl.cli.drain.request import DrainRequest
from gracectl.cli.drains.followed import NotServedHere
from gracectl.cli.failures import REFUSED, interruptible, print_error, reporting_errors, run_async
from gracectl.cli.options import ClusterTarget, NodeChoice, UnknownNodes, duration, node_arguments
from gracectl.cli.output import command, echo
from gracectl.cli.plan.command import SECOND_READING, forecast_plan, show_details
from gracectl.cli.settings import SettingsSource, settings_options
from gracectl.inspect.forecast import DrainForecast
from gracectl.policy.answers import Sightings
from gracectl.policy.confirmation import AGREE_SECONDS
from gracectl.policy.maintenance import drain_deadline
from gracectl.policy.pace import explain_maximum, maximum_of

Command = TypeVar("Command", bound=Callable[..., None])


class AtOnce(click.ParamType[int | str]):
    """How many nodes at the same time: a number, or a percentage of the nodes."""

    name = "N|N%"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """See click."""
        if re.fullmatch(r"0*[1-9][0-9]{0,5}", str(value)):
            return int(value)
        if re.fullmatch(r"([1-9]|[1-9][0-9]|100)%", str(value)):
            return str(value)
        self.fail(f"{value!r}: give a number from 1 on, or a percentage from 1% to 100%", param, ctx)


AT_ONCE = AtOnce()


def command_line(name: str, nodes: NodeChoice) -> str:
    """`gracectl rotate -l pool=batch`, as the reason of a NodeDrain."""
    return command(name, *(nodes.names if nodes.query is None else ("-l", nodes.selector)))


def request_options(function: Command) -> Command:
    """Options of both commands."""
    # The last option that is added comes first in the help.
    for option in (
        click.option(
            "--timeout",
            callback=duration("means no limit"),
            metavar="DURATION",
            help="How long to wait: 10m, 90s, or seconds; 0: no limit, the default.",
        ),
        click.option(
            "--deadline",
            callback=duration(None),
            metavar="DURATION",
            help="Budgets and protection end this time after the request: remaining pods are deleted, with their "
            "grace before it.",
        ),
        click.option(
            "--dry-run",
            is_flag=True,
            help="Print what would happen; change nothing. --dry-run=server: also send the requests, as dry runs.",
        ),
        click.option("--on-server", is_flag=True, hidden=True),
        click.option("--no-wait", is_flag=True, help="Exit after the requests; do not wait."),
        click.option(
            "--skip-stuck", is_flag=True, help="Leave out nodes that would never be drained; name them at the end."
        ),
        click.option(
            "--at-once",
            type=AT_ONCE,
            metavar="N|N%",
            help="Drain N nodes at the same time, the quickest first; default: all.",
        ),
    ):
        function = option(function)
    return function


@click.command(cls=DryRunCommand)
@node_arguments
@request_options
@click.option("--ignore-stuck", is_flag=True, help="Treat nodes as drained although stuck pods may still run on them.")
@yes_option
@kubectl_flags
@settings_options
def drain(target: ClusterTarget, nodes: NodeChoice, **options: Any) -> None:
    """Drain nodes without deleting them, and wait until they are drained.

    Cordons each NODE and drains it under budgets and protection. DaemonSet pods stay, and the node stays cordoned until
    `uncordon`. `terminate` also deletes the node and terminates its instance.

    First it prints the cluster, the number of nodes and pods, when each node would be drained, and which drains would
    never end. A drain can be undone, so a drain that never ends is only a warning. All nodes are checked: if one of
    them would not be drained, nothing is requested of any. The controller does the work, so this command may be
    interrupted at any moment (Ctrl-C, --timeout): requests that were sent continue. Where no controller manages a node,
    this command drains it itself, and the first line says so; interrupted, it resumes when you run it again. A pod is
    stuck if it still exists a minute after its grace although the kubelet is alive. It may still run. docs/drain.md
    says how it differs from kubectl drain, and which rights it needs.

    Exit code 0: every node is drained, or with --no-wait requested; also if no node matches the selector. 2 also with
    --deadline, without a terminal and --yes. 3 also if a node does not exist, if one would not be drained, if the
    server refused for one of them, or if one was uncordoned or deleted meanwhile. 4: the timeout has expired, or only
    stuck pods remain and --ignore-stuck is not set. 130: interrupted.
    """
    reason = command_line("drain", nodes)
    request(target, nodes, DrainOptions(for_maintenance=True, reason=reason, **from_flags(options)))


@click.command(cls=DryRunCommand)
@node_arguments
@request_options
@click.option("--force", is_flag=True, help="Also nodes that would never be drained, as the forecast says.")
@yes_option
@settings_options
def terminate(target: ClusterTarget, nodes: NodeChoice, *, yes: bool, **options: Any) -> None:
    """Terminate nodes, and wait until they are terminated.

    Deletes each NODE: the controller drains it under budgets and protection, and then terminates its instance. A
    termination cannot be undone, so the command asks for confirmation. `drain` keeps the node.

    First it prints the cluster, the number of nodes and pods, when each node would be drained, and which drains would
    never end. Nodes that would never be drained need --force as well. All nodes are checked: if one of them would not
    be drained, nothing is requested of any. The controller does the work, so this command may be interrupted at any
    moment (Ctrl-C, --timeout): requests that were sent continue. Where no controller leads, this command drains each
    node, and then deletes the Node object; it terminates no instance. docs/drain.md says which rights it needs.

    Exit code 0: every node is terminated, or with --no-wait requested; also if no node matches the selector. 2 also
    without a terminal and without --yes: nothing was changed. 3 also if a node does not exist, if one would not be
    drained, or never without --force, or if the server refused for one of them. 4: the timeout has expired. 130:
    interrupted, or not confirmed.
    """
    reason = command_line("terminate", nodes)
    request(target, nodes, DrainOptions(for_maintenance=False, yes=yes, reason=reason, **options))


def _check_together(options: DrainOptions) -> None:
    """Raise UsageError for options that exclude each other."""
    if options.no_wait and options.timeout is not None:
        raise click.UsageError("--timeout and --no-wait exclude each other")
    if options.no_wait and options.at_once is not None:
        raise click.UsageError("--at-once and --no-wait exclude each other")
    if options.dry_run and options.no_wait:
        raise click.UsageError("--dry-run waits for nothing: leave out --no-wait")


def request(target: ClusterTarget, nodes: NodeChoice, options: DrainOptions) -> None:
    """Preview, confirm and request a drain, a termination or a rotation; exits with the code of the outcome."""
    if options.rotation is None:
        _check_together(options)
    if not options.dry_run and (not options.for_maintenance or options.deadline is not None):
        require_confirmation(yes=options.yes)
    refusals = (UnknownNodes, Undrainable, NeverDrained, MissingRights, NotServedHere)
    with reporting_errors(dict.fromkeys(refusals, REFUSED)):
        source = SettingsSource(target)
        run = DrainRequest(target, options)
        with interruptible(run.interrupted):

            def read(after: float) -> ReadNodes:
                return run_async(lambda: read_nodes(target, nodes, source, options, after))

            found, forecast = _forecast(read, options)
            if not found.nodes:
                echo(nodes.no_match, err=True)
                return
            if found.note:
                echo(found.note, err=not options.dry_run)
            if not found.writes_events:
                print_error("no Events are written: missing permission: create events")
            action = _preview(found, forecast, options)
            if options.dry_run:
                if options.on_server and not run_async(lambda: run.dry_run(found, forecast)):
                    sys.exit(REFUSED)
                return
            if question := _question(action, found, options):
                require_confirmation(yes=options.yes)
                confirm(question, yes=options.yes)
            code = run_async(lambda: run.run(found, source, forecast))
    if code:
        sys.exit(code)


def _question(action: str, found: ReadNodes, options: DrainOptions) -> str:
    """What to confirm; "" if nothing must be."""
    if options.for_maintenance:
        return f"{action}? {DEADLINE_ENDS.capitalize()}." if _has_deadline(found, options) else ""
    is_new = options.deadline is not None or any(node.deletion_timestamp is None for node in found.nodes)
    return f"{action}? This cannot be undone." if is_new else ""


def _has_deadline(found: ReadNodes, options: DrainOptions) -> bool:
    """Whether the drain has one, by its options or by an earlier request that it resumes."""
    resumed = (drain_deadline(node) for node in found.nodes if node.name in found.here)
    return options.for_maintenance and (options.deadline is not None or any(resumed))


def _forecast(read: Callable[[float], ReadNodes], options: DrainOptions) -> tuple[ReadNodes, DrainForecast | None]:
    """Read the nodes and forecast their drain; repeat both before a refusal. Raises Undrainable.

    `read(seconds)`: reads the nodes after a wait of that many seconds.
    """

    def forecast_of(found: ReadNodes, seen: Sightings) -> DrainForecast | None:
        if not options.dry_run:
            check(found, for_maintenance=options.for_maintenance, strictness=options.strictness)
        if found.inputs is None or not found.nodes:
            return None
        stays, seconds, inputs = options.for_maintenance or bool(found.here), options.deadline, found.inputs
        if (slots := _slots(found, options)[0]) is not None and slots < len(found.nodes):
            # The chosen nodes that are not drained at the same time take each other's pods.
            inputs = msgspec.structs.replace(inputs, around=msgspec.structs.replace(inputs.around, others=None))
        forecast = forecast_plan(inputs, for_maintenance=stays, deadline_seconds=seconds, seen=seen)
        return without_controller(forecast, found.here)

    found = read(0.0)
    forecast = forecast_of(found, {})
    if forecast is None or options.for_maintenance or options.force or options.skip_stuck:
        return found, forecast
    if forecast.is_unconfirmed:
        echo(SECOND_READING, err=True)
    elif not endless(forecast):
        return found, forecast
    again = read(AGREE_SECONDS if forecast.is_unconfirmed else 0.0)
    return again, forecast_of(again, forecast.seen)


def _slots(found: ReadNodes, options: DrainOptions) -> tuple[int | None, str]:
    """Nodes at the same time (None: all), and the setting that limits them more than the options do."""
    at_once = concurrency(options.at_once, len(found.nodes))
    if found.campaign is None or options.for_maintenance or found.inputs is None:
        return at_once, ""
    cluster, settings = found.inputs.cluster, found.settings.termination
    managed = sum(cluster.manages(settings.managed, node) for node in cluster.nodes.values())
    maximum = maximum_of(settings.policy.voluntary, managed)
    if at_once is not None and at_once <= maximum:
        return at_once, ""
    return maximum, explain_maximum(settings.policy.voluntary, managed)


def _preview(found: ReadNodes, forecast: DrainForecast | None, options: DrainOptions) -> str:
    """Print what would happen; what it is, in a few words. Raises Undrainable, NeverDrained."""
    stays = options.for_maintenance
    is_begun = stays or options.force or options.skip_stuck
    never = () if forecast is None or is_begun else endless(forecast)
    at_once, pace = _slots(found, options)
    preview = Preview(
        cluster=None if sys.stdout.isatty() else found.cluster,
        nodes=found.nodes,
        forecast=forecast,
        refusal=found.refusal,
        for_maintenance=stays,
        at_once=at_once,
        pace=pace,
        is_rotation=options.rotation is not None,
        is_whole=options.dry_run,
        note="" if found.inputs is None else found.inputs.note,
        has_deadline=_has_deadline(found, options),
    )
    print_on(stdout_console(), preview.rendered(), err=not options.dry_run)
    if options.dry_run:
        if found.inputs is not None and forecast is not None:
            echo("")
            show_details(forecast, found.inputs.detail())
        check(found, for_maintenance=stays, strictness=options.strictness)
    if never:
        raise NeverDrained(never)
    return preview.action
