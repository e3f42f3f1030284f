"""`gracectl status`: which nodes are under way, where each stands, and what holds it."""

from __future__ import annotations

from typing import Any, Literal

import click
import msgspec
from rich.text import Text

from gracectl.cli.console import paper, put
from gracectl.cli.failures import REFUSED, interruptible, run_async, told_to_people
from gracectl.cli.options import (
    ClusterChoice,
    NodeChoice,
    UnknownNodes,
    cluster_options,
    connected,
    optional_node_arguments,
)
from gracectl.cli.output import say
from gracectl.cli.plan.report import as_json
from gracectl.cli.plan.text import BY_DEFAULT
from gracectl.cli.status.follow import Scene, follow
from gracectl.cli.status.report import report
from gracectl.cli.status.table import table
from gracectl.cli.status.view import JsonView, View, view_for
from gracectl.config import Settings
from gracectl.inspect.forecast import is_draining
from gracectl.inspect.leadership import read_leadership, with_leadership
from gracectl.inspect.status import claims_by_themselves, is_under_way, node_statuses
from gracectl.inspect.watcher import look
from gracectl.kube.connection import Connection
from gracectl.kube.reading import read_all
from gracectl.kube.resources import NODES
from gracectl.model.node import Node


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says of the answer."""

    watch: bool
    output: Literal["table", "json"]
    verbose: bool


@click.command()
@optional_node_arguments
@click.option("-w", "--watch", is_flag=True, help="Stay, and show what changes; until named nodes are gone, or Ctrl-C.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    help="json: one object; with -w one a line, whenever something changes.",
)
@click.option("-v", "--verbose", is_flag=True, help="Every pod, those that nothing holds too.")
@cluster_options
def status(cluster: ClusterChoice, nodes: NodeChoice | None, **wanted: Any) -> None:
    """Say which nodes are under way, and what holds them.

    A node is under way while it is being deleted, drained for maintenance, or given back, and while its termination for
    health, label or age is due and waits. Without NODE or a selector
    all of them are shown. For each: the step where it stands, since when, how many pods are left, its deadline; for
    each pod that is held: why, for how long at least, and until when.

    Only the cluster's own objects are read, no controller is asked: it works while none lives. Waves, node groups and
    protection depend on the controller's settings: give them with --config. The right to list nodes, pods,
    poddisruptionbudgets, volumeattachments and nodeclaims is enough; -w needs to watch them as well. Who may also
    list leases is told at once when no controller leads. The page docs/status.md explains every word.

    \b
    -o json prints one object:
      at, settings, longestProtectionSeconds, interruption {since, error},
      controller {state [leads|nobody|unknown], lease, holder, renewed},
      nodes [{name, uid, state [ending|kept|returning|pending|idle], since,
        sinceSeconds, step, done, waitsFor, podsLeft,
        deadline {at, inSeconds, source, holder, gracePeriodSeconds},
        cautions [{kind, grave, message, objects}],
        pods [{namespace, name, uid, state, since, sinceSeconds, reason,
          why, until, deleteAt, budgets [name],
          lane {number, of, after, open},
          protection {kind, value, until, valid, capped}}]}],
      claims [{name, nodes, since, sinceSeconds, deadline, waitsFor}],
      gone [{name, uid, afterSeconds}]

    Exit code 0: the nodes were looked at, or with -w all that were named are gone; 3 also if there is no such node.
    """
    told = msgspec.convert(wanted, Wanted)
    with told_to_people({UnknownNodes: REFUSED}):
        settings = cluster.settings()
        name = None if cluster.config is None else str(cluster.config)
        with interruptible():
            if told.watch:
                view = JsonView(name) if told.output == "json" else view_for(paper(), verbose=told.verbose)
                run_async(lambda: _watch(cluster, nodes, settings, view))
                return
            scene = run_async(lambda: _once(cluster, nodes, settings))
        _answer(scene, nodes, told, name)


def _chosen(nodes: NodeChoice | None, node: Node) -> bool:
    """Named nodes are shown however they stand, others only when they are under way."""
    if nodes is None:
        return is_under_way(node)
    return nodes.picks(node) and (nodes.query is None or is_under_way(node))


async def _once(cluster: ClusterChoice, nodes: NodeChoice | None, settings: Settings) -> Scene:
    async with connected(cluster) as there:
        observed = await look(
            there.client, lambda node: _chosen(nodes, node) or is_draining(node, settings.termination)
        )
        leadership = await read_leadership(there.client, settings.leader_election, there.clock)
        now = there.clock.now()
    asked = {node.name for node in observed.nodes.values() if _chosen(nodes, node)}
    if nodes is not None:
        nodes.among(observed.nodes.values())
    return Scene(
        at=now,
        nodes=with_leadership(node_statuses(observed, settings.termination, asked, now), leadership),
        leadership=leadership,
        claims=claims_by_themselves(observed, settings.termination, now) if nodes is None else (),
        longest_protection=settings.termination.policy.protection.maximum_seconds,
    )


def _answer(scene: Scene, nodes: NodeChoice | None, wanted: Wanted, settings: str | None) -> None:
    if wanted.output == "json":
        say(as_json(report(scene, settings)))
        return
    if not scene.nodes and nodes is not None:
        say(f"No node that matches the selector {nodes.selector} is under way.")
        return
    console = paper()
    put(console, table(scene, console.width, verbose=wanted.verbose))
    if settings is None and any(node.pods for node in scene.nodes):
        put(console, Text(f"\n{BY_DEFAULT}", "dim"))


async def _watch(cluster: ClusterChoice, nodes: NodeChoice | None, settings: Settings, view: View) -> None:
    async with connected(cluster) as there:
        expected = await _named(there, nodes)

        def show(scene: Scene) -> bool:
            view.show(scene)
            return bool(expected) and set(expected.values()) <= {each.uid for each in scene.gone}

        with view.showing():
            await follow(
                there, settings, lambda node: _chosen(nodes, node), show, expected=expected, with_claims=nodes is None
            )


async def _named(there: Connection, nodes: NodeChoice | None) -> dict[str, str]:
    """By name the uids of the nodes that the command line names. Raises UnknownNodes, ApiError.

    They are read in any case: what is followed waits for a server that is not there, and a person wants to know that.
    """
    found = {node.name: node for node in await read_all(there.client, NODES)}
    if nodes is None or nodes.query is not None:
        return {}
    return {name: found[name].uid for name in nodes.among(found.values())}
