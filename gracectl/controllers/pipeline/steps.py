"""Interface of a step of a termination: its context and its answers.

Invariant: every step is idempotent, as each reconcile runs all of them from the first one. A step that fails raises,
and its object is retried with backoff.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Generic
from weakref import WeakValueDictionary

import msgspec

from gracectl.cloud.provider import Provider
from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.pipeline.state import AnyState, E
from gracectl.controllers.pipeline.statistics import TerminationStatistics
from gracectl.controllers.settings import TerminationSettings
from gracectl.eviction.deleter import PodDeleter
from gracectl.eviction.evictor import Evictor
from gracectl.eviction.pod_outcomes import PodOutcomeTracker
from gracectl.kube.client import KubeClient
from gracectl.kube.events import EventRecorder
from gracectl.kube.resources import Resource
from gracectl.model.claim import NodeClaim
from gracectl.nodebudgets.admitter import Admitter
from gracectl.runtime.background import Background
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
    pod_outcomes: PodOutcomeTracker
    background: Background
    """Completes writes that a step does not wait for."""
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
