"""`gracectl plan`: forecasts the drain of nodes without changing anything."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from gracectl.cli.console import print_on, stdout_console
from gracectl.cli.failures import MISUSED, REFUSED, fail, interruptible, reporting_errors, run_async
from gracectl.cli.options import ClusterTarget, NodeChoice, UnknownNodes, connected, node_arguments, window
from gracectl.cli.output import Output, echo, is_structured, output_option
from gracectl.cli.plan.brief import MOST_LINES, BriefPlan
from gracectl.cli.plan.export import plan_html, plan_svg
from gracectl.cli.plan.report import plan_report
from gracectl.cli.plan.table import plan_table
from gracectl.cli.plan.text import Detail, plan_text
from gracectl.cli.plan.timeline import signs_for, timeline
from gracectl.cli.report import structured
from gracectl.cli.settings import EffectiveSettings, SettingsSource, installation_note, settings_options
from gracectl.config import Settings
from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.cluster.workloads import read_workloads
from gracectl.inspect.forecast import (
    DrainForecast,
    forecast_drains,
    is_draining,
    with_node_budgets,
    with_surroundings,
    with_warnings,
)
from gracectl.inspect.leadership import UNKNOWN_LEADERSHIP, Leadership, as_led, read_leadership
from gracectl.inspect.owner_reports import Reports, read_owner_reports
from gracectl.inspect.surroundings import read_surroundings
from gracectl.inspect.watcher import read_node_budgets, snapshot
from gracectl.kube.auth.credentials import ClusterAddress
from gracectl.kube.connection import Connection
from gracectl.model.budget import NodeDisruptionBudget
from gracectl.model.windows import Window
from gracectl.policy.answers import Sightings
from gracectl.policy.confirmation import AGREE_SECONDS
from gracectl.policy.explain import counted
from gracectl.policy.fit import WindowFit, fit_window
from gracectl.policy.pace import maximum_of
from gracectl.policy.surroundings import Surroundings
from gracectl.policy.windows import window_state

SLOW_PODS = 500
"""The forecast of more pods takes a second or more."""


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command line."""

    output: Output
    timeline: bool
    svg: Path | None
    html: Path | None
    replacement_seconds: float | None
    window: Window | None
    verbose: bool


def _window(context: click.Context, parameter: click.Parameter, text: str | None) -> Window | None:
    return None if text is None else window(text)


def _finite(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Refuse infinity and nan, which a range lets pass."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number of seconds.")
    return value


@click.command()
@node_arguments
@output_option(
    "table",
    "wide",
    help=f"wide: the whole forecast; on a terminal a table has {MOST_LINES} lines. json, yaml: one object.",
)
@click.option("--timeline", is_flag=True, help="Show times as bars instead of reasons.")
@click.option("--svg", type=click.Path(path_type=Path), metavar="FILE", help="Also write the bars to this file.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write the forecast to this file.")
@click.option(
    "--replacement-seconds",
    type=click.FloatRange(min=0),
    callback=_finite,
    metavar="N",
    help="The longest that a replacement takes until it is Ready.  [default: plan.replacementSeconds, 30]",
)
@click.option(
    "--window",
    metavar="WINDOW",
    callback=_window,
    help="Which nodes are drained within it, such as '0 22 * * * 4h Europe/Berlin'.  [default: voluntary.windows]",
)
@click.option("-v", "--verbose", is_flag=True, help="Every pod and budget, also ignored pods.")
@settings_options
def plan(target: ClusterTarget, nodes: NodeChoice, **options: Any) -> None:
    """Forecast what happens to nodes that are deleted now.

    Changes nothing. Needs permission to list nodes, pods, poddisruptionbudgets, volumeattachments and nodeclaims, and
    for warnings about node disruption budgets also nodedisruptionbudgets. For each NODE: when it is drained, and
    warnings; for each pod: when and how it leaves, and why not before. Nodes that are terminating already are forecast
    from now on. Times count from now. docs/plan.md says what is certain and what is not.

    \b
    -o json prints one object; answers are {answer [range|unknown|never], earliest,
    latest, expected, earliestSeconds, latestSeconds, expectedSeconds, certain,
    missing [text], causes [{kind, message, pod, budgets}]}:
      cluster {context, server}, at, note,
      assumptions {replacementSeconds, evictionQps, evictionBurst, settings},
      drained (answer), unknown [node], never [node],
      window {opens, closes, atOnce,
        nodes [{name, fits [yes|likely|unlikely|unknown|never],
          drained (answer)}]},
      nodes [{name, terminating, owner {name, reason, assisted}, deletedAt,
        deadline {at, atSeconds, source, holder, gracePeriodSeconds},
        drained (answer),
        warnings [{kind, blocking, message, objects, remedy}],
        waves [{name, periodSeconds}],
        pods [{namespace, name, uid, wave, outcome, reason, until, message,
          removalWindow, terminatedWindow, certain, methods [evicted|deleted],
          requests [{at, atSeconds, method, graceSeconds}], graceSeconds,
          deleteAt, deadline, budgets [name],
          queuePosition {number, of, after, undecided},
          protection {kind, value, until, valid, capped}, blockedBy, remedy}]}],
      alsoDraining [node],
      budgets [{namespace, name, allowed, healthy, required, expected,
        failure, queue [{node, pod}]}]

    Exit code 0: the forecast was printed, or no node matches the selector; 2 also if a file cannot be written (the
    forecast is still printed); 3 also if a node does not exist.
    """
    chosen = msgspec.convert(options, PlanOptions)
    if is_structured(chosen.output) and chosen.timeline:
        raise click.UsageError(f"--timeline and -o {chosen.output} exclude each other")
    with reporting_errors({UnknownNodes: REFUSED}):
        source = SettingsSource(target)
        with interruptible():
            shows_cluster = not is_structured(chosen.output)
            inputs = run_async(lambda: _read(target, nodes, source, shows_cluster=shows_cluster))
            forecast = forecast_plan(inputs, chosen.replacement_seconds)
            if forecast.is_unconfirmed:
                echo(SECOND_READING, err=True)
                inputs = run_async(lambda: _read(target, nodes, source, after=AGREE_SECONDS))
                forecast = forecast_plan(inputs, chosen.replacement_seconds, seen=forecast.seen)
        _answer(inputs, forecast, nodes, chosen)


