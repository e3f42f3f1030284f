"""The scenario `demo`: nodes and workloads of any size, from two nodes and one pod.

Pure. Invariants: each node has room for all ordinary pods (a drain never lacks room), and no budget forbids an eviction
indefinitely.
"""

from __future__ import annotations

import random
from typing import Literal

import msgspec

from kubesim.cluster import ClusterOptions, EmbeddedCluster, NodeSpec
from kubesim.controllers.behaviour import PREFIX
from kubesim.scenarios.library import scenario_named
from kubesim.scenarios.options import options_of
from kubesim.server.api import JsonObject
from kubesim.values import scaled_value

ZONES = ("zone-a", "zone-b", "zone-c")
INSTANCE_TYPES = ("sim.large", "sim.xlarge")
SYSTEM = "kube-system"
CRITICAL: JsonObject = {"priorityClassName": "system-cluster-critical", "priority": 2_000_000_000}
NODE_CRITICAL: JsonObject = {"priorityClassName": "system-node-critical", "priority": 2_000_001_000}
LETTERS = "bcdfghjkmnpqrstvwxz2456789"

SLOW_STOP_SECONDS = 8


class App(msgspec.Struct, frozen=True):
    """A workload of the demo. `share` of the pods, at most `limit`. `bound` of its budget: ("maxUnavailable" or
    "minAvailable", value). `extra`: more pod spec."""

    name: str
    namespace: str
    share: int
    bound: tuple[str, int | str] | None = None
    kind: Literal["Deployment", "StatefulSet"] = "Deployment"
    limit: int | None = None
    extra: JsonObject = {}
    annotations: dict[str, str] = {}


APPS = (
    App("web", "shop", 18, ("maxUnavailable", 1), limit=24),
    App("db", "data", 3, ("maxUnavailable", 1), "StatefulSet", limit=5),
    App("api", "shop", 16, ("minAvailable", "80%")),
    App("dns", SYSTEM, 4, ("minAvailable", 2), extra=CRITICAL, limit=8),
    App("reports", "jobs", 4, limit=16, annotations={f"{PREFIX}stop-seconds": str(SLOW_STOP_SECONDS)}),
    App("worker", "jobs", 16, ("maxUnavailable", "30%")),
    App("search", "shop", 12),
    App("cache", "data", 9),
    App("images", "media", 10),
    App("thumbnails", "media", 9),
    App("gateway", "edge", 7),
    App("mailer", "jobs", 6),
    App("audit", "data", 6),
)
"""The demo's workloads, the most telling first: a cluster of few pods has only the first few."""


class DemoPlan(msgspec.Struct, frozen=True):
    """Nodes, objects in the order of their creation, and the static pods of every node. `pods`: the ordinary ones."""

    nodes: tuple[NodeSpec, ...]
    objects: tuple[JsonObject, ...]
    static_pods: tuple[JsonObject, ...]
    pods: int

    @property
    def all_pods(self) -> int:
        """Number of pods, including DaemonSet pods and static pods of every node."""
        daemons = sum(1 for object_ in self.objects if object_["kind"] == "DaemonSet")
        return self.pods + len(self.nodes) * (daemons + len(self.static_pods))

    async def build(self, cluster: EmbeddedCluster) -> None:
        """Put all of it into a cluster that runs. Raises Refused. (`cluster.until_ready` waits for the pods.)"""
        for node in self.nodes:
            await cluster.add_node(node)
            for manifest in self.static_pods:
                cluster.add_static_pod(node.name, manifest)
        for object_ in self.objects:
            await cluster.create(object_)
        await cluster.until(lambda: cluster.pod_count >= self.all_pods)
        await cluster.until_ready()


def demo_options(*, speed: float = 1.0, seed: int = 1) -> ClusterOptions:
    """How the demo's cluster behaves: as the scenario `demo` says."""
    return options_of(msgspec.structs.replace(scenario_named("demo"), speed=speed, seed=seed))


