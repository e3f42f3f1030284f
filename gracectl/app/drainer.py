"""Composition root of a drain without a controller: the node controller alone, for the nodes of a command.

The steps, the evictor and the policy are the controller's. All state is in the cluster: a process that is killed loses
nothing, and a controller or another run of the command continues. Invariant: nothing but the annotations of the drain
and `spec.unschedulable` is left on a node, so that `kubectl uncordon` undoes it.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Collection, Mapping

import anyio
import msgspec

from gracectl.cloud.none import NoneProvider
from gracectl.config import Settings
from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.drains import Dependencies, NodeDrains
from gracectl.controllers.termination.drain import cancel_drain
from gracectl.controllers.termination.maintenance import MaintenanceState
from gracectl.controllers.termination.state import Progress
from gracectl.controllers.termination.statistics import TerminationStatistics
from gracectl.kube.cache import Cache
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.client.retry import RetrySettings
from gracectl.kube.events import EventRecorder, EventSettings
from gracectl.kube.rbac import Permission
from gracectl.kube.resources import NODE_CLAIM_VERSIONS
from gracectl.kube.transport import Transport
from gracectl.model.node import Node
from gracectl.model.selectors import LabelSelector
from gracectl.nodebudgets.admitter import Admitter
from gracectl.runtime.clock import Clock
from gracectl.runtime.supervise import Component, ComponentStatus, run_components
from gracectl.telemetry.node_labels import NodeLabels

RIGHTS = (
    *(Permission(verb, "nodes") for verb in ("get", "patch", "watch")),
    *(Permission(verb, "pods") for verb in ("list", "watch")),
    Permission("create", "pods", subresource="eviction"),
    *(Permission(verb, "poddisruptionbudgets", "policy") for verb in ("list", "watch")),
)
"""Permissions of a drain without a controller."""

EVENTS = Permission("create", "events")
"""Permission without which no Events are written."""

FLUSH = EventSettings(flush=2.0)


class Drainer:
    """Drains those of `names` whose drain is requested: `run` it once, next to the watches that fill `cluster`.

    `writes_events` False: they may not be created.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        cluster: ClusterCache,
        settings: Settings,
        names: Collection[str],
        *,
        writes_events: bool = True,
    ) -> None:
        self._names = set(names)
        self._cluster = cluster
        self._writes_events = writes_events
        rng = random.Random()
        once = ClientSettings(retry=RetrySettings(attempts=1))
        client = KubeClient(transport, clock, rng=rng, witness=cluster.witness)
        self._recorder = EventRecorder(client, clock, instance=socket.gethostname(), settings=FLUSH)
        self._means = Dependencies(
            client=client,
            deleting=KubeClient(transport, clock, settings=once, rng=rng, witness=cluster.witness),
            cluster=cluster,
            admitter=Admitter(client, cluster.nodes, Cache("node-budgets"), clock, rng=rng),
            provider=NoneProvider(NoneProvider.Options()),
            recorder=self._recorder,
            clock=clock,
            eviction=settings.eviction,
            termination=msgspec.structs.replace(settings.termination, node_selector=LabelSelector()),
            claim_resource=lambda: NODE_CLAIM_VERSIONS[0],
            statistics=TerminationStatistics(labels=NodeLabels(())),
            component_status=ComponentStatus(),
            spans=None,
            led_until=lambda: None,
            rng=rng,
        )
        self._drains: NodeDrains | None = None
        clock.subscribe(self._clock_jumped)

    async def run(self) -> None:
        """Drain until cancelled. Raises ComponentFailed."""
        with self._cluster.scoped_subscriptions():
            self._drains = drains = NodeDrains(self._means, self._has)
            events: dict[str, Component] = {"events": self._recorder.run} if self._writes_events else {}
            await run_components({**events, **drains.components()}, anyio.Event())

    def progress(self) -> Mapping[str, Progress]:
        """Progress of each drain, by the UID of the node."""
        return (
            {}
            if self._drains is None
            else {each.uid: each for each in self._drains.terminations.registry.in_progress()}
        )

    @property
    def names(self) -> frozenset[str]:
        """Nodes that are drained from here."""
        return frozenset(self._names)

    def release(self, name: str) -> None:
        """Leave this node to a controller: nothing more is sent for it."""
        self._names.discard(name)
        if self._drains is not None:
            cancel_drain(self._drains.context, name)
            state = self._drains.terminations.registry.get(name)
            if isinstance(state, MaintenanceState) and state.scope is not None:
                state.scope.cancel()

    def _has(self, node: Node) -> bool:
        """Deleted nodes are not terminated from here: their instances and finalizers belong to others."""
        return node.name in self._names and node.deletion_timestamp is None

    def _clock_jumped(self) -> None:
        if self._drains is not None:
            self._drains.clock.jumped()
