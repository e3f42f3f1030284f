"""Controller manager: builds and runs all that changes a cluster, while this process leads.

It is built anew each time, from what the caches hold by then, as after a restart. So no state from before another
process led is ever acted upon.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from weakref import WeakValueDictionary

import anyio
import msgspec

from gracectl.cloud.provider import Provider
from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.cluster.memberships import MembershipTracker
from gracectl.controllers.disruption.controller import DisruptionController
from gracectl.controllers.disruption.pending_nodes import PendingNodes
from gracectl.controllers.finalizer.controller import FinalizerController
from gracectl.controllers.metrics import Work
from gracectl.controllers.settings import TerminationSettings
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.controller import NodeController
from gracectl.controllers.termination.events import disruption_target
from gracectl.controllers.termination.invalid_annotations import InvalidAnnotationReporter
from gracectl.controllers.termination.nodeclaim import NodeClaimController
from gracectl.controllers.termination.report import STATUS_WRITES, PodEventReporter, report_undecodable, status_group
from gracectl.controllers.termination.statistics import TerminationStatistics
from gracectl.controllers.tracing.tracer import Tracer
from gracectl.eviction.deleter import DeleterStatistics, PodDeleter
from gracectl.eviction.evictor import Evictor, EvictorStatistics
from gracectl.eviction.pdb_queue import EvictionSettings
from gracectl.eviction.pod_outcomes import PodOutcomeTracker
from gracectl.kube.client import KubeClient
from gracectl.kube.events import EventRecorder
from gracectl.kube.resources import Resource
from gracectl.model.claim import NodeClaim
from gracectl.nodebudgets.admitter import Admitter
from gracectl.nodebudgets.status_controller import StatusController
from gracectl.runtime.background import Background, BoundedBackground
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock, RelayedClock
from gracectl.runtime.queue import QueueStatistics
from gracectl.runtime.supervise import Component, ComponentStatus, run_components
from gracectl.telemetry.spans import SpanSink


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
    component_status: ComponentStatus
    spans: SpanSink | None
    """Exporter of traces; None: tracing is off."""
    led_until: Callable[[], float | None]
    """When the leader before has last renewed its lease (Unix seconds); None if unknown."""
    rng: random.Random


class ManagerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the controllers."""

    queues: Mapping[str, QueueStatistics]
    evictor: EvictorStatistics
    deleter: DeleterStatistics


