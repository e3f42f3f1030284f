"""What `uninstall -o json` prints; the command's help and docs/uninstall.md name every field."""

from __future__ import annotations

from enum import StrEnum

import msgspec


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
