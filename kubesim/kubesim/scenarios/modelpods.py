"""Model pods: one of each template, made by the controllers and kubelets of a small cluster of its own.

Invariant: a model has all that the server fills in and the controllers write, because they have made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio
import msgspec
import orjson

from kubesim.clock import Clock
from kubesim.cluster import PARTS, ClusterOptions, EmbeddedCluster, NodeSpec
from kubesim.controllers.daemonsets import placement
from kubesim.controllers.objects import controller_uid, is_mirror, key_of, node_of
from kubesim.scenarios.objects import create
from kubesim.scenarios.placement import when_well
from kubesim.scenarios.plan import StaticPod
from kubesim.server.api import JsonObject

IDLE = frozenset(("garbage-collector", "pod-gc", "disruption", "provisioner", "attachments"))
"""Parts that have nothing to do for a model."""

ROOM = {"cpu": "999999", "memory": "999999Gi", "ephemeral-storage": "999999Gi"}
PODS = 999_999

Workload = tuple[str, str, str]
"""Kind, namespace, name."""


class Models(msgspec.Struct, frozen=True):
    """What was grown: a Ready pod for each workload that wants one, the ReplicaSet of each Deployment, a mirror pod for
    each static one by its name, and a node by its kind (`kind_of`).
    """

    nodes: dict[bytes, JsonObject]
    pods: dict[Workload, JsonObject]
    replica_sets: dict[Workload, JsonObject]
    mirrors: dict[str, JsonObject]


def workload_key(object_: JsonObject) -> Workload:
    """By what a model is found."""
    metadata = object_["metadata"]
    return object_["kind"], metadata.get("namespace") or "default", metadata["name"]


class ModelMaker:
    """Makes models on one node of each kind that there is in `nodes`."""

    def __init__(self, clock: Clock, options: ClusterOptions, nodes: Sequence[NodeSpec]) -> None:
        """`options`: of the cluster for which models are grown."""
        # Without behaviours nothing takes any time.
        self._cluster = EmbeddedCluster(
            clock, ClusterOptions(seed=options.seed, parts=PARTS - IDLE, definitions=options.definitions)
        )
        self._nodes = [
            msgspec.structs.replace(
                spec, pods=PODS, capacity={**spec.capacity, **ROOM}, labels=spec.own_labels, claim=None
            )
            for spec in {kind_of(node): node for node in nodes}.values()
        ]

    async def grow(
        self, needed: Sequence[JsonObject], workloads: Sequence[JsonObject], statics: Sequence[StaticPod]
    ) -> Models:
        """A model for each workload, among the objects that pods need. Raises Refused, ScenarioError."""
        cluster, owners = self._cluster, dict[str, Workload]()
        manifests = {static.manifest["metadata"]["name"]: static.manifest for static in statics}
        async with anyio.create_task_group() as group:
            await group.start(cluster.run)
            for spec in self._nodes:
                await cluster.add_node(spec)
            for object_ in needed:
                await create(cluster, object_)
            for manifest in manifests.values():
                cluster.add_static_pod(self._nodes[0].name, manifest)
            for object_ in workloads:
                made = await create(cluster, _single(object_))
                owners[made["metadata"]["uid"]] = workload_key(object_)
            expected = len(manifests) + sum(map(self._wanted, workloads))
            await cluster.until(lambda: cluster.pod_count >= expected)
            if expected:
                await cluster.until_ready()
            models = self._models(owners)
            group.cancel_scope.cancel()
        return models

    def _wanted(self, workload: JsonObject) -> int:
        match workload["kind"]:
            case "Pod":
                return 1
            case "DaemonSet":
                return sum(
                    placement(workload, when_well(node))[0] for node in self._cluster.server.store.table("nodes")
                )
        return min(1, replicas_of(workload))

    def _models(self, owners: Mapping[str, Workload]) -> Models:
        """Everything found by its owner."""
        tables, models = self._cluster.server.store, Models({}, {}, {}, {})
        for spec in self._nodes:
            node = tables.table("nodes").get("", spec.name)
            assert node is not None
            models.nodes[kind_of(spec)] = node
        through = dict(owners)
        for replica_set in tables.table("replicasets.apps"):
            workload = owners.get(controller_uid(replica_set))
            if workload is not None:
                models.replica_sets[workload] = replica_set
                through[replica_set["metadata"]["uid"]] = workload
        for pod in tables.table("pods"):
            if is_mirror(pod):
                models.mirrors[pod["metadata"]["name"].removesuffix(f"-{node_of(pod)}")] = pod
            else:
                models.pods[through.get(controller_uid(pod)) or ("Pod", *key_of(pod))] = pod
        return models


def replicas_of(workload: JsonObject) -> int:
    """How many pods a Deployment or StatefulSet wants."""
    replicas: int = workload["spec"].get("replicas", 1)
    return replicas


def _single(workload: JsonObject) -> JsonObject:
    if workload["kind"] in ("DaemonSet", "Pod"):
        return workload
    return {**workload, "spec": {**workload["spec"], "replicas": min(1, replicas_of(workload))}}


def kind_of(spec: NodeSpec) -> bytes:
    """Properties of a node that matter for a pod: all except its name and its free capacity."""
    return orjson.dumps((spec.zone, spec.instance_type, spec.own_labels, spec.taints), option=orjson.OPT_SORT_KEYS)
