"""The end of a node or a claim while it is under way: what is known of it beyond the objects themselves.

Nothing here must survive: after a restart it is built anew from the object, and every step finds out for itself what is
done already. It keeps the object as fresh as we have seen it, the deadline, when the provider is to be asked next, and
how long each step has taken.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from gracectl.controllers.cluster.cache import is_finalizing
from gracectl.controllers.cluster.tracked import AnyTracked, H, TrackedObject
from gracectl.controllers.pipeline.failures import Failures
from gracectl.controllers.pipeline.observer import NO_OBSERVER, TerminationObserver
from gracectl.controllers.pipeline.statistics import TerminationKind
from gracectl.controllers.settings import InstanceSettings
from gracectl.kube.resources import NODES, Resource
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.policy.deadlines import Deadline
from gracectl.policy.plan import Plan
from gracectl.policy.protected_pods import ProtectedPod
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot for people: where an end stands. Times are Unix seconds, `seconds` durations by step."""

    name: str
    uid: str
    kind: TerminationKind
    step: str
    started: float
    step_since: float
    seconds: Mapping[str, float]
    waits_for: str
    pods_left: int = 0
    """Of a node: how many hold it."""
    is_stalled: bool = False
    """Of a node: for a minute nobody has left, or was on his way, though somebody should."""
    nodes: tuple[str, ...] = ()
    """Of a claim: those that are waited for; their own terminations say more. Without any it has its own way to go."""
    deadline: float | None = None
    finished: float | None = None

    @property
    def kept(self) -> bool:
        """Of a node: it is drained and stays. It rests at the step "kept", and is given back at "uncordon"."""
        return self.kind == "kept"


class InstanceWait(msgspec.Struct):
    """When to speak to the provider again, and how patiently. Instants are monotonic: a wall clock may be set back."""

    poll: Backoff
    retry: Backoff
    provider_id: str = ""
    """Of which instance all of this is."""
    is_gone: bool = False
    """The provider has said so: it is not asked again, for a machine may come back under the same providerID."""
    requested_at: float | None = None
    next_call: float = 0.0
    next_notice: float = 0.0
    """Before this instant nobody asks whether the instance of a node that is not Ready is still there."""

    @classmethod
    def of(cls, settings: InstanceSettings, backoff: Callable[[float, float], Backoff]) -> InstanceWait:
        """As patient as the settings say; `backoff` makes one of its initial and its longest wait (seconds)."""
        return cls(
            poll=backoff(settings.poll_initial_seconds, settings.poll_maximum_seconds),
            retry=backoff(settings.retry_initial_seconds, settings.retry_maximum_seconds),
        )

    def configure(self, settings: InstanceSettings) -> None:
        """As patient as the settings say now, from the next wait on."""
        self.poll.configure(settings.poll_initial_seconds, settings.poll_maximum_seconds)
        self.retry.configure(settings.retry_initial_seconds, settings.retry_maximum_seconds)

    def turn_to(self, provider_id: str) -> None:
        """It is about this instance; what was remembered of another one does not count."""
        if provider_id != self.provider_id:
            self.provider_id, self.is_gone, self.requested_at, self.next_call = provider_id, False, None, 0.0
            self.poll.reset()
            self.retry.reset()

    @property
    def was_tried(self) -> bool:
        """Whether the provider was asked to end the instance, with or without success."""
        return self.requested_at is not None or self.next_call > 0


