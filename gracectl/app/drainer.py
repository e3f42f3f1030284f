"""Composition root of a drain without a controller: the node controller alone, for the nodes of a command.

The steps, the evictor and the policy are the controller's. All state is in the cluster: a process that is killed loses
nothing, and a controller or another run of the command continues. Invariant: nothing but the annotations of the drain
and `spec.unschedulable` is left on a node, so that `kubectl uncordon` undoes it.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Mapping
from typing import Final

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
from gracectl.kube.rbac import READS, Permission
from gracectl.kube.requests import Key
from gracectl.kube.resources import NODE_CLAIM_VERSIONS, PODS
from gracectl.kube.transport import Transport
from gracectl.model.node import Node
from gracectl.nodebudgets.admitter import Admitter
from gracectl.policy.owners import EVERY_NODE
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

DELETE_PODS = Permission("delete", "pods")
"""Permission that replaces the eviction if pods are deleted, and that a deadline needs in addition."""

FLUSH = EventSettings(flush=2.0)


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """How pods leave. `grace_period`: seconds instead of each pod's own; None: its own. `pod_selector`: labels of the
    pods that leave; "": all. `disable_eviction`: pods are deleted, which no budget prevents.
    """

    grace_period: int | None = None
    pod_selector: str = ""
    disable_eviction: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags that were given."""
        given = {
            "--grace-period": self.grace_period is not None,
            "--pod-selector": bool(self.pod_selector),
            "--disable-eviction": self.disable_eviction,
        }
        return tuple(flag for flag, is_given in given.items() if is_given)


OWN_MANNER: Final = Manner()
"""Pods are evicted, with their own grace."""


class Setup(msgspec.Struct, frozen=True):
    """The names of the nodes `here` to drain, by these settings, and how. `writes_events`: they may be created."""

    here: frozenset[str]
    settings: Settings
    writes_events: bool = True
    manner: Manner = OWN_MANNER


class EvictingClient(KubeClient):
    """Client whose evictions are sent in the `manner` of the command."""

    manner = OWN_MANNER

    async def evict(
        self,
        key: Key,
        *,
        uid: str,
        grace_seconds: int | None = None,
        precondition: Callable[[], bool] = lambda: True,
    ) -> None:
        """See KubeClient."""
        grace = self.manner.grace_period if grace_seconds is None else grace_seconds
        if self.manner.disable_eviction:
            await self.delete(PODS, key, uid=uid, grace_seconds=grace, precondition=precondition)
        else:
            await super().evict(key, uid=uid, grace_seconds=grace, precondition=precondition)


def rights_for(manner: Manner, *, has_deadline: bool = False) -> tuple[Permission, ...]:
    """Permissions of a drain in this manner."""
    if not manner.disable_eviction:
        return (*RIGHTS, DELETE_PODS) if has_deadline else RIGHTS
    return (*(right for right in RIGHTS if right.plural == "nodes" or right.verb in READS), DELETE_PODS)


class Drainer:
    """Drains the nodes of `setup` that request it: `run` it once, next to the watches that fill `cluster`."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        cluster: ClusterCache,
        setup: Setup,
    ) -> None:
        settings = setup.settings
        self._names = set(setup.here)
        self._cluster = cluster
        self._writes_events = setup.writes_events
        rng = random.Random()
        once = ClientSettings(retry=RetrySettings(attempts=1))
        client = EvictingClient(transport, clock, rng=rng, witness=cluster.witness)
        client.manner = setup.manner
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
            termination=msgspec.structs.replace(settings.termination, managed=EVERY_NODE),
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
        found = () if self._drains is None else self._drains.terminations.registry.in_progress()
        return {each.uid: each for each in found}

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
