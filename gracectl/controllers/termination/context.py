"""Steps of a termination: their context, their answers, and the runner.

Invariant: every step is idempotent, as each reconcile runs all of them from the first one. A step that fails raises,
and its object is retried with backoff.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic
from weakref import WeakValueDictionary

import msgspec

from gracectl.cloud.provider import Provider
from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.cluster.memberships import MembershipTracker
from gracectl.controllers.settings import TerminationSettings
from gracectl.controllers.termination.state import AnyState, E
from gracectl.controllers.termination.statistics import TerminationStatistics
from gracectl.eviction.deleter import PodDeleter
from gracectl.eviction.evictor import Evictor
from gracectl.eviction.pod_outcomes import PodOutcomeTracker
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, NotLeading
from gracectl.kube.events import EventRecorder
from gracectl.kube.resources import Resource
from gracectl.model.claim import NodeClaim
from gracectl.nodebudgets.admitter import Admitter
from gracectl.runtime.background import Background, BoundedBackground
from gracectl.runtime.clock import Clock
from gracectl.runtime.workers import Requeue


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
    """Likewise, writes of conditions; keys: (type of the condition, UID of the object)."""
    without_instance: WeakValueDictionary[str, AnyState]
    """By UID, nodes that are released without their instance: no other node may leave it to them."""

    @property
    def settings(self) -> TerminationSettings:
        """The current settings. They may change at any `await`; controllers that derive state from them are notified
        (`configured`)."""
        return self.current()


class Proceed(msgspec.Struct, frozen=True):
    """The step is done, or has done what it can for now: on to the next.

    `seconds`: run the steps again after so long at the latest, to finish what could not be done; inf: nothing is left.
    """

    seconds: float = math.inf


class Wait(msgspec.Struct, frozen=True):
    """The step waits: run the steps again on the next event of the object, or after `seconds` (inf: on events only)."""

    seconds: float
    reason: str


class Release(msgspec.Struct, frozen=True):
    """There is nothing left to drain or terminate: remove the finalizer at once."""

    reason: str
    seconds: float = math.inf


Answer = Proceed | Wait | Release


class Step(msgspec.Struct, Generic[E], frozen=True):
    """A step, under the name that `status`, logs and metrics show."""

    name: str
    run: Callable[[StepContext, E], Awaitable[Answer]]


async def run_steps(
    steps: Iterable[Step[E]],
    state: E,
    take: Callable[[Step[E], E], Awaitable[Answer]],
    context: StepContext,
    report_failure: Callable[[StepContext, E, str, ApiError], Awaitable[None]],
) -> Answer:
    """Run the steps in order until one answers Wait or Release, and return that; Proceed when all are done.

    The seconds of the answer are the earliest of all steps that were run. A step that raises is reported by
    `report_failure`, and the error is raised again: the queue retries with backoff.
    """
    earliest = math.inf
    for step in steps:
        state.enter_step(step.name, context.clock.now())
        try:
            answer = await take(step, state)
        except NotLeading:
            raise
        except ApiError as error:
            state.observer.failed(step.name, error, context.clock.now())
            await report_failure(context, state, step.name, error)
            raise
        state.failures.succeeded(step.name)
        if isinstance(answer, Proceed):
            state.observer.recovered(step.name, context.clock.now())
        earliest = min(earliest, answer.seconds)
        if isinstance(answer, Release):
            return Release(answer.reason, earliest)
        if isinstance(answer, Wait):
            state.wait_at(step.name, context.clock.now(), answer.reason)
            return Wait(earliest, answer.reason)
    return Proceed(earliest)


def requeue(answer: Answer) -> Requeue | None:
    """When the work queue is to hand the object out again; None: on its next event."""
    return None if answer.seconds == math.inf else Requeue(answer.seconds)
