"""State of terminations in progress, beyond what the objects show.

Invariant: nothing here must survive a restart; it is rebuilt from the objects, and each step finds out which work is
complete.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from gracectl.controllers.cluster.cache import ClusterCache, is_finalizing
from gracectl.controllers.cluster.tracked import AnyTracked, H, TrackedObject
from gracectl.controllers.settings import InstanceSettings
from gracectl.controllers.termination.statistics import TerminationKind, TerminationResult
from gracectl.eviction.pod_outcomes import PodOutcome
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.policy.cordon import Mark
from gracectl.policy.deadlines import Deadline
from gracectl.policy.explain import stuck_text
from gracectl.policy.other_drains import OtherDrain
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
    """Pods that block the node."""
    labels: tuple[str, ...] = ()
    """NodeLabels of the node."""
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


class InstanceMemo(msgspec.Struct):
    """Calls to the provider for one instance. Instants are monotonic: a wall clock may be set back."""

    poll: Backoff
    retry: Backoff
    provider_id: str = ""
    """The instance that this is about."""
    is_gone: bool = False
    """The provider has confirmed it. It is not called again: a machine may come back with the same providerID."""
    requested_at: float | None = None
    next_call: float = 0.0
    next_notice: float = 0.0
    """When to check again whether the instance of a node that is not Ready exists."""

    @classmethod
    def of(cls, settings: InstanceSettings, backoff: Callable[[float, float], Backoff]) -> InstanceMemo:
        """Build the state with the settings' intervals; `backoff` makes a Backoff from an initial and a maximum delay
        (seconds)."""
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
    noun = "node"
    """The object's kind, for messages."""
    provider_id_field = "spec.providerID"
    activity = "is being terminated"
    """Verb phrase for messages: the object's present activity."""
    goal = "gone"
    """What the object must be by its deadline."""
    outcome = "is terminated"
    """Verb phrase for the log: the object's outcome."""
    checks_instance_first = False
    """Whether to ask the provider for the instance's state first: another termination may have ended it."""

    def __init__(self, tracked: TrackedObject[H], instance: InstanceMemo, now: float) -> None:
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
        self.reported: set[tuple[str, str]] = set()  # by UID: unreadable annotations, several claims
        self.waits_for = ""
        self._step = ""
        self._step_since = now
        self._seconds: dict[str, float] = {}
        self._before = _spent_before(tracked.latest, now)

    @property
    @abstractmethod
    def provider_id(self) -> str:
        """Provider ID of the instance; empty if it is unknown."""

    @property
    @abstractmethod
    def source(self) -> Node | None:
        """The node that names the instance; None if the claim does."""

    @abstractmethod
    def reason(self, policy: PolicySettings) -> str:
        """Why the object is terminated (see `reason_of`)."""

    @property
    @abstractmethod
    def objects(self) -> tuple[AnyTracked, ...]:
        """Objects that Events and conditions are written to: the terminated object first."""

    def interruption(self, cluster: ClusterCache, step: str) -> str:
        """Why the step must not run; empty if it may."""
        return ""

    def time_left(self, clock: Clock) -> float:
        """Seconds that the steps before the termination of the instance may take from now on."""
        return math.inf

    def must_hurry(self, clock: Clock) -> bool:
        """Whether the deadline has passed and the provider was not called yet."""
        return False

    @property
    def ends_by(self) -> float | None:
        """The deadline (Unix seconds); None without one."""
        return None if self.deadline is None else self.deadline.at

    def counted_deadline(self, clock: Clock) -> Deadline | None:
        """The deadline to act on: none while clocks are in dispute, as its instant is unknown."""
        return None if clock.is_disputed() else self.deadline

    def is_overdue(self, clock: Clock) -> bool:
        """Whether the deadline counts, and has passed."""
        deadline = self.counted_deadline(clock)
        return deadline is not None and deadline.at <= clock.now()

    def forget_steps(self, now: float) -> None:
        """Start over: no step was reached."""
        self._step, self._step_since, self._seconds, self.waits_for = "", now, {}, ""

    def enter_step(self, step: str, now: float) -> None:
        """The runner runs this step; it becomes the current one unless it was reached before."""
        if step not in self._seconds:
            self._set_step(step, now)

    def wait_at(self, step: str, now: float, waits_for: str) -> None:
        """The object waits at this step; it may be an earlier one than before (a late pod)."""
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
        """The termination is finished."""
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

    A claim has none: the termination of its node writes its conditions.
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
"""State of a node or a claim."""

