"""Input and result of a step.

Invariant: every step is idempotent, as each reconcile runs all of them from the first one. A step that fails raises,
and its object is retried with backoff.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Generic
from weakref import WeakValueDictionary

import msgspec

from gracectl.cloud.provider import Provider
from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.cluster.memberships import MembershipTracker
from gracectl.controllers.cluster.workloads import WorkloadReads
from gracectl.controllers.settings import TerminationSettings
from gracectl.controllers.termination.events import Event
from gracectl.controllers.termination.state import AnyState, E
from gracectl.controllers.termination.statistics import TerminationStatistics
from gracectl.eviction.deleter import PodDeleter
from gracectl.eviction.evictor import Evictor
from gracectl.eviction.pod_outcomes import PodOutcomeTracker
from gracectl.kube.client import KubeClient
from gracectl.kube.conditions import ConditionUpdate
from gracectl.kube.events import EventRecorder
from gracectl.kube.requests import Key
from gracectl.kube.resources import Resource
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node
from gracectl.nodebudgets.admitter import Admitter
from gracectl.policy.finalizers import FinalizerRule
from gracectl.runtime.background import Background, BoundedBackground
from gracectl.runtime.clock import Clock


class StepContext(msgspec.Struct, frozen=True):
    """Dependencies of all steps; built once by the controller manager."""

    client: KubeClient
    cluster: ClusterCache
    evictor: Evictor
    deleter: PodDeleter
    admitter: Admitter
    """Admits deletions of nodes under node disruption budgets."""
    provider: Provider
    recorder: EventRecorder
    clock: Clock
    current: Callable[[], TerminationSettings]
    """Returns the current settings; see `settings`."""
    claim_resource: Callable[[], Resource[NodeClaim]]
    """Returns the version of node claims that the cluster serves."""
    statistics: TerminationStatistics
    """Outlives this context."""
    memberships: MembershipTracker
    pod_outcomes: PodOutcomeTracker
    background: Background
    """Completes writes that a step does not wait for."""
    status_writes: BoundedBackground
    """Completes writes of conditions; keys: (type of the condition, UID of the object)."""
    releases: dict[Key, float]
    """By ReplicaSet, when (monotonic) one of its pods was released last; infinity while that is requested."""
    workload_reads: WorkloadReads
    """Limits of what is read of workloads."""
    without_instance: WeakValueDictionary[str, AnyState]
    """Nodes that are released without their instance, by UID: no other node may rely on them to terminate it."""
    finalizer: Callable[[], FinalizerRule] = FinalizerRule
    """Returns the finalizer that holds our nodes and claims now."""
    leaves_marks: bool = True
    """Conditions, and marks of a cordon besides `spec.unschedulable`, may be written: a controller will remove them."""

    @property
    def settings(self) -> TerminationSettings:
        """The current settings. They may change at any `await`; controllers that derive state from them are notified
        (`configured`)."""
        return self.current()

    def manages(self, node: Node) -> bool:
        """Whether the settings select this node, and no other controller owns it."""
        return self.cluster.manages(self.settings.managed, node)


class Next(Enum):
    """Action of the runner after a step."""

    PROCEED = "proceed"
    """The step has done what it can: run the next one."""
    WAIT = "wait"
    """Run the steps again later."""
    RELEASE = "release"
    """Nothing is left to drain or terminate: remove the finalizer immediately."""


class Answer(msgspec.Struct, frozen=True):
    """Answer of a step. The runner has `report` write its conditions and record its Events."""

    next: Next
    seconds: float = math.inf
    """Run the steps again after this time at the latest; infinity: on the next event of the object."""
    reason: str = ""
    """Reason of the wait, or of the release of the object."""
    conditions: tuple[ConditionUpdate, ...] = ()
    events: tuple[Event, ...] = ()
    is_final: bool = False
    """Write the conditions even if their messages have changed a short while ago."""


class Step(msgspec.Struct, Generic[E], frozen=True):
    """A step, under the name that `status`, logs and metrics show."""

    name: str
    run: Callable[[StepContext, E], Awaitable[Answer]]
    until_deadline: bool = False
    """The deadline cancels it. It still runs after the deadline, but is skipped if it fails or exceeds `time_left`."""
    uses_provider: bool = False
    """Whether the step needs a slot for a call to the provider."""
    when_released: bool = False
    """Whether the step runs even if an earlier step has released the object."""
