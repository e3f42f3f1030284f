"""One node's termination while it is under way: what is known of it beyond the objects themselves.

Nothing here must survive: after a restart it is built anew from the node, and every step finds out for itself what is
done already. It keeps the freshest node we have seen (our own writes come back late through the watch), when the cordon
was seen, when the provider is to be asked next, and how long each step has taken.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gracectl.model.node import Node
from gracectl.policy.plan import Plan
from gracectl.runtime.backoff import Backoff


class Progress(msgspec.Struct, frozen=True):
    """A snapshot for people: where a termination stands. Times are Unix seconds, `seconds` durations by step."""

    node: str
    uid: str
    step: str
    started: float
    step_since: float
    seconds: Mapping[str, float]
    pods_left: int
    waits_for: str
    finished: float | None = None


class InstanceWait(msgspec.Struct):
    """When to speak to the provider again, and how patiently. Instants are monotonic: a wall clock may be set back."""

    poll: Backoff
    retry: Backoff
    asked_at: float | None = None
    next_call: float = 0.0
    next_notice: float = 0.0
    """Before this instant nobody asks whether the instance of a node that is not Ready is still there."""


class Told(msgspec.Struct, frozen=True):
    """The status of a condition as we wrote it last, `at` when, and when it `turned` to that (Unix seconds)."""

    status: str
    at: float
    turned: float


class Termination:
    """The memory of one termination; identified by the node's UID, as a namesake is another node."""

    def __init__(self, node: Node, instance: InstanceWait, now: float) -> None:
        self.node = node
        self.uid = node.uid
        self.started = now if node.deletion_timestamp is None else node.deletion_timestamp
        self.cordoned_at: float | None = None
        self.plan: Plan | None = None
        self.still_since: float | None = None  # since when (monotonic) nobody leaves though somebody should
        self.instance = instance
        self.told: dict[str, Told] = {}
        self.waits_for = ""
        self._replaced: set[str] = set()
        self._step = ""
        self._step_since = now
        self._seconds: dict[str, float] = {}

    def refresh(self, cached: Node) -> None:
        """Take over what the cache shows, unless it is a state that our own writes have replaced since."""
        if cached.resource_version not in self._replaced:
            self._replaced.clear()
            self.node = cached

    def wrote(self, node: Node) -> None:
        """The server has answered our write with this state of the node."""
        if node.resource_version != self.node.resource_version:
            self._replaced.add(self.node.resource_version)
        self.node = node

    def pass_through(self, step: str, now: float) -> None:
        """A walk has come to this step: it is where the termination stands, unless a walk has come so far before."""
        if step not in self._seconds:
            self._stand_at(step, now)

    def rest_at(self, step: str, now: float, waits_for: str) -> None:
        """A walk has ended at this step, for this reason; it may be an earlier one than before (a late pod)."""
        self._stand_at(step, now)
        self.waits_for = waits_for

    def _stand_at(self, step: str, now: float) -> None:
        """Time counts for the step at which the termination stands."""
        if step != self._step:
            self._count(now)
            self._step, self._step_since = step, now
            self._seconds.setdefault(step, 0.0)
            self.waits_for = ""

    def progress(self, now: float, *, is_finished: bool = False) -> Progress:
        """Where it stands at `now`."""
        running = {self._step: self._seconds[self._step] + now - self._step_since} if self._step else {}
        return Progress(
            node=self.node.name,
            uid=self.uid,
            step=self._step,
            started=self.started,
            step_since=self._step_since,
            seconds={**self._seconds, **running},
            pods_left=len(self.plan.left) if self.plan else 0,
            waits_for=self.waits_for,
            finished=now if is_finished else None,
        )

    def _count(self, now: float) -> None:
        if self._step:
            self._seconds[self._step] += now - self._step_since
