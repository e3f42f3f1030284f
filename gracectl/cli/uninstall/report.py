"""What `uninstall -o json` prints; the command's help and docs/uninstall.md name every field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from gracectl.controllers.finalizer.cleanup import NodeOrClaim
from gracectl.kube.resources import NODE_CLAIMS
from gracectl.model import names
from gracectl.model.foreign import harmless
from gracectl.model.node import Node
from gracectl.policy.cordon import Mark
from gracectl.policy.maintenance import recorded_marks


class Outcome(StrEnum):
    """What has become of one thing."""

    REMOVED = "removed"
    WOULD_BE_REMOVED = "wouldBeRemoved"
    LEFT = "left"
    """Not gracectl's."""
    FAILED = "failed"


class Removal(msgspec.Struct, frozen=True):
    """One thing of gracectl's: an object, or the finalizer of a Node or NodeClaim. `why`: where it is not removed."""

    kind: str
    name: str
    outcome: Outcome
    why: str = ""


class LeaseReport(msgspec.Struct, frozen=True, rename="camel"):
    """The Lease that was, or would be, taken over; `held_until` (RFC 3339): until then no controller begins anew."""

    namespace: str
    name: str
    previous_holder: str
    held_until: str | None = None


class EndingReport(msgspec.Struct, frozen=True, rename="camel"):
    """An instance that nobody ends any more. `pods` None: nobody knows; `held_by`: other finalizers on the node."""

    node: str | None
    claim: str | None
    instance: str | None
    pods: int | None
    held_by: tuple[str, ...]


class KeptReport(msgspec.Struct, frozen=True):
    """A node that is kept drained, was being given back, or was cordoned while it waited to end, and the commands that
    give it back."""

    node: str
    commands: tuple[str, ...]


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """The whole answer."""

    dry_run: bool
    lease: LeaseReport | None
    removals: tuple[Removal, ...]
    endings: tuple[EndingReport, ...]
    kept: tuple[KeptReport, ...]
    definitions: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def failures(self) -> tuple[Removal, ...]:
        """What is still there although it should not."""
        return tuple(each for each in self.removals if each.outcome is Outcome.FAILED)


FEW: Final = 3

WITHOUT_ELECTION: Final = (
    "the settings say that the controller leads without leader election: nothing keeps one that runs from putting "
    "finalizers back; stop it first"
)
GIVEN_BACK: Final = '{"spec":{"holderIdentity":""}}'
"""The patch of a Lease after which anybody may take it at once, whatever he has seen of it before."""
MADE_ANEW: Final = (
    "somebody makes it anew again and again; stop whoever does (a gracectl that runs without leader election), and run "
    "this once more"
)
NOBODY_TO_WAIT_FOR: Final = "no controller leads, so nothing was waited for"

_OF: Final = {"Node": "node", "NodeClaim": "node claim"}
_DONE: Final = {Outcome.REMOVED: "taken off", Outcome.WOULD_BE_REMOVED: "would be taken off"}
_DELETED: Final = {Outcome.REMOVED: "deleted", Outcome.WOULD_BE_REMOVED: "would be deleted", Outcome.LEFT: "left"}


def without_lease(name: str) -> str:
    """Nothing shows where a controller is."""
    return (
        f"there is no Lease {name}: if a controller runs without leader election, nothing keeps it from putting "
        "finalizers back; stop it first. If its Lease is elsewhere, say where with --namespace or --config"
    )


def lease_is_lost(error: str) -> str:
    """Nobody is kept from beginning anew."""
    return (
        f"the Lease could not be kept ({error}): a controller that still runs leads again soon, and puts finalizers "
        "back; stop it, and run this again"
    )


def unseen(namespaces: Sequence[str]) -> str:
    """Where a Karpenter would not be noticed."""
    return (
        f"whether a Karpenter leads in {', '.join(namespaces)} could not be seen (that needs get on leases "
        f"{names.KARPENTER_LEASE} there); if one runs, it puts its finalizer back"
    )


def _named(found: Sequence[str]) -> str:
    shown = ", ".join(found[:FEW])
    return shown if len(found) <= FEW else f"{shown} and {len(found) - FEW} others"