E = TypeVar("E", bound=AnyState)


OVERDUE_SECONDS = 1.0
"""Seconds after the deadline for all steps before the instance, in case the server does not respond."""

RETRIED_SECONDS = 5.0
"""Seconds for each of these steps once the provider has been called."""

RECORDON_SECONDS = (0.002, 60.0)
"""First and longest wait before a cordon that was undone is written again, doubled each time."""

STALL_REPORTED = math.inf
"""Value of `stalled_since`: the stall was reported."""


class CordonMemo(msgspec.Struct):
    """Memory of the step "cordon"."""

    at: float | None = None
    """When (Unix seconds) the node was first seen to take no pods."""
    marks: frozenset[Mark] = frozenset()
    """Marks of the cordon in effect."""
    next_write: float = 0.0
    """Monotonic: when to write again what was undone."""
    backoff: Backoff = msgspec.field(default_factory=lambda: Backoff(*RECORDON_SECONDS, jitter=0.0))


class DrainMemo(msgspec.Struct):
    """Memory of the step "drain". Pods are known by UID; instants are monotonic."""

    plan: Plan | None = None
    planned_from: float = -math.inf
    """When the step began to make its last plan."""
    looked_at: float = -math.inf
    """When the last plan was made."""
    awaited: set[str] = msgspec.field(default_factory=set)
    """Pods that the plan waits for, except the pods that have ended since."""
    ended: set[str] = msgspec.field(default_factory=set)
    """Awaited pods that have ended since the plan."""
    excludes_daemon_sets: bool = False
    """DaemonSet pods leave, so the cordon keeps new ones off."""
    blocking_budgets: frozenset[tuple[str, str]] = frozenset()
    """Namespace and name of the budgets that the plan depends on."""
    present: frozenset[str] = frozenset()
    """Pods of the first plan, right after the cordon."""
    protected_pods: Mapping[str, ProtectedPod] | None = None
    """Protected pods; None before the first plan."""
    invalid_annotations: Mapping[str, str] = {}
    """Invalid values of do-not-disrupt that were reported, by pod."""
    returning: set[str] = msgspec.field(default_factory=set)
    """UIDs of the controllers that were reported for recreating pods on the node."""
    reported_stuck: frozenset[str] = frozenset()
    """Stuck pods that an Event has named."""
    stalled_since: float | None = None
    """Since when no pod leaves although one should."""
    left_behind: str = ""
    """Message about the pods that were left at the deadline."""


class VolumesMemo(msgspec.Struct):
    """Memory of the step "volumes". Instants are monotonic."""

    attached_since: float | None = None
    """Instant since which the node waits only for volumes."""
    is_reported: bool = False
    """An Event says that they have been attached for long."""
    volume_claims_read_at: float = -math.inf
    """When claims of pods that stay were read last."""
    unreadable_volume_claims: dict[str, str] = msgspec.field(default_factory=dict)
    """Why a claim cannot be read, by namespace/name."""
    are_volume_claims_missing: bool = False
    """None of the claims that were read last could be."""
    volume_claims_of_pods: dict[tuple[str, str], str] = msgspec.field(default_factory=dict)
    """Drained pods, by the key of a claim."""
    pods_of_volumes: dict[str, str] = msgspec.field(default_factory=dict)
    """Drained pods, by PersistentVolume."""