class PlanInput(msgspec.Struct, frozen=True):
    """The cluster at `now` (Unix seconds, the server's clock), and the names of the chosen nodes.

    `note`: assumption about the controller if none leads; checks that were not possible. `reports`: of other owners.
    """

    effective: EffectiveSettings
    cluster: ClusterCache
    chosen: tuple[str, ...]
    now: float
    node_budgets: tuple[NodeDisruptionBudget, ...] = ()
    address: ClusterAddress = ClusterAddress()
    note: str = ""
    around: Surroundings = Surroundings()
    reports: Reports = {}
    leadership: Leadership = UNKNOWN_LEADERSHIP

    @property
    def settings(self) -> Settings:
        """The effective settings."""
        return self.effective.settings

    def detail(self, *, verbose: bool = False, fit: WindowFit | None = None) -> Detail:
        """Options of the text."""
        return Detail(verbose, self.effective.source, self.note, "" if fit is None else str(fit))


SECOND_READING = f"reading the cluster again in {AGREE_SECONDS:g} s: by this reading a drain would never end"


async def _read(
    target: ClusterTarget, nodes: NodeChoice, source: SettingsSource, *, shows_cluster: bool = False, after: float = 0.0
) -> PlanInput:
    async with connected(target, shows_cluster=shows_cluster) as connection:
        await connection.clock.sleep(after)
        return await read_input(connection, nodes, await source.read(connection.client))


async def read_input(connection: Connection, nodes: NodeChoice, effective: EffectiveSettings) -> PlanInput:
    """Read the cluster once. Raises ApiError; UnknownNodes if one of these does not exist."""
    settings = effective.settings
    cluster = await snapshot(
        connection.client, lambda node: nodes.picks(node) or is_draining(node, settings.termination)
    )
    leadership = await read_leadership(connection.client, settings.leader_election, connection.clock)
    # The answers have set the clock by now. deletionTimestamps are cut to whole seconds: so is this one.
    now = float(math.floor(connection.clock.now()))
    budgets = await read_node_budgets(connection.client)
    chosen = nodes.among(cluster.nodes.values())
    around = await read_surroundings(connection.client, cluster, chosen)
    await read_workloads(connection.client, cluster, settings.termination.policy.replace_first)
    note = "; ".join(filter(None, (installation_note(effective, leadership), around.note)))
    reports = await read_owner_reports(connection.client, cluster, chosen)
    return PlanInput(effective, cluster, chosen, now, budgets, connection.cluster, note, around, reports, leadership)


