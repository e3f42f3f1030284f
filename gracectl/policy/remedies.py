"""Remedies: for each cause of blocking, the command that resolves it, and the owner of the workload to ask.

One table by reason, for `status`, `plan`, `doctor`, Events and their JSON. Invariants: every command works when pasted
into a shell; names of others are quoted for a shell, and their texts are harmless.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget, UnknownBudget
from gracectl.model.encoding import encode
from gracectl.model.foreign import harmless
from gracectl.model.meta import natural_key
from gracectl.model.node import Node
from gracectl.model.pod import Pod, UnknownPod, VolumeAttachment
from gracectl.policy.budgets import Allowance, eviction_verdict, has_no_scale, never_allows, unknown_budget_of
from gracectl.policy.evictability import is_silent
from gracectl.policy.plan import Blocker, Outcome, PodPlan
from gracectl.policy.protection import Protection

_LONGER: Final = "set a longer terminationGracePeriod, or a later --deadline, before you request it"

# GNU date, else that of BSD and macOS.
_SOON: Final = "$(date -u -d +15min +%FT%TZ 2>/dev/null || date -u -v+15M +%FT%TZ)"

JOB: Final = "Job"
UNREADY: Final = "UnreadyPod"
PROTECTED_JOB: Final = "ProtectedJob"
NO_SCALE: Final = "NoScale"
VOLUME_LEFT_OVER: Final = "VolumeLeftOver"
VOLUME_OF_SILENT_NODE: Final = "VolumeOfSilentNode"
SET_ASIDE: Final = "BudgetSetAside"
CLAIM_DEADLINE: Final = "ClaimDeadline"
NODE_HOLD: Final = "NodeHold"
POOL_HOLD: Final = "PoolHold"
OTHER_OWNER: Final = "OtherOwner"
NO_DRAIN_DEADLINE: Final = "NoDrainDeadline"
OTHER_REASONS: Final = (
    *(UNREADY, PROTECTED_JOB, NO_SCALE, VOLUME_LEFT_OVER, VOLUME_OF_SILENT_NODE, SET_ASIDE, OTHER_OWNER),
    *(NO_DRAIN_DEADLINE, CLAIM_DEADLINE, NODE_HOLD, POOL_HOLD),
)
"""Reasons other than a Blocker or a WarningKind."""

_LET_UNREADY_GO: Final = (
    "let pods that are not Ready go: kubectl patch pdb -n {namespace} {budget} --type merge -p {patch}"
)
_END_PROTECTION: Final = "kubectl {verb} pod -n {namespace} {pod} {key}-"

REMEDIES: Final[Mapping[str, str]] = {
    Blocker.BUDGET: "see which of its pods are not Ready: gracectl budgets -n {namespace}",
    Blocker.UNOBSERVED: "wait; if it stays so, kube-controller-manager does not count budgets",
    Blocker.PROTECTION: f"end its protection: {_END_PROTECTION}",
    Blocker.VOLUME: "see why it is still attached: kubectl describe volumeattachment {attachment}",
    VOLUME_LEFT_OVER: "once nothing on the node uses the volume: kubectl delete volumeattachment {attachment}",
    VOLUME_OF_SILENT_NODE: (
        "once its machine is off: kubectl taint node {node} " + names.OUT_OF_SERVICE + "=nodeshutdown:NoExecute"
    ),
    Blocker.REPLACEMENT: (
        "see why its replacement is not Ready, or let it leave without one: kubectl annotate pod -n {namespace} {pod} "
        f"--overwrite {names.REPLACE_FIRST}=false"
    ),
    Blocker.UNDECODABLE: "fix or delete it: kubectl delete pod -n {namespace} {pod}",
    UNREADY: _LET_UNREADY_GO,
    PROTECTED_JOB: f"wait for its Job, or end its protection, which kills the Job's pod: {_END_PROTECTION}",
    NO_SCALE: "give it a controller, or delete it: kubectl delete pod -n {namespace} {pod}",
    "MultipleBudgets": "change the selector of one of them: kubectl edit pdb -n {namespace} {budget}",
    "BudgetNotCounted": "see its condition, then fix or delete it: kubectl get pdb -n {namespace} {budget} -o yaml",
    SET_ASIDE: "give it a smaller selector, or delete it: kubectl delete pdb -n {namespace} {budget}",
    "BudgetAllowsNothing": (
        "run more pods, or widen it: kubectl patch pdb -n {namespace} {budget} --type merge -p {patch}"
    ),
    "BudgetUnhealthy": _LET_UNREADY_GO,
    "InvalidProtection": (
        "give it a duration: kubectl annotate pod -n {namespace} {pod} --overwrite " + names.DO_NOT_DISRUPT + "=4h"
    ),
    "LocalVolume": "copy its data elsewhere before",
    "ReplacementPending": "see why: kubectl describe pod -n {namespace} {pod}",
    "NoOtherNode": "add a node that fits; to see what it needs: kubectl get pod -n {namespace} {pod} -o yaml",
    "LocalTraffic": (
        "run a Ready pod on a node that stays, or let every node forward, which hides the clients' addresses: "
        "kubectl patch service -n {namespace} {service} --type merge -p "
        """'{{"spec":{{"externalTrafficPolicy":"Cluster"}}}}'"""
    ),
    "NoBudget": ("create one: kubectl create pdb {budget} -n {namespace} --selector={selector} --max-unavailable=1"),
    "NotManaged": "change nodeSelector of the settings, or its labels: kubectl get node {node} --show-labels",
    OTHER_OWNER: "deleted, its owner drains it; to drain it and keep it: gracectl drain {node}",
    "FinalizerMissing": "see whether a controller runs and manages it: gracectl doctor",
    "NoController": "see whether a controller runs: gracectl doctor",
    "OwnerWaits": "see whether a Karpenter leads, and renews its Lease: kubectl get leases -A -o yaml",
    NODE_HOLD: "let Karpenter disrupt it: kubectl annotate node {node} " + names.DO_NOT_DISRUPT + "-",
    POOL_HOLD: "see its disruption budgets: kubectl get nodepools {pool} -o yaml",
    "OwnerReports": "see all of them: kubectl describe {kind} {name}",
    "NodeBudgetBlocks": "see what it counts: gracectl budgets",
    "NeverDrains": (
        "give the node a deadline, which overrides budgets and protection: kubectl annotate node {node} --overwrite "
        f"{names.TERMINATION_TIMESTAMP}={_SOON}"
    ),
    NO_DRAIN_DEADLINE: (
        "give the drain a deadline, which overrides budgets and protection: gracectl drain {node} --deadline 15m"
    ),
    CLAIM_DEADLINE: (
        "give its claim a deadline, which overrides budgets and protection: kubectl annotate nodeclaim {claim} "
        f"--overwrite {names.TERMINATION_TIMESTAMP}={_SOON}"
    ),
    "StuckPods": "see why it does not stop: kubectl describe pod -n {namespace} {pod}",
    "MachineKeepsRunning": "terminate it in the cloud, or set provider.name before",
    "NotReady": "see why: kubectl describe node {node}",
    "SeveralNodeClaims": "see which is right, and delete the others: kubectl get nodeclaims {claims}",
    "InvalidDeadline": (
        f"write it as an instant: kubectl annotate {{kind}} {{name}} --overwrite {{annotation}}={_SOON}"
    ),
    "BudgetViolated": _LONGER,
    "GraceShortened": _LONGER,
    "ProtectionOverridden": _LONGER,
    "WavesTooLong": f"give its waves shorter periods, or {_LONGER}",
    "OutOfOrder": "give its wave a longer period",
}
"""Remedies by the value of a Blocker or a WarningKind, or of OTHER_REASONS. Other causes need no remedy: they end on
their own."""


LONGEST_NAME: Final = 253
"""Characters of the name of an object."""


def remedy(reason: str, **fields: str) -> str:
    """The remedy of a reason; empty if there is none. `fields`: names of objects."""
    return REMEDIES.get(reason, "").format_map({key: _quoted(value) for key, value in fields.items()})


def budget_remedy(reason: str, budget: PodDisruptionBudget) -> str:
    """Remedy of a reason that concerns this budget."""
    reason = SET_ASIDE if isinstance(budget, UnknownBudget) else reason
    return remedy(reason, namespace=budget.namespace, budget=budget.name, patch=_patch(reason, budget))


def pod_remedy(entry: PodPlan, budgets: Sequence[PodDisruptionBudget]) -> str:
    """The owner to ask, and the command that lets a blocked pod go; empty for a pod that is not blocked itself.

    `budgets`: the budgets that select the pod.
    """
    if entry.blocker is Blocker.UNDECODABLE or entry.outcome in (Outcome.PROTECTED, Outcome.BLOCKED):
        return blocker_remedy(entry.pod, entry.protection, budgets)
    if entry.blocker is Blocker.REPLACEMENT and entry.outcome is Outcome.WAITING and entry.until is not None:
        return remedy(Blocker.REPLACEMENT, namespace=entry.pod.namespace, pod=entry.pod.name)
    return remedy(Blocker.VOLUME, attachment=entry.attachments[0].name) if entry.attachments else ""


def blocker_remedy(pod: Pod, protection: Protection | None, budgets: Sequence[PodDisruptionBudget]) -> str:
    """Remedy for a pod with this protection, if any; empty for a pod that only waits for its turn."""
    if (unknown := unknown_budget_of(budgets)) is not None:
        budgets = (unknown,)
    reason = _reason(pod, protection, budgets)
    key = names.DO_NOT_EVICT if protection is not None and protection.kind == "do-not-evict" else names.DO_NOT_DISRUPT
    found = remedy(
        reason,
        namespace=pod.namespace,
        pod=pod.name,
        budget=budgets[0].name if budgets else "",
        patch=_patch(reason, budgets[0]) if budgets else "",
        verb="label" if key in pod.labels and key == names.DO_NOT_EVICT else "annotate",
        key=key,
    )
    if found and reason != PROTECTED_JOB and protection is None and _is_of_job(pod):
        found = f"wait for its Job, or {found}"
    owner = owner_of(pod)
    return f"ask {owner}, or {found}" if found and owner else found


def _is_of_job(pod: Pod) -> bool:
    return any(each.controller and each.kind == JOB for each in pod.owners)


def attachment_remedy(attachments: Sequence[VolumeAttachment], node: Node) -> str:
    """Remedy for attached volumes that no pod of the node uses.

    If a driver is detaching a volume, the remedy inspects it. Kubernetes detaches no volume that the kubelet of a Ready
    node reports in use, or that it does not know; for a silent node it waits minutes.
    """
    first = min(attachments, key=lambda each: (each.deletion_timestamp is None, natural_key(each.name)))
    if first.deletion_timestamp is not None:
        return remedy(Blocker.VOLUME, attachment=first.name)
    if is_silent(node):
        return remedy(VOLUME_OF_SILENT_NODE, node=node.name)
    return remedy(VOLUME_LEFT_OVER, attachment=first.name)


def owner_of(pod: Pod) -> str:
    """`payments (label team)`: owner of a workload, from the first of OWNER_KEYS on the workload; else empty."""
    for key in names.OWNER_KEYS:
        for where, texts in (("annotation", pod.annotations), ("label", pod.labels)):
            if text := texts.get(key, "").strip():
                return f"{harmless(text)} ({where} {key})"
    return ""


_OF_BUDGETS: Final = {Allowance.AMBIGUOUS: "MultipleBudgets", Allowance.NOT_OBSERVED: Blocker.UNOBSERVED}


def _reason(pod: Pod, protection: Protection | None, budgets: Sequence[PodDisruptionBudget]) -> str:
    """The reason why a pod is blocked, as REMEDIES has it; empty if it only waits for its turn."""
    if isinstance(pod, UnknownPod):
        return Blocker.UNDECODABLE
    if protection is not None:
        if not protection.is_valid:
            return "InvalidProtection"
        return PROTECTED_JOB if _is_of_job(pod) else Blocker.PROTECTION
    allowance = eviction_verdict(pod, tuple(budgets)).allowance
    if allowance not in (Allowance.EXHAUSTED, Allowance.NOT_COUNTABLE):
        return _OF_BUDGETS.get(allowance, "")
    if isinstance(budgets[0], UnknownBudget):
        return SET_ASIDE
    if not pod.ready:
        return UNREADY
    if allowance is Allowance.NOT_COUNTABLE:
        return NO_SCALE if has_no_scale(pod, budgets[0]) else "BudgetNotCounted"
    return "BudgetAllowsNothing" if never_allows(budgets[0]) else Blocker.BUDGET


def _patch(reason: str, budget: PodDisruptionBudget) -> str:
    """The merge patch of a remedy that changes a budget; empty for one that does not."""
    spec: dict[str, Any]
    match reason:
        case "UnreadyPod" | "BudgetUnhealthy":
            spec = {"unhealthyPodEvictionPolicy": names.ALWAYS_ALLOW}
        case "BudgetAllowsNothing" if isinstance(budget.min_available, int):
            # Also counts pods without a controller, which maxUnavailable does not.
            spec = {"minAvailable": max(budget.expected_pods - 1, 0)}
        case "BudgetAllowsNothing" if budget.max_unavailable is None:
            spec = {"minAvailable": None, "maxUnavailable": 1}
        case "BudgetAllowsNothing":
            spec = {"maxUnavailable": 1}
        case _:
            return ""
    return encode({"spec": spec}).decode()


def _quoted(text: str) -> str:
    """Words for a shell."""
    return " ".join(shlex.quote(harmless(word, LONGEST_NAME)) for word in text.split())
