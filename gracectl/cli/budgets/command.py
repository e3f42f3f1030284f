"""`gracectl budgets`: allowed disruptions, unavailable objects, and blocked removals of every budget."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any

import click
import msgspec

from gracectl.cli.budgets.report import BudgetUsages, budgets_report, budgets_table
from gracectl.cli.console import print_on, stdout_console
from gracectl.cli.failures import REFUSED, interruptible, reporting_errors, run_async
from gracectl.cli.options import ClusterTarget, connected, namespace_option
from gracectl.cli.output import WIDE, Output, command, echo, is_structured, output_option
from gracectl.cli.report import structured
from gracectl.cli.settings import SettingsSource, settings_options
from gracectl.controllers.cluster.cache import ClusterCache, empty_cluster_cache
from gracectl.controllers.cluster.informers import new_informers
from gracectl.inspect.budget_status import (
    BudgetState,
    NodeBudgetUsage,
    PodBudgetUsage,
    node_budget_usages,
    pod_budget_usages,
)
from gracectl.inspect.leadership import read_leadership
from gracectl.kube.cache.reading import fill, fill_served, is_served, read_served
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import Forbidden
from gracectl.kube.resources import NODE_BUDGETS
from gracectl.model.budget import NodeDisruptionBudget


class BudgetsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command line. `names`: `NAMESPACE/NAME` of a PodDisruptionBudget, or a plain name."""

    names: tuple[str, ...]
    namespace: str
    all_namespaces: bool
    blocking: bool
    output: Output


class UnknownBudgets(Exception):
    """No budgets have these names; the message names them all, and the budgets with similar names."""

    def __init__(self, names: Collection[str], known: Collection[str]) -> None:
        similar = (name for wrong in names for name in get_close_matches(wrong, known, n=1, cutoff=0.6))
        hint = ", ".join(dict.fromkeys(similar))
        meant = f"did you mean {hint}?" if hint else f"`{command('budgets')}` lists all budgets"
        super().__init__(f"no such budget: {', '.join(names)}; {meant}")


@click.command()
@click.argument("names", nargs=-1, metavar="[NAMESPACE/NAME | NAME]...")
@namespace_option("PodDisruptionBudgets of one namespace only.")
@click.option("-A", "--all-namespaces", is_flag=True, help="PodDisruptionBudgets of all namespaces (default).")
@click.option("--blocking", is_flag=True, help="Only budgets that allow nothing now, or have a problem.")
@output_option("table", "wide", help=WIDE)
@settings_options
def budgets(target: ClusterTarget, **options: Any) -> None:
    """Show what budgets allow, and what they block.

    For each NodeDisruptionBudget and PodDisruptionBudget: how many objects are available, how many must be, and how
    many may be disrupted now. Below each: the unavailable objects with reasons, and the blocked nodes or pods,
    pending removals first. Names choose budgets: shop/web is a PodDisruptionBudget, batch is a NodeDisruptionBudget, or
    with -n a PodDisruptionBudget of that namespace.

    Only objects of the cluster are read. Needs to list nodes, pods, poddisruptionbudgets, nodeclaims and
    nodedisruptionbudgets; for the budgets of one namespace, permission to list its pods and poddisruptionbudgets is
    enough. With permission to list configmaps it reads the controller's settings, which decide which nodes are
    terminated for health, label or age. With permission to list leases it reports when no controller counts the
    budgets. docs/budgets.md explains every field.

    \b
    -o json prints one object:
      cluster {context, server}, at, settings, note,
      nodeBudgets [{name, uid, minAvailable, maxUnavailable,
        state [allowing|spent|uncounted|unobserved], problem,
        expected, available, required, allowed,
        counted {expected, available, required, allowed},
        unavailable [{name, reason, since}], blocks [{name, reason}]}],
      podBudgets [{namespace, name, uid, minAvailable, maxUnavailable,
        state, problem, expected, healthy, required, allowed, missing,
        unavailable [{name, reason, since}], blocks [{name, reason}]}]

    Exit code 0: the budgets were printed, regardless of what they allow.
    """
    chosen = msgspec.convert(options, BudgetsOptions)
    if chosen.namespace and chosen.all_namespaces:
        raise click.UsageError("give -n or -A, not both")
    if (chosen.all_namespaces or chosen.namespace) and any("/" in name for name in chosen.names):
        raise click.UsageError("give NAMESPACE/NAME or -n or -A, not both")
    with reporting_errors({UnknownBudgets: REFUSED}):
        source = SettingsSource(target)
        with interruptible():
            found = run_async(lambda: _read(target, chosen, source))
        if is_structured(chosen.output):
            echo(structured(budgets_report(found), chosen.output))
        else:
            print_on(stdout_console(is_wide=chosen.output == "wide"), budgets_table(found))


