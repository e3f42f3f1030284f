"""What the stories put into a cluster. Every function gives a plain manifest; `run` marks and places it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict, Unpack

from kubesim.controllers.behaviour import PREFIX
from kubesim.controllers.nodeclaims import NODE_CLASS
from kubesim.server.api import JsonObject

from e2e_support.names import LABEL

GRACE_SECONDS = 6
"""Enough for a hollow pod, whose stop takes a fraction of a second; longer than any story may wait for one."""


class PodExtra(TypedDict, total=False):
    """Options of a story's pods. `behaviour`: of the hollow kubelet (`stop-seconds`, …)."""

    annotations: Mapping[str, str]
    behaviour: Mapping[str, str]
    tolerations: tuple[JsonObject, ...]
    spec: Mapping[str, object]


def node(name: str, run: str, *, managed: bool = True) -> JsonObject:
    """A node without a machine; `managed`: whether it has the label that the controller selects."""
    room = {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "100Gi", "pods": "110"}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", LABEL: run}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**labels, f"{LABEL}-managed": str(managed).lower()}},
        "spec": {"taints": [{"key": LABEL, "value": run, "effect": "NoSchedule"}]},
        "status": {"capacity": room, "allocatable": room},
    }


def claim(name: str, run: str, **spec: object) -> JsonObject:
    """A node claim that the controller under test manages."""
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": name, "labels": {LABEL: run, f"{LABEL}-managed": "true"}},
        "spec": {"nodeClassRef": dict(NODE_CLASS), "requirements": [], **spec},
    }


def pod(
    name: str, run: str, *, on: str = "", labels: Mapping[str, str] | None = None, **extra: Unpack[PodExtra]
) -> JsonObject:
    """A pod, bound to the node `on` at once if that is given."""
    whole = template(run, labels or {"app": name}, **extra)
    whole["metadata"]["name"] = name
    if on:
        whole["spec"]["nodeName"] = on
    return {"apiVersion": "v1", "kind": "Pod", **whole}


def template(run: str, labels: Mapping[str, str], **extra: Unpack[PodExtra]) -> JsonObject:
    """The metadata and spec of pods that run at once and stop fast."""
    pace = {"start-seconds": "0.05", "ready-seconds": "0.05", "stop-seconds": "0.2", "jitter": "0"} | dict(
        extra.get("behaviour", {})
    )
    return {
        "metadata": {
            "labels": dict(labels),
            "annotations": {**{PREFIX + key: value for key, value in pace.items()}, **extra.get("annotations", {})},
        },
        "spec": {
            "nodeSelector": {LABEL: run},
            "tolerations": [
                {"key": LABEL, "operator": "Exists", "effect": "NoSchedule"},
                *extra.get("tolerations", ()),
            ],
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "containers": [{"name": "main", "image": "registry.invalid/hollow:1"}],
            **extra.get("spec", {}),
        },
    }


def workload(kind: str, name: str, run: str, *, replicas: int | None = None, **extra: Unpack[PodExtra]) -> JsonObject:
    """A Deployment, StatefulSet or DaemonSet (no replicas) of pods labeled `app: name`."""
    labels = {"app": name}
    spec: JsonObject = {"selector": {"matchLabels": labels}, "template": template(run, labels, **extra)}
    if replicas is not None:
        spec["replicas"] = replicas
    if kind == "StatefulSet":
        spec["serviceName"] = name
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def budget(name: str, app: str, **bound: int | str) -> JsonObject:
    """A PodDisruptionBudget over the pods `app: <app>`; `bound`: maxUnavailable or minAvailable."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {**bound, "selector": {"matchLabels": {"app": app}}},
    }


def mirror(name: str, node: JsonObject, run: str) -> JsonObject:
    """What a kubelet shows of a static pod."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
    whole = pod(name, run, on=node["metadata"]["name"], tolerations=({"operator": "Exists", "effect": "NoExecute"},))
    whole["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "0f1e2d3c"
    whole["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    return whole