class ControllerManager:
    """Controller manager; made by `open_manager`."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._clock = RelayedClock(dependencies.clock)
        cluster, eviction = dependencies.cluster, dependencies.eviction
        self._eviction, self._settings = dependencies.eviction, dependencies.termination

        def patience() -> Backoff:
            eviction = self._eviction
            return Backoff(eviction.backoff_initial_seconds, eviction.backoff_maximum_seconds, rng=dependencies.rng)

        self._evictor = Evictor(dependencies.client, cluster.pods, cluster.budgets, self._clock, eviction, patience)
        self._deleter = PodDeleter(
            dependencies.deleting, cluster.pods, self._clock, eviction, patience, disruption_target
        )
        pod_events = PodEventReporter(dependencies.recorder)
        self.tracer = Tracer(dependencies.spans, self._clock, lambda: self._settings.policy, dependencies.led_until())
        pod_outcomes = PodOutcomeTracker(
            dependencies.statistics.pod_outcomes,
            lambda uid: (self._evictor.is_evicting(uid), self._deleter.is_deleting(uid)),
        )
        for listener in (pod_events, self.tracer, pod_outcomes):
            self._evictor.listen(listener)
            self._deleter.listen(listener)
        # Before the node controller: it has noted a change when the node is planned for it.
        self._memberships = MembershipTracker(cluster, self._clock, eviction.settle_seconds)
        self._background = Background()
        self._status_writes = BoundedBackground(self._clock, STATUS_WRITES, status_group)
        self._context = context = StepContext(
            client=dependencies.client,
            cluster=cluster,
            evictor=self._evictor,
            provider=dependencies.provider,
            recorder=dependencies.recorder,
            clock=self._clock,
            current=lambda: self._settings,
            deleter=self._deleter,
            admitter=dependencies.admitter,
            claim_resource=dependencies.claim_resource,
            statistics=dependencies.statistics,
            memberships=self._memberships,
            pod_outcomes=pod_outcomes,
            background=self._background,
            status_writes=self._status_writes,
            without_instance=WeakValueDictionary(),
        )
        backoff = partial(Backoff, rng=dependencies.rng)
        self.terminations = NodeController(context, backoff)
        self.claims = NodeClaimController(context, backoff)
        for registry in (self.terminations.registry, self.claims.registry):
            registry.subscribe(self.tracer)
        self._component_status = dependencies.component_status
        self._pending = PendingNodes(context, backoff)
        self._voluntary = DisruptionController(context, backoff, self._pending)
        self._keeper = FinalizerController(context, backoff)
        self._invalid_annotations = InvalidAnnotationReporter(context)
        report_undecodable(context)
        self._counting = StatusController(dependencies.admitter, dependencies.client, self._clock, backoff)

    async def run(self) -> None:
        """Run all controllers until cancelled; writes in progress are completed. Raises ComponentFailed."""
        parts: dict[str, Component] = {
            "writes in the background": self._background.run,
            "writes of conditions": self._status_writes.run,
            "evictor": self._evictor.run,
            "deleter": self._deleter.run,
            "finalizer keeper": self._keeper.run,
            "node terminations": self.terminations.run,
            "voluntary terminations": self._voluntary.run,
            "pending nodes": self._pending.run,
            "node claim terminations": self.claims.run,
            "invalid-annotations": self._invalid_annotations.run,
            "node disruption budgets": self._counting.run,
            "traces": self.tracer.run,
        }
        await run_components(parts, anyio.Event(), status=self._component_status)

    def configure(self, eviction: EvictionSettings, termination: TerminationSettings) -> None:
        """Apply new settings, also to terminations in progress: every decision that depends on them is made again, and
        nothing is built anew. `termination` manages the same nodes as before."""
        self._eviction, self._settings = eviction, termination
        self._evictor.configure(eviction)
        self._deleter.configure(eviction)
        self._memberships.configure(eviction.settle_seconds)
        for controller in (self.terminations, self.claims, self._voluntary):
            controller.configured()

    def queues(self) -> dict[str, QueueStatistics]:
        """Statistics of all work queues, by the names that their components give them."""
        parts = (
            *(self.terminations, self.claims, self._voluntary, self._pending, self._keeper),
            *(self._invalid_annotations, self._counting, self._evictor, self._deleter),
        )
        return {name: queue for part in parts for name, queue in part.queues().items()}

    def work(self) -> Work:
        """Statistics of all work, for the metrics."""
        evictor, deleter = self._evictor.statistics(), self._deleter.statistics()
        return Work(
            terminations=(*self.terminations.registry.in_progress(), *self.claims.registry.in_progress()),
            remaining=self.terminations.remaining(),
            evictor=evictor,
            deleter=deleter,
            blocked_by_node_budgets={
                "voluntary": self._voluntary.blocked_by_node_budgets(),
                "nodeclaim": self.claims.blocked_by_node_budgets(),
            },
            disruption=self._voluntary.disruption_statistics(),
            queues=self.queues(),
        )

    def clock_jumped(self) -> None:
        """The clock of the server has turned out to be another."""
        self._clock.jumped()

    def statistics(self) -> ManagerStatistics:
        """Statistics of the controllers."""
        return ManagerStatistics(
            queues=self.queues(), evictor=self._evictor.statistics(), deleter=self._deleter.statistics()
        )


@contextmanager
def open_manager(dependencies: Dependencies) -> Iterator[ControllerManager]:
    """A manager with subscriptions to the caches that end with the block."""
    with dependencies.cluster.scoped_subscriptions(), dependencies.admitter.budgets.scoped_subscriptions():
        yield ControllerManager(dependencies)
