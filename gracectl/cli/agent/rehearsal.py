"""What a rehearsal rests on: a node and its pods, looked at once, and the order in which they would leave."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from gracectl.agent.settings import GATED
from gracectl.cli.failures import MISUSED, REFUSED
from gracectl.cli.options import UnknownNodes
from gracectl.config import Settings
from gracectl.kube.connection import Connection
from gracectl.kube.errors import NotFound
from gracectl.kube.reading import read_all
from gracectl.kube.requests import bound_to
from gracectl.kube.resources import NODES, PODS
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.policy.deadlines import deadline_of, grace_of, granted_already
from gracectl.policy.rehearsal import Rehearsal, RehearsedPod, rehearse
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


class Logind(msgspec.Struct, frozen=True):
    """What is known of the machine's own side. `delay`: seconds that logind grants now (math.inf: for ever; None: not
    known); `problem`: what is wrong with that, for people; "" if it will do."""

    delay: float | None = None
    problem: str = ""


class Rehearsed(msgspec.Struct, frozen=True):
    """What was seen, and what a shutdown would do to it. `logind` None: nobody has asked."""

    seen: Seen
    rehearsal: Rehearsal
    logind: Logind | None = None

    @property
    def wanted(self) -> float:
        """Seconds that logind is asked to wait: all ranges together."""
        return self.seen.order.total

    @property
    def has_enough(self) -> bool:
        """Whether each range has its whole period."""
        return self.rehearsal.available >= self.wanted

    def is_in_time(self, pod: RehearsedPod) -> bool:
        """Whether it is gone when the machine is let go."""
        return pod.ends is not None and pod.ends <= self.rehearsal.over


def rehearsal_of(seen: Seen, logind: Logind | None = None, available: float | None = None) -> Rehearsed:
    """Rehearse with as many seconds as the order wants; with `available` ones if that is less."""
    total = seen.order.total
    seconds = total if available is None else min(available, total)
    found = rehearse(seen.order, seen.pods, seconds, seen.now, seen.own_uid, seen.deadline)
    return Rehearsed(seen, found, logind)


def is_cut(pod: RehearsedPod) -> bool:
    """Whether the shutdown takes some of its grace from a pod."""
    return pod.grace is not None and pod.grace < grace_without(pod.pod)


def grace_without(pod: Pod) -> int:
    """The seconds that a pod would have without the shutdown: those that it asks for, or has been granted already."""
    return grace_of(pod) if pod.deletion_timestamp is None else granted_already(pod)


FAILURES: Final[Mapping[type[Exception], int]] = {UnknownNodes: REFUSED, NoOrder: MISUSED}
"""What a rehearsal can meet beside what every command does, for `told_to_people`."""


async def rehearsed(
    connection: Connection,
    node: str,
    settings: Settings,
    own_uid: str = "",
    *,
    logind: Logind | None = None,
    available: float | None = None,
) -> Rehearsed:
    """What a shutdown of the machine of `node` would do now. Raises ApiError, and what FAILURES has.

    `own_uid`: of the agent's own pod. `available`: the seconds that there are, if that is less than the order wants;
    `logind`: what is told of it, which by itself takes no time from anybody: a running agent has it raised.
    """
    return rehearsal_of(await look(connection, node, settings, own_uid), logind, available)
