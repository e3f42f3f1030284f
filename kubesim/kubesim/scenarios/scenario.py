"""The fields of a scenario file: nodes, workloads, behaviors, faults and timeline.

docs/scenarios.md describes each field. Invariant: a scenario is data; the same file, seed and scale make the same
cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from kubesim.controllers.cloud import CloudSettings
from kubesim.controllers.kubelet import KubeletSettings
from kubesim.faults import Rule
from kubesim.server.api import Json, JsonObject

Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Name = Annotated[str, msgspec.Meta(min_length=1)]
Pattern = Annotated[str, msgspec.Meta(min_length=1)]
"""A name with shell wildcards: `*`, `?`, `[a-c]`."""

Quantities = Mapping[str, str | int | float]
"""Amounts of resources by name; `2` and `"2"` are the same."""

REQUESTS: dict[str, str | int | float] = {"cpu": "50m", "memory": "64Mi"}
"""What a container asks for where the file says nothing."""


class Base(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A section of the file; whatever is no field of it is refused by the reader."""


class Taint(Base, frozen=True, kw_only=True):
    """A taint of a node."""

    key: Name
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    value: str = ""


class Claims(Base, frozen=True, kw_only=True):
    """A NodeClaim for each node of a group, as Karpenter leaves it once the node has joined.

    `spec` is more spec, over what is made from the other fields.
    """

    name: str = ""
    node_pool: str = ""
    capacity_type: Literal["on-demand", "spot", "reserved"] = "on-demand"
    termination_grace_period: str = ""
    expire_after: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    spec: JsonObject = {}


class NodeGroup(Base, frozen=True, kw_only=True):
    """Nodes that are alike. `{n}` in the name is their number, from 1; `zones` are dealt out in turn."""

    name: Name
    count: Count = 1
    zones: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1)] = ("zone-a",)
    instance_type: str = "sim.large"
    pods: Annotated[int, msgspec.Meta(ge=1)] = 110
    capacity: Quantities = {}
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    claims: Claims | None = None


class Bound(Base, frozen=True, kw_only=True):
    """What a PodDisruptionBudget demands; one of minAvailable and maxUnavailable, or neither."""

    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    unhealthy_pod_eviction_policy: Literal["IfHealthyBudget", "AlwaysAllow"] | None = None


class Pods(Base, frozen=True, kw_only=True):
    """Pods of one template. `{n}` in name, namespace and label values is the number of the copy, from 1 to `count`.

    Each pod is labeled `app: <name>`. `pod` is more pod spec, over what is made from the other fields.
    """

    name: Name
    namespace: Name = "default"
    count: Count = 1
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    image: str = ""
    requests: Quantities = msgspec.field(default_factory=REQUESTS.copy)
    grace: Count = 30
    node_selector: Mapping[str, str] = {}
    tolerations: tuple[JsonObject, ...] = ()
    priority_class: str = ""
    pod: JsonObject = {}
    budget: Bound | None = None


class Replicated(Pods, frozen=True, kw_only=True):
    """A Deployment: `count` of them with `replicas` pods each."""

    replicas: Count = 1


class Stateful(Replicated, frozen=True, kw_only=True):
    """A StatefulSet. `volume`: the size of the claim that each pod gets, "" for none. `parallel`: all pods together."""

    volume: str = ""
    storage_class: str = "standard"
    parallel: bool = False


class Batch(Pods, frozen=True, kw_only=True):
    """A Job: `completions` pods are to succeed, `parallelism` of them at a time."""

    completions: Count = 1
    parallelism: Count = 1


class Static(Base, frozen=True, kw_only=True):
    """A static pod on every node with a name that fits `nodes`."""

    name: Name
    nodes: Pattern = "*"
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    image: str = ""
    requests: Quantities = msgspec.field(default_factory=REQUESTS.copy)
    pod: JsonObject = {}


class Budget(Bound, frozen=True, kw_only=True):
    """A PodDisruptionBudget by itself. Without `selector` it selects the pods labeled `app: <app>`."""

    name: Name
    namespace: Name = "default"
    count: Count = 1
    app: str = ""
    selector: JsonObject | None = None


class PriorityClass(Base, frozen=True, kw_only=True):
    """A PriorityClass."""

    name: Name
    value: int
    is_default: bool = False
    preemption: Literal["PreemptLowerPriority", "Never"] = "PreemptLowerPriority"


class Volume(Base, frozen=True, kw_only=True):
    """A claim without a pod, for pods that name it; it gets a volume of `size`."""

    name: Name
    namespace: Name = "default"
    count: Count = 1
    size: str = "10Gi"
    storage_class: str = "standard"
    access_mode: str = "ReadWriteOnce"