class TerminationState(ABC, Generic[H]):
    """The memory of one end; identified by the object's uid, as a namesake is another object."""

    kind: TerminationKind = "node"

    fate = "is being terminated"
    """What is done to the object, for people."""

    outcome = "is terminated"
    """The same when it is over."""

    checks_instance_first = False
    """Whether somebody else may have ended the instance already, so that the provider is looked at before it is asked.
    """

    def __init__(self, tracked: TrackedObject[H], instance: InstanceWait, now: float) -> None:
        begun = tracked.latest.deletion_timestamp
        self.tracked = tracked
        self.uid = tracked.uid
        self.started = now if begun is None else begun
        self.instance = instance
        self.deadline: Deadline | None = None
        # A predecessor of ours has come as far as the drain, and has told people of it.
        drained = condition_of(tracked.latest.conditions, names.DRAINED)
        self.is_resumed = drained is not None and drained.reason != names.STEP_FAILING
        self.observer: TerminationObserver = NO_OBSERVER
        self.failures = Failures()  # by step
        self.reported: set[tuple[str, str]] = set()  # by uid, what is told once: unreadable annotations, rivals
        self.waits_for = ""
        self._step = ""
        self._step_since = now
        self._seconds: dict[str, float] = {}

    @property
    @abstractmethod
    def missing_provider_id(self) -> str:
        """Where `provider_id` was looked for, for people: `node worker-1 has no spec.providerID`."""

    @property
    @abstractmethod
    def provider_id(self) -> str:
        """Which instance; empty when nobody knows."""

    @property
    @abstractmethod
    def source(self) -> Node | None:
        """The node whose instance that is, if it is known from a node, or is a node's."""

    @property
    @abstractmethod
    def objects(self) -> tuple[AnyTracked, ...]:
        """Where people are told of it: the object itself first."""

    @property
    def ends_by(self) -> float | None:
        """The instant of the deadline; None without one."""
        return None if self.deadline is None else self.deadline.at

    def is_overdue(self, now: float) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and self.deadline.at <= now

    def forget_steps(self, now: float) -> None:
        """From now on it stands nowhere, and has come nowhere before."""
        self._step, self._step_since, self._seconds, self.waits_for = "", now, {}, ""

    def enter_step(self, step: str, now: float) -> None:
        """A walk has come to this step: it is where the end stands, unless a walk has come so far before."""
        if step not in self._seconds:
            self._set_step(step, now)

    def wait_at(self, step: str, now: float, waits_for: str) -> None:
        """A walk has ended at this step, for this reason; it may be an earlier one than before (a late pod)."""
        self._set_step(step, now)
        self.waits_for = waits_for

    def _set_step(self, step: str, now: float) -> None:
        """Time counts for the step at which the end stands."""
        if step != self._step:
            self._leave(now)
            self._step, self._step_since = step, now
            self._seconds.setdefault(step, 0.0)
            self.waits_for = ""

    def finish(self, now: float) -> None:
        """It is over, and stands nowhere any more."""
        self._leave(now)
        self._step_since = now

    def _leave(self, now: float) -> None:
        if self._step:
            self._seconds[self._step] += now - self._step_since
            self.observer.step_over(self._step, self._step_since, now, self.waits_for)

    def progress(self, now: float) -> Progress:
        """Where it stands at `now`."""
        running = {self._step: self._seconds[self._step] + now - self._step_since} if self._step else {}
        return Progress(
            name=self.tracked.name,
            uid=self.uid,
            kind=self.kind,
            step=self._step,
            started=self.started,
            step_since=self._step_since,
            seconds={**self._seconds, **running},
            waits_for=self.waits_for,
            deadline=self.ends_by,
        )


AnyState = TerminationState[Any]
"""A node's or a claim's."""

E = TypeVar("E", bound=AnyState)


OVERDUE_SECONDS = 1.0
"""At the deadline the instance ends; a server that does not answer has this long for everything that comes before."""

PATIENCE_SECONDS = 5.0
"""A server that does not answer holds up an instance whose end was asked for by no more than this, step by step."""

RECORDON_SECONDS = (0.002, 60.0)
"""Between two cordons of a node on which they are undone: the first wait and the longest, doubled each time."""

STALL_REPORTED = math.inf
"""As the instant since when nobody leaves: people were told of it."""

KEPT = "Kept"
"""Reason of the condition Drained of a node that is drained and stays."""


