"""`gracectl status`: which nodes are terminated, drained or uncordoned, their progress, and what blocks them."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from gracectl.cli.console import print_on, stdout_console
from gracectl.cli.failures import REFUSED, interruptible, reporting_errors, run_async
from gracectl.cli.options import (
    ClusterTarget,
    NodeChoice,
    UnknownNodes,
    connected,
    optional_node_arguments,
)
from gracectl.cli.output import WIDE, Output, echo, is_structured, output_option
from gracectl.cli.report import structured
from gracectl.cli.settings import SettingsSource, settings_options
from gracectl.cli.status.follow import StatusFrame, StatusScope, follow
from gracectl.cli.status.report import status_report
from gracectl.cli.status.view import ObjectView, StatusView, View, status_table
from gracectl.controllers.cluster.workloads import read_workloads
from gracectl.inspect.forecast import draining_nodes, is_draining
from gracectl.inspect.freeze import fill_freeze, freeze_namespace
from gracectl.inspect.leadership import as_led, read_leadership, with_leadership
from gracectl.inspect.owner_reports import read_owner_reports, with_reports
from gracectl.inspect.pending import due_candidates, due_nodes, names_of
from gracectl.inspect.progress import ProgressTracker, forecast_of
from gracectl.inspect.status import claims_without_node_status, is_active, node_statuses, with_forecasts, with_pending
from gracectl.inspect.watcher import read_node_budgets, snapshot
from gracectl.kube.cache.reading import read_all
from gracectl.kube.connection import Connection
from gracectl.kube.resources import NODES
from gracectl.model.node import Node


class StatusOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command line."""

    watch: bool
    output: Output
    verbose: bool


@click.command()
@optional_node_arguments
@click.option("-w", "--watch", is_flag=True, help="Show changes, until named nodes are terminated, or Ctrl-C.")
@output_option("table", "wide", help=f"{WIDE[:-1]}, with -w one at each change.")
@click.option("-v", "--verbose", is_flag=True, help="Every pod, including pods that are not blocked.")
@settings_options
def status(target: ClusterTarget, nodes: NodeChoice | None, **options: Any) -> None:
    """Show active nodes, and what blocks them.

    A node is active while it is terminated, drained for maintenance or uncordoned, and while its termination for
    health, label or age is pending. Without NODE or a selector all active nodes are shown. For each node: step, age,
    number of remaining pods, deadline. For each blocked pod: why it is blocked, for how long, and until when.

    Only objects of the cluster are read: it works without a controller. Needs permission to list nodes, pods,
    poddisruptionbudgets, volumeattachments and nodeclaims; -w also needs to watch them. With permission to list
    configmaps it uses the controller's settings; with permission to list leases it immediately reports that no
    controller leads. With permission to list nodedisruptionbudgets it names the budget that blocks a pending node.
    docs/status.md explains every field.

    \b
    -o json prints one object:
      cluster {context, server}, at, settings, longestProtectionSeconds,
      connectionLoss {since, error},
      controller {state [active|none|unknown], lease, holder, renewed},
      freeze {until, reason, by, message},
      progress {nodesDone, nodes, podsDone, pods, began, elapsedSeconds,
        drained (answer), unknown [node], never [node], forecastAt,
        forecastAgeSeconds, causes [{reason, message, remedy, pods, nodes,
          ageSeconds, atOnce, left (answer), never}]},
      nodes [{name, uid,
        state [terminating|maintenance|uncordoning|pending|idle], since,
        sinceSeconds, owner {name, reason, assisted}, nodeDrain, step, done,
        waitsFor, podsLeft,
        pending {causes [unhealthy|terminable|expired], hold},
        trace {id, url},
        deadline {at, inSeconds, source, holder, gracePeriodSeconds},
        drained (answer), never,
        warnings [{kind, blocking, message, objects, remedy}],
        pods [{namespace, name, uid, state, since, sinceSeconds, reason,
          message, remedy, until, deleteAt, budgets [name],
          queuePosition {number, of, after, undecided},
          protection {kind, value, until, valid, capped}}]}],
      claims [{name, nodes, since, sinceSeconds, trace, deadline, waitsFor}],
      terminated [{name, uid, afterSeconds}]

    Exit code 0: the status was printed, or with -w all named nodes are terminated; 3 also if a node does not exist.
    """
    chosen = msgspec.convert(options, StatusOptions)
    with reporting_errors({UnknownNodes: REFUSED}):
        source = SettingsSource(target)
        with interruptible():
            if chosen.watch:
                run_async(lambda: _watch(target, nodes, source, chosen))
                return
            shows_cluster = not is_structured(chosen.output)
            frame, name = run_async(lambda: _read_frame(target, nodes, source, shows_cluster=shows_cluster))
        _answer(frame, nodes, chosen, name)


