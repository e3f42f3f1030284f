"""`gracectl budgets`: what the budgets for nodes and pods allow, who uses them up, and what they keep from leaving."""

from __future__ import annotations

from typing import Any, Literal

import click
import msgspec

from gracectl.cli.budgets.report import Standings, report
from gracectl.cli.budgets.table import table
from gracectl.cli.console import paper, put
from gracectl.cli.failures import interruptible, run_async, told_to_people
from gracectl.cli.options import ClusterChoice, cluster_options, connected
from gracectl.cli.output import command, say
from gracectl.cli.plan.report import as_json
from gracectl.config import Settings
from gracectl.controllers.cluster.cache import ClusterCache, empty_cluster_cache
from gracectl.controllers.cluster.informers import new_informers
from gracectl.inspect.budget_status import NodeBudgetUsage, PodBudgetUsage, State, node_budget_usages, pod_budget_usages
from gracectl.inspect.leadership import read_leadership
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import Forbidden
from gracectl.kube.reading import fill, fill_served, is_served, read_served
from gracectl.kube.resources import NODE_BUDGETS
from gracectl.model.budget import NodeDisruptionBudget


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says of the answer."""

    namespace: str
    all_namespaces: bool
    blocking: bool
    output: Literal["table", "json"]


@click.command()
@click.option("-n", "--namespace", default="", metavar="NAME", help="PodDisruptionBudgets of one namespace only.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Those of all namespaces, the default.")
@click.option("--blocking", is_flag=True, help="Only budgets that allow nothing now, and those that are not in order.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", help="json: one object, for machines."
)
@cluster_options
def budgets(cluster: ClusterChoice, **wanted: Any) -> None:
    """Say what budgets allow, who holds them, and what they block.

    Of NodeDisruptionBudgets and PodDisruptionBudgets: how many of how many are available, how many must be, how many
    may go now. Below each: who counts as unavailable and why, and which nodes or pods may not go now, first those that
    somebody wants to go. Changes nothing; only the cluster's own objects are read. Which nodes are to end by themselves
    depends on the controller's settings: give them with --config. Needs to list nodes, pods, poddisruptionbudgets,
    nodeclaims and nodedisruptionbudgets; with -n the rights to pods and poddisruptionbudgets of that namespace will do
    for those. Who may also list leases is told when no controller counts. The page docs/budgets.md explains every word.

    \b
    -o json prints one object:
      at, unseen,
      nodeBudgets [{name, minAvailable, maxUnavailable,
        state [allowing|spent|uncounted|unobserved], problem,
        expected, available, required, allowed,
        counted {expected, available, required, allowed},
        heldBy [{name, reason, since}], blocks [{name, waits}]}],
      podBudgets [{namespace, name, minAvailable, maxUnavailable,
        state, problem, expected, healthy, required, allowed, missing,
        heldBy [{name, reason, since}], blocks [{name, waits}]}]

    Exit code 0: the budgets were looked at, whatever they allow.
    """
    told = msgspec.convert(wanted, Wanted)
    if told.namespace and told.all_namespaces:
        raise click.UsageError("give -n or -A, not both")
    with told_to_people():
        settings = cluster.settings()
        with interruptible():
            found = run_async(lambda: _seen(cluster, told, settings))
        if told.output == "json":
            say(as_json(report(found)))
        else:
            console = paper()
            put(console, table(found, console.width))


async def _seen(cluster: ClusterChoice, wanted: Wanted, settings: Settings) -> Standings:
    async with connected(cluster) as there:
        observed, unseen = await _observed(there.client, wanted.namespace)
        for_nodes, unseen = (None, unseen) if unseen else await _for_nodes(there.client)
        leadership = await read_leadership(there.client, settings.leader_election, there.clock)
        now = there.clock.now()
    policy = settings.termination
    nodes = None if for_nodes is None else node_budget_usages(observed, for_nodes, policy, now)
    pods = pod_budget_usages(observed, policy, now, wanted.namespace)
    if wanted.blocking:
        nodes = None if nodes is None else tuple(filter(_needs_somebody, nodes))
        pods = tuple(filter(_needs_somebody, pods))
    return Standings(
        at=now, nodes=nodes, pods=pods, unseen=unseen, leadership=leadership, only_blocking=wanted.blocking
    )


def _needs_somebody(holding: NodeBudgetUsage | PodBudgetUsage) -> bool:
    return holding.state is not State.ALLOWING or bool(holding.problem)


async def _observed(client: KubeClient, namespace: str) -> tuple[ClusterCache, str]:
    """PodDisruptionBudgets with all pods that they may select, those too that no node has yet; and nodes with their
    claims, or why nodes are not seen: whoever looks after one namespace need not be allowed to."""
    sources = new_informers()
    observed = empty_cluster_cache()
    await fill(observed.budgets, client, sources.budgets, namespace=namespace)
    concerned = {budget.namespace for budget in observed.budgets.values()}
    await fill(observed.pods, client, sources.pods, namespace=namespace, keep=lambda pod: pod.namespace in concerned)
    try:
        await fill(observed.nodes, client, sources.nodes)
        await fill_served(observed.claims, client, sources.claims)
    except Forbidden as refusal:
        return observed, str(refusal)
    return observed, ""


async def _for_nodes(client: KubeClient) -> tuple[list[NodeDisruptionBudget] | None, str]:
    """The budgets for nodes; or None, and why."""
    try:
        found = await read_served(client, (NODE_BUDGETS,))
    except Forbidden as refusal:
        return None, str(refusal)
    if not found and not await is_served(client, (NODE_BUDGETS,)):
        add = f"{command('crds')} | kubectl apply --server-side -f -"
        return None, f"the cluster does not know them; `{add}` adds their definition"
    return found, ""
