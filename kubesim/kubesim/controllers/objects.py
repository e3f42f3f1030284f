"""Pure questions about objects, asked the way the real controllers ask them."""

from __future__ import annotations

from collections.abc import Mapping

from kubesim.server.api import JsonObject

Key = tuple[str, str]
"""(namespace, name); the namespace of a cluster-scoped object is empty."""


def key_of(object_: JsonObject) -> Key:
    """The key of an object."""
    metadata = object_["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def labels_of(object_: JsonObject) -> Mapping[str, str]:
    """Its labels."""
    labels: Mapping[str, str] = object_["metadata"].get("labels") or {}
    return labels


def label_keys(pod: JsonObject) -> list[str]:
    """Under what a pod is found by namespace and one label (`<namespace>/<key>=<value>`), or by namespace alone."""
    namespace = pod["metadata"]["namespace"]
    return [f"{namespace}/", *(f"{namespace}/{key}={value}" for key, value in labels_of(pod).items())]


def annotations_of(object_: JsonObject) -> Mapping[str, str]:
    """Its annotations."""
    annotations: Mapping[str, str] = object_["metadata"].get("annotations") or {}
    return annotations


def controller_of(object_: JsonObject) -> JsonObject | None:
    """The owner reference that says `controller: true`."""
    for owner in object_["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            reference: JsonObject = owner
            return reference
    return None


def controller_uid(object_: JsonObject) -> str:
    """The uid of its controller, or ""."""
    owner = controller_of(object_)
    return owner["uid"] if owner else ""


def owner_reference(api_version: str, kind: str, owner: JsonObject) -> JsonObject:
    """The reference that a controller puts on what it creates."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_terminating(object_: JsonObject) -> bool:
    """Has its deletion begun?"""
    return "deletionTimestamp" in object_["metadata"]


def phase_of(pod: JsonObject) -> str:
    """Its phase; a pod without status is Pending."""
    phase: str = (pod.get("status") or {}).get("phase", "Pending")
    return phase


def is_finished(pod: JsonObject) -> bool:
    """Will its containers never run again?"""
    return phase_of(pod) in ("Succeeded", "Failed")


def is_active(pod: JsonObject) -> bool:
    """Does it count as a replica? (kube-controller-manager's IsPodActive.)"""
    return not is_finished(pod) and not is_terminating(pod)


def condition_of(object_: JsonObject, type_: str) -> JsonObject | None:
    """The condition of that type."""
    for condition in (object_.get("status") or {}).get("conditions") or ():
        if condition["type"] == type_:
            found: JsonObject = condition
            return found
    return None


def is_ready(object_: JsonObject) -> bool:
    """Is the condition Ready of a pod or node "True"?"""
    ready = condition_of(object_, "Ready")
    return ready is not None and ready["status"] == "True"


def node_of(pod: JsonObject) -> str:
    """The node that it is bound to, or ""."""
    name: str = pod["spec"].get("nodeName") or ""
    return name


def is_mirror(pod: JsonObject) -> bool:
    """Is it the shadow of a static pod?"""
    return "kubernetes.io/config.mirror" in annotations_of(pod)


def is_tolerated(taint: JsonObject, tolerations: list[JsonObject]) -> bool:
    """Whether one of the tolerations covers the taint. No key covers every key, no effect every effect."""
    for toleration in tolerations:
        if toleration.get("effect") not in (None, "", taint["effect"]):
            continue
        if toleration.get("key") not in (None, "", taint["key"]):
            continue
        operator = toleration.get("operator") or "Equal"
        if operator == "Exists" or (operator == "Equal" and toleration.get("value", "") == taint.get("value", "")):
            return True
    return False


def untolerated(node: JsonObject, tolerations: list[JsonObject], *effects: str) -> JsonObject | None:
    """First taint of a node with one of these effects that the pod does not tolerate."""
    for taint in node["spec"].get("taints") or ():
        if taint["effect"] in effects and not is_tolerated(taint, tolerations):
            found: JsonObject = taint
            return found
    return None
