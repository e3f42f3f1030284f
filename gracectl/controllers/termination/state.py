"""State of terminations in progress, beyond what the objects show.

Invariant: nothing here must survive a restart; it is rebuilt from the objects, and each step finds out what is done.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from gracectl.controllers.cluster.cache import is_finalizing
from gracectl.controllers.cluster.tracked import AnyTracked, H, TrackedObject
from gracectl.controllers.settings import InstanceSettings
from gracectl.controllers.termination.statistics import TerminationKind, TerminationResult
from gracectl.eviction.pod_outcomes import PodOutcome
from gracectl.kube.resources import NODES, Resource
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import condition_of, natural_key
from gracectl.model.node import Node
from gracectl.policy.cordon import Mark
from gracectl.policy.deadlines import Deadline
from gracectl.policy.explain import stuck_text
from gracectl.policy.plan import Plan
from gracectl.policy.protected_pods import ProtectedPod
from gracectl.policy.settings import PolicySettings
from gracectl.policy.voluntary import reason_of, triggers_of
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot of a termination's progress. Instants are Unix seconds; `seconds`: durations by step."""

    name: str
    uid: str
    kind: TerminationKind
    step: str
    started: float
    step_since: float
    seconds: Mapping[str, float]
    waits_for: str
    pods_left: int = 0
    """Pods that hold the node."""
    labels: tuple[str, ...] = ()
    """Its NodeLabels."""
    is_stalled: bool = False
    """No pod of the node has left, or was stopping, for a minute although one should."""
    nodes: tuple[str, ...] = ()
    """Nodes that a claim waits for."""
    deadline: float | None = None
    finished: float | None = None

    @property
    def is_maintenance(self) -> bool:
        """Whether the node is in maintenance: at step "drained" once it is empty, at "uncordon" on its return."""
        return self.kind == "maintenance"


class InstanceWait(msgspec.Struct):
    """Backoff of calls to the provider for one instance. Instants are monotonic: a wall clock may be set back."""

    poll: Backoff
    retry: Backoff
    provider_id: str = ""
    """The instance that this is about."""
    is_gone: bool = False
    """The provider has confirmed it. It is not called again: a machine may come back with the same providerID."""
    requested_at: float | None = None
    next_call: float = 0.0
    next_notice: float = 0.0
    """When to ask next whether the instance of a node that is not Ready still exists."""

    @classmethod
    def of(cls, settings: InstanceSettings, backoff: Callable[[float, float], Backoff]) -> InstanceWait:
        """With the settings' intervals; `backoff` makes a Backoff of an initial and a longest wait (seconds)."""
        return cls(
            poll=backoff(settings.poll_initial_seconds, settings.poll_maximum_seconds),
            retry=backoff(settings.retry_initial_seconds, settings.retry_maximum_seconds),
        )

    def configure(self, settings: InstanceSettings) -> None:
        """Use these intervals from the next wait on."""
        self.poll.configure(settings.poll_initial_seconds, settings.poll_maximum_seconds)
        self.retry.configure(settings.retry_initial_seconds, settings.retry_maximum_seconds)

    def turn_to(self, provider_id: str) -> None:
        """Start over if this is another instance."""
        if provider_id != self.provider_id:
            self.provider_id, self.is_gone, self.requested_at, self.next_call = provider_id, False, None, 0.0
            self.poll.reset()
            self.retry.reset()

    @property
    def was_tried(self) -> bool:
        """Whether the provider was asked to terminate the instance, with or without success."""
        return self.requested_at is not None or self.next_call > 0


