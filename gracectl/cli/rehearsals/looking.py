"""What a rehearsal rests on: a node and its pods, looked at once, and the order in which they would leave."""

from __future__ import annotations

import math

import msgspec

from gracectl.agent.settings import GATED
from gracectl.cli.nodes import UnknownNodes
from gracectl.config import Settings
from gracectl.kube.connection import Connection
from gracectl.kube.errors import NotFound
from gracectl.kube.reading import read_all
from gracectl.kube.requests import bound_to
from gracectl.kube.resources import NODES, PODS
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.policy.deadlines import deadline_of
from gracectl.policy.waves import DrainOrder


class NoOrder(Exception):
    """Nothing says in which order, and for how long, the pods of this node leave; the message says what is missing."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"node {node} has no order for a shutdown, so an agent has nothing to do there: {reason}")


class Seen(msgspec.Struct, frozen=True):
    """The node and its pods by name, at `now` (Unix seconds by the server's clock). `deadline`: by when the node itself
    must have ended (Unix seconds); None if it need not. `own_uid`: of the agent's own pod, "" if that is not known."""

    node: Node
    pods: tuple[Pod, ...]
    order: DrainOrder
    now: float
    deadline: float | None = None
    own_uid: str = ""


async def look(connection: Connection, node: str, settings: Settings, own_uid: str = "") -> Seen:
    """Look once. Raises ApiError; UnknownNodes if there is no such node; NoOrder."""
    client = connection.client
    try:
        found = await client.get(NODES, ("", node))
    except NotFound as error:
        raise UnknownNodes([node]) from error
    policy = settings.shutdown
    order = policy.order_of(found.labels)
    if not order.is_timed:
        raise NoOrder(node, _reason(found, settings))
    pods = await read_all(client, PODS, bound_to(node))
    deadline = None if found.deletion_timestamp is None else deadline_of(found, None, policy)
    return Seen(
        node=found,
        pods=tuple(sorted(pods, key=lambda pod: pod.key)),
        order=order,
        # The answers have set the clock by now. deletionTimestamps are cut to whole seconds: so is this one.
        now=float(math.floor(connection.clock.now())),
        deadline=None if deadline is None else deadline.at,
        own_uid=own_uid,
    )


def _reason(node: Node, settings: Settings) -> str:
    if settings.termination.policy.order_of(node.labels).is_timed:
        return GATED
    return (
        "the settings that hold for it have neither shutdownGracePeriodByPodPriority nor shutdownGracePeriod; --config "
        "names the file that has one"
    )
