"""Findings about nodes, budgets and pods, from objects that have been read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gracectl.cli.doctor.report import SHOWN, CheckState, Finding
from gracectl.cloud.provider import NONE
from gracectl.config import Settings
from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.claim import NodeClaim, finder_of_claims
from gracectl.model.meta import natural_key
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.policy.budgets import failure_of, is_counted, is_unhealthy, never_allows
from gracectl.policy.explain import agreed, counted, listed
from gracectl.policy.finalizers import has_finalizer, needs_finalizer, our_finalizers
from gracectl.policy.owners import Ownership, other_owner
from gracectl.policy.remedies import budget_remedy, remedy
from gracectl.policy.warnings import WarningKind, keeps_running

FINALIZERS: Final = "finalizers"
MACHINES: Final = "machines"
OWNERS: Final = "owners"
BUDGETS: Final = "budgets"
ANNOTATIONS: Final = "annotations"

AWS: Final = "aws"


def node_findings(nodes: Sequence[Node], claims: Iterable[NodeClaim], settings: Settings) -> tuple[Finding, ...]:
    """Findings about finalizers, machines, and nodes of other owners."""
    managed: list[Node] = []
    others: list[Node] = []
    owned: dict[str, Ownership] = {}
    claims_of = finder_of_claims(claims)
    for node in sorted(nodes, key=lambda node: natural_key(node.name)):
        of_node = claims_of(node)
        if (owner := other_owner(node, of_node)) is not None:
            owned[node.name] = owner
        else:
            (managed if settings.termination.managed.includes(node, of_node) else others).append(node)
    return _finalizers(managed, others), _machines(managed, settings), _owners(owned)


def _owners(owned: Mapping[str, Ownership]) -> Finding:
    if not owned:
        return Finding(OWNERS, CheckState.OK, "no other controller drains nodes, as labels, taints and claims show")
    first, owner = next(iter(owned.items()))
    others = listed(sorted({each.owner for each in owned.values()}), SHOWN)
    message = f"{counted(len(owned), 'node')} not managed: drained by {others} ({first}: {owner.reason})"
    return Finding(OWNERS, CheckState.OK, message, "", tuple(owned))


def _finalizers(managed: Sequence[Node], others: Sequence[Node]) -> Finding:
    held = [node for node in others if has_finalizer(node)]
    if held:
        shown = [node.name for node in held]
        message = (
            f"{listed(shown, SHOWN)} {agreed(shown, 'is', 'are')} not managed, but {agreed(shown, 'has', 'have')} the "
            f"finalizer {our_finalizers(held[0])[0]}: deleted, {agreed(shown, 'it stays', 'they stay')} indefinitely"
        )
        help_ = (
            "let nodeSelector match it, or remove the finalizer unless it is Karpenter's or another release's: "
            f"kubectl edit node {shown[0]}"
        )
        return Finding(FINALIZERS, CheckState.FAILED, message, help_, tuple(shown))
    bare = [node.name for node in managed if needs_finalizer(node)]
    if bare:
        managed_but = f"{listed(bare, SHOWN)} {agreed(bare, 'is', 'are')} managed, but without the finalizer"
        message = f"{managed_but}: deleted, no drain takes place"
        return Finding(FINALIZERS, CheckState.WARNING, message, "a controller that leads adds it", tuple(bare))
    if not managed:
        message = "no node is managed: nodeSelector matches none"
        return Finding(FINALIZERS, CheckState.WARNING, message, "see the labels: kubectl get nodes --show-labels")
    return Finding(FINALIZERS, CheckState.OK, f"on all managed nodes ({len(managed)}), and on no other")


def _machines(managed: Sequence[Node], settings: Settings) -> Finding:
    provider = settings.provider.name
    if provider == NONE:
        running = [node.name for node in managed if keeps_running(node.provider_id)]
        if running:
            keep = f"{listed(running, SHOWN)} {agreed(running, 'keeps', 'keep')} running"
            message = f"provider none terminates no machine: {keep}"
            return Finding(MACHINES, CheckState.WARNING, message, remedy("MachineKeepsRunning"), tuple(running))
        return Finding(MACHINES, CheckState.OK, "provider none terminates no machine")
    unnamed = [node.name for node in managed if not node.provider_id]
    if unnamed:
        message = f"{listed(unnamed, SHOWN)}: no spec.providerID, without which provider {provider} terminates nothing"
        help_ = "let the cloud's controller set it, or exclude such nodes by nodeSelector"
        return Finding(MACHINES, CheckState.FAILED, message, help_, tuple(unnamed))
    foreign = [node.name for node in managed if provider == AWS and not node.provider_id.startswith(f"{AWS}://")]
    if foreign:
        message = f"{listed(foreign, SHOWN)}: spec.providerID is none of {provider}, which cannot terminate the machine"
        help_ = "set provider.name, or exclude such nodes by nodeSelector (docs/providers.md)"
        return Finding(MACHINES, CheckState.FAILED, message, help_, tuple(foreign))
    return Finding(MACHINES, CheckState.OK, f"all managed nodes ({len(managed)}) have a providerID for {provider}")


def budget_finding(budgets: Iterable[PodDisruptionBudget]) -> Finding:
    """Budgets that never allow a disruption; of a budget that is being counted nothing is said."""
    found = sorted(budgets, key=lambda budget: natural_key(budget.full_name))
    uncounted = [each for each in found if failure_of(each) is not None]
    never = [each for each in found if is_counted(each) and never_allows(each) and each not in uncounted]
    unhealthy = [each for each in found if is_unhealthy(each)]
    if never:
        allow, its = agreed(never, "allows", "allow"), agreed(never, "its", "their")
        message = f"never {allow} a disruption; {its} pods leave only for a deadline or when they end"
        return _blocking(never, CheckState.FAILED, message, WarningKind.BUDGET_ALLOWS_NOTHING)
    if uncounted:
        message = f"cannot be counted, and {agreed(uncounted, 'allows', 'allow')} nothing until that is fixed"
        return _blocking(uncounted, CheckState.FAILED, message, WarningKind.BUDGET_NOT_COUNTED)
    if unhealthy:
        its, they_allow = agreed(unhealthy, "its", "their"), agreed(unhealthy, "it allows", "they allow")
        message = f"none of {its} pods is Ready, so {they_allow} nothing"
        return _blocking(unhealthy, CheckState.WARNING, message, WarningKind.BUDGET_UNHEALTHY)
    new = [each for each in found if each.observed_generation < each.generation]
    message = f"{counted(len(found), 'budget')}, each can allow a disruption" if found else "there is none"
    if new:
        message = f"unknown what {listed(_names(new), SHOWN)} {agreed(new, 'allows', 'allow')}: being counted"
        if others := len(found) - len(new):
            message = f"{counted(others, 'budget')} can allow a disruption; {message}"
    return Finding(BUDGETS, CheckState.OK, message)


def _blocking(budgets: Sequence[PodDisruptionBudget], state: CheckState, message: str, kind: WarningKind) -> Finding:
    names_ = _names(budgets)
    return Finding(BUDGETS, state, f"{listed(names_, SHOWN)}: {message}", budget_remedy(kind, budgets[0]), names_)


def annotation_finding(pods: Iterable[Pod]) -> Finding:
    """The finding about pods with an invalid do-not-disrupt, which are these."""
    found = sorted((f"{pod.namespace}/{pod.name}" for pod in pods), key=natural_key)
    if not found:
        return Finding(ANNOTATIONS, CheckState.OK, f"no pod has an invalid {names.DO_NOT_DISRUPT}")
    invalid = f'{names.DO_NOT_DISRUPT} is not "true" or a positive duration, and protects indefinitely'
    message = f"{listed(found, SHOWN)}: {invalid}"
    namespace, _, name = found[0].partition("/")
    help_ = remedy("InvalidProtection", namespace=namespace, pod=name)
    return Finding(ANNOTATIONS, CheckState.FAILED, message, help_, tuple(found))


def _names(budgets: Sequence[PodDisruptionBudget]) -> tuple[str, ...]:
    return tuple(budget.full_name for budget in budgets)
