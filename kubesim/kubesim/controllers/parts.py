"""The parts of the world: what lives around an API server, and how each is made. Any of them can be left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec

from kubesim.controllers.attachments import Attachments, Provisioner
from kubesim.controllers.clusterroleaggregation import RoleAggregation
from kubesim.controllers.daemonsets import DaemonSets
from kubesim.controllers.deployments import Deployments
from kubesim.controllers.disruption import Disruption
from kubesim.controllers.garbagecollector import GarbageCollector, PodGarbage
from kubesim.controllers.informers import Views
from kubesim.controllers.jobs import Jobs
from kubesim.controllers.namespaces import Namespaces, ServiceAccounts
from kubesim.controllers.nodelifecycle import NodeLifecycle
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import REPLICATION_CONTROLLERS
from kubesim.controllers.replicasets import ReplicaSets
from kubesim.controllers.scheduler import Scheduler
from kubesim.controllers.statefulsets import StatefulSets
from kubesim.controllers.tainteviction import TaintEviction
from kubesim.controllers.volumeclaims import EphemeralClaims, VolumeProtection


class Part(Protocol):
    """Something that runs for ever."""

    async def run(self) -> None:
        """Run until cancelled."""
        ...


class PartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the parts behave. Simulated seconds: `quarantine_seconds`: how long PodGC leaves the pods of a node that is
    gone; `attach_seconds`, `detach_seconds`: how long a volume takes; `node_grace_seconds`: how long a node may be
    silent.

    `events`: the parts say what they do by Events (worlds of 100,000 pods are lighter without). `root_ca`: the
    certificate (PEM) that every namespace finds in kube-root-ca.crt.
    """

    quarantine_seconds: float = 40.0
    attach_seconds: float = 0.0
    detach_seconds: float = 0.0
    node_grace_seconds: float = 40.0
    events: bool = True
    root_ca: str = ""


Maker = Callable[[Views, Pace, PartOptions], Part]

KUBELET: Final = "kubelet"
NODE_LIFECYCLE: Final = "node-lifecycle"

MAKERS: Final[Mapping[str, Maker]] = {
    "scheduler": lambda views, pace, options: Scheduler(views, pace, events=options.events),
    "deployments": lambda views, pace, options: Deployments(views, pace, events=options.events),
    "replicasets": lambda views, pace, options: ReplicaSets(views, pace, events=options.events),
    "replicationcontrollers": lambda views, pace, options: ReplicaSets(
        views, pace, REPLICATION_CONTROLLERS, events=options.events
    ),
    "statefulsets": lambda views, pace, options: StatefulSets(views, pace, events=options.events),
    "daemonsets": lambda views, pace, options: DaemonSets(views, pace),
    "jobs": lambda views, pace, options: Jobs(views, pace, events=options.events),
    "disruption": lambda views, pace, options: Disruption(views, pace),
    "garbage-collector": lambda views, pace, options: GarbageCollector(views, pace),
    "pod-gc": lambda views, pace, options: PodGarbage(views, pace, quarantine=options.quarantine_seconds),
    "namespaces": lambda views, pace, options: Namespaces(views, pace),
    "serviceaccounts": lambda views, pace, options: ServiceAccounts(views, pace, root_ca=options.root_ca),
    "clusterrole-aggregation": lambda views, pace, options: RoleAggregation(views, pace),
    NODE_LIFECYCLE: lambda views, pace, options: NodeLifecycle(
        views, pace, grace=options.node_grace_seconds, events=options.events
    ),
    "taint-eviction": lambda views, pace, options: TaintEviction(views, pace, events=options.events),
    "ephemeral-claims": lambda views, pace, options: EphemeralClaims(views, pace),
    "volume-protection": lambda views, pace, options: VolumeProtection(views, pace),
    "provisioner": lambda views, pace, options: Provisioner(views, pace),
    "attachments": lambda views, pace, options: Attachments(
        views, pace, attach_delay=options.attach_seconds, detach_delay=options.detach_seconds
    ),
}
"""Every part but the kubelet, in the order in which they are made."""

PARTS: Final = frozenset((KUBELET, *MAKERS))
"""Everything that lives around the API server and can be left out. (The cloud always runs.)"""
