"""Controller manager: builds and runs everything that changes the cluster, while this process leads.

Each term rebuilds it from the caches, as after a restart. So it never acts on state from before another process led.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager

import anyio
import anyio.lowlevel
import msgspec

from gracectl.controllers.cluster.cache import empty_cluster_cache
from gracectl.controllers.disruption.controller import DisruptionController
from gracectl.controllers.disruption.managed import ManagedNames
from gracectl.controllers.disruption.pending_nodes import PendingNodes
from gracectl.controllers.drains import Dependencies, NodeDrains
from gracectl.controllers.finalizer.controller import FinalizerController
from gracectl.controllers.interruption.controller import InterruptionController
from gracectl.controllers.metrics import Work
from gracectl.controllers.nodedrain.controller import NodeDrainController
from gracectl.controllers.settings import TerminationSettings
from gracectl.controllers.termination.invalid_annotations import InvalidAnnotationReporter
from gracectl.controllers.termination.nodeclaim import NodeClaimController
from gracectl.controllers.termination.undecodable import report_undecodable
from gracectl.eviction.deleter import DeleterStatistics
from gracectl.eviction.evictor import EvictorStatistics
from gracectl.eviction.settings import EvictionSettings
from gracectl.nodebudgets.status_controller import StatusController
from gracectl.runtime.queue import QueueStatistics
from gracectl.runtime.supervise import Component, run_components

LONG_STEP, PAUSE = 1.0, 0.25
"""Seconds of a step of `build` after which others run, and for how long: a request for the Lease takes some turns."""


class ManagerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the controllers."""

    queues: Mapping[str, QueueStatistics]
    evictor: EvictorStatistics
    deleter: DeleterStatistics


class ControllerManager:
    """Controller manager; made by `open_manager` and `idle_manager`."""

    def __init__(self, dependencies: Dependencies) -> None:
        """`build` makes the controllers."""
        self._dependencies = dependencies

    def build(self) -> Iterator[None]:
        """Make the controllers. Each hears of every node, so others may run between two of them: the Lease must be
        renewed."""
        dependencies = self._dependencies
        self._drains = drains = NodeDrains(dependencies)
        yield
        self.tracer, self.terminations = drains.tracer, drains.terminations
        context, backoff = drains.context, drains.backoff
        self.claims = NodeClaimController(context, backoff)
        for registry in (self.terminations.registry, self.claims.registry):
            registry.subscribe(self.tracer)
        self._component_status = dependencies.component_status
        managed = ManagedNames(context)
        self._pending = PendingNodes(context, backoff, managed)
        yield
        self._voluntary = DisruptionController(context, backoff, managed, self._pending)
        yield
        self.campaigns = self._voluntary.campaigns = NodeDrainController(
            context,
            dependencies.node_drains,
            self.terminations.registry,
            self._voluntary.pace,
            dependencies.forecast,
            backoff,
        )
        self.terminations.on_reconciled = self.campaigns.node_reconciled
        self._interruptions = InterruptionController(context, backoff, dependencies.sources, dependencies.interruptions)
        yield
        self._keeper = FinalizerController(context, backoff)
        self._invalid_annotations = InvalidAnnotationReporter(context)
        report_undecodable(context, dependencies.node_drains)
        self._counting = StatusController(dependencies.admitter, dependencies.client, drains.clock, backoff)

    async def run(self) -> None:
        """Run all controllers until cancelled; writes in progress are completed. Raises ComponentFailed."""
        parts: dict[str, Component] = {
            "finalizer keeper": self._keeper.run,
            **self._drains.components(),
            "voluntary terminations": self._voluntary.run,
            "campaigns": self.campaigns.run,
            "pending nodes": self._pending.run,
            "interruptions": self._interruptions.run,
            "node claim terminations": self.claims.run,
            "invalid-annotations": self._invalid_annotations.run,
            "node disruption budgets": self._counting.run,
            "traces": self.tracer.run,
        }
        await run_components(parts, anyio.Event(), status=self._component_status)

    def configure(self, eviction: EvictionSettings, termination: TerminationSettings) -> None:
        """Apply new settings, also to terminations in progress: every decision that depends on them is repeated, and
        nothing is rebuilt. `termination` manages the same nodes as before."""
        self._drains.configure(eviction, termination)
        for controller in (self.claims, self._voluntary):
            controller.configured()
        self.campaigns.look_at_all()

    def queues(self) -> dict[str, QueueStatistics]:
        """Statistics of all work queues, by the names that their components give them."""
        parts = (
            *(self.terminations, self._drains.released, self.claims, self._voluntary, self._pending, self._keeper),
            *(self._interruptions, self.campaigns),
            *(self._invalid_annotations, self._counting, self._drains.evictor, self._drains.deleter),
        )
        return {name: queue for part in parts for name, queue in part.queues().items()}

    def work(self) -> Work:
        """Statistics of all work, for the metrics."""
        evictor, deleter = self._drains.evictor.statistics(), self._drains.deleter.statistics()
        return Work(
            terminations=(*self.terminations.registry.in_progress(), *self.claims.registry.in_progress()),
            remaining=self.terminations.remaining(),
            evictor=evictor,
            deleter=deleter,
            blocked_by_node_budgets={
                "voluntary": self._voluntary.blocked_by_node_budgets(),
                "nodeclaim": self.claims.blocked_by_node_budgets(),
            },
            node_drains=self.campaigns.counts(),
            disruption=self._voluntary.disruption_statistics(),
            queues=self.queues(),
        )

    def look_at_finalizers(self) -> None:
        """Another finalizer holds our nodes and claims from now on."""
        self._keeper.look_again()

    def clock_jumped(self) -> None:
        """The clock of the server has turned out to be another."""
        self._drains.clock.jumped()

    def statistics(self) -> ManagerStatistics:
        """Statistics of the controllers."""
        return ManagerStatistics(
            queues=self.queues(), evictor=self._drains.evictor.statistics(), deleter=self._drains.deleter.statistics()
        )


@asynccontextmanager
async def open_manager(dependencies: Dependencies) -> AsyncGenerator[ControllerManager, None]:
    """A manager with subscriptions to the caches that end with the block."""
    with _subscriptions(dependencies):
        manager, clock = ControllerManager(dependencies), dependencies.clock
        began = clock.monotonic()
        for _ in manager.build():
            if clock.monotonic() - began > LONG_STEP:
                await clock.sleep(PAUSE)
            else:
                await anyio.lowlevel.checkpoint()
            began = clock.monotonic()
        yield manager


def idle_manager(dependencies: Dependencies) -> ControllerManager:
    """A manager that has done nothing, and follows nothing."""
    dependencies = msgspec.structs.replace(dependencies, cluster=empty_cluster_cache())
    with _subscriptions(dependencies):
        manager = ControllerManager(dependencies)
        for _ in manager.build():
            pass
        return manager


@contextmanager
def _subscriptions(dependencies: Dependencies) -> Iterator[None]:
    with ExitStack() as stack:
        for each in (dependencies.cluster, dependencies.admitter.budgets, dependencies.node_drains):
            stack.enter_context(each.scoped_subscriptions())
        yield
