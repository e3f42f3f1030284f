"""Checks of what affects a drain: workloads without a budget, local volumes, load balancers, and Pending pods.

Each is at most a warning: the cluster works, but a drain may have surprising effects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from gracectl.cli.doctor.report import SHOWN, CheckState, Finding
from gracectl.controllers.cluster.workloads import PENDING_PODS, PERSISTENT_VOLUMES, REPLICA_SETS, SERVICES
from gracectl.inspect.surroundings import STATEFUL_SETS
from gracectl.inspect.unbound import UNBOUND
from gracectl.kube.cache.reading import read_all
from gracectl.kube.client import KubeClient
from gracectl.kube.resources import BUDGETS, NODES, PODS, VOLUME_ATTACHMENTS
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.foreign import harmless
from gracectl.model.meta import natural_key
from gracectl.model.node import Node
from gracectl.model.pod import VolumeAttachment
from gracectl.model.selectors import selects
from gracectl.model.workloads import PendingPod, PersistentVolume, Service, Workload
from gracectl.policy.explain import agreed, listed
from gracectl.policy.plan import Blocker
from gracectl.policy.remedies import attachment_remedy, remedy
from gracectl.policy.surroundings import SEVERAL, without_budget
from gracectl.policy.volumes import listed_attachments, uses_volumes
from gracectl.policy.warnings import LONGEST_MESSAGE, WarningKind

WORKLOADS: Final = "workloads"
VOLUMES: Final = "volumes"
ATTACHMENTS: Final = "attachments"
BALANCERS: Final = "load balancers"
SCHEDULING: Final = "scheduling"


async def check_workloads(client: KubeClient) -> Sequence[Finding]:
    """Workloads of several pods that no budget covers."""
    budgets = await read_all(client, BUDGETS)
    found = [
        each
        for resource in (REPLICA_SETS, STATEFUL_SETS)
        for each in await read_all(client, resource, keep=lambda each: each.replicas >= SEVERAL)
    ]
    return (workload_finding(found, budgets),)


async def check_volumes(client: KubeClient) -> Sequence[Finding]:
    """Volumes that are a path of a node."""
    return (volume_finding(await read_all(client, PERSISTENT_VOLUMES, keep=lambda each: each.is_on_disk)),)


async def check_attachments(client: KubeClient) -> Sequence[Finding]:
    """Volumes that are attached to nodes where no pod uses one."""
    attachments = await read_all(client, VOLUME_ATTACHMENTS)
    pods = await read_all(client, PODS, keep=uses_volumes) if attachments else []
    nodes = await read_all(client, NODES) if attachments else []
    return (attachment_finding(attachments, nodes, {pod.node_name for pod in pods}),)


async def check_balancers(client: KubeClient) -> Sequence[Finding]:
    """Services whose pods load balancers reach only through their own nodes."""
    return (balancer_finding(await read_all(client, SERVICES, keep=lambda each: each.is_local)),)


async def check_scheduling(client: KubeClient) -> Sequence[Finding]:
    """Pods for which the scheduler has found no node."""
    return (scheduling_finding(await read_all(client, PENDING_PODS, UNBOUND, keep=lambda each: bool(each.reason))),)


ClientCheck = Callable[[KubeClient], Awaitable[Sequence[Finding]]]

SURROUNDINGS: Final[Mapping[str, ClientCheck]] = {
    WORKLOADS: check_workloads,
    VOLUMES: check_volumes,
    ATTACHMENTS: check_attachments,
    BALANCERS: check_balancers,
    SCHEDULING: check_scheduling,
}


def workload_finding(workloads: Iterable[Workload], budgets: Sequence[PodDisruptionBudget]) -> Finding:
    """The finding about workloads of several pods, which are these."""
    of_namespace: dict[str, list[PodDisruptionBudget]] = {}
    for budget in budgets:
        of_namespace.setdefault(budget.namespace, []).append(budget)
    bare = {
        f"{each.namespace}/{each.workload}": each
        for each in workloads
        if not any(selects(budget.selector, each.labels) for budget in of_namespace.get(each.namespace, ()))
    }
    names = _sorted(bare)
    if not names:
        return Finding(WORKLOADS, CheckState.OK, "a budget covers each one of several pods")
    its = agreed(names, "its", "their")
    message = f"{listed(names, SHOWN)}: no budget; nothing keeps {its} pods from leaving at the same time"
    return Finding(WORKLOADS, CheckState.WARNING, message, without_budget(bare[names[0]]) or None, names)


def volume_finding(volumes: Iterable[PersistentVolume]) -> Finding:
    """The finding about volumes on the disks of nodes, which are these."""
    names = _sorted(each.name for each in volumes)
    if not names:
        return Finding(VOLUMES, CheckState.OK, "no PersistentVolume is local or of a hostPath")
    shown = listed([harmless(name) for name in names], SHOWN)
    message = f"{shown}: on the disk of a node; the data goes with the node"
    return Finding(VOLUMES, CheckState.WARNING, message, remedy(WarningKind.LOCAL_VOLUME), names)


def attachment_finding(
    attachments: Iterable[VolumeAttachment], nodes: Iterable[Node], with_volumes: Collection[str]
) -> Finding:
    """The finding about volumes that may be left over. `with_volumes`: names of nodes where pods use volumes."""
    idle = sorted(
        (each for each in attachments if each.node_name not in with_volumes), key=lambda each: natural_key(each.name)
    )
    if not idle:
        return Finding(ATTACHMENTS, CheckState.OK, "none is left over from a pod")
    first = idle[0]
    node = next((each for each in nodes if each.name == first.node_name), None)
    message = f"{listed_attachments(idle)}: attached to {harmless(first.node_name)}, where no pod uses a volume"
    if len(idle) > 1:
        message = f"{listed_attachments(idle)}: attached to nodes where no pod uses a volume"
    helps = remedy(Blocker.VOLUME, attachment=first.name) if node is None else attachment_remedy([first], node)
    return Finding(ATTACHMENTS, CheckState.WARNING, message, helps, tuple(each.name for each in idle))


def balancer_finding(services: Iterable[Service]) -> Finding:
    """The finding about services with externalTrafficPolicy Local, which are these."""
    names = _sorted(each.full_name for each in services)
    if not names:
        return Finding(BALANCERS, CheckState.OK, "no load balancer has externalTrafficPolicy Local")
    its = agreed(names, "its", "their")
    message = (
        f"{listed(names, SHOWN)}: externalTrafficPolicy Local; load balancers do not reach {its} pods on a node that "
        "is cordoned"
    )
    namespace, _, name = names[0].partition("/")
    helps = remedy(WarningKind.LOCAL_TRAFFIC, namespace=namespace, service=name)
    return Finding(BALANCERS, CheckState.WARNING, message, helps, names)


def scheduling_finding(pods: Iterable[PendingPod]) -> Finding:
    """The finding about pods that fit no node, which are these."""
    reasons = {each.full_name: each.reason for each in pods}
    names = _sorted(reasons)
    if not names:
        return Finding(SCHEDULING, CheckState.OK, "the scheduler finds a node for every pod")
    message = f"{listed(names, SHOWN)}: Pending: {harmless(reasons[names[0]], LONGEST_MESSAGE)}"
    namespace, _, name = names[0].partition("/")
    helps = remedy(WarningKind.REPLACEMENT_PENDING, namespace=namespace, pod=name)
    return Finding(SCHEDULING, CheckState.WARNING, message, helps, names)


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=natural_key))