class TerminationState(ABC, Generic[H]):
    """State of one termination, identified by the UID of its object."""

    kind: TerminationKind = "node"

    activity = "is being terminated"
    """What is happening to the object, for messages."""

    outcome = "is terminated"
    """What has happened to it, for the log."""

    checks_instance_first = False
    """Whether to ask the provider for the instance's state first: another termination may have ended it."""

    def __init__(self, tracked: TrackedObject[H], instance: InstanceWait, now: float) -> None:
        begun = tracked.latest.deletion_timestamp
        self.tracked = tracked
        self.uid = tracked.uid
        self.started = now if begun is None else begun
        self.instance = instance
        self.deadline: Deadline | None = None
        # A former process has begun the drain, and emitted its Events.
        drained = condition_of(tracked.latest.conditions, names.DRAINED)
        self.is_resumed = drained is not None and drained.reason != names.STEP_FAILING
        self.observer: TerminationObserver = NO_OBSERVER
        self.labels: tuple[str, ...] = ()  # its NodeLabels when it was opened
        self.failures = Failures()  # by step
        self.reported: set[tuple[str, str]] = (
            set()
        )  # by UID, what is reported once: unreadable annotations, several claims
        self.waits_for = ""
        self._step = ""
        self._step_since = now
        self._seconds: dict[str, float] = {}
        self._before = _spent_before(tracked.latest, now)

    @property
    @abstractmethod
    def missing_provider_id(self) -> str:
        """Message for a missing provider ID: `node worker-1 has no spec.providerID`."""

    @property
    @abstractmethod
    def provider_id(self) -> str:
        """Provider ID of the instance; empty if it is not known."""

    @property
    @abstractmethod
    def source(self) -> Node | None:
        """The node that names the instance; None if the claim does."""

    @abstractmethod
    def reason(self, policy: PolicySettings) -> str:
        """Why it is terminated, as its objects show it (see `reason_of`)."""

    @property
    @abstractmethod
    def objects(self) -> tuple[AnyTracked, ...]:
        """Objects that Events and conditions are written to: the terminated object first."""

    @property
    def ends_by(self) -> float | None:
        """The deadline (Unix seconds); None without one."""
        return None if self.deadline is None else self.deadline.at

    def counted_deadline(self, clock: Clock) -> Deadline | None:
        """The deadline that is acted upon: none while clocks are in dispute, as its instant is unknown."""
        return None if clock.is_disputed() else self.deadline

    def is_overdue(self, clock: Clock) -> bool:
        """Whether the deadline counts, and has passed."""
        deadline = self.counted_deadline(clock)
        return deadline is not None and deadline.at <= clock.now()

    def forget_steps(self, now: float) -> None:
        """Start over: no step was reached."""
        self._step, self._step_since, self._seconds, self.waits_for = "", now, {}, ""

    def enter_step(self, step: str, now: float) -> None:
        """The pipeline runs this step; it becomes the current one unless it was reached before."""
        if step not in self._seconds:
            self._set_step(step, now)

    def wait_at(self, step: str, now: float, waits_for: str) -> None:
        """The pipeline waits at this step; it may be an earlier one than before (a late pod)."""
        self._set_step(step, now)
        self.waits_for = waits_for

    def _set_step(self, step: str, now: float) -> None:
        """Set the current step, to which the time counts."""
        if step != self._step:
            self._leave(now)
            self._step, self._step_since = step, now
            self._seconds.setdefault(step, 0.0)
            self.waits_for = ""

    def finish(self, now: float) -> None:
        """The termination is over."""
        self._leave(now)
        self._step_since = now

    def _leave(self, now: float) -> None:
        if self._step:
            self._seconds[self._step] += now - self._step_since
            self.observer.step_over(self._step, self._step_since, now, self.waits_for)

    def progress(self, now: float) -> Progress:
        """Progress at `now`."""
        seconds = {**self._before, **self._seconds}
        for step in self._seconds:
            seconds[step] += self._before.get(step, 0.0)
        if self._step:
            seconds[self._step] += now - self._step_since
        return Progress(
            name=self.tracked.name,
            uid=self.uid,
            kind=self.kind,
            step=self._step,
            started=self.started,
            step_since=self._step_since,
            seconds=seconds,
            waits_for=self.waits_for,
            labels=self.labels,
            deadline=self.ends_by,
        )


def _spent_before(thing: Node | NodeClaim, now: float) -> dict[str, float]:
    """Seconds that other processes have spent at steps of the same termination, as the node's conditions show them.

    Those of a claim are written by the termination of its node.
    """
    if thing.deletion_timestamp is None or not isinstance(thing, Node):
        return {}
    found = {}
    drained = condition_of(thing.conditions, names.DRAINED)
    if drained is not None and drained.last_transition is not None and drained.reason not in names.MAINTENANCE_REASONS:
        began, at = thing.deletion_timestamp, drained.last_transition
        is_over = drained.status == names.TRUE
        found["drain"] = max((at - began) if is_over else (now - max(at, began)), 0.0)
    ending = condition_of(thing.conditions, names.INSTANCE_TERMINATING)
    if ending is not None and ending.last_transition is not None:
        found["instance"] = max(now - max(ending.last_transition, thing.deletion_timestamp), 0.0)
    return found


AnyState = TerminationState[Any]
"""Of a node or a claim."""

E = TypeVar("E", bound=AnyState)


OVERDUE_SECONDS = 1.0
"""After the deadline, seconds for all steps before the instance, in case the server does not answer."""

PATIENCE_SECONDS = 5.0
"""Seconds for each of those steps once the provider has been called."""

RECORDON_SECONDS = (0.002, 60.0)
"""First and longest wait before a cordon that was undone is written again, doubled each time."""

STALL_REPORTED = math.inf
"""Value of `stalled_since`: the stall was reported."""


