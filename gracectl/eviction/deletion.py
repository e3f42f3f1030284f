"""A deletion for a deadline: who is doomed and by when, and what the server has agreed to."""

from __future__ import annotations

from typing import Protocol

import msgspec

from gracectl.eviction.promises import Promise
from gracectl.kube import errors


class ScheduledDeletion(msgspec.Struct, frozen=True):
    """A pod of `node` that must have ended by `deadline` (Unix seconds); policy.deadlines says when it is deleted.

    `cause`: for people, why that is before the deadline of the node; empty if it is the same. `begins` (Unix seconds):
    it is to be told from then on, even if it could stay longer for the deadline, and once it has been told in time
    nothing more is asked of it.
    """

    namespace: str
    name: str
    uid: str
    node: str
    deadline: float
    cause: str = ""
    begins: float | None = None

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)"""
        return (self.namespace, self.name)


class Deletion(msgspec.Struct, frozen=True):
    """What the server was asked for and has agreed to.

    `granted`: seconds of grace; `requested`: those that the pod asks for; `before`: what it had been granted if it was
    terminating already, else None. `late`: seconds from the instant at which it was due, or at which that became known,
    to the sending.
    """

    pod: ScheduledDeletion
    granted: int
    requested: int
    before: Promise | None
    late: float


class DeletionListener(Protocol):
    """Is told what became of a pod; must not block."""

    def deleted(self, deletion: Deletion) -> None:
        """The server has agreed."""

    def not_deleted(self, pod: ScheduledDeletion, refusal: errors.ApiError) -> None:
        """The server did not agree this time; it is asked again."""