def waiting_for(things: Sequence[NodeOrClaim]) -> str:
    """Terminations that the controller is to finish first."""
    return f"waiting for the end of {_named([thing.name for thing in things])}"


def still_under_way(things: Sequence[NodeOrClaim], seconds: float) -> str:
    """Those that it has not finished."""
    return f"after {seconds:g} s these were still on their way to their end: {_named([each.name for each in things])}"


def taken_over(previous: str, seconds: float) -> str:
    """Why it takes a while."""
    return (
        f"{harmless(previous)} leads no more; what it has sent may arrive for another {max(seconds, 0):.0f} s, and is "
        "waited for"
    )


def give_back(node: Node) -> tuple[str, ...]:
    """The commands after which nothing of its maintenance, or of the cordon of a node that waited, is left on a node:
    they need no controller."""
    marks = recorded_marks(node)
    commands = [f"kubectl uncordon {node.name}"] if node.unschedulable else []
    if Mark.TAINT in marks:
        commands.append(f"kubectl taint node {node.name} {names.DISRUPTED_TAINT_KEY}-")
    if Mark.LABEL in marks:
        commands.append(f"kubectl label node {node.name} {names.EXCLUDE_FROM_LOAD_BALANCERS}-")
    ours = [key for key in (names.KEEP_DRAINED, names.CORDONED, names.PENDING_CORDONED) if key in node.annotations]
    return (*commands, f"kubectl annotate node {node.name} " + " ".join(f"{key}-" for key in ours))


def of_ending(ending: EndingReport, *, is_foretold: bool) -> str:
    """An instance that is left over, and what to do about it."""
    subject = f"node {ending.node}" if ending.node else f"node claim {ending.claim}"
    beside = f" with its claim {ending.claim}" if ending.node and ending.claim else ""
    if ending.pods is None:
        pods = "" if ending.node is None else "; how many pods are left there is not known (that needs list on pods)"
    else:
        pods = f"; {ending.pods} pod{'' if ending.pods == 1 else 's'} had not finished there"
    instance = f"its instance {harmless(ending.instance, 200)}" if ending.instance else "its instance (no providerID)"
    held = f"; the node itself stays as long as {', '.join(ending.held_by)} holds it" if ending.held_by else ""
    verb = "would vanish" if is_foretold else "vanishes"
    return (
        f"{subject} was being deleted and {verb}{beside}{pods}; {instance} is not ended by gracectl any more: end it "
        f"by hand unless it is gone{held}"
    )


def removal_rows(report: Report) -> Iterator[tuple[str, str]]:
    """What was found, and what has become of it; finalizers are counted, failures named."""
    for each in report.removals:
        if each.kind not in _OF and each.outcome in _DELETED:
            yield f"{each.kind} {each.name}", _DELETED[each.outcome] + (f": {each.why}" if each.why else "")
    counts = Counter((each.kind, each.outcome) for each in report.removals if each.kind in _OF)
    for (kind, outcome), count in counts.items():
        if outcome in _DONE:
            yield f"finalizer of {count} {_OF[kind]}{'' if count == 1 else 's'}", _DONE[outcome]
    for each in report.failures:
        what = f"finalizer of {_OF[each.kind]} {each.name}" if each.kind in _OF else f"{each.kind} {each.name}"
        yield what, f"STILL THERE: {each.why}"


def last_words(report: Report) -> Iterator[str]:
    """What stays, and how to get rid of it."""
    yield from (f"note: {note}" for note in report.notes)
    lease = report.lease
    if lease is not None and lease.held_until is not None:
        yield (
            f"The Lease {lease.namespace}/{lease.name} is held until {lease.held_until}, so that no controller that "
            f"still runs begins anew. To use gracectl again before: kubectl -n {lease.namespace} patch lease "
            f"{lease.name} --type merge -p '{GIVEN_BACK}'"
        )
    elif lease is not None and report.dry_run:
        held = f" from {harmless(lease.previous_holder)}" if lease.previous_holder else ""
        yield f"The Lease {lease.namespace}/{lease.name} would be taken over{held}."
    for definition in report.definitions:
        also = ""
        if definition == NODE_CLAIMS.qualified:
            also = " - if no Karpenter is to use it: it deletes all NodeClaims"
        yield f"The definition {definition} stays. To remove it: kubectl delete crd {definition}{also}"
