"""Small objects for decisions and decoders: minimal, as an API server writes them, or very large; statuses."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

import msgspec

from gracectl.cli.status.follow import StatusFrame, TerminatedNode
from gracectl.controllers.cluster.cache import ClusterCache, empty_cluster_cache
from gracectl.controllers.settings import TerminationSettings
from gracectl.inspect.forecast import draining_nodes
from gracectl.inspect.pending import due_candidates, due_nodes
from gracectl.inspect.progress import ProgressTracker, forecast_of
from gracectl.inspect.status import claims_without_node_status, node_statuses, with_forecasts, with_pending
from gracectl.inspect.watcher import ConnectionLoss
from gracectl.kube import resources
from gracectl.kube.resources import Resource
from gracectl.model import machine, names, wire
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import Condition, OwnerReference
from gracectl.model.node import Node, Taint
from gracectl.model.nodedrain import WireNodeDrain
from gracectl.model.pod import Pod, Toleration
from gracectl.model.selectors import LabelSelector
from gracectl.model.times import format_time
from gracectl.policy.forecast import Assumptions
from gracectl.policy.plan import NodeView, Outcome, Plan, PodPlan
from gracectl.policy.planner import plan
from gracectl.policy.scenario import DrainingNode

# Small objects for decisions: everything has a default that lets a pod go.

NOW = 1_000_000.0
READY = (Condition("Ready", "True"),)


def a_pod(name: str = "web-1", **fields: Any) -> Pod:
    """A ready pod of namespace `shop` on node `n1`."""
    defaults: dict[str, Any] = {
        "namespace": "shop",
        "uid": f"uid-{name}",
        "node_name": "n1",
        "labels": {"app": "web"},
        "created": NOW - 3600,
        "started": NOW - 3590,
        "phase": "Running",
        "ready": True,
        "grace_seconds": 30,
    }
    return Pod(name=name, **{**defaults, **fields})


def owned_by(kind: str, name: str = "owner", group: str = "") -> tuple[OwnerReference, ...]:
    return (OwnerReference(kind, name, f"uid-{name}", controller=True, group=group),)


def a_budget(name: str = "web", **fields: Any) -> PodDisruptionBudget:
    """A budget over `app: web` that allows one disruption."""
    defaults: dict[str, Any] = {
        "namespace": "shop",
        "uid": f"uid-{name}",
        "resource_version": "1",
        "generation": 1,
        "observed_generation": 1,
        "selector": LabelSelector({"app": "web"}),
        "disruptions_allowed": 1,
        "current_healthy": 3,
        "desired_healthy": 2,
        "expected_pods": 3,
    }
    return PodDisruptionBudget(name=name, **{**defaults, **fields})


def a_node(name: str = "n1", **fields: Any) -> Node:
    return Node(name=name, uid=f"uid-{name}", **fields)


def ending(
    name: str, *pods: Pod, budgets: Any = (), deadline: float | None = None, since: float = NOW, **fields: Any
) -> DrainingNode:
    """A node that was deleted, just now by default; `deadline` in seconds from NOW. Each pod is under all of `budgets`,
    or, of a mapping, under those of its name."""
    node = a_node(name, conditions=fields.pop("conditions", READY), deletion_timestamp=since)
    pods = tuple(msgspec.structs.replace(pod, node_name=name) for pod in pods)
    of = budgets if isinstance(budgets, dict) else {pod.name: budgets for pod in pods}
    by_pod = {pod.uid: tuple(of[pod.name]) for pod in pods if of.get(pod.name)}
    at = None if deadline is None else NOW + deadline
    return DrainingNode(NodeView(node, pods, by_pod, cordoned_at=since, deadline=at, **fields), since)


# Plans of small nodes, and what they say.


def view(*pods: Pod, budgets: dict[str, Any] | None = None, **fields: Any) -> NodeView:
    """Of a node that was cordoned a minute ago; `budgets` by pod uid."""
    return NodeView(node=a_node(), pods=pods, budgets=budgets or {}, **{"cordoned_at": NOW - 60, **fields})


def decide(*pods: Pod, **fields: Any) -> Plan:
    """The plan of such a node now."""
    return plan(view(*pods, **fields), NOW)


def outcomes(decision: Plan) -> dict[str, Outcome]:
    return {entry.pod.name: entry.outcome for entry in decision.pods}


def reason(decision: Plan, name: str) -> str:
    return next(entry.reason for entry in decision.pods if entry.pod.name == name)


def entry(decision: Plan, name: str) -> PodPlan:
    return next(each for each in decision.pods if each.pod.name == name)


def tolerating(
    operator: str, value: str = "", effect: str = "", key: str = names.DISRUPTED_TAINT_KEY
) -> dict[str, Any]:
    """The fields of a pod with this toleration."""
    return {"tolerations": (Toleration(key, operator, value, effect),)}


# Objects as an API server writes them, for decoders.

NEW_YEAR = 1_767_225_600.0

META: dict[str, Any] = {
    "name": "web-1", "namespace": "shop", "uid": "4f9c", "resourceVersion": "42",
    "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "web"},
    "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:metadata": {}}}],
}  # fmt: skip
NULL_META: dict[str, Any] = dict.fromkeys(
    (
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "labels",
        "annotations",
        "ownerReferences",
        "finalizers",
    ),
    None,
) | {"name": "a"}


def encoded(**fields: object) -> bytes:
    return msgspec.json.encode(fields)


# Objects with one field that is as large as a server stores it, for each field that a kind reads.

BYTES: Final = 1_200_000
"""Of a field; etcd takes objects of 1.5 MiB."""

WIRE: Final[dict[str, type]] = {
    "pods": wire.Pod, "nodes": wire.Node, "nodeclaims": wire.NodeClaim, "poddisruptionbudgets": wire.Budget,
    "nodedisruptionbudgets": wire.NodeBudget, "volumeattachments": wire.Attachment,
    "nodedrains": WireNodeDrain, "persistentvolumeclaims": wire.VolumeClaim, "leases": wire.Lease,
    "machines": machine._Machine,
}  # fmt: skip
"""What is read of the kinds that are kept in memory, by plural."""

SINGLE: Final = {
    "namespaces": "kube-system alone", "nodepools": "asked for by its definition alone",
    "configmaps": "the settings and the freeze alone", "events": "never read", "secrets": "our certificate alone",
    "mutatingwebhookconfigurations": "ours alone", "validatingwebhookconfigurations": "ours alone",
    "machinedrainrules": "listed, and only counted", "rollouts": "bounded by what is kept of a workload (`read_facts`)",
}  # fmt: skip
"""Kinds that are not kept in memory, or of which tenants and kubelets cannot write what is kept."""

GIVEN: Final = {"name", "namespace", "uid", "resourceVersion"}
"""Of metadata: the server gives them, or limits their length."""


def kinds() -> dict[str, Resource[Any]]:
    """Every kind that gracectl.kube.resources names, by plural."""
    return {each.plural: each for each in vars(resources).values() if isinstance(each, Resource)}


def enlarged(plural: str) -> Iterator[tuple[str, bytes]]:
    """The path of each field of a kind, and an object in which that field is large."""
    smallest: dict[str, Any] = {"metadata": {"name": "a", "namespace": "shop", "uid": "1", "resourceVersion": "1"}}
    if plural == "nodedrains":
        smallest["spec"] = {"action": "Drain"}
    for path, value in _large(WIRE[plural]):
        yield ".".join(path), msgspec.json.encode(_with(smallest, path, value))


def _with(smallest: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    whole = {key: {**part} for key, part in smallest.items()}
    place = whole
    for key in path[:-1]:
        place = place.setdefault(key, {})
    place[path[-1]] = value
    return whole


def _large(kind: type) -> Iterator[tuple[tuple[str, ...], Any]]:
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        if name in GIVEN:
            continue
        if name in RAW:
            yield from (((name,), value) for value in RAW[name]())
            continue
        for member in _members(field.type):
            origin = typing.get_origin(member)
            if isinstance(member, type) and issubclass(member, msgspec.Struct):
                yield from (((name, *path), value) for path, value in _large(member))
            elif origin in (list, tuple):
                yield (name,), _many(typing.get_args(member)[0])
                yield (name,), _long(typing.get_args(member)[0])
            elif origin is dict:
                yield (name,), {f"k{number:07}": _small(typing.get_args(member)[1]) for number in range(BYTES // 30)}
            elif member is str:
                yield (name,), "x" * BYTES


def _members(type_: Any) -> Iterator[Any]:
    if typing.get_origin(type_) in (typing.Union, types.UnionType):
        for member in typing.get_args(type_):
            yield from _members(member)
    elif typing.get_origin(type_) is typing.Annotated:
        yield from _members(typing.get_args(type_)[0])
    else:
        yield type_


def _small(type_: Any) -> Any:
    members = list(_members(type_))
    return "2026-01-01T00:00:00Z" if datetime in members else "" if str in members else {}


def _many(item: Any) -> list[Any]:
    """As many entries as there is room for, all different."""
    if item is str:
        return [f"a/{number:06}" for number in range(BYTES // 12)]
    texts = [field.encode_name for field in msgspec.structs.fields(item) if str in _members(field.type)][:1]
    if not texts:
        entry: dict[str, Any] = {"persistentVolumeClaim": {"claimName": "x"}}
        return [entry] * (BYTES // 48)
    return [{texts[0]: f"{number:06}", **_claim(item, number)} for number in range(BYTES // 60)]


def _long(item: Any) -> list[Any]:
    """A few entries with long texts."""
    text = "x" * (BYTES // 12)
    if item is str:
        return [text] * 10
    texts = [field.encode_name for field in msgspec.structs.fields(item) if str in _members(field.type)]
    return [dict.fromkeys(texts, text[: len(text) // max(len(texts), 1)])] * 10


def _claim(item: Any, number: int) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": f"c{number:06}"}} if item is wire.Volume else {}


RAW: Final[dict[str, Any]] = {
    "labels": lambda: [{f"l{number:06}": "" for number in range(BYTES // 13)}],
    "ownerReferences": lambda: [[{"kind": "x", "name": f"{number:06}", "uid": "u"} for number in range(BYTES // 50)]],
    "tolerations": lambda: [[{"key": f"{number:06}"} for number in range(BYTES // 18)]],
    "selector": lambda: (
        [{"matchLabels": {f"l{number:06}": "" for number in range(count // 13)}} for count in (BYTES, 200_000)]
        + [
            {"matchExpressions": [{"key": "a", "operator": operator, "values": [f"{n:06}" for n in range(count // 9)]}]}
            for count in (BYTES, 200_000, 60_000)
            for operator in ("In", "NotIn")
        ]
        + [
            {"matchExpressions": [{"key": f"a{n}", "operator": "Exists"} for n in range(count // 33)]}
            for count in (BYTES, 200_000)
        ]
    ),
}
"""Parts that are read by themselves."""
RAW["nodeSelector"] = RAW["selector"]


# Terminating nodes, as caches show them, and scenes of them as commands show them.

TAINTED = (Taint(names.DISRUPTED_TAINT_KEY, "", "NoSchedule"),)
KEPT = Condition(names.DRAINED, "True", "Maintenance", "all pods are gone")
DRAINED = Condition(names.DRAINED, "True", "Drained", "all pods are gone")

NEVER_ALLOWS: dict[str, Any] = {"disruptions_allowed": 0, "desired_healthy": 3, "max_unavailable": 0}
"""A budget that requires all of its pods."""


def going(name: str = "n1", *, since: float = 100.0, **fields: Any) -> Node:
    """A cordoned node that was deleted so many seconds ago."""
    defaults: dict[str, Any] = {
        "deletion_timestamp": NOW - since,
        "finalizers": (names.FINALIZER,),
        "taints": TAINTED,
        "conditions": READY,
    }
    return a_node(name, **{**defaults, **fields})


def kept(name: str = "n1", *, since: float = 100.0, **fields: Any) -> Node:
    """A cordoned node whose maintenance was requested so many seconds ago."""
    annotations = {names.KEEP_DRAINED: format_time(NOW - since), names.CORDONED: "taint,unschedulable"}
    defaults: dict[str, Any] = {"annotations": annotations, "unschedulable": True, "deletion_timestamp": None}
    return going(name, **{**defaults, **fields})


def pending(name: str = "n1") -> Node:
    """A node that is due for its label, and has waited for its turn for 100 seconds."""
    waits = Condition(names.TERMINATION_PENDING, "True", "Pace", "waits for its turn", last_transition=NOW - 100)
    return a_node(name, conditions=(*READY, waits), finalizers=(names.FINALIZER,))


def cluster(*nodes: Node, pods: tuple[Pod, ...] = (), **caches: Any) -> ClusterCache:
    seen = empty_cluster_cache()
    seen.nodes.replace(nodes)
    seen.pods.replace(pods)
    for cache, things in caches.items():
        getattr(seen, cache).replace(things)
    return seen


def replica(name: str = "web-1", **fields: Any) -> Pod:
    return a_pod(name, **{"owners": owned_by("ReplicaSet"), **fields})


def a_scene(seen: ClusterCache, *, at: float = NOW, asked: tuple[str, ...] | None = None, **more: Any) -> StatusFrame:
    """Of all nodes, or those `asked` for; `more` goes to the scene."""
    settings = TerminationSettings()
    wanted = {node.name for node in seen.nodes.values()} if asked is None else set(asked)
    forecast = forecast_of(draining_nodes(seen, settings, at), at, Assumptions())
    due = due_nodes(seen, settings, due_candidates(seen, settings, at), at)
    statuses = with_pending(seen, settings, node_statuses(seen, settings, wanted, at), due, at)
    statuses = with_forecasts(statuses, forecast)
    return StatusFrame(
        at=at,
        nodes=statuses,
        progress=ProgressTracker().update(statuses, (), seen.budgets.get, at),
        claims=claims_without_node_status(seen, settings, at),
        **more,
    )


def several() -> StatusFrame:
    """One of each kind: queued, protected, under a deadline, in maintenance, returned, left alone, unmanaged."""
    spent = a_budget(disruptions_allowed=0, current_healthy=2)
    deadline = {names.TERMINATION_TIMESTAMP: format_time(NOW + 600)}
    nodes = [
        going("ip-10-0-1-17.eu-central-1.compute.internal", annotations=deadline),
        going("worker-2", since=5000),
        kept("worker-3", since=90_000),
        kept("worker-4", conditions=(Condition(names.DRAINED, "True", "Maintenance", "all pods are gone"),)),
        kept("worker-5", unschedulable=False),
        a_node("worker-6", conditions=READY),
        going("worker-7", taints=()),
        going("control-1", labels={names.CONTROL_PLANE_ROLE: ""}),
    ]
    pods = [
        replica("web-7d4b9c6f5-2zltl", node_name=nodes[0].name),
        replica("web-7d4b9c6f5-5qtvx", node_name="worker-2"),
        replica("quick", node_name="worker-2", labels={"app": "quick"}, deletion_timestamp=NOW + 20),
        replica("late", node_name="worker-2", labels={"app": "late"}, deletion_timestamp=NOW - 9),
        replica("notebook", node_name="worker-3", labels={}, annotations={names.DO_NOT_DISRUPT: "4h"}),
        replica("dns", node_name="worker-3", labels={}, priority=2_000_000_000),
    ]
    return a_scene(cluster(*nodes, pods=tuple(pods), budgets=(spent,)))


def documented() -> StatusFrame:
    """The example of docs/status.md."""
    deadline = {names.TERMINATION_TIMESTAMP: format_time(NOW + 597)}
    nodes = (
        going("worker-1", since=303),
        going("worker-2", since=12, annotations=deadline),
        kept(
            "worker-3", since=7200, conditions=(Condition(names.DRAINED, "True", "Maintenance", "all pods are gone"),)
        ),
        going("worker-4", since=40, taints=()),
    )
    pods = (
        replica("web-7664t", node_name="worker-1"),
        replica("train-0", node_name="worker-1", labels={}, annotations={names.DO_NOT_DISRUPT: "4h"}),
        replica("dns-hhcmw", node_name="worker-1", labels={}, priority=2_000_000_000),
        replica("web-sgxqm", node_name="worker-2"),
        replica("legacy-0", node_name="worker-2", labels={}, deletion_timestamp=NOW + 18, deletion_grace_seconds=30),
    )
    spent = Condition(names.DISRUPTION_ALLOWED, "False", "InsufficientPods", "", NOW - 124)
    budget = a_budget(disruptions_allowed=0, current_healthy=2, verdict=spent)
    return a_scene(cluster(*nodes, pods=pods, budgets=(budget,)))


def crowd() -> StatusFrame:
    """One node with sixty pods, most of them under a budget that allows nothing."""
    pods = tuple(replica(f"web-{n:02}", labels={"app": "web"} if n % 3 else {"app": "free"}) for n in range(60))
    return a_scene(cluster(going(), pods=pods, budgets=(a_budget(**NEVER_ALLOWS),)))


def many() -> StatusFrame:
    """Forty terminating nodes, blocked by twenty budgets and a few protections; the drain of one has not begun."""
    nodes = [going(f"worker-{n:02}", since=60 + n, taints=() if n == 7 else TAINTED) for n in range(40)]
    pods = [
        replica(f"api-{n}-{p}", node_name=f"worker-{n:02}", labels={"app": f"api-{(n + p) % 20}"})
        for n in range(40)
        for p in range(3)
    ]
    pods += [
        replica(f"job-{n}", node_name=f"worker-{n:02}", labels={}, annotations={names.DO_NOT_DISRUPT: "true"})
        for n in range(0, 40, 8)
    ]
    budgets = [
        a_budget(
            f"api-{n}",
            selector=LabelSelector({"app": f"api-{n}"}),
            disruptions_allowed=0,
            desired_healthy=3,
            max_unavailable=0,
        )
        for n in range(20)
    ]
    return a_scene(cluster(*nodes, pods=tuple(pods), budgets=tuple(budgets)))


def nothing() -> StatusFrame:
    """No drain or termination is requested."""
    return a_scene(cluster())


def claims_and_gone() -> StatusFrame:
    """A node that is gone, and a claim that is terminated without one."""
    claim = NodeClaim(
        "pending-7",
        "p",
        deletion_timestamp=NOW - 50,
        finalizers=(names.FINALIZER,),
        termination_grace_period="15m",
        conditions=(Condition(names.INSTANCE_TERMINATING, "False", "ProviderFailed", "provider aws: no quota"),),
    )
    gone = (TerminatedNode("worker-1", "u1", 303.0), TerminatedNode("worker-9", "u9", None))
    return a_scene(cluster(claims=(claim,)), terminated=gone)


def interrupted() -> StatusFrame:
    """The connection is lost."""
    lost = ConnectionLoss(NOW - 75, "watch pods: the server cannot be reached (Connection refused)")
    return a_scene(cluster(going(), pods=(replica(),)), connection_loss=lost)


SCENES: dict[str, Callable[[], StatusFrame]] = {
    each.__name__: each for each in (several, documented, crowd, many, nothing, claims_and_gone, interrupted)
}