class NodeState(TerminationState[Node]):
    """State of the termination of a node, or of its maintenance (MaintenanceState), or of the drain of another owner
    (AssistState)."""

    other: OtherDrain | None = None
    """The drain of another owner."""

    def __init__(self, node: Node, instance: InstanceMemo, now: float) -> None:
        super().__init__(TrackedObject(NODES, node), instance, now)
        drained = condition_of(node.conditions, names.DRAINED)
        if drained is not None and drained.reason in names.MAINTENANCE_REASONS:
            self.is_resumed = False  # those Events were about a maintenance
        self.claim: TrackedObject[NodeClaim] | None = None
        self.next_claim = 0.0  # monotonic: when to retry the deletion of the claim
        self.cordon, self.drain, self.volumes = CordonMemo(), DrainMemo(), VolumesMemo()
        self._overdue_since: float | None = None  # monotonic: when the deadline was first seen to have passed

    @property
    def node(self) -> Node:
        """The newest known state of the node."""
        return self.tracked.latest

    @property
    def provider_id(self) -> str:
        """Provider ID of the node, else of its claim; empty if neither has one."""
        return self.node.provider_id or (self.claim.latest.provider_id if self.claim else "")

    @property
    def source(self) -> Node | None:
        """The node itself."""
        return self.node

    @property
    def objects(self) -> tuple[AnyTracked, ...]:
        """The node, and its claim if it has one."""
        return (self.tracked, self.claim) if self.claim else (self.tracked,)

    def reason(self, policy: PolicySettings) -> str:
        """Why the node is terminated."""
        claim = None if self.claim is None else self.claim.latest
        return reason_of(self.started, triggers_of((self.node,), claim, policy))

    @property
    def result(self) -> TerminationResult:
        """How the termination has ended."""
        if self.drain.left_behind:
            return "deadline"
        return "drained" if self.drain.plan is not None and self.drain.plan.drained else "released"

    @property
    def drained_condition(self) -> tuple[str, str]:
        """Reason and message of the condition Drained when no pod blocks the node."""
        stuck = "" if self.drain.plan is None else stuck_text(self.drain.plan)
        return "Drained", f"drained; not waited for: {stuck}" if stuck else "all pods are gone"

    def matches_node(self, node: Node) -> bool:
        """Whether this object is the node of this state, and still to be terminated."""
        return node.uid == self.uid and is_finalizing(node)

    def interruption(self, cluster: ClusterCache, step: str) -> str:
        """The pods of another node with this name must not be taken for its own."""
        node = cluster.node(self.node.name)
        return "its name belongs to another node" if node is not None and node.uid != self.uid else ""

    def plan_made(self, plan: Plan) -> None:
        """Take over a new plan of the drain."""
        self.drain.plan = plan
        self.drain.awaited, self.drain.ended = set(plan.awaited), set()

    def time_left(self, clock: Clock) -> float:
        """Seconds that the steps before the termination of the instance may take from now on.

        They have until the deadline, and after it OVERDUE_SECONDS together. Once the provider was called, each step has
        RETRIED_SECONDS, so that the provider is called again in time.
        """
        deadline = self.counted_deadline(clock)
        if deadline is None:
            return math.inf
        left = deadline.at - clock.now()
        if left > 0:
            return left
        if self.instance.was_tried:
            return RETRIED_SECONDS
        now = clock.monotonic()
        if self._overdue_since is None:
            self._overdue_since = now
        return max(self._overdue_since + OVERDUE_SECONDS - now, 0.0)

    def must_hurry(self, clock: Clock) -> bool:
        """Whether the deadline has passed and the provider was not called yet: the instance first, reports later."""
        return self.is_overdue(clock) and not self.instance.was_tried

    def progress(self, now: float) -> Progress:
        """Progress at `now`."""
        left = 0 if self.drain.plan is None else len(self.drain.plan.left) - len(self.drain.ended)
        is_still = self.drain.stalled_since == STALL_REPORTED
        return msgspec.structs.replace(super().progress(now), pods_left=left, is_stalled=is_still)


LASTING_SECONDS: Final = 60.0
"""Shorter failures, such as a restart of the server, are only logged."""


class Failures:
    """Failures that last, by key; each cause is reported once until the key succeeds."""

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
    """Observer of one termination; this one ignores everything. No method may fail or block.

    Tracing implements it, so that the steps do not know tracing.
    """

    @property
    def traceparent(self) -> str | None:
        """The trace context to write on the object; None without a trace."""
        return None

    def step_over(self, step: str, since: float, until: float, waits_for: str) -> None:
        """The termination has been at `step` from `since` to `until` (Unix seconds), and is no longer."""

    def failed(self, step: str, error: Exception, now: float) -> None:
        """Record that the step has failed and will be retried."""

    def recovered(self, step: str, now: float) -> None:
        """The step fails no longer."""

    def planned(self, plan: Plan, now: float, departed: Mapping[str, PodOutcome]) -> None:
        """A new plan of the drain; `departed`: outcomes, by UID, of the pods that it no longer lists."""

    def pod_left(self, uid: str, outcome: PodOutcome, now: float) -> None:
        """A pod that was terminating blocks the node no longer."""


NO_OBSERVER: Final = TerminationObserver()
