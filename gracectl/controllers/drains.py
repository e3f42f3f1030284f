"""What drains nodes: evictor, deleter, node controller, and the context that their steps share.

The manager runs it with all other controllers. `gracectl drain` runs it alone where no controller leads.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from weakref import WeakValueDictionary

import msgspec

from gracectl.cloud.provider import Provider
from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.cluster.memberships import MembershipTracker
from gracectl.controllers.cluster.workloads import WorkloadReads
from gracectl.controllers.settings import TerminationSettings
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.controller import NodeController
from gracectl.controllers.termination.events import disruption_target
from gracectl.controllers.termination.pod_events import PodEventReporter
from gracectl.controllers.termination.replacing import ReleasedPods
from gracectl.controllers.termination.report import STATUS_WRITES, status_group
from gracectl.controllers.termination.statistics import TerminationStatistics
from gracectl.controllers.tracing.tracer import Tracer
from gracectl.eviction.deleter import PodDeleter
from gracectl.eviction.evictor import Evictor
from gracectl.eviction.pod_outcomes import PodOutcomeTracker
from gracectl.eviction.settings import EvictionSettings
from gracectl.interruption.recording import Counts
from gracectl.interruption.source import Source
from gracectl.kube.cache import Cache
from gracectl.kube.client import KubeClient
from gracectl.kube.events import EventRecorder
from gracectl.kube.resources import Resource
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node
from gracectl.model.nodedrain import NodeDrain
from gracectl.nodebudgets.admitter import Admitter
from gracectl.policy.finalizers import FinalizerRule
from gracectl.policy.nodedrain import Forecasted
from gracectl.runtime.background import Background, BoundedBackground
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock, RelayedClock
from gracectl.runtime.supervise import Component, ComponentStatus
from gracectl.telemetry.spans import SpanSink

ForecastNode = Callable[[str, float | None], Awaitable[Forecasted | None]]
"""Forecasts the drain of the node of that name, with a deadline after these seconds; None: it is gone."""


async def no_forecast(name: str, seconds: float | None) -> Forecasted | None:
    """Knows nothing."""
    return None


class Dependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies that outlive a manager, and that each is built from."""

    client: KubeClient
    deleting: KubeClient
    """Client that repeats no request: see PodDeleter."""
    cluster: ClusterCache
    admitter: Admitter
    provider: Provider
    recorder: EventRecorder
    clock: Clock
    eviction: EvictionSettings
    termination: TerminationSettings
    claim_resource: Callable[[], Resource[NodeClaim]]
    statistics: TerminationStatistics
    interruptions: Counts = msgspec.field(default_factory=Counter)
    """Notices that machines will go."""
    sources: tuple[Source, ...] = ()
    component_status: ComponentStatus
    spans: SpanSink | None
    """Exporter of traces; None: tracing is off."""
    finalizer: Callable[[], FinalizerRule] = FinalizerRule
    """Returns the finalizer that holds our nodes and claims now."""
    node_drains: Cache[NodeDrain] = msgspec.field(default_factory=lambda: Cache("node-drains"))
    """Campaigns."""
    forecast: ForecastNode = no_forecast
    """Forecasts the drain of a node."""
    led_until: Callable[[], float | None]
    """When the leader before has last renewed its lease (Unix seconds); None if unknown."""
    rng: random.Random


class NodeDrains:
    """Evictor, deleter and node controller. Its subscriptions to the caches are the owner's to end.

    `manages`: the nodes of a command, which leaves nothing behind that only a controller removes; None: the nodes that
    the settings select.
    """

    def __init__(self, dependencies: Dependencies, manages: Callable[[Node], bool] | None = None) -> None:
        self.clock = RelayedClock(dependencies.clock)
        cluster, eviction = dependencies.cluster, dependencies.eviction
        self._eviction, self._settings = dependencies.eviction, dependencies.termination

        def patience() -> Backoff:
            eviction = self._eviction
            return Backoff(eviction.backoff_initial_seconds, eviction.backoff_maximum_seconds, rng=dependencies.rng)

        self.evictor = Evictor(dependencies.client, cluster.pods, cluster.budgets, self.clock, eviction, patience)
        self.deleter = PodDeleter(
            dependencies.deleting, cluster.pods, self.clock, eviction, patience, disruption_target
        )
        pod_events = PodEventReporter(dependencies.recorder)
        self.tracer = Tracer(dependencies.spans, self.clock, lambda: self._settings.policy, dependencies.led_until())
        pod_outcomes = PodOutcomeTracker(
            dependencies.statistics.pod_outcomes,
            lambda uid: (self.evictor.is_evicting(uid), self.deleter.is_deleting(uid)),
        )
        for listener in (pod_events, self.tracer, pod_outcomes):
            self.evictor.listen(listener)
            self.deleter.listen(listener)
        # Before the node controller: it has noted a change when the node is planned for it.
        self._memberships = MembershipTracker(cluster, self.clock, eviction.settle_seconds)
        self._background = Background()
        self._status_writes = BoundedBackground(self.clock, STATUS_WRITES, status_group)
        self.context = StepContext(
            client=dependencies.client,
            cluster=cluster,
            evictor=self.evictor,
            provider=dependencies.provider,
            recorder=dependencies.recorder,
            clock=self.clock,
            current=lambda: self._settings,
            deleter=self.deleter,
            admitter=dependencies.admitter,
            claim_resource=dependencies.claim_resource,
            statistics=dependencies.statistics,
            memberships=self._memberships,
            pod_outcomes=pod_outcomes,
            background=self._background,
            status_writes=self._status_writes,
            releases={},
            workload_reads=WorkloadReads(self.clock),
            without_instance=WeakValueDictionary(),
            finalizer=dependencies.finalizer,
            leaves_marks=manages is None,
        )
        self.backoff = partial(Backoff, rng=dependencies.rng)
        self.released = ReleasedPods(self.context, self.backoff)
        self.terminations = NodeController(self.context, self.backoff, manages)

    def components(self) -> dict[str, Component]:
        """Components by name, in the order of their start."""
        return {
            "writes in the background": self._background.run,
            "writes of conditions": self._status_writes.run,
            "evictor": self.evictor.run,
            "deleter": self.deleter.run,
            "node terminations": self.terminations.run,
            "released pods": self.released.run,
        }

    def configure(self, eviction: EvictionSettings, termination: TerminationSettings) -> None:
        """Apply new settings, also to drains in progress."""
        self._eviction, self._settings = eviction, termination
        self.evictor.configure(eviction)
        self.deleter.configure(eviction)
        self._memberships.configure(eviction.settle_seconds)
        self.terminations.configured()