class NodeState(TerminationState[Node]):
    """The memory of one node's end, or (MaintenanceState) of its drain alone."""

    def __init__(self, node: Node, instance: InstanceWait, now: float) -> None:
        super().__init__(TrackedObject(NODES, node), instance, now)
        drained = condition_of(node.conditions, names.DRAINED)
        if drained is not None and drained.reason == KEPT:
            self.is_resumed = False  # what people know of is the drain of a node that was to stay
        self.claim: TrackedObject[NodeClaim] | None = None
        self.next_claim = 0.0  # before this instant (monotonic) a claim that could not be deleted is let be
        self.cordoned_at: float | None = None
        self.next_cordon = 0.0  # before this instant (monotonic) a cordon that was undone is let be
        self.recordon = Backoff(*RECORDON_SECONDS, jitter=0.0)
        self.plan: Plan | None = None
        self.protected_pods: Mapping[str, ProtectedPod] | None = None  # by pod UID; None before the first plan
        self.invalid_annotations: Mapping[str, str] = {}  # by pod UID, the values of do-not-disrupt that were reported
        self.blocking_budgets: frozenset[tuple[str, str]] = frozenset()  # by namespace and name, of the last plan
        self.planned_from = -math.inf  # when (monotonic) the drain began its last plan
        self.looked_at = -math.inf  # when (monotonic) the drain was last planned
        self.left_behind = ""  # once the deadline has passed: what was left then, for people
        # Since when (monotonic) nobody leaves though somebody should.
        self.stalled_since: float | None = None
        self._overdue_since: float | None = None  # since when (monotonic) the deadline was seen to have passed

    @property
    def node(self) -> Node:
        """The node as fresh as we know it."""
        return self.tracked.latest

    @property
    def missing_provider_id(self) -> str:
        """See Ending."""
        return f"node {self.node.name} has no spec.providerID"

    @property
    def provider_id(self) -> str:
        """Which instance: the node's, else its claim's; empty when nobody knows."""
        return self.node.provider_id or (self.claim.latest.provider_id if self.claim else "")

    @property
    def source(self) -> Node | None:
        """See Ending."""
        return self.node

    @property
    def objects(self) -> tuple[AnyTracked, ...]:
        """The node, and its claim if it has one."""
        return (self.tracked, self.claim) if self.claim else (self.tracked,)

    @property
    def drained_condition(self) -> tuple[str, str]:
        """Reason and message of the condition Drained when no pod is left that is waited for."""
        return "Drained", "all pods are gone"

    def matches_node(self, node: Node) -> bool:
        """Whether this state of a node is one that has this end."""
        return node.uid == self.uid and is_finalizing(node)

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
        if self._overdue_since is None:
            self._overdue_since = now
        return max(self._overdue_since + OVERDUE_SECONDS - now, 0.0)

    def progress(self, now: float) -> Progress:
        """Where it stands at `now`."""
        left = 0 if self.plan is None else len(self.plan.left)
        is_still = self.stalled_since == STALL_REPORTED
        return msgspec.structs.replace(super().progress(now), pods_left=left, is_stalled=is_still)


class NodeClaimState(TerminationState[NodeClaim]):
    """The memory of one claim's end."""

    kind = "nodeclaim"
    checks_instance_first = True

    def __init__(self, resource: Resource[NodeClaim], claim: NodeClaim, instance: InstanceWait, now: float) -> None:
        super().__init__(TrackedObject(resource, claim), instance, now)
        self.nodes: tuple[Node, ...] = ()
        self.deleted: set[str] = set()  # the UIDs of nodes of which the server has taken the deletion
        self.next_deletion = 0.0  # before this instant (monotonic) a node that could not be deleted is let be
        self.budgets: set[str] = set()  # the budgets for nodes that do not allow yet what is to be deleted
        self.reported_budgets = ""  # the gist of what people have been told of them
        self.has_seen_node = False  # the one that its status names; or the server has said that it is not there
        self._named: Node | None = None  # the last node of it that named an instance

    @property
    def claim(self) -> NodeClaim:
        """The claim as fresh as we know it."""
        return self.tracked.latest

    @property
    def missing_provider_id(self) -> str:
        """See Ending."""
        return f"node claim {self.claim.name} has no status.providerID"

    @property
    def provider_id(self) -> str:
        """Which instance: the claim's, else that of the node that was last seen; empty when none was launched."""
        return self.claim.provider_id or (self._named.provider_id if self._named else "")

    @property
    def source(self) -> Node | None:
        """See Ending. What the claim says itself no kubelet has written."""
        return None if self.claim.provider_id else self._named

    @property
    def objects(self) -> tuple[AnyTracked, ...]:
        """The claim alone: the nodes tell people themselves."""
        return (self.tracked,)

    def see(self, nodes: tuple[Node, ...]) -> None:
        """These nodes are to end before the claim does."""
        self.nodes = nodes
        self.has_seen_node |= any(node.name == self.claim.node_name for node in nodes)
        self._named = next((node for node in nodes if node.provider_id), self._named)

    def progress(self, now: float) -> Progress:
        """Where it stands at `now`."""
        nodes = tuple(sorted(node.name for node in self.nodes))
        return msgspec.structs.replace(super().progress(now), nodes=nodes)
