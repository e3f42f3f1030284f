"""Rehearsal of a shutdown: reads a node and its pods once, and computes what the agent would do. Nothing is written.

Its warnings name the pods that are not terminated in time or lose grace, and what would help.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from gracectl.agent.settings import GATED
from gracectl.cli.failures import MISUSED, REFUSED
from gracectl.cli.options import UnknownNodes
from gracectl.config import Settings
from gracectl.kube.auth.credentials import ClusterAddress
from gracectl.kube.cache.reading import read_all
from gracectl.kube.connection import Connection
from gracectl.kube.errors import NotFound
from gracectl.kube.requests import bound_to
from gracectl.kube.resources import NODES, PODS
from gracectl.model.meta import natural_key
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
from gracectl.policy.deadlines import deadline_of, grace_of, granted_already
from gracectl.policy.explain import listed
from gracectl.policy.shutdown import Rehearsal, RehearsedPod, RehearsedRange, rehearse
from gracectl.policy.waves import DrainOrder, is_daemon


class NoOrder(Exception):
    """The settings have no shutdown order for this node; the message says what is missing."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"node {node}: no shutdown order: {reason}")


class RehearsalInput(msgspec.Struct, frozen=True):
    """A node and its pods by name, at `now` (Unix seconds by the server's clock).

    `deadline`: that of the node's termination (Unix seconds); None: there is none. `own_uid`: of the agent's own pod;
    "": unknown.
    """

    node: Node
    pods: tuple[Pod, ...]
    order: DrainOrder
    now: float
    deadline: float | None = None
    own_uid: str = ""
    cluster: ClusterAddress = ClusterAddress()


async def read_input(connection: Connection, node: str, settings: Settings, own_uid: str = "") -> RehearsalInput:
    """Read the node once. Raises ApiError; UnknownNodes if it does not exist; NoOrder."""
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
    return RehearsalInput(
        node=found,
        pods=tuple(sorted(pods, key=lambda pod: natural_key(pod.full_name))),
        order=order,
        # The answers have set the clock by now. deletionTimestamps are cut to whole seconds: so is this one.
        now=float(math.floor(connection.clock.now())),
        deadline=None if deadline is None else deadline.at,
        own_uid=own_uid,
        cluster=connection.cluster,
    )


def _reason(node: Node, settings: Settings) -> str:
    if settings.termination.policy.order_of(node.labels).is_timed:
        return GATED
    return (
        "its settings have no shutdownGracePeriodByPodPriority or shutdownGracePeriod; give a file that has one with "
        "--config"
    )


class Logind(msgspec.Struct, frozen=True):
    """Inhibit delay of logind. `delay`: seconds (math.inf: no limit; None: unknown); `problem`: "" if sufficient."""

    delay: float | None = None
    problem: str = ""


class RehearsalResult(msgspec.Struct, frozen=True):
    """Input and outcome of a rehearsal. `logind` None: not read."""

    inputs: RehearsalInput
    rehearsal: Rehearsal
    logind: Logind | None = None

    @property
    def required(self) -> float:
        """Seconds of all ranges together, which logind must wait."""
        return self.inputs.order.total

    def is_in_time(self, pod: RehearsedPod) -> bool:
        """Whether it is terminated before the machine goes down."""
        return pod.ends is not None and pod.ends <= self.rehearsal.over


def rehearsal_of(inputs: RehearsalInput, logind: Logind | None = None) -> RehearsalResult:
    """Rehearse with the seconds that the order requires."""
    found = rehearse(inputs.order, inputs.pods, inputs.order.total, inputs.now, inputs.own_uid, inputs.deadline)
    return RehearsalResult(inputs, found, logind)


def is_shortened(pod: RehearsedPod) -> bool:
    """Whether the shutdown shortens the grace of a pod."""
    return pod.grace is not None and pod.grace < unshortened_grace(pod.pod)


def unshortened_grace(pod: Pod) -> int:
    """The seconds that a pod would have without the shutdown: requested, or granted by an earlier deletion."""
    return grace_of(pod) if pod.deletion_timestamp is None else granted_already(pod)


FAILURES: Final[Mapping[type[Exception], int]] = {UnknownNodes: REFUSED, NoOrder: MISUSED}
"""Failures of a rehearsal in addition to the failures of every command, for `reporting_errors`."""


