"""`gracectl uncordon`: ends the maintenance of nodes."""

from __future__ import annotations

import sys
from functools import partial

import click

from gracectl.cli.bulk_request import CANCELLABLE_NODES, REPLACED, BulkRequest, Refused
from gracectl.cli.failures import REFUSED, interruptible, reporting_errors, run_async
from gracectl.cli.options import (
    ClusterTarget,
    NodeChoice,
    UnknownNodes,
    cluster_options,
    connected,
    node_arguments,
    read_chosen,
)
from gracectl.cli.output import echo
from gracectl.config import Settings
from gracectl.controllers.termination.events import unmanaged_node
from gracectl.controllers.termination.maintenance import withdrawal_patch
from gracectl.controllers.termination.replacing import return_pods_of
from gracectl.kube.connection import Connection
from gracectl.kube.errors import Forbidden
from gracectl.kube.patching import patch_with_retry
from gracectl.model.node import Node
from gracectl.policy.cordon import SPELT, Mark
from gracectl.policy.maintenance import is_maintenance_ending, recorded_marks
from gracectl.policy.owners import other_owner


@click.command()
@node_arguments
@cluster_options
def uncordon(target: ClusterTarget, nodes: NodeChoice) -> None:
    """Uncordon nodes that are drained for maintenance.

    Makes each NODE schedulable, as kubectl uncordon does, and withdraws the request to keep it drained. The controller
    then removes the taint and the label of its cordon; until one runs, the taint keeps pods away. A drain in progress
    stops. You cannot undo the deletion of a node.

    Exit code 0: every node is schedulable; also if no node matches the selector. 3 also if a node does not exist, if
    one is being deleted, or if the server refused for one of them; the others are still uncordoned.
    """
    bulk = BulkRequest()
    with reporting_errors({UnknownNodes: REFUSED}):
        settings = target.settings()
        with interruptible(lambda: bulk.interrupted("uncordon")):
            run_async(lambda: _uncordon(target, nodes, settings, bulk))
    if bulk.has_failed:
        sys.exit(REFUSED)


async def _uncordon(target: ClusterTarget, choice: NodeChoice, settings: Settings, bulk: BulkRequest) -> None:
    async with connected(target, shows_cluster=True) as connection:
        found = await read_chosen(connection.client, choice)
        if not found:
            echo(choice.no_match, err=True)
        await bulk.run(found, partial(_request, connection, settings))


async def _request(connection: Connection, settings: Settings, node: Node) -> str:
    was_cordoned = withdrawal_patch(node) is not None
    after = await patch_with_retry(connection.client, CANCELLABLE_NODES, node, withdrawal_patch)
    if after is None:
        raise Refused(REPLACED)
    if after.deletion_timestamp is not None:
        raise Refused("being deleted; a deletion cannot be undone")
    returned = await _returned(connection, after)
    if not is_maintenance_ending(after):
        return f"uncordoned{returned}" if was_cordoned or returned else "was not cordoned"
    if not settings.termination.managed.includes(after):
        return f"uncordoned{returned}; {unmanaged_node(after, other_owner(after, ())).message}"
    rest = " and ".join(SPELT[mark] for mark in (Mark.TAINT, Mark.LABEL) if mark in recorded_marks(after))
    return f"uncordoned{returned}; the controller still has to remove {rest}" if rest else f"uncordoned{returned}"


async def _returned(connection: Connection, node: Node) -> str:
    """Return the pods that were to be replaced before their eviction: no controller may run that would."""
    try:
        number = await return_pods_of(connection.client, node.name)
    except Forbidden as error:
        return f"; its pods could not be returned to their ReplicaSets: {error}"
    return f"; pods returned to their ReplicaSets: {number}" if number else ""
