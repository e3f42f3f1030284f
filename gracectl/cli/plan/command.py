"""`gracectl plan`: what will happen to nodes and their pods, beforehand, without changing anything."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from gracectl.cli.console import paper, put
from gracectl.cli.failures import MISUSED, REFUSED, end, interruptible, run_async, told_to_people
from gracectl.cli.options import ClusterChoice, NodeChoice, UnknownNodes, cluster_options, connected, node_arguments
from gracectl.cli.output import say
from gracectl.cli.plan.chart import Chart, chart_of
from gracectl.cli.plan.html import page
from gracectl.cli.plan.report import as_json, report
from gracectl.cli.plan.svg import picture
from gracectl.cli.plan.table import table
from gracectl.cli.plan.text import Telling, Terms, telling
from gracectl.cli.plan.timeline import signs_for, timeline
from gracectl.config import Settings
from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.inspect.forecast import Outlook, is_draining, outlook, under_budgets
from gracectl.inspect.watcher import look
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import Forbidden
from gracectl.kube.reading import read_served
from gracectl.kube.resources import NODE_BUDGETS
from gracectl.model.budget import NodeDisruptionBudget
from gracectl.policy.forecast import Assumptions
from gracectl.policy.simulation import EvictionRate


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says of the answer."""

    output: Literal["table", "json"]
    timeline: bool
    svg: Path | None
    html: Path | None
    replacement_seconds: float | None
    verbose: bool


def _finite(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Refuse infinity and nan, which a range lets pass."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number of seconds.")
    return value


@click.command()
@node_arguments
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", help="json: one object, no more."
)
@click.option("--timeline", is_flag=True, help="Draw the pods' times as bars instead of telling why.")
@click.option("--svg", type=click.Path(path_type=Path), metavar="FILE", help="Draw the bars into this file as well.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with all of it as well.")
@click.option(
    "--replacement-seconds",
    type=click.FloatRange(min=0),
    callback=_finite,
    metavar="N",
    help="The longest that a replacement takes until it is Ready.  [default: plan.replacementSeconds, 30]",
)
@click.option("-v", "--verbose", is_flag=True, help="Every pod and budget for itself, ignored pods too.")
@cluster_options
def plan(cluster: ClusterChoice, nodes: NodeChoice, **wanted: Any) -> None:
    """Foretell what happens to nodes that are deleted now.

    Nothing is changed; the right to list nodes, pods, poddisruptionbudgets, volumeattachments and nodeclaims is enough
    (and nodedisruptionbudgets, to be told which of those would refuse).
    Says for each NODE by when it is drained, what to beware of, and for each pod when it leaves, how, and why not
    before. Nodes that are ending already are foretold from now on. Times count from now. Give the controller's own
    settings with --config. The page docs/plan.md tells what is certain and what is not.

    \b
    -o json prints one object; spans are {earliest, latest, earliestSeconds,
    latestSeconds, certain}, latest null is "perhaps never", a span null is "never":
      at, assumptions {replacementSeconds, evictionQps, evictionBurst, settings},
      nodes [{name, ending, deletedAt,
        deadline {at, atSeconds, source, holder, gracePeriodSeconds},
        drained (span), cautions [{kind, grave, message, objects}],
        waves [{name, periodSeconds}],
        pods [{namespace, name, uid, wave, outcome, reason, until, how,
          told (span), gone (span), certain, ways [evicted|deleted],
          orders [{at, atSeconds, how, graceSeconds}], graceSeconds,
          deleteAt, deadline, budgets [name], lane {number, of, after, open},
          protection {kind, value, until, valid, capped}, kept}]}],
      alsoDraining [node],
      budgets [{namespace, name, allowed, healthy, required, expected,
        failure, lane [{node, pod}]}]

    Exit code 0: the nodes were looked at, whatever awaits them, or no node matches the selector; 2 also if a file
    cannot be written (the rest is printed all the same); 3 also if there is no such node.
    """
    told = msgspec.convert(wanted, Wanted)
    if told.output == "json" and told.timeline:
        raise click.UsageError("--timeline is for people, -o json for machines: leave out one of the two")
    with told_to_people({UnknownNodes: REFUSED}):
        settings = cluster.settings()
        with interruptible():
            seen = run_async(lambda: see(cluster, nodes, settings))
            foretold = foresee(seen, settings, told.replacement_seconds)
        _answer(foretold, nodes, told, cluster.config)