def demo_plan(*, nodes: int = 8, pods: int = 120, seed: int = 1) -> DemoPlan:
    """`pods` ordinary pods of about a dozen workloads, five of them (a StatefulSet among them)
    budgeted, one slow to stop, one critical; in addition one DaemonSet pod and one static pod per node.
    ValueError: nodes < 2 or pods < 1.
    """
    if nodes < 2 or pods < 1:
        raise ValueError("a cluster needs at least two nodes and one pod")
    chance = random.Random(f"demo/{seed}")
    # Room for everything on any one node, twice: the old pods count until they are gone.
    room = max(110, 2 * pods + 10)
    names: set[str] = set()
    specs = tuple(_node_spec(number, room, names, chance) for number in range(nodes))
    objects: list[JsonObject] = []
    for app, replicas in zip(APPS, sizes(pods, chance), strict=True):
        if replicas:
            objects.append(_workload(app, replicas))
            if app.bound and _leaves_room(app.bound, replicas):
                objects.append(_budget(app, app.bound))
    objects.append(_node_agent())
    return DemoPlan(specs, tuple(objects), (_node_proxy(),), pods)


def sizes(pods: int, chance: random.Random) -> list[int]:
    """Replicas of each of APPS: `pods` in all, by share, within limits. With fewer pods than apps the first ones get
    one each."""
    counts = [1 if index < pods else 0 for index in range(len(APPS))]
    weights = [app.share * chance.uniform(0.85, 1.15) for app in APPS]
    left = pods - sum(counts)
    # Each next pod goes where it is most lacking; the unlimited apps always take one.
    goal = pods / sum(weights)
    wanted = [min(weight * goal, float(app.limit or pods)) for app, weight in zip(APPS, weights, strict=True)]
    for index, target in enumerate(wanted):
        more = max(0, min(left, int(target) - counts[index]))
        counts[index] += more
        left -= more
    unlimited = [index for index, app in enumerate(APPS) if app.limit is None]
    if left:
        each, rest = divmod(left, len(unlimited))
        for position, index in enumerate(unlimited):
            counts[index] += each + (position < rest)
    return counts


def _leaves_room(bound: tuple[str, int | str], replicas: int) -> bool:
    """Does the budget allow an eviction when all replicas are healthy?"""
    field, value = bound
    scaled = scaled_value(value, replicas, round_up=True)
    return scaled > 0 if field == "maxUnavailable" else scaled < replicas


def _node_spec(number: int, room: int, taken: set[str], chance: random.Random) -> NodeSpec:
    zone = ZONES[number % len(ZONES)]
    while (name := f"node-{zone[-1]}-{''.join(chance.choices(LETTERS, k=5))}") in taken:
        pass
    taken.add(name)
    kind = chance.choice(INSTANCE_TYPES)
    return NodeSpec(name=name, pods=room, zone=zone, instance_type=kind, labels={"kubesim/pool": "demo"})


def _workload(app: App, replicas: int) -> JsonObject:
    spec: JsonObject = {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": app.name}},
        "template": _template(app.name, app.extra, app.annotations),
    }
    if app.kind == "StatefulSet":
        storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}}
        template = {"metadata": {"name": "data"}, "spec": {**storage, "storageClassName": "standard"}}
        spec = {**spec, "serviceName": app.name, "volumeClaimTemplates": [template]}
    return {"apiVersion": "apps/v1", "kind": app.kind, "metadata": _metadata(app), "spec": spec}


def _budget(app: App, bound: tuple[str, int | str]) -> JsonObject:
    field, value = bound
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(app),
        "spec": {field: value, "selector": {"matchLabels": {"app": app.name}}},
    }


def _metadata(app: App) -> JsonObject:
    return {"name": app.name, "namespace": app.namespace, "labels": {"app": app.name}}


def _template(name: str, extra: JsonObject, annotations: dict[str, str]) -> JsonObject:
    container = {
        "name": name,
        "image": f"registry.example/{name}:1",
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
    }
    metadata: JsonObject = {"labels": {"app": name}}
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": {"containers": [container], **extra}}


def _node_agent() -> JsonObject:
    name = "node-agent"
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": SYSTEM, "labels": {"app": name}},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": _template(name, NODE_CRITICAL, {})},
    }


def _node_proxy() -> JsonObject:
    template = _template("node-proxy", NODE_CRITICAL, {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], "name": "node-proxy", "namespace": SYSTEM},
        "spec": {**template["spec"], "hostNetwork": True},
    }
