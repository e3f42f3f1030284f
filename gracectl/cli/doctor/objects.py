"""Findings about nodes, budgets and pods, from objects that have been read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gracectl.cli.doctor.report import CheckState, Finding
from gracectl.cli.format import counted
from gracectl.cloud.provider import NONE
from gracectl.config import Settings
from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.claim import NodeClaim, finder_of_claims
from gracectl.model.meta import natural_key
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.policy.budgets import failure_of, is_counted, is_unhealthy, never_allows
from gracectl.policy.explain import listed
from gracectl.policy.finalizers import has_finalizer, needs_finalizer, our_finalizers
from gracectl.policy.owners import Ownership, other_owner
from gracectl.policy.remedies import budget_remedy, remedy
from gracectl.policy.warnings import WarningKind, keeps_running

SHOWN: Final = 3
"""Names in a line; JSON has all."""

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
            f"{_nodes(shown)} not managed, but {_has(shown)} the finalizer {our_finalizers(held[0])[0]}: deleted, "
            f"{'it stays' if len(held) == 1 else 'they stay'} indefinitely"
        )
        help_ = (
            "let nodeSelector match it, or remove the finalizer unless it is Karpenter's or another release's: "
            f"kubectl edit node {shown[0]}"
        )
        return Finding(FINALIZERS, CheckState.FAILED, message, help_, tuple(shown))
    bare = [node.name for node in managed if needs_finalizer(node)]
    if bare:
        message = f"{_nodes(bare)} managed, but without the finalizer: deleted, no drain takes place"
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
            message = f"provider none terminates no machine: {listed(running, SHOWN)} {_verb(running, 'keep')} running"
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
        blocking, allow = _names(never), _verb(never, "allow")
        message = (
            f"{listed(blocking, SHOWN)}: never {allow} a disruption; {_its(never)} pods leave only for a deadline or "
            "when they end"
        )
        helps = budget_remedy(WarningKind.BUDGET_ALLOWS_NOTHING, never[0])
        return Finding(BUDGETS, CheckState.FAILED, message, helps, blocking)
    if uncounted:
        blocking, allow = _names(uncounted), _verb(uncounted, "allow")
        message = f"{listed(blocking, SHOWN)}: cannot be counted, and {allow} nothing until that is fixed"
        helps = budget_remedy(WarningKind.BUDGET_NOT_COUNTED, uncounted[0])
        return Finding(BUDGETS, CheckState.FAILED, message, helps, blocking)
    if unhealthy:
        blocking, allow = _names(unhealthy), _verb(unhealthy, "allow")
        message = (
            f"{listed(blocking, SHOWN)}: none of {_its(unhealthy)} pods is Ready, so {_it(unhealthy)} {allow} nothing"
        )
        helps = budget_remedy(WarningKind.BUDGET_UNHEALTHY, unhealthy[0])
        return Finding(BUDGETS, CheckState.WARNING, message, helps, blocking)
    new = [each for each in found if each.observed_generation < each.generation]
    message = f"{counted(len(found), 'budget')}, each can allow a disruption" if found else "there is none"
    if new:
        message = f"unknown what {listed(_names(new), SHOWN)} {_verb(new, 'allow')}: being counted"
        if others := len(found) - len(new):
            message = f"{counted(others, 'budget')} can allow a disruption; {message}"
    return Finding(BUDGETS, CheckState.OK, message)


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


def _nodes(found: Sequence[str]) -> str:
    """`worker-1 is`, `worker-1 and worker-2 are`."""
    return f"{listed(found, SHOWN)} {'is' if len(found) == 1 else 'are'}"


def _names(budgets: Sequence[PodDisruptionBudget]) -> tuple[str, ...]:
    return tuple(budget.full_name for budget in budgets)


def _has(found: Sequence[str]) -> str:
    return "has" if len(found) == 1 else "have"


def _verb(found: Sequence[object], many: str) -> str:
    return f"{many}s" if len(found) == 1 else many


def _it(found: Sequence[object]) -> str:
    return "it" if len(found) == 1 else "they"


def _its(found: Sequence[object]) -> str:
    return "its" if len(found) == 1 else "their"
