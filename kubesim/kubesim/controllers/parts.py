"""The controllers that run around an API server, by name, and how each is made. Any of them can be left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec

from kubesim.controllers.attachments import Attachments, Provisioner
from kubesim.controllers.daemonsets import DaemonSets
from kubesim.controllers.deployments import Deployments
from kubesim.controllers.disruption import Disruption
from kubesim.controllers.garbagecollector import GarbageCollector, PodGarbage
from kubesim.controllers.informers import Informers
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
    """Something that runs indefinitely."""

    async def run(self) -> None:
        """Run until cancelled."""
        ...


class PartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the parts behave, in simulated seconds.

    `quarantine_seconds`: how long PodGC keeps the pods of a deleted node. `attach_seconds`, `detach_seconds`: how long
    a volume takes, after `unstage_seconds` in which the kubelet unstages it. `node_grace_seconds`: how long a node may
    be silent. `node_plugin`: label selector of CSI node plugin pods: a volume is unstaged only while one of them runs
    on its node; empty: no plugin is needed. `events`: whether the parts emit Events (100,000 pods run faster without).
    `root_ca`: the certificate (PEM) in every namespace's kube-root-ca.crt.
    """

    quarantine_seconds: float = 40.0
    attach_seconds: float = 0.0
    detach_seconds: float = 0.0
    unstage_seconds: float = 0.0
    node_plugin: str = ""
    node_grace_seconds: float = 40.0
    events: bool = True
    root_ca: str = ""


Maker = Callable[[Informers, Pace, PartOptions], Part]

KUBELET: Final = "kubelet"
NODE_LIFECYCLE: Final = "node-lifecycle"

MAKERS: Final[Mapping[str, Maker]] = {
    "scheduler": lambda informers, pace, options: Scheduler(informers, pace, events=options.events),
    "deployments": lambda informers, pace, options: Deployments(informers, pace, events=options.events),
    "replicasets": lambda informers, pace, options: ReplicaSets(informers, pace, events=options.events),
    "replicationcontrollers": lambda informers, pace, options: ReplicaSets(
        informers, pace, REPLICATION_CONTROLLERS, events=options.events
    ),
    "statefulsets": lambda informers, pace, options: StatefulSets(informers, pace, events=options.events),
    "daemonsets": lambda informers, pace, options: DaemonSets(informers, pace),
    "jobs": lambda informers, pace, options: Jobs(informers, pace, events=options.events),
    "disruption": lambda informers, pace, options: Disruption(informers, pace, events=options.events),
    "garbage-collector": lambda informers, pace, options: GarbageCollector(informers, pace),
    "pod-gc": lambda informers, pace, options: PodGarbage(informers, pace, quarantine=options.quarantine_seconds),
    "namespaces": lambda informers, pace, options: Namespaces(informers, pace),
    "serviceaccounts": lambda informers, pace, options: ServiceAccounts(informers, pace, root_ca=options.root_ca),
    NODE_LIFECYCLE: lambda informers, pace, options: NodeLifecycle(
        informers, pace, grace=options.node_grace_seconds, events=options.events
    ),
    "taint-eviction": lambda informers, pace, options: TaintEviction(informers, pace, events=options.events),
    "ephemeral-claims": lambda informers, pace, options: EphemeralClaims(informers, pace),
    "volume-protection": lambda informers, pace, options: VolumeProtection(informers, pace),
    "provisioner": lambda informers, pace, options: Provisioner(informers, pace),
    "attachments": lambda informers, pace, options: Attachments(
        informers,
        pace,
        attach_delay=options.attach_seconds,
        detach_delay=options.detach_seconds,
        unstage_delay=options.unstage_seconds,
        node_plugin=options.node_plugin,
    ),
}
"""Every part but the kubelet, in the order in which they are made."""

PARTS: Final = frozenset((KUBELET, *MAKERS))
"""Everything that lives around the API server and can be left out. (The cloud always runs.)"""