class Seen(msgspec.Struct, frozen=True):
    """The cluster at the instant `now` (Unix seconds, the server's clock), and the names of the nodes in question."""

    observed: ClusterCache
    asked: tuple[str, ...]
    now: float
    node_budgets: tuple[NodeDisruptionBudget, ...] = ()


async def see(cluster: ClusterChoice, nodes: NodeChoice, settings: Settings) -> Seen:
    """Look at the cluster once. Raises ApiError; UnknownNodes if one of these is not there."""
    async with connected(cluster) as there:
        observed = await look(there.client, lambda node: nodes.picks(node) or is_draining(node, settings.termination))
        # The answers have set the clock by now. deletionTimestamps are cut to whole seconds: so is this one.
        now = float(math.floor(there.clock.now()))
        budgets = await _node_budgets(there.client)
    return Seen(observed, nodes.among(observed.nodes.values()), now, budgets)


async def _node_budgets(client: KubeClient) -> tuple[NodeDisruptionBudget, ...]:
    """Those of the cluster; who may not list them is not told of them."""
    try:
        return tuple(await read_served(client, (NODE_BUDGETS,)))
    except Forbidden:
        return ()


def foresee(
    seen: Seen, settings: Settings, replacement_seconds: float | None = None, *, keeps: bool = False
) -> Outlook:
    """Foretell what happens to these nodes; thousands of pods take seconds, so not in an event loop.

    `replacement_seconds` None: as the settings say. `keeps`: they are drained and stay instead of being deleted.
    """
    assumptions = Assumptions(
        replacement_seconds=settings.plan.replacement_seconds if replacement_seconds is None else replacement_seconds,
        rate=EvictionRate(settings.eviction.qps, settings.eviction.burst),
    )
    told = outlook(seen.observed, settings.termination, seen.asked, seen.now, assumptions, keeps=keeps)
    return under_budgets(told, seen.node_budgets, seen.now)


def show(foretold: Outlook, terms: Terms) -> None:
    """Print the table, as wide as the terminal."""
    console = paper()
    put(console, table(telling(foretold, terms), console.width))


def show_timeline(foretold: Outlook, terms: Terms) -> None:
    """Print the table with bars in the place of reasons."""
    console = paper()
    chart = chart_of(foretold, verbose=terms.verbose)
    put(console, timeline(telling(foretold, terms), chart, console.width, signs_for(console)))


def _answer(foretold: Outlook, nodes: NodeChoice, wanted: Wanted, config: Path | None) -> None:
    terms = Terms(verbose=wanted.verbose, by_default=config is None)
    if not foretold.nodes:
        say(nodes.nobody, err=True)
    if wanted.output == "json":
        say(as_json(report(foretold, None if config is None else str(config))))
    elif foretold.nodes:
        (show_timeline if wanted.timeline else show)(foretold, terms)
    if wanted.svg is not None or wanted.html is not None:
        _draw(telling(foretold, terms), chart_of(foretold, verbose=terms.verbose), wanted)


def _draw(told: Telling, chart: Chart, wanted: Wanted) -> None:
    if wanted.svg is not None:
        _write(wanted.svg, "--svg", picture(chart, told.title))
    if wanted.html is not None:
        _write(wanted.html, "--html", page(told, chart))


def _write(path: Path, option: str, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        end(f"{path} cannot be written: {error.strerror or error}; choose another file for {option}", MISUSED)
    say(f"Written: {path}", err=True)
