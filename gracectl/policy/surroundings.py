"""Warnings about the surroundings of a node's pods: their volumes, workloads and services, and pods that are
Pending.

Invariant: a warning says what the objects show. Objects that were not read or understood cause no warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import msgspec

from gracectl.model import names
from gracectl.model.foreign import harmless
from gracectl.model.meta import natural_key
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.selectors import selects
from gracectl.model.workloads import PendingPod, PersistentVolume, Service, Workload
from gracectl.policy.explain import listed
from gracectl.policy.forecast import NodeForecast
from gracectl.policy.placement import OtherNode, is_pinned, no_node_fits
from gracectl.policy.remedies import remedy
from gracectl.policy.warnings import LONGEST_MESSAGE, PlanWarning, WarningKind

SEVERAL = 2
"""Minimum replicas of a workload that needs a budget."""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What was read. `volumes`: by (namespace, name) of the claim. `workloads`: by uid. `services`: those that are
    local. `others`: nodes that stay, and take pods as far as is known; None: other nodes were not read.

    `missing`: the permissions without which something was not read: `list services`. `failed`: why else it was not.
    """

    volumes: Mapping[tuple[str, str], PersistentVolume] = {}
    workloads: Mapping[str, Workload] = {}
    services: tuple[Service, ...] = ()
    pending: tuple[PendingPod, ...] = ()
    others: tuple[OtherNode, ...] | None = ()
    missing: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """Message about checks that were not possible; empty if all were."""
        missing = f"missing permission{'s' if len(self.missing) > 1 else ''}: {', '.join(self.missing)}"
        reasons = [*([missing] if self.missing else []), *self.failed]
        return f"not checked: {'; '.join(reasons)}" if reasons else ""


def surrounding_warnings(node: NodeForecast, around: Surroundings) -> Iterator[PlanWarning]:
    """Warnings of these objects about pods that would leave the node."""
    pods = [pod.entry.pod for pod in node.pods if pod.is_waited_for and pod.entry.pod.deletion_timestamp is None]
    view = node.draining.view
    local = {pod.uid for pod in pods if _volumes(pod, around)}
    yield from _local_volumes(pods, around, view.node, is_maintenance=view.is_maintenance)
    yield from _no_other_node([pod for pod in pods if pod.uid not in local], around)
    yield from _pending_replacements(node, around)
    yield from _local_traffic(pods, around)
    yield from _without_budget([pod for pod in pods if not view.budgets.get(pod.uid)], around)


def without_budget(workload: Workload) -> str:
    """The command that creates a budget for a workload; empty if its selector is not that simple."""
    if not workload.selector:
        return ""
    labels = {key: value for key, value in workload.selector.items() if key != names.POD_TEMPLATE_HASH}
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    if not selector:
        return ""
    return remedy(WarningKind.NO_BUDGET, namespace=workload.namespace, budget=workload.workload, selector=selector)


def _local_volumes(
    pods: Collection[Pod], around: Surroundings, node: Node, *, is_maintenance: bool
) -> Iterator[PlanWarning]:
    for pod in pods:
        found = _volumes(pod, around)
        pinned = [volume for volume in found if is_pinned(volume.terms, node)]
        lost = [volume for volume in found if volume.is_on_disk or volume in pinned]
        if not lost:
            continue
        is_stuck = bool(pinned) and _controller(pod) != ""
        if is_maintenance:
            then = "it stays Pending until the uncordon" if is_stuck else "its data stays behind"
        else:
            then = "its data goes with the node" + (", and its replacement stays Pending" if is_stuck else "")
        volumes = listed([harmless(volume.name) for volume in lost])
        message = f"{pod.full_name} has data on this node only (volume {volumes}): {then}"
        helps = "" if is_maintenance else remedy(WarningKind.LOCAL_VOLUME)
        yield PlanWarning(WarningKind.LOCAL_VOLUME, message, (pod.full_name,), helps)


