"""The outcome of `gracectl uninstall`: its JSON object, and what it says to people; docs/uninstall.md explains both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

from gracectl.cli.report import JsonObject
from gracectl.controllers.finalizer.cleanup import NodeOrClaim
from gracectl.controllers.termination.maintenance import REQUEST
from gracectl.kube.auth.credentials import ClusterAddress
from gracectl.kube.resources import NODE_CLAIMS
from gracectl.model import names
from gracectl.model.foreign import harmless
from gracectl.model.node import Node
from gracectl.policy.cordon import Mark
from gracectl.policy.explain import counted, listed
from gracectl.policy.maintenance import recorded_marks


class RemovalOutcome(StrEnum):
    """Outcome for one object."""

    REMOVED = "removed"
    WOULD_BE_REMOVED = "wouldBeRemoved"
    SKIPPED = "skipped"
    """Not gracectl's."""
    FAILED = "failed"


class Removal(JsonObject, frozen=True):
    """An object of gracectl, the finalizer of a Node, NodeClaim or NodeDrain, or the release of a Pod from its
    ReplicaSet. `reason`: why it is not removed.
    """

    kind: str
    name: str
    outcome: RemovalOutcome
    reason: str = ""


class LeaseReport(JsonObject, frozen=True):
    """The Lease that was, or would be, taken over; `held_until` (RFC 3339): no controller starts before."""

    namespace: str
    name: str
    previous_holder: str
    held_until: str | None = None


class OrphanedInstanceReport(JsonObject, frozen=True):
    """An instance that is not terminated any more. `pods` None: unknown; `held_by`: other finalizers on the node."""

    node: str | None
    claim: str | None
    instance: str | None
    pods: int | None
    held_by: tuple[str, ...]


class CordonedNodeReport(JsonObject, frozen=True):
    """A node that stays cordoned by gracectl, and the commands that uncordon it."""

    node: str
    commands: tuple[str, ...]


class UninstallReport(JsonObject, frozen=True):
    """The whole object."""

    cluster: ClusterAddress
    dry_run: bool
    lease: LeaseReport | None
    removals: tuple[Removal, ...]
    orphaned_instances: tuple[OrphanedInstanceReport, ...]
    cordoned_nodes: tuple[CordonedNodeReport, ...]
    definitions: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def failures(self) -> tuple[Removal, ...]:
        """Removals that failed."""
        return tuple(each for each in self.removals if each.outcome is RemovalOutcome.FAILED)


WITHOUT_ELECTION: Final = (
    "leader election is disabled in the settings: a running controller puts finalizers back; stop it first"
)
RELEASED: Final = '{"spec":{"holderIdentity":""}}'
"""The patch of a Lease after which any controller may take it immediately."""
RECREATED: Final = (
    "recreated again and again; stop the gracectl that runs without leader election, and run this once more"
)
NO_LEADER: Final = "no controller leads: nothing was waited for"

UNSEEN_DRAINS: Final = "could not check whether NodeDrains have our finalizer (needs list on nodedrains)"
UNSEEN_PODS: Final = (
    "could not check whether pods are released from their ReplicaSets for a replacement (needs list on pods)"
)

POD: Final = "Pod"
_OF: Final = {
    **{kind: f"finalizer of {{}}{kind.lower()}" for kind in ("Node", "NodeClaim", "NodeDrain")},
    POD: "{}released pod",
}
"""What is counted, with its number."""
_DONE: Final = {RemovalOutcome.REMOVED: "removed", RemovalOutcome.WOULD_BE_REMOVED: "would be removed"}
_RETURNED: Final = {RemovalOutcome.REMOVED: "returned", RemovalOutcome.WOULD_BE_REMOVED: "would be returned"}
_DELETED: Final = {
    RemovalOutcome.REMOVED: "deleted",
    RemovalOutcome.WOULD_BE_REMOVED: "would be deleted",
    RemovalOutcome.SKIPPED: "skipped",
}


def without_lease(name: str) -> str:
    """No Lease shows where a controller runs."""
    return (
        f"no Lease {name} found: a controller without leader election would put finalizers back; stop it first. If its "
        "Lease is in another namespace, give --namespace or --config"
    )


def lease_lost(error: str) -> str:
    """Nothing keeps controllers from starting."""
    return (
        f"the Lease could not be kept ({error}): a running controller leads again soon and puts finalizers back; stop "
        "it, and run this again"
    )


