"""`gracectl uncordon`: gives back nodes that are drained for maintenance."""

from __future__ import annotations

import sys
from functools import partial

import click

from gracectl.cli.bulk_request import ABANDONABLE, NAMESAKE, Errand, Refused
from gracectl.cli.failures import REFUSED, interruptible, run_async, told_to_people
from gracectl.cli.options import ClusterChoice, NodeChoice, UnknownNodes, cluster_options, connected, node_arguments
from gracectl.cli.output import say
from gracectl.config import Settings
from gracectl.controllers.node.maintenance import withdrawal
from gracectl.controllers.node.unmanaged import unmanaged_report
from gracectl.kube.connection import Connection
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.reading import read_all
from gracectl.kube.resources import NODES
from gracectl.model.node import Node
from gracectl.policy.cordon import SPELT, Mark
from gracectl.policy.maintenance import is_maintenance_ending, recorded_marks


@click.command()
@node_arguments
@cluster_options
def uncordon(cluster: ClusterChoice, nodes: NodeChoice) -> None:
    """Give nodes back that are drained for maintenance.

    Makes each NODE schedulable, as kubectl uncordon does, whoever has cordoned it, and takes the request to keep it
    drained off. The controller then takes off the taint and the label that its cordon has added; until one runs, the
    taint keeps pods away. A drain that is under way ends. Of a node that is being deleted nothing can be taken back.

    Exit code 0: every node is schedulable; also if no node matches the selector. 3 also if there is no such node, if
    one is being deleted, or if the server refused for one of them; the others are given back all the same.
    """
    errand = Errand()
    with told_to_people({UnknownNodes: REFUSED}):
        settings = cluster.settings()
        with interruptible(lambda: errand.interrupted("a return")):
            run_async(lambda: _give_back(cluster, nodes, settings, errand))
    if errand.has_failed:
        sys.exit(REFUSED)


async def _give_back(cluster: ClusterChoice, choice: NodeChoice, settings: Settings, errand: Errand) -> None:
    async with connected(cluster) as there:
        found = {node.name: node for node in await read_all(there.client, NODES, keep=choice.picks)}
        names = choice.among(found.values())
        if not names:
            say(choice.nobody, err=True)
        await errand.run([found[name] for name in names], partial(_ask, there, settings))


async def _ask(there: Connection, settings: Settings, node: Node) -> str:
    was_asked = withdrawal(node) is not None
    after = await patch_with_retry(there.client, ABANDONABLE, node, withdrawal)
    if after is None:
        raise Refused(NAMESAKE)
    if after.deletion_timestamp is not None:
        raise Refused("it is being deleted, which nobody can take back")
    if not is_maintenance_ending(after):
        return "takes pods again" if was_asked else "was not cordoned"
    if not settings.termination.node_selector.matches(after.labels):
        return f"is schedulable; {unmanaged_report(after)[1]}"
    rest = " and ".join(SPELT[mark] for mark in (Mark.TAINT, Mark.LABEL) if mark in recorded_marks(after))
    if not rest:
        return "takes pods again"
    return f"takes pods again as soon as the controller has taken off {rest}"
