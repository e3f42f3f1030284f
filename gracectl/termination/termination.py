"""One node's termination while it is under way: what is known of it beyond the objects themselves.

Nothing here must survive: after a restart it is built anew from the node, and every step finds out for itself what is
done already. It keeps the freshest node and claim we have seen, when the cordon was seen, when the provider is to be
asked next, and how long each step has taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from gracectl.kube.resources import NODES
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node
from gracectl.policy.deadlines import Deadline
from gracectl.policy.plan import Plan
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock
from gracectl.termination.held import AnyHeld, Held

LAST_WORD_SECONDS = 1.0
"""At the deadline the instance ends; a server that does not answer has this long for everything that comes before."""

PATIENCE_SECONDS = 5.0
"""A server that does not answer holds up an instance whose end was asked for by no more than this, step by step."""


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
    deadline: float | None = None
    finished: float | None = None


class InstanceWait(msgspec.Struct):
    """When to speak to the provider again, and how patiently. Instants are monotonic: a wall clock may be set back."""

    poll: Backoff
    retry: Backoff
    asked_at: float | None = None
    next_call: float = 0.0
    next_notice: float = 0.0
    """Before this instant nobody asks whether the instance of a node that is not Ready is still there."""

    @property
    def was_tried(self) -> bool:
        """Whether the provider was asked to end the instance, with or without success."""
        return self.asked_at is not None or self.next_call > 0


class Ending:
    """A node or a claim whose instance is to end, on which objects that is told, and what it waits for."""

    looks_first = False
    """Whether somebody else may have ended the instance already, so that the provider is looked at before it is asked.
    """

    def __init__(self, instance: InstanceWait, now: float) -> None:
        self.instance = instance
        self.deadline: Deadline | None = None
        self.complained: set[tuple[str, str]] = set()  # by uid, annotations that nobody can read and were told of
        self.waits_for = ""
        self._step = ""
        self._step_since = now
        self._seconds: dict[str, float] = {}

    @property
    def lack(self) -> str:
        """Where `provider_id` was looked for, for people: `node worker-1 has no spec.providerID`."""
        raise NotImplementedError

    @property
    def provider_id(self) -> str:
        """Which instance; empty when nobody knows."""
        raise NotImplementedError

    @property
    def holders(self) -> tuple[AnyHeld, ...]:
        """Where people are told of it: the object itself first."""
        raise NotImplementedError

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

    def _count(self, now: float) -> None:
        if self._step:
            self._seconds[self._step] += now - self._step_since


class Termination(Ending):
    """The memory of one node's termination; identified by the node's UID, as a namesake is another node."""

    def __init__(self, node: Node, instance: InstanceWait, now: float) -> None:
        super().__init__(instance, now)
        self.held = Held(NODES, node)
        self.claim: Held[NodeClaim] | None = None
        self.uid = node.uid
        self.started = now if node.deletion_timestamp is None else node.deletion_timestamp
        self.next_claim = 0.0  # before this instant (monotonic) a claim that could not be deleted is let be
        self.cordoned_at: float | None = None
        self.plan: Plan | None = None
        self.left_behind = ""  # once the deadline has passed: what was left then, for people
        self.still_since: float | None = None  # since when (monotonic) nobody leaves though somebody should
        self._hurries_since: float | None = None  # since when (monotonic) the deadline was seen to have passed

    @property
    def node(self) -> Node:
        """The node as fresh as we know it."""
        return self.held.state

    @property
    def lack(self) -> str:
        """See Ending."""
        return f"node {self.node.name} has no spec.providerID"

    @property
    def provider_id(self) -> str:
        """Which instance; empty when nobody knows."""
        return self.node.provider_id or (self.claim.state.provider_id if self.claim else "")

    @property
    def holders(self) -> tuple[AnyHeld, ...]:
        """The node, and its claim if it has one."""
        return (self.held, self.claim) if self.claim else (self.held,)

    def is_overdue(self, now: float) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and self.deadline.at <= now

    def time_left(self, clock: Clock) -> float:
        """The seconds that what comes before the end of the instance may take from now on; inf without a deadline.

        That is until the deadline; from then on LAST_WORD_SECONDS for everything, counted from the first look; and when
        the provider has been asked, PATIENCE_SECONDS for each thing, so that it is asked again in time.
        """
        if self.deadline is None:
            return math.inf
        left = self.deadline.at - clock.now()
        if left > 0:
            return left
        if self.instance.was_tried:
            return PATIENCE_SECONDS
        now = clock.monotonic()
        if self._hurries_since is None:
            self._hurries_since = now
        return max(self._hurries_since + LAST_WORD_SECONDS - now, 0.0)

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
            deadline=self.deadline.at if self.deadline else None,
            finished=now if is_finished else None,
        )