def _view_of(options: StatusOptions, settings: str) -> View:
    if is_structured(options.output):
        return ObjectView(settings, options.output)
    return StatusView(stdout_console(), verbose=options.verbose)


def _selects(nodes: NodeChoice | None, node: Node) -> bool:
    """Named nodes are shown in any state, others only while they are active."""
    if nodes is None:
        return is_active(node)
    return nodes.picks(node) and (nodes.query is None or is_active(node))


def _selects_due(nodes: NodeChoice | None, node: Node) -> bool:
    """Due nodes are shown if they were chosen."""
    return nodes is None or nodes.picks(node)


async def _read_frame(
    target: ClusterTarget, nodes: NodeChoice | None, source: SettingsSource, *, shows_cluster: bool
) -> tuple[StatusFrame, str]:
    """The frame, and where the settings are from."""
    async with connected(target, shows_cluster=shows_cluster) as connection:
        effective = await source.read(connection.client)
        settings = effective.settings
        cluster = await snapshot(
            connection.client,
            lambda node: _selects(nodes, node) or is_draining(node, settings.termination),
            lambda read: names_of(due_candidates(read, settings.termination, connection.clock.now())),
        )
        leadership = await read_leadership(connection.client, settings.leader_election, connection.clock)
        namespace = freeze_namespace(settings.leader_election, leadership, (effective.namespace,))
        await fill_freeze(connection.client, cluster, namespace)
        now, termination = connection.clock.now(), as_led(settings.termination, leadership)
        candidates = due_candidates(cluster, termination, now)
        budgets = await read_node_budgets(connection.client) if candidates else ()
        shown = [node.name for node in cluster.nodes.values() if _selects(nodes, node)]
        reports = await read_owner_reports(connection.client, cluster, shown)
        await read_workloads(connection.client, cluster, termination.policy.replace_first)
    due = due_nodes(cluster, termination, candidates, now, node_budgets=budgets)
    selected = {
        node.name
        for node in cluster.nodes.values()
        if _selects(nodes, node) or (node.name in due and _selects_due(nodes, node))
    }
    if nodes is not None:
        nodes.among(cluster.nodes.values())
    forecast = forecast_of(draining_nodes(cluster, termination, now), now, settings.assumptions)
    found = with_reports(node_statuses(cluster, termination, selected, now), reports)
    found = with_forecasts(with_pending(cluster, termination, found, due, now), forecast)
    frame = StatusFrame(
        at=now,
        nodes=with_leadership(found, leadership),
        progress=ProgressTracker().update(found, (), cluster.budgets.get, now),
        leadership=leadership,
        claims=claims_without_node_status(cluster, settings.termination, now) if nodes is None else (),
        tracing=settings.tracing,
        longest_protection=settings.termination.policy.protection.maximum_seconds,
        cluster=connection.cluster,
        freeze=cluster.freeze(now),
    )
    return frame, effective.source


def _answer(frame: StatusFrame, nodes: NodeChoice | None, options: StatusOptions, settings: str) -> None:
    if is_structured(options.output):
        echo(structured(status_report(frame, settings), options.output))
        return
    if not frame.nodes and nodes is not None:
        echo(f"No node that matches the selector {nodes.selector} is active.")
        return
    console = stdout_console(is_wide=options.output == "wide")
    print_on(console, status_table(frame, verbose=options.verbose, is_wide=options.output == "wide"))


async def _watch(
    target: ClusterTarget, nodes: NodeChoice | None, source: SettingsSource, options: StatusOptions
) -> None:
    async with connected(target) as connection:
        effective = await source.read(connection.client)
        view = _view_of(options, effective.source)
        expected = await _named(connection, nodes)

        def show(frame: StatusFrame) -> bool:
            view.show(frame)
            return bool(expected) and set(expected.values()) <= {each.uid for each in frame.terminated}

        scope = StatusScope(
            lambda node: _selects(nodes, node), lambda node: _selects_due(nodes, node), with_claims=nodes is None
        )
        with view.showing():
            await follow(connection, effective.settings, scope, show, expected=expected)


async def _named(connection: Connection, nodes: NodeChoice | None) -> dict[str, str]:
    """By name the uids of the nodes that the command line names. Raises UnknownNodes, ApiError.

    They are read in any case: following waits for an unreachable server, and a person wants to know about it.
    """
    found = {node.name: node for node in await read_all(connection.client, NODES)}
    if nodes is None or nodes.query is not None:
        return {}
    return {name: found[name].uid for name in nodes.among(found.values())}