class NodeState(TerminationState[Node]):
    """State of the termination of a node, or (MaintenanceState) of its maintenance."""

    def __init__(self, node: Node, instance: InstanceWait, now: float) -> None:
        super().__init__(TrackedObject(NODES, node), instance, now)
        drained = condition_of(node.conditions, names.DRAINED)
        if drained is not None and drained.reason in names.MAINTENANCE_REASONS:
            self.is_resumed = False  # those Events were about a maintenance
        self.claim: TrackedObject[NodeClaim] | None = None
        self.next_claim = 0.0  # monotonic: when to retry the deletion of the claim
        self.cordoned_at: float | None = None
        self.next_cordon = 0.0  # monotonic: when to write a cordon again that was undone
        self.recordon = Backoff(*RECORDON_SECONDS, jitter=0.0)
        self.cordon_marks: frozenset[Mark] = frozenset()  # of the cordon in effect
        self.excludes_daemon_sets = False  # from when their pods leave (see Plan)
        self.plan: Plan | None = None
        self.awaited: set[str] = set()  # of the plan (see there), but for those that have ended since
        self.ended: set[str] = set()  # those, by UID
        self.protected_pods: Mapping[str, ProtectedPod] | None = None  # by pod UID; None before the first plan
        self.invalid_annotations: Mapping[str, str] = {}  # by pod UID, the values of do-not-disrupt that were reported
        self.blocking_budgets: frozenset[tuple[str, str]] = frozenset()  # by namespace and name, of the last plan
        self.planned_from = -math.inf  # when (monotonic) the drain began its last plan
        self.looked_at = -math.inf  # when (monotonic) the drain was last planned
        self.present: frozenset[str] = frozenset()  # UIDs of the pods of the first plan, right after the cordon
        self.returning: set[str] = set()  # UIDs of controllers whose pods were reported to come back
        self.left_behind = ""  # what was left at the deadline, for messages
        self.reported_stuck: frozenset[str] = frozenset()  # by UID, stuck pods that an Event has named
        self.claims_read_at = -math.inf  # when (monotonic) claims of pods that stay were read last
        self.unreadable_claims: dict[str, str] = {}  # why, by namespace/name
        self.are_claims_missing = False  # none of those that were read last could be
        self.claims_of_pods: dict[tuple[str, str], str] = {}  # drained pods, by the key of a claim
        self.pods_of_volumes: dict[str, str] = {}  # the same by PersistentVolume, once it matters
        self.attached_since: float | None = None  # monotonic: since when it waits for nothing but volumes
        self.is_attachment_reported = False  # that it has waited for volumes for long
        self.stalled_since: float | None = None  # monotonic: since when no pod leaves although one should
        self._overdue_since: float | None = None  # monotonic: when the deadline was first seen to have passed

    @property
    def node(self) -> Node:
        """The newest known state of the node."""
        return self.tracked.latest

    @property
    def missing_provider_id(self) -> str:
        """See TerminationState."""
        return f"node {self.node.name} has no spec.providerID"

    @property
    def provider_id(self) -> str:
        """Provider ID of the node, else of its claim; empty if neither has one."""
        return self.node.provider_id or (self.claim.latest.provider_id if self.claim else "")

    @property
    def source(self) -> Node | None:
        """See TerminationState."""
        return self.node

    @property
    def objects(self) -> tuple[AnyTracked, ...]:
        """The node, and its claim if it has one."""
        return (self.tracked, self.claim) if self.claim else (self.tracked,)

    def reason(self, policy: PolicySettings) -> str:
        """See TerminationState."""
        claim = None if self.claim is None else self.claim.latest
        return reason_of(self.started, triggers_of((self.node,), claim, policy))

    @property
    def result(self) -> TerminationResult:
        """How it has ended; to be read when it has."""
        if self.left_behind:
            return "deadline"
        return "drained" if self.plan is not None and self.plan.drained else "released"

    @property
    def drained_condition(self) -> tuple[str, str]:
        """Reason and message of the condition Drained when no pod holds the node."""
        stuck = "" if self.plan is None else stuck_text(self.plan)
        return "Drained", f"drained; not waited for: {stuck}" if stuck else "all pods are gone"

    def matches_node(self, node: Node) -> bool:
        """Whether this object is the node of this state, and still to be terminated."""
        return node.uid == self.uid and is_finalizing(node)

    def time_left(self, clock: Clock) -> float:
        """The seconds that what comes before the end of the instance may take from now on; inf without a deadline.

        That is until the deadline; from then on LAST_WORD_SECONDS for everything, counted from the first look; and when
        the provider has been asked, PATIENCE_SECONDS for each thing, so that it is asked again in time.
        """
        deadline = self.counted_deadline(clock)
        if deadline is None:
            return math.inf
        left = deadline.at - clock.now()
        if left > 0:
            return left
        if self.instance.was_tried:
            return PATIENCE_SECONDS
        now = clock.monotonic()
        if self._overdue_since is None:
            self._overdue_since = now
        return max(self._overdue_since + OVERDUE_SECONDS - now, 0.0)

    def progress(self, now: float) -> Progress:
        """Progress at `now`."""
        left = 0 if self.plan is None else len(self.plan.left) - len(self.ended)
        is_still = self.stalled_since == STALL_REPORTED
        return msgspec.structs.replace(super().progress(now), pods_left=left, is_stalled=is_still)