async def run_rehearsal(
    connection: Connection,
    node: str,
    settings: Settings,
    own_uid: str = "",
    *,
    logind: Logind | None = None,
) -> RehearsalResult:
    """Simulate a shutdown of the machine of `node` now. Raises ApiError and the exceptions of FAILURES.

    `own_uid`: of the agent's own pod. `logind`: only reported; a running agent raises its delay.
    """
    return rehearsal_of(await read_input(connection, node, settings, own_uid), logind)


class ShutdownWarningKind(StrEnum):
    """Kind of a warning, for filters; the most important comes first."""

    LOGIND = "Logind"
    NOT_TERMINATED = "NotTerminated"
    GRACE_SHORTENED = "GraceShortened"
    DAEMON_SET_PODS = "DaemonSetPods"

    @property
    def is_blocking(self) -> bool:
        """The shutdown is not as graceful as the settings require."""
        return self is ShutdownWarningKind.NOT_TERMINATED


class ShutdownWarning(msgspec.Struct, frozen=True):
    """A warning; `objects`: the pods concerned, as `namespace/name`."""

    kind: ShutdownWarningKind
    message: str
    objects: tuple[str, ...] = ()


def rehearsal_warnings(result: RehearsalResult) -> tuple[ShutdownWarning, ...]:
    """All warnings, the most important first."""
    return tuple(_warnings(result))


def _warnings(result: RehearsalResult) -> Iterator[ShutdownWarning]:
    if result.logind is not None and result.logind.problem:
        yield ShutdownWarning(ShutdownWarningKind.LOGIND, result.logind.problem)
    yield from _not_terminated(result)
    for each in result.rehearsal.ranges:
        yield from _shortened(each, result)
    daemons = [pod_name(pod) for each in result.rehearsal.ranges for pod in each.pods if is_daemon(pod.pod)]
    if daemons:
        message = f"DaemonSet pods are terminated as well, in the range of their priority: {listed(daemons)}"
        yield ShutdownWarning(ShutdownWarningKind.DAEMON_SET_PODS, message, tuple(daemons))


def _not_terminated(result: RehearsalResult) -> Iterator[ShutdownWarning]:
    late = [(pod, each) for each in result.rehearsal.ranges for pod in each.pods if not result.is_in_time(pod)]
    if late:
        reasons = [f"{pod_name(pod)} ({_late_reason(pod, each)})" for pod, each in late]
        message = f"not terminated before the machine goes down: {listed(reasons)}"
        yield ShutdownWarning(ShutdownWarningKind.NOT_TERMINATED, message, tuple(pod_name(pod) for pod, _ in late))


def _late_reason(pod: RehearsedPod, of: RehearsedRange) -> str:
    if pod.grace is not None:
        # A pod that is waited for is granted no grace beyond the end of its range.
        return "deleted, not waited for" if of.period == 0 else "deleted too late"
    if pod.pod.deletion_timestamp is None:
        return "not deleted: no time is left for its range"
    if pod.ends is None:
        return "already terminating, grace period expired"
    return f"already terminating, with grace until {format_time(pod.pod.deletion_timestamp)}"


def _shortened(of: RehearsedRange, result: RehearsalResult) -> Iterator[ShutdownWarning]:
    shortened = [pod for pod in of.pods if is_shortened(pod)]
    if not shortened:
        return
    figures = [f"{pod_name(pod)} ({pod.grace} of {unshortened_grace(pod.pod)} s)" for pod in shortened]
    message = f"grace shortened: {listed(figures)}: {_limit(of, shortened, result)}"
    yield ShutdownWarning(ShutdownWarningKind.GRACE_SHORTENED, message, tuple(map(pod_name, shortened)))


def _limit(of: RehearsedRange, shortened: Sequence[RehearsedPod], result: RehearsalResult) -> str:
    """Why they cannot have all."""
    longest, deadline = max(unshortened_grace(pod.pod) for pod in shortened), result.inputs.deadline
    if deadline is not None and of.begins is not None and deadline - result.inputs.now < of.begins + of.period:
        return f"the deadline of the node is {format_time(deadline)}"
    return f"{of.wave.name} has {of.period:g} s; {longest} s would be enough"


def pod_name(pod: RehearsedPod) -> str:
    """`shop/web-1`."""
    return "/".join(pod.pod.key)
