"""Prebuilt clusters: pods are loaded into the store bound, Running and Ready.

Invariant: the store has what controllers and kubelets would have written, so they find nothing to do but count. Runs
before the cluster; external watches start over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from kubesim.clock import Clock
from kubesim.cluster import EmbeddedCluster, NodeSpec
from kubesim.controllers.nodestatus import LEASE_SECONDS, lease, stretch
from kubesim.controllers.objects import owner_reference
from kubesim.controllers.parts import KUBELET
from kubesim.controllers.staticpods import mirror_pod
from kubesim.scenarios.cloning import Cloner
from kubesim.scenarios.modelpods import ModelMaker, Models, kind_of, replicas_of, workload_key
from kubesim.scenarios.objects import create, ensure_namespace, remade
from kubesim.scenarios.placement import Placement, when_well
from kubesim.scenarios.plan import Plan
from kubesim.server.api import JsonObject


class Sorted(msgspec.Struct, frozen=True):
    """The objects of a plan: pods may refer to `needed`; pods of `workloads` are stamped; `later` is what grows once
    the cluster runs: budgets, which count pods, and whatever has volumes or comes to an end.
    """

    needed: list[JsonObject]
    workloads: list[JsonObject]
    later: list[JsonObject]


def sort(objects: Iterable[JsonObject]) -> Sorted:
    """Separate what can be stamped."""
    found = Sorted([], [], [])
    for object_ in objects:
        if is_clonable(object_):
            found.workloads.append(object_)
        elif object_["kind"] in (
            "Pod",
            "StatefulSet",
            "Job",
            "CronJob",
            "PodDisruptionBudget",
            "PersistentVolumeClaim",
        ):
            found.later.append(object_)
        else:
            found.needed.append(object_)
    return found


def is_clonable(object_: JsonObject) -> bool:
    """Whether the pods of the workload are alike and stay."""
    spec = object_.get("spec") or {}
    match object_["kind"]:
        case "Deployment" | "DaemonSet":
            return "name" in object_["metadata"]
        case "StatefulSet":
            return "name" in object_["metadata"] and not spec.get("volumeClaimTemplates")
        case "Pod":
            return "name" in object_["metadata"] and not spec.get("nodeName") and not spec.get("volumes")
    return False


async def prebuild(cluster: EmbeddedCluster, plan: Plan, clock: Clock) -> tuple[JsonObject, ...]:
    """Put the nodes, workloads and pods of a plan into a cluster that does not run yet; returns the objects that are to
    be created when it does. Raises ScenarioError where pods find no place, Refused.
    """
    found = sort(plan.objects)
    for spec in plan.nodes:
        await cluster.add_node(spec)
    store = cluster.server.store
    placement = Placement([when_well(node) for node in store.table("nodes")])
    for object_ in found.workloads:
        placement.check(object_)
    # Webhooks are asked about what is created here, not about its models.
    harmless = [object_ for object_ in found.needed if not object_["kind"].endswith("WebhookConfiguration")]
    models = await ModelMaker(clock, plan.options, plan.nodes).grow(harmless, found.workloads, plan.static_pods)
    for spec in plan.nodes:
        _live(cluster, spec, models.nodes[kind_of(spec)])
    if KUBELET in cluster.options.parts and cluster.options.kubelet.leases:
        store.load(store.table("leases.coordination.k8s.io"), _leases(cluster))
    for object_ in found.needed:
        await create(cluster, object_)
    settler = _Builder(cluster, models, placement)
    pods = [settler.mirror(static.node, static.manifest) for static in plan.static_pods]
    for object_ in found.workloads:
        pods += await settler.workload(object_)
    store.load(store.table("pods"), pods)
    store.table("nodes").forget(store.revision)  # what they were before they were live
    return tuple(found.later)


def _live(cluster: EmbeddedCluster, spec: NodeSpec, model: JsonObject) -> None:
    """Let a new node be what its model has become: reported on by its kubelet, and taken note of."""
    store = cluster.server.store
    table = store.table("nodes")
    node = table.get("", spec.name)
    assert node is not None
    known = {key: value for key, value in node["spec"].items() if key != "taints"}
    taints = {"taints": model["spec"]["taints"]} if model["spec"].get("taints") else {}
    status = {**model["status"], **node["status"], "conditions": model["status"].get("conditions", [])}
    store.put(table, {**node, "spec": {**known, **taints}, "status": status}, node)


def _leases(cluster: EmbeddedCluster) -> Iterator[JsonObject]:
    """The heartbeats of all nodes."""
    stamps, nodes = cluster.server.stamps, cluster.server.store.table("nodes")
    for node in nodes:
        made = lease(node, stamps.seconds, round(LEASE_SECONDS * stretch(len(nodes))))
        yield {**made, "metadata": {**made["metadata"], "uid": stamps.uid(), "creationTimestamp": stamps.now}}


class _Builder:
    """Creates workloads, and the pods of each."""

    def __init__(self, cluster: EmbeddedCluster, models: Models, placement: Placement) -> None:
        self._cluster = cluster
        self._models = models
        self._nodes = cluster.server.store.table("nodes")
        self._placement = placement
        self._stamp = Cloner(cluster.server.stamps)

    def mirror(self, node: str, manifest: JsonObject) -> JsonObject:
        """The mirror pod of a static pod."""
        self._cluster.add_static_pod(node, manifest)
        found = self._nodes.get("", node)
        assert found is not None
        wanted = mirror_pod(manifest, found)
        self._placement.take(wanted, node)
        model = self._models.mirrors[manifest["metadata"]["name"]]
        owners = {"ownerReferences": wanted["metadata"]["ownerReferences"]}
        return self._stamp.one(model, wanted["metadata"]["name"], node, owners)

    async def workload(self, object_: JsonObject) -> Iterator[JsonObject]:
        """Create a workload, and make its pods. Raises ScenarioError, Refused."""
        kind, namespace, name = key = workload_key(object_)
        model = self._models.pods.get(key)
        if kind == "Pod":
            await ensure_namespace(self._cluster, namespace)
            assert model is not None
            (node,) = self._placement.for_pods(object_, 1)
            return iter((self._stamp.one(model, name, node, {}),))
        made = await create(self._cluster, object_)
        owner = owner_reference("apps/v1", kind, made)
        if kind == "Deployment":
            model_set = self._models.replica_sets[key]
            replica_set = remade(model_set, owner=made)
            replica_set["spec"] = {**replica_set["spec"], "replicas": replicas_of(made)}
            owner = owner_reference("apps/v1", "ReplicaSet", await create(self._cluster, replica_set))
        if model is None:
            return iter(())
        if kind == "DaemonSet":
            return self._stamp.generated(model, self._placement.for_daemons(made), ownerReferences=[owner])
        nodes = self._placement.for_pods(object_, replicas_of(made))
        stamped = self._stamp.numbered if kind == "StatefulSet" else self._stamp.generated
        return stamped(model, nodes, ownerReferences=[owner])