def _no_other_node(pods: Collection[Pod], around: Surroundings) -> Iterator[PlanWarning]:
    if around.others is None:
        return
    by_template: dict[tuple[str, object], list[Pod]] = {}
    for pod in pods:
        if _controller(pod) in around.workloads:
            by_template.setdefault((_controller(pod), pod.tolerations), []).append(pod)
    by_reason: dict[str, list[Pod]] = {}
    for (owner, _), found in by_template.items():
        reason = no_node_fits(around.workloads[owner].needs, found[0].tolerations, around.others)
        if reason:
            by_reason.setdefault(reason, []).extend(found)
    for reason, found in by_reason.items():
        called = tuple(pod.full_name for pod in found)
        message = f"no other node fits {listed(called)} now: {reason}"
        first = found[0]
        helps = remedy(WarningKind.NO_OTHER_NODE, namespace=first.namespace, pod=first.name)
        yield PlanWarning(WarningKind.NO_OTHER_NODE, message, called, helps)


def _pending_replacements(node: NodeForecast, around: Surroundings) -> Iterator[PlanWarning]:
    owners = {_controller(pod.entry.pod) for pod in node.pods if pod.is_waited_for} - {""}
    budgets = {budget.key: budget for each in node.draining.view.budgets.values() for budget in each}
    for pending in sorted(around.pending, key=lambda each: natural_key(each.full_name)):
        over = [
            budget
            for budget in budgets.values()
            if budget.namespace == pending.namespace
            and budget.disruptions_allowed <= 0
            and selects(budget.selector, pending.labels)
        ]
        if not over and pending.owner not in owners:
            continue
        waits = f"budget {over[0].full_name} waits for it" if over else "its workload has pods on this node"
        reason = harmless(pending.reason, LONGEST_MESSAGE)
        message = f"{pending.full_name} is Pending, and {waits}: {reason}"
        helps = remedy(WarningKind.REPLACEMENT_PENDING, namespace=pending.namespace, pod=pending.name)
        yield PlanWarning(WarningKind.REPLACEMENT_PENDING, message, (pending.full_name,), helps)


def _local_traffic(pods: Collection[Pod], around: Surroundings) -> Iterator[PlanWarning]:
    for service in sorted(around.services, key=lambda each: natural_key(each.full_name)):
        behind = tuple(
            pod.full_name
            for pod in pods
            if pod.namespace == service.namespace
            and service.selector
            and service.selector.items() <= pod.labels.items()
        )
        if behind:
            message = (
                f"service {service.full_name} has externalTrafficPolicy Local: from the cordon on, load balancers do "
                f"not reach {listed(behind)} on this node"
            )
            helps = remedy(WarningKind.LOCAL_TRAFFIC, namespace=service.namespace, service=service.name)
            yield PlanWarning(WarningKind.LOCAL_TRAFFIC, message, (service.full_name, *behind), helps)


def _without_budget(pods: Collection[Pod], around: Surroundings) -> Iterator[PlanWarning]:
    of_workload: dict[tuple[str, str], dict[str, Workload]] = {}  # a Deployment has several while it rolls out
    here: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        if (found := around.workloads.get(_controller(pod))) is not None:
            key = (found.namespace, found.workload)
            of_workload.setdefault(key, {})[found.uid] = found
            here[key] += 1
    replicas = {key: sum(each.replicas for each in found.values()) for key, found in of_workload.items()}
    bare = [key for key, number in replicas.items() if number >= SEVERAL]
    if not bare:
        return
    bare.sort(key=lambda key: (-here[key] / replicas[key], natural_key("/".join(key))))
    called = tuple(map("/".join, bare))
    counts = [f"{'/'.join(key)} ({here[key]} of {replicas[key]} pods here)" for key in bare]
    message = f"no budget covers {listed(counts)}: nothing keeps their pods from leaving at the same time"
    first = next(iter(of_workload[bare[0]].values()))
    yield PlanWarning(WarningKind.NO_BUDGET, message, called, without_budget(first))


def _volumes(pod: Pod, around: Surroundings) -> list[PersistentVolume]:
    found = (around.volumes.get((pod.namespace, claim)) for claim in pod.claims)
    return [volume for volume in found if volume is not None]


def _controller(pod: Pod) -> str:
    return "" if pod.controller is None else pod.controller.uid