async def _read(target: ClusterTarget, options: BudgetsOptions, source: SettingsSource) -> BudgetUsages:
    namespace = options.namespace or _only_namespace(options.names)
    async with connected(target, shows_cluster=not is_structured(options.output)) as connection:
        effective = await source.read(connection.client)
        cluster, note = await _read_cluster(connection.client, namespace)
        node_budgets, note = (None, note) if note else await _node_budgets(connection.client)
        leadership = await read_leadership(connection.client, effective.settings.leader_election, connection.clock)
        now = connection.clock.now()
    policy = effective.settings.termination
    nodes = None if node_budgets is None else node_budget_usages(cluster, node_budgets, policy, now)
    pods = pod_budget_usages(cluster, policy, now, namespace)
    if options.names:
        nodes, pods = _named(options, nodes, pods)
    if options.blocking:
        nodes = None if nodes is None else tuple(filter(_is_blocking, nodes))
        pods = tuple(filter(_is_blocking, pods))
    return BudgetUsages(
        at=now,
        settings=effective.source,
        nodes=nodes,
        pods=pods,
        note=note,
        leadership=leadership,
        only_blocking=options.blocking,
        only_named=bool(options.names),
        cluster=connection.cluster,
    )


def _only_namespace(names: Iterable[str]) -> str:
    """The namespace of all names, so that its rights are enough; "" if they have none, or several."""
    namespaces = {name.partition("/")[0] if "/" in name else "" for name in names}
    return namespaces.pop() if len(namespaces) == 1 else ""


def _named(
    options: BudgetsOptions, nodes: tuple[NodeBudgetUsage, ...] | None, pods: tuple[PodBudgetUsage, ...]
) -> tuple[tuple[NodeBudgetUsage, ...] | None, tuple[PodBudgetUsage, ...]]:
    """The budgets that the command line names. Raises UnknownBudgets."""
    names = {f"{options.namespace}/{name}" if options.namespace else name for name in options.names}
    found_nodes = tuple(usage for usage in nodes or () if usage.budget.name in names)
    found_pods = tuple(usage for usage in pods if usage.budget.full_name in names)
    found = {*(usage.budget.name for usage in found_nodes), *(usage.budget.full_name for usage in found_pods)}
    if missing := sorted(names - found):
        raise UnknownBudgets(missing, [*(u.budget.name for u in nodes or ()), *(u.budget.full_name for u in pods)])
    return None if nodes is None else found_nodes, found_pods


def _is_blocking(usage: NodeBudgetUsage | PodBudgetUsage) -> bool:
    return usage.state is not BudgetState.ALLOWING or bool(usage.problem)


async def _read_cluster(client: KubeClient, namespace: str) -> tuple[ClusterCache, str]:
    """PodDisruptionBudgets with all pods that they may select, also unscheduled ones; and nodes with their claims, or
    why nodes may not be read, which the owner of one namespace does not need."""
    sources = new_informers()
    cluster = empty_cluster_cache()
    await fill(cluster.budgets, client, sources.budgets, namespace=namespace)
    namespaces = {budget.namespace for budget in cluster.budgets.values()}
    await fill(cluster.pods, client, sources.pods, namespace=namespace, keep=lambda pod: pod.namespace in namespaces)
    try:
        await fill(cluster.nodes, client, sources.nodes)
        await fill_served(cluster.claims, client, sources.claims)
    except Forbidden as refusal:
        return cluster, str(refusal)
    return cluster, ""


async def _node_budgets(client: KubeClient) -> tuple[list[NodeDisruptionBudget] | None, str]:
    """The budgets of nodes; or None, and why."""
    try:
        found = await read_served(client, (NODE_BUDGETS,))
    except Forbidden as refusal:
        return None, str(refusal)
    if not found and not await is_served(client, (NODE_BUDGETS,)):
        add = f"{command('crds')} | kubectl apply --server-side -f -"
        return None, f"not served by the cluster; to add their definition: {add}"
    return found, ""
