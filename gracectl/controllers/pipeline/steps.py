"""What a step of a termination is given, and what it answers.

Every step is idempotent: it is run again from the first on every reconcile, looks at the objects, and does what is
still missing. A step that fails raises; its node is tried again with backoff, the other nodes do not notice.
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
    """What the steps work with; made once by the composition root."""

    client: KubeClient
    cluster: ClusterCache
    evictor: Evictor
    deleter: PodDeleter
    admitter: Admitter
    """Whether a node may end, as far as budgets for nodes go."""
    provider: Provider
    recorder: EventRecorder
    clock: Clock
    current: Callable[[], TerminationSettings]
    """The settings of this moment; see `settings`."""
    claim_resource: Callable[[], Resource[NodeClaim]]
    """The version of node claims that the cluster serves."""
    statistics: TerminationStatistics
    """What outlives these tools: how long ends have taken, how pods have left."""
    pod_outcomes: PodOutcomeTracker
    background: Background
    """Carries writes that a walk does not wait for to the end."""
    without_instance: WeakValueDictionary[str, AnyState]
    """By uid, the nodes that go without their instance: no other node may leave it to them."""

    @property
    def settings(self) -> TerminationSettings:
        """What counts now. It may change between two steps, never within what is decided without an `await`; whoever
        keeps anything that follows from it is told (`configured`)."""
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
    """There is nothing left to be graceful about: let the node go at once."""

    reason: str
    seconds: float = math.inf


Answer = Proceed | Wait | Release


class Step(msgspec.Struct, Generic[E], frozen=True):
    """One step of a node's or a claim's end under its name, as `status`, logs and metrics show it."""

    name: str
    run: Callable[[StepContext, E], Awaitable[Answer]]