class NodeClaimState(TerminationState[NodeClaim]):
    """State of the termination of a node claim."""

    kind = "nodeclaim"
    checks_instance_first = True

    def __init__(self, resource: Resource[NodeClaim], claim: NodeClaim, instance: InstanceWait, now: float) -> None:
        super().__init__(TrackedObject(resource, claim), instance, now)
        self.nodes: tuple[Node, ...] = ()
        self.deleted: set[str] = set()  # UIDs of nodes whose deletion the server has accepted
        self.next_deletion = 0.0  # monotonic: when to retry the deletion of nodes
        self.budgets: set[str] = set()  # names of node disruption budgets that block deletions
        self.reported_budgets = ""  # what was last reported of them
        self.has_seen_node = False  # the node that its status names was seen, or the server has no such node
        self._named: Node | None = None  # the last node of the claim that had a provider ID

    @property
    def claim(self) -> NodeClaim:
        """The newest known state of the claim."""
        return self.tracked.latest

    @property
    def missing_provider_id(self) -> str:
        """See TerminationState."""
        return f"node claim {self.claim.name} has no status.providerID"

    @property
    def provider_id(self) -> str:
        """Provider ID of the claim, else of its last known node; empty if none was launched."""
        return self.claim.provider_id or (self._named.provider_id if self._named else "")

    def reason(self, policy: PolicySettings) -> str:
        """See TerminationState."""
        return reason_of(self.started, triggers_of((), self.claim, policy))

    @property
    def source(self) -> Node | None:
        """See TerminationState. A provider ID of the claim itself was not written by a kubelet."""
        return None if self.claim.provider_id else self._named

    @property
    def objects(self) -> tuple[AnyTracked, ...]:
        """The claim alone: its nodes have Events and conditions of their own."""
        return (self.tracked,)

    def see(self, nodes: tuple[Node, ...]) -> None:
        """Set the nodes that must be gone before the claim."""
        self.nodes = nodes
        self.has_seen_node |= any(node.name == self.claim.node_name for node in nodes)
        self._named = next((node for node in nodes if node.provider_id), self._named)

    def progress(self, now: float) -> Progress:
        """Progress at `now`."""
        nodes = tuple(sorted((node.name for node in self.nodes), key=natural_key))
        return msgspec.structs.replace(super().progress(now), nodes=nodes)


LASTING_SECONDS: Final = 60.0
"""Shorter failures, such as a restart of the server, are only logged."""


class Failures:
    """Failures that last, each cause reported once until they end.

    Of each failing key: since when (monotonic), and which causes were reported.
    """

    def __init__(self) -> None:
        self._since: dict[Hashable, float] = {}
        self._reported: dict[Hashable, set[Hashable]] = {}

    def failed(self, key: Hashable, cause: Hashable, now: float) -> bool:
        """Record a failure; returns whether to report it now."""
        self._since.setdefault(key, now)
        reported = self._reported.setdefault(key, set())
        if not self.lasts(key, now) or cause in reported:
            return False
        reported.add(cause)
        return True

    def lasts(self, key: Hashable, now: float) -> bool:
        """Whether it has failed for LASTING_SECONDS."""
        return now - self._since.get(key, now) >= LASTING_SECONDS

    def succeeded(self, key: Hashable) -> None:
        """Forget the key: it has succeeded, or is no longer tried."""
        self._since.pop(key, None)
        self._reported.pop(key, None)


class TerminationObserver:
    """Observer of one termination; this one ignores all that happens. No method may fail or block.

    Tracing implements it, so that the pipeline does not know tracing.
    """

    @property
    def traceparent(self) -> str | None:
        """The trace context to write on the object; None without a trace."""
        return None

    def step_over(self, step: str, since: float, until: float, waits_for: str) -> None:
        """The termination has been at `step` from `since` to `until` (Unix seconds), and is no longer."""

    def failed(self, step: str, error: Exception, now: float) -> None:
        """The step has failed; it is tried again."""

    def recovered(self, step: str, now: float) -> None:
        """The step fails no longer."""

    def planned(self, plan: Plan, now: float, departed: Mapping[str, PodOutcome]) -> None:
        """A new plan of the drain; `departed`: outcomes, by UID, of the pods that it no longer lists."""

    def pod_left(self, uid: str, outcome: PodOutcome, now: float) -> None:
        """A pod that was terminating holds the node no longer."""


NO_OBSERVER: Final = TerminationObserver()