def forecast_plan(
    inputs: PlanInput,
    replacement_seconds: float | None = None,
    *,
    for_maintenance: bool = False,
    deadline_seconds: float | None = None,
    seen: Sightings | None = None,
) -> DrainForecast:
    """Forecast the drain of these nodes. Thousands of pods take seconds: do not call it in an event loop.

    `replacement_seconds` None: from the settings. `for_maintenance`: the nodes are not deleted. `deadline_seconds`:
    they get a deadline after that time. `seen`: the structural causes of the previous reading.
    """
    settings = inputs.settings
    assumptions = msgspec.structs.replace(settings.assumptions, seen=seen or {}, deadline_seconds=deadline_seconds)
    if replacement_seconds is not None:
        assumptions = msgspec.structs.replace(assumptions, replacement_seconds=replacement_seconds)
    with computing(inputs):
        forecast = forecast_drains(
            inputs.cluster,
            as_led(settings.termination, inputs.leadership),
            inputs.chosen,
            inputs.now,
            assumptions,
            for_maintenance=for_maintenance,
        )
    forecast = with_warnings(with_surroundings(forecast, inputs.around), inputs.reports)
    return with_node_budgets(forecast, inputs.node_budgets, inputs.now)


def fit_plan(
    inputs: PlanInput, forecast: DrainForecast, chosen: Window | None, replacement_seconds: float | None = None
) -> WindowFit | None:
    """Which nodes that are not requested yet are drained within the chosen window, else within the windows of the
    settings, at the pace of the settings; None: no window opens."""
    termination = inputs.settings.termination
    voluntary, cluster, now = termination.policy.voluntary, inputs.cluster, inputs.now
    windows = voluntary.windows if chosen is None else (chosen,)
    state = window_state(windows, now)
    opens = now if state.is_open else state.until
    if not windows or opens is None or all(each.is_requested for each in forecast.nodes):
        return None
    if opens > now:  # what the clock alone changes until then
        forecast = forecast_plan(msgspec.structs.replace(inputs, now=opens), replacement_seconds)
    drained = [(each.name, each.forecast.drained) for each in forecast.nodes if not each.is_requested]
    managed = sum(cluster.manages(termination.managed, node) for node in cluster.nodes.values())
    pause = forecast.whole.assumptions.replacement_seconds if voluntary.wait_for_replacement else 0.0
    closes = window_state(windows, opens).until
    return fit_window(drained, (opens, closes), maximum_of(voluntary, managed), pause)


@contextmanager
def computing(inputs: PlanInput) -> Iterator[None]:
    """Show on stderr that the forecast of many pods is being computed; on a terminal, with the elapsed time."""
    pods = len(inputs.cluster.pods)
    if pods <= SLOW_PODS:
        yield
        return
    text = f"computing the forecast of {counted(len(inputs.chosen), 'node')} and {pods:,} pods"
    if not sys.stderr.isatty():
        echo(f"{text} …", err=True)
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as line:
        line.add_task(text, total=None)
        yield


def show(forecast: DrainForecast, detail: Detail, *, is_wide: bool = False) -> None:
    """Print the table; on a terminal the short text, unless `is_wide` or verbose."""
    console, text = stdout_console(is_wide=is_wide), plan_text(forecast, detail)
    is_brief = console.is_terminal and not is_wide and not detail.verbose
    print_on(console, BriefPlan(text, forecast) if is_brief else plan_table(text))


def show_details(forecast: DrainForecast, detail: Detail) -> None:
    """Print only the pods and budgets; the caller has printed the nodes and their warnings."""
    text = plan_text(forecast, detail)
    nodes = tuple(msgspec.structs.replace(node, warnings=()) for node in text.nodes)
    print_on(stdout_console(), plan_table(msgspec.structs.replace(text, summary=(), nodes=nodes, note="")))


def show_timeline(forecast: DrainForecast, detail: Detail) -> None:
    """Print the table with bars instead of reasons."""
    console = stdout_console()
    print_on(console, timeline(plan_text(forecast, detail), console.width, signs_for(console)))


def _answer(inputs: PlanInput, forecast: DrainForecast, nodes: NodeChoice, options: PlanOptions) -> None:
    fit = fit_plan(inputs, forecast, options.window, options.replacement_seconds)
    detail = inputs.detail(verbose=options.verbose, fit=fit)
    if not forecast.nodes:
        echo(nodes.no_match, err=True)
    if is_structured(options.output):
        report = plan_report(forecast, inputs.address, detail.settings, detail.note, fit)
        echo(structured(report, options.output))
    elif forecast.nodes and options.timeline:
        show_timeline(forecast, detail)
    elif forecast.nodes:
        show(forecast, detail, is_wide=options.output == "wide")
    if options.svg is not None:
        _write(options.svg, "--svg", plan_svg(forecast, detail))
    if options.html is not None:
        _write(options.html, "--html", plan_html(forecast, detail))


def _write(path: Path, option: str, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{path}: cannot be written: {error.strerror or error}; choose another file for {option}", MISUSED)
    echo(f"Written: {path}", err=True)
