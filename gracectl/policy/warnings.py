"""Warnings before a node is terminated or drained: what blocks it indefinitely, what is lost, and the remedies.

A warning is a value with its complete message; printing adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.foreign import harmless
from gracectl.model.meta import condition_of, natural_key
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.policy.answers import Unknown
from gracectl.policy.budgets import BudgetKey, failure_of, is_unhealthy, never_allows
from gracectl.policy.deadlines import grace_of
from gracectl.policy.evictability import is_static
from gracectl.policy.explain import agreed, listed, stuck_text
from gracectl.policy.forecast import NodeForecast, PodForecast
from gracectl.policy.other_drains import is_pace
from gracectl.policy.plan import Outcome, Plan, PodPlan
from gracectl.policy.protection import Protection, protection_of
from gracectl.policy.remedies import CLAIM_DEADLINE, NO_DRAIN_DEADLINE, budget_remedy, pod_remedy, remedy
from gracectl.policy.scenario import RemovalMethod
from gracectl.policy.settings import PolicySettings
from gracectl.policy.waves import period_share


class WarningKind(StrEnum):
    """Kind of a warning, for machines; the most important first."""

    NOT_MANAGED = "NotManaged"
    FINALIZER_MISSING = "FinalizerMissing"
    NO_CONTROLLER = "NoController"
    OWNER_WAITS = "OwnerWaits"
    NODE_BUDGET_BLOCKS = "NodeBudgetBlocks"
    NEVER_DRAINS = "NeverDrains"
    MAY_NEVER_DRAIN = "MayNeverDrain"
    OVERDUE = "Overdue"
    # The blocking ones end here.
    OWNER_HOLDS = "OwnerHolds"
    OWNER_REPORTS = "OwnerReports"
    STUCK_PODS = "StuckPods"
    NODE_BUDGET_SPENT = "NodeBudgetSpent"
    EVICTION_REFUSED = "EvictionRefused"
    REPLACING = "Replacing"
    BUDGET_SETTLING = "BudgetSettling"
    MACHINE_KEEPS_RUNNING = "MachineKeepsRunning"
    MACHINE_SHUTS_DOWN = "MachineShutsDown"
    NOT_READY = "NotReady"
    VOLUMES_STILL_ATTACHED = "VolumesStillAttached"
    SEVERAL_CLAIMS = "SeveralNodeClaims"
    INVALID_DEADLINE = "InvalidDeadline"
    LOCAL_VOLUME = "LocalVolume"
    MULTIPLE_BUDGETS = "MultipleBudgets"
    BUDGET_NOT_COUNTED = "BudgetNotCounted"
    BUDGET_ALLOWS_NOTHING = "BudgetAllowsNothing"
    BUDGET_UNHEALTHY = "BudgetUnhealthy"
    REPLACEMENT_PENDING = "ReplacementPending"
    NO_OTHER_NODE = "NoOtherNode"
    BUDGET_VIOLATED = "BudgetViolated"
    GRACE_SHORTENED = "GraceShortened"
    PROTECTION_OVERRIDDEN = "ProtectionOverridden"
    INVALID_PROTECTION = "InvalidProtection"
    WAVES_TOO_LONG = "WavesTooLong"
    OUT_OF_ORDER = "OutOfOrder"
    LOCAL_TRAFFIC = "LocalTraffic"
    PODS_STAY = "PodsStay"
    DATA_LOSS = "DataLoss"
    NO_BUDGET = "NoBudget"
    NOT_RECREATED = "NotRecreated"

    @property
    def is_blocking(self) -> bool:
        """Whether the node will not be drained, or not gracefully."""
        return _WEIGHT[self] <= _WEIGHT[WarningKind.OVERDUE]


LONGEST_MESSAGE = 300
"""Maximum characters of foreign text in a message."""

CLOUDS: Final = frozenset(
    (
        *("alicloud", "aws", "azure", "brightbox", "civo", "cloudstack", "digitalocean", "equinixmetal", "exoscale"),
        *("external-cloudstack", "gce", "hcloud", "huaweicloud", "ibm", "ibmpowervs", "linode", "nutanix", "oci"),
        *("openstack", "packet", "qcloud", "scaleway", "stackit", "upcloud", "vsphere", "vultr", "yandex"),
    )
)
"""Schemes of providerIDs of instances that cost money or capacity while they run."""

_WEIGHT = {kind: number for number, kind in enumerate(WarningKind)}


class PlanWarning(msgspec.Struct, frozen=True):
    """One warning; `objects`: the pods or budgets that it is about, as `namespace/name`.

    `remedy`: the command that helps, or the owner to contact; empty without one. `cause`: why pods stay indefinitely,
    or until something changes.
    """

    kind: WarningKind
    message: str
    objects: tuple[str, ...] = ()
    remedy: str = ""
    cause: str = ""


def warnings_of(node: NodeForecast) -> tuple[PlanWarning, ...]:
    """All warnings of a forecast, the most important first."""
    return by_importance(warning for look in _CHECKS for warning in look(node))


def shutdown_warnings(node: Node) -> Iterator[PlanWarning]:
    """Warn that the machine of a node shuts down, as its agent reports."""
    condition = condition_of(node.conditions, names.SHUTTING_DOWN)
    if condition is not None and condition.status == names.TRUE:
        reported = harmless(condition.message, LONGEST_MESSAGE)
        yield PlanWarning(
            WarningKind.MACHINE_SHUTS_DOWN, f"its machine shuts down, and the agent deletes its pods: {reported}"
        )


def keeps_running(provider_id: str) -> str:
    """Message that the cloud machine of a node keeps running under provider `none`; empty for other machines."""
    scheme, separator, _ = provider_id.strip().partition("://")
    if not separator or scheme.lower() not in CLOUDS:
        return ""
    return f"machine keeps running: provider none does not terminate {harmless(provider_id, LONGEST_MESSAGE)}"


def machine_warnings(node: Node, settings: PolicySettings) -> Iterator[PlanWarning]:
    """Warn that the machine of a node outlives its termination, and costs."""
    if not settings.terminates_instances and (message := keeps_running(node.provider_id)):
        kind = WarningKind.MACHINE_KEEPS_RUNNING
        yield PlanWarning(kind, message, remedy=remedy(kind))


def by_importance(warnings: Iterable[PlanWarning]) -> tuple[PlanWarning, ...]:
    """The most important first, otherwise in the given order."""
    return tuple(sorted(warnings, key=lambda warning: _WEIGHT[warning.kind]))


def _never(node: NodeForecast) -> Iterator[PlanWarning]:
    for reason, pods in _by_reason(_roots(node.held)):
        called = tuple(map(_called, pods))
        message = f"this node never drains: {listed(called)} {agreed(called, 'stays', 'stay')} indefinitely ({reason})"
        yield PlanWarning(WarningKind.NEVER_DRAINS, message, called, _never_remedy(node, pods[0]), reason)


def _never_remedy(node: NodeForecast, pod: PodForecast) -> str:
    found, view = [_remedy(node, pod)], node.draining.view
    if view.other is not None:
        found += [remedy(CLAIM_DEADLINE, claim=view.other.claim)] if view.other.claim else []
    else:
        found.append(remedy(NO_DRAIN_DEADLINE if view.is_maintenance else WarningKind.NEVER_DRAINS, node=node.name))
    return "; or ".join(filter(None, found))


def _remedy(node: NodeForecast, pod: PodForecast) -> str:
    return pod_remedy(_final(pod), node.draining.view.budgets.get(pod.entry.pod.uid, ()))


def _may_never(node: NodeForecast) -> Iterator[PlanWarning]:
    if not isinstance(node.drained, Unknown):
        return
    waiting = [pod for pod in node.pods if isinstance(pod.leaves, Unknown) and not is_pace(pod.leaves)]
    for reason, pods in _by_reason(_roots(waiting)):
        called = tuple(map(_called, pods))
        stay = f"{listed(called)} {agreed(called, 'stays', 'stay')} until then"
        message = f"this node drains only if something changes: {stay} ({reason}), and the node has no deadline"
        yield PlanWarning(WarningKind.MAY_NEVER_DRAIN, message, called, _remedy(node, pods[0]), reason)


def _not_ready(node: NodeForecast) -> Iterator[PlanWarning]:
    if not node.draining.view.node.ready:
        message = (
            "the node is not Ready: without its kubelet no pod stops, and the drain waits for each removed pod until a "
            "minute after its grace"
        )
        kind = WarningKind.NOT_READY
        yield PlanWarning(kind, message, remedy=remedy(kind, node=node.name))


def _is_overdue(node: NodeForecast) -> bool:
    return node.plan.deadline is not None and node.plan.deadline <= node.at


def _overdue(node: NodeForecast) -> Iterator[PlanWarning]:
    if node.plan.deadline is not None and _is_overdue(node):
        other, follows = node.draining.view.other, "every pod on it gets one second"
        if other is not None:
            follows = f"{other.owner} deletes what is left, and then terminates its instance"
        elif not node.draining.view.is_maintenance:
            follows += ", and its instance is terminated immediately"
        message = f"its deadline {format_time(node.plan.deadline)} has passed: {follows}"
        yield PlanWarning(WarningKind.OVERDUE, message)


def _waves_too_long(node: NodeForecast) -> Iterator[PlanWarning]:
    deadline, began = node.plan.deadline, node.draining.since
    if deadline is None or _is_overdue(node):
        return
    share = period_share(node.plan.order, deadline, began)
    if share < 1:
        wanted = sum(wave.period for wave in node.plan.order.waves)
        request = "request" if node.draining.view.is_maintenance else "deletion"
        message = (
            f"its waves want {wanted:g} s together, but it has {deadline - began:g} s from its {request} to its "
            f"deadline: each gets {share:.0%} of its period"
        )
        yield _with_remedy(WarningKind.WAVES_TOO_LONG, message)


def _grace_shortened(node: NodeForecast) -> Iterator[PlanWarning]:
    if _is_overdue(node):
        return
    cut = [pod for pod in _deleted(node) if pod.removals[0].grace < grace_of(pod.entry.pod)]
    running = [pod for pod in cut if pod.entry.pod.deletion_timestamp is None]
    if running:
        worst = max(running, key=lambda pod: grace_of(pod.entry.pod) - pod.removals[0].grace)
        others = f" ({len(running) - 1} more lose grace, too)" if len(running) > 1 else ""
        message = (
            f"{_called(worst)} has {grace_of(worst.entry.pod)} s of grace, but only {worst.removals[0].grace} s are "
            f"left: it is deleted immediately, with shortened grace{others}"
        )
        yield _with_remedy(WarningKind.GRACE_SHORTENED, message, tuple(map(_called, running)))
    ending = tuple(_called(pod) for pod in cut if pod.entry.pod.deletion_timestamp is not None)
    if ending and node.plan.deadline is not None:
        terminating = agreed(ending, "is terminating, and has", "are terminating, and have")
        limit = f"shortened to end by the deadline {format_time(node.plan.deadline)}"
        message = f"{listed(ending)} {terminating} more grace than time: {limit}"
        yield _with_remedy(WarningKind.GRACE_SHORTENED, message, ending)


def _out_of_order(node: NodeForecast) -> Iterator[PlanWarning]:
    """Ranges that have less time than one of their pods: it is deleted while the ranges before it are still there."""
    waves = node.plan.order.waves
    early = [
        pod
        for pod in _deleted(node)
        if pod.entry.outcome is not Outcome.TERMINATING
        and 0 < waves[pod.entry.wave].period < grace_of(pod.entry.pod)
        and any(other.entry.wave < pod.entry.wave and _holds(other) for other in node.pods)
    ]
    if early:
        first = early[0]
        wave = waves[first.entry.wave]
        message = (
            f"{_called(first)} has {grace_of(first.entry.pod)} s of grace, but {wave.pods} have {wave.period:g} s: to "
            f"have all of it, it may be deleted before its turn{_and_more(early)}"
        )
        yield _with_remedy(WarningKind.OUT_OF_ORDER, message, tuple(map(_called, early)))


def _protection_overridden(node: NodeForecast) -> Iterator[PlanWarning]:
    found: dict[tuple[str, float], list[str]] = {}
    for pod in _deleted(node):
        protection = pod.entry.protection
        at = pod.removals[0].at
        if protection is not None and (protection.until is None or protection.until > at):
            found.setdefault((f"{protection.description}{_until(protection)}", at), []).append(_called(pod))
    for (words, at), pods in found.items():
        deleted = f"{agreed(pods, 'it is', 'they are')} deleted at {format_time(at)}"
        message = f"{listed(pods)} {agreed(pods, 'is', 'are')} {words}, but the deadline comes first: {deleted}"
        yield _with_remedy(WarningKind.PROTECTION_OVERRIDDEN, message, tuple(pods))


def _invalid_protection(node: NodeForecast) -> Iterator[PlanWarning]:
    found: dict[str, list[PodForecast]] = {}
    for pod in node.pods:
        protection = pod.entry.protection
        if protection is not None and not protection.is_valid:
            found.setdefault(protection.description, []).append(pod)
    for words, pods in found.items():
        called = tuple(map(_called, pods))
        message = f"{listed(called)} {agreed(called, 'is', 'are')} {words}"
        yield PlanWarning(WarningKind.INVALID_PROTECTION, message, called, _remedy(node, pods[0]))


def _multiple_budgets(node: NodeForecast) -> Iterator[PlanWarning]:
    found: dict[tuple[BudgetKey, ...], list[str]] = {}
    for pod in node.pods:
        if len(pod.entry.budgets) > 1:
            found.setdefault(pod.entry.budgets, []).append(_called(pod))
    for keys, pods in found.items():
        budgets = listed([f"{namespace}/{name}" for namespace, name in keys])
        message = f"{len(keys)} budgets select {listed(pods)} ({budgets}), and the eviction API refuses the eviction"
        kind = WarningKind.MULTIPLE_BUDGETS
        yield PlanWarning(kind, message, tuple(pods), remedy(kind, namespace=keys[0][0], budget=keys[0][1]))


def _budgets(node: NodeForecast) -> Iterator[PlanWarning]:
    for budget in sorted(_budgets_over(node), key=lambda each: natural_key(each.full_name)):
        called = budget.full_name
        if (failure := failure_of(budget)) is not None:
            message = f"budget {called} cannot be counted and allows nothing: {failure}"
            kind = WarningKind.BUDGET_NOT_COUNTED
            yield PlanWarning(kind, message, (called,), budget_remedy(kind, budget))
            continue
        if never_allows(budget):
            message = (
                f"budget {called} allows no disruption even when all of its pods are healthy ({budget.desired_healthy} "
                f"of {budget.expected_pods} required)"
            )
            kind = WarningKind.BUDGET_ALLOWS_NOTHING
            yield PlanWarning(kind, message, (called,), budget_remedy(kind, budget))
        if is_unhealthy(budget):
            message = (
                f"budget {called} allows no disruption: 0 of {budget.expected_pods} pods are Ready "
                f"({budget.desired_healthy} required)"
            )
            kind = WarningKind.BUDGET_UNHEALTHY
            yield PlanWarning(kind, message, (called,), budget_remedy(kind, budget))


def _budget_violated(node: NodeForecast) -> Iterator[PlanWarning]:
    """Pods that count as healthy and may be deleted for the deadline, which ignores their budgets."""
    forced = [
        pod
        for pod in node.pods
        if RemovalMethod.DELETED in pod.methods and pod.entry.budgets and pod.entry.pod.ready and _is_running(pod)
    ]
    for is_sure in (True, False):
        found = [pod for pod in forced if (pod.methods == (RemovalMethod.DELETED,)) is is_sure]
        pods = tuple(map(_called, found))
        budgets = sorted({"/".join(key) for pod in found for key in pod.entry.budgets}, key=natural_key)
        if not found:
            continue
        condition = f"if {agreed(pods, 'it has', 'they have')} not been evicted by then"
        if is_sure:
            condition = f"whatever the budget{' says' if len(budgets) == 1 else 's say'}"
        message = (
            f"budget{'' if len(budgets) == 1 else 's'} {listed(budgets)} may be violated for the deadline: "
            f"{listed(pods)} {agreed(pods, 'is', 'are')} deleted {condition}"
        )
        yield _with_remedy(WarningKind.BUDGET_VIOLATED, message, pods)


def data_loss(plan: Plan) -> PlanWarning | None:
    """Data lost with the pods of a node that stays; the disks of a terminated node are lost anyway."""
    running = [entry.pod for entry in plan.left if entry.pod.deletion_timestamp is None]
    pods = tuple(pod.full_name for pod in running if pod.empty_dir)
    if not pods:
        return None
    leave = agreed(pods, "it leaves", "they leave")
    message = f"{listed(pods)} {agreed(pods, 'has', 'have')} data in an emptyDir: when {leave}, the data is lost"
    return PlanWarning(WarningKind.DATA_LOSS, message, pods)


def _data_lost(node: NodeForecast) -> Iterator[PlanWarning]:
    if node.draining.view.is_maintenance and (warning := data_loss(node.plan)):
        yield warning


def stuck_warning(plan: Plan) -> PlanWarning | None:
    """Pods that may still run although nothing waits for them; None without one."""
    if not plan.stuck:
        return None
    pods = tuple(entry.pod.full_name for entry in plan.stuck)
    first, kind = plan.stuck[0].pod, WarningKind.STUCK_PODS
    return PlanWarning(kind, stuck_text(plan), pods, remedy(kind, namespace=first.namespace, pod=first.name))


def _stuck(node: NodeForecast) -> Iterator[PlanWarning]:
    if warning := stuck_warning(node.plan):
        yield warning


def _stay_with_node(node: NodeForecast) -> Iterator[PlanWarning]:
    """Pods that a budget or do-not-disrupt covers, and that the drain leaves where they are."""
    view = node.draining.view
    covered: list[str] = []
    for entry in node.plan.pods:
        if entry.stays and not entry.is_stuck and not is_static(entry.pod):
            if budgets := view.budgets.get(entry.pod.uid, ()):
                covered.append(f"{entry.pod.full_name} (budget {budgets[0].full_name})")
            elif protection_of(entry.pod, node.draining.since, view.settings.protection) is not None:
                covered.append(f"{entry.pod.full_name} (protected)")
    if covered:
        pods = tuple(each.partition(" ")[0] for each in covered)
        stay = agreed(pods, "pod with a budget or protection stays", "pods with a budget or protection stay")
        end = agreed(pods, "it: it ends", "them: they end")
        when = "if you stop its machine" if view.is_maintenance else "when the node ends"
        message = f"{len(pods)} {stay} on the node: {listed(covered)}; the drain does not move {end} {when}"
        yield PlanWarning(WarningKind.PODS_STAY, message, pods)


def _not_recreated(node: NodeForecast) -> Iterator[PlanWarning]:
    alone = [
        pod for pod in node.pods if pod.removal is not None and _is_running(pod) and pod.entry.pod.controller is None
    ]
    pods = tuple(map(_called, alone))
    if pods:
        are = agreed(pods, "it is", "they are")
        message = f"{listed(pods)} {agreed(pods, 'has', 'have')} no controller: {are} not recreated elsewhere"
        yield PlanWarning(WarningKind.NOT_RECREATED, message, pods)


_CHECKS: tuple[Callable[[NodeForecast], Iterator[PlanWarning]], ...] = (
    _never,
    _may_never,
    _overdue,
    _not_ready,
    _multiple_budgets,
    _budgets,
    _budget_violated,
    _grace_shortened,
    _protection_overridden,
    _invalid_protection,
    _waves_too_long,
    _out_of_order,
    _stuck,
    _stay_with_node,
    _data_lost,
    _not_recreated,
)


def _with_remedy(kind: WarningKind, message: str, objects: tuple[str, ...] = ()) -> PlanWarning:
    return PlanWarning(kind, message, objects, remedy(kind))


def _roots(pods: Sequence[PodForecast]) -> Sequence[PodForecast]:
    """The pods that block the others in the end."""
    return [pod for pod in pods if _final(pod).outcome is not Outcome.WAITING] or pods


def _by_reason(pods: Iterable[PodForecast]) -> Iterable[tuple[str, list[PodForecast]]]:
    found: dict[str, list[PodForecast]] = {}
    for pod in pods:
        entry = _final(pod)
        found.setdefault(entry.reason or entry.outcome.value, []).append(pod)
    return found.items()


def _final(pod: PodForecast) -> PodPlan:
    return pod.final_entry or pod.entry


def _deleted(node: NodeForecast) -> Iterator[PodForecast]:
    """Pods that are certainly deleted for the deadline."""
    return (pod for pod in node.pods if pod.methods == (RemovalMethod.DELETED,) and pod.removals)


def _holds(pod: PodForecast) -> bool:
    return pod.entry.outcome is not Outcome.IGNORED


def _budgets_over(node: NodeForecast) -> Iterable[PodDisruptionBudget]:
    wanted = {key for pod in node.pods if _holds(pod) for key in pod.entry.budgets}
    found = {budget.key: budget for each in node.draining.view.budgets.values() for budget in each}
    return [budget for key, budget in found.items() if key in wanted]


def _called(pod: PodForecast) -> str:
    return pod.entry.pod.full_name


def _is_running(pod: PodForecast) -> bool:
    return pod.entry.pod.deletion_timestamp is None


def _and_more(pods: Sequence[PodForecast]) -> str:
    return f" (and {len(pods) - 1} more)" if len(pods) > 1 else ""


def _until(protection: Protection) -> str:
    return "" if protection.until is None else f" until {format_time(protection.until)}"