class Server(Base, frozen=True, kw_only=True):
    """The API server. `window`: how many changes per kind a watch can go back. `clock_offset`: seconds by which its
    time of day is wrong. `event_ttl`: how long an Event is kept. `crds`: whether the definitions that the
    caller brings (by default that of NodeClaims) are there.
    """

    window: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    clock_offset: float = 0.0
    event_ttl: Seconds = 3600.0
    crds: bool = True


class Controllers(Base, frozen=True, kw_only=True):
    """What runs around the server. `without`: parts that are left out, to be run from elsewhere or not at all.

    Simulated seconds: `quarantine`: how long the pods of a node that is gone are left alone. `attach`, `detach`: how
    long a volume takes, after `unstage` on its node. `node_grace`: how long a node may be silent. `events`: whether the
    parts write Events. `node_plugin`: selects the CSI node plugins that unstage volumes.
    """

    without: tuple[str, ...] = ()
    quarantine: Seconds = 40.0
    attach: Seconds = 0.0
    detach: Seconds = 0.0
    unstage: Seconds = 0.0
    node_plugin: str = ""
    node_grace: Seconds = 40.0
    events: bool = True


class Demo(Base, frozen=True, kw_only=True):
    """Eight nodes or so with a dozen workloads, in this size."""

    nodes: Annotated[int, msgspec.Meta(ge=2)] = 8
    pods: Annotated[int, msgspec.Meta(ge=1)] = 120


class Target(Base, frozen=True, kw_only=True):
    """Objects of a kind with a fitting name and these labels; `count` of them by chance (none: all of them)."""

    kind: Name
    namespace: str = ""
    name: Pattern = "*"
    selector: str = ""
    count: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Patch(Target, frozen=True, kw_only=True):
    """A merge patch for each of the objects, to a subresource if one is named."""

    patch: Json
    subresource: str = ""


class Some(Base, frozen=True, kw_only=True):
    """Nodes with a fitting name, `count` of them by chance (none: all of them)."""

    names: Pattern = "*"
    count: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Step(Base, frozen=True, kw_only=True):
    """Something that happens, simulated seconds after the cluster is ready; `times` times, each `every` seconds.

    `end_instances`: the machines of nodes end for good. `protect_instances`: the cloud refuses to end them (409), until
    `unprotect_instances`. `crash_nodes`: they fall silent and their pods die, until `revive_nodes`. `partition_nodes`:
    their kubelets no longer reach the server, until `heal_nodes`. `clock_offset`: from now on the server's time of day
    is wrong by so many seconds.
    """

    at: Seconds
    every: Seconds = 0.0
    times: Annotated[int, msgspec.Meta(ge=1)] = 1
    create: tuple[JsonObject, ...] = ()
    patch: Patch | None = None
    delete: Target | None = None
    add_nodes: tuple[NodeGroup, ...] = ()
    end_instances: Some | None = None
    protect_instances: Some | None = None
    unprotect_instances: Some | None = None
    crash_nodes: Some | None = None
    revive_nodes: Some | None = None
    restart_kubelets: Some | None = None
    partition_nodes: Some | None = None
    heal_nodes: Some | None = None
    add_faults: Mapping[str, Rule] = {}
    remove_faults: tuple[str, ...] = ()
    clock_offset: float | None = None


class Scenario(Base, frozen=True, kw_only=True):
    """The whole file.

    `start`: "grown" lets the controllers make everything; "prebuilt" puts the pods in as if they had run for long,
    for clusters too large to wait for. `ready_timeout`: simulated seconds without change after which pods are no longer
    waited for.
    """

    name: Name
    description: Name
    seed: int = 1
    speed: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    start: Literal["grown", "prebuilt"] = "grown"
    ready_timeout: Seconds = 120.0
    nodes: tuple[NodeGroup, ...] = ()
    deployments: tuple[Replicated, ...] = ()
    stateful_sets: tuple[Stateful, ...] = ()
    daemon_sets: tuple[Pods, ...] = ()
    jobs: tuple[Batch, ...] = ()
    pods: tuple[Pods, ...] = ()
    budgets: tuple[Budget, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = ()
    volumes: tuple[Volume, ...] = ()
    objects: tuple[JsonObject, ...] = ()
    static_pods: tuple[Static, ...] = ()
    demo: Demo | None = None
    kubelet: KubeletSettings = KubeletSettings()
    cloud: CloudSettings = CloudSettings()
    controllers: Controllers = Controllers()
    server: Server = Server()
    faults: Mapping[str, Rule] = {}
    timeline: tuple[Step, ...] = ()