def waiting_for(things: Sequence[NodeOrClaim]) -> str:
    """Terminations that the controller finishes first."""
    return f"waiting for the termination of {listed([thing.name for thing in things])}"


def still_terminating(things: Sequence[NodeOrClaim], seconds: float) -> str:
    """Terminations that it has not finished."""
    return f"still terminating after {seconds:g} s: {listed([each.name for each in things])}"


def taken_over(previous: str, seconds: float) -> str:
    """Why it takes a while."""
    return f"{harmless(previous)} does not lead any more; waiting {max(seconds, 0):.0f} s for its last requests"


def uncordon_commands(node: Node) -> tuple[str, ...]:
    """The commands that remove all marks of a cordon from a node; they need no controller."""
    marks = recorded_marks(node)
    commands = [f"kubectl uncordon {node.name}"] if node.unschedulable else []
    if Mark.TAINT in marks:
        commands.append(f"kubectl taint node {node.name} {names.DISRUPTED_TAINT_KEY}-")
    if Mark.LABEL in marks:
        commands.append(f"kubectl label node {node.name} {names.EXCLUDE_FROM_LOAD_BALANCERS}-")
    ours = [key for key in (*REQUEST, names.CORDONED, names.PENDING_CORDONED) if key in node.annotations]
    return (*commands, f"kubectl annotate node {node.name} " + " ".join(f"{key}-" for key in ours))


def orphaned_instance_text(orphan: OrphanedInstanceReport, *, is_dry_run: bool) -> str:
    """An instance that is left over, and what to do about it."""
    subject = f"node {orphan.node}" if orphan.node else f"nodeclaim {orphan.claim}"
    claim = f" with its claim {orphan.claim}" if orphan.node and orphan.claim else ""
    if orphan.pods is None:
        pods = "" if orphan.node is None else "; its pods could not be counted (needs list on pods)"
    else:
        pods = f"; {counted(orphan.pods, 'pod')} not terminated"
    instance = f"instance {harmless(orphan.instance, 200)}" if orphan.instance else "instance (no providerID)"
    held = f"; the node stays until {', '.join(orphan.held_by)} is removed" if orphan.held_by else ""
    verb = "would disappear" if is_dry_run else "disappears"
    return (
        f"{subject}: being deleted, {verb}{claim}{pods}; gracectl does not terminate its {instance}: terminate it by "
        f"hand{held}"
    )


def removal_rows(report: UninstallReport) -> Iterator[tuple[str, str]]:
    """Rows of the removals with their outcomes; finalizers and pods are counted, failures are named."""
    for each in report.removals:
        if each.kind not in _OF and each.outcome in _DELETED:
            yield f"{each.kind} {each.name}", _DELETED[each.outcome] + (f": {each.reason}" if each.reason else "")
    counts = Counter((each.kind, each.outcome) for each in report.removals if each.kind in _OF)
    for (kind, outcome), count in counts.items():
        if outcome in _DONE:
            what = f"{_OF[kind].format(f'{count} ')}{'' if count == 1 else 's'}"
            yield what, (_RETURNED if kind == POD else _DONE)[outcome]
    for each in report.failures:
        yield f"{_OF.get(each.kind, each.kind).format('')} {each.name}", f"FAILED: {each.reason}"


def closing_lines(report: UninstallReport) -> Iterator[str]:
    """Lines that name what remains, and how to remove it."""
    yield from (f"note: {note}" for note in report.notes)
    lease = report.lease
    if lease is not None and lease.held_until is not None:
        yield (
            f"Lease {lease.namespace}/{lease.name} is held until {lease.held_until}, so that no running controller "
            f"starts again. To use gracectl before that: kubectl -n {lease.namespace} patch lease {lease.name} "
            f"--type merge -p '{RELEASED}'"
        )
    elif lease is not None and report.dry_run:
        held = f" from {harmless(lease.previous_holder)}" if lease.previous_holder else ""
        yield f"Lease {lease.namespace}/{lease.name} would be taken over{held}."
    for definition in report.definitions:
        also = ""
        if definition == NODE_CLAIMS.qualified:
            also = "  (unless Karpenter uses it: this deletes all NodeClaims)"
        yield f"The definition {definition} stays. To remove it: kubectl delete crd {definition}{also}"
