"""Whether a pod fits a node by what both say of themselves: taints, labels, node affinity. Pure, and words for why not.

What depends on other pods is in `neighbours`.
"""

from __future__ import annotations

from typing import Final

import orjson

from kubesim.controllers.objects import condition_of, is_tolerated, labels_of, untolerated
from kubesim.controllers.quantities import quantity
from kubesim.server.api import JsonObject

DEFAULT_ROOM: Final = 110
SELECTOR: Final = "node(s) didn't match Pod's node affinity/selector"


def refusal(pod: JsonObject, node: JsonObject) -> str:
    """Why the pod may not go to this node, room and neighbours aside, in the scheduler's words; "" if it may."""
    spec = pod["spec"]
    tolerations = spec.get("tolerations") or []
    if node["spec"].get("unschedulable"):
        cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        if not is_tolerated(cordon, tolerations):
            return "node(s) were unschedulable"
    taint = untolerated(node, tolerations, "NoSchedule", "NoExecute")
    if taint is not None:
        return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    ready = condition_of(node, "Ready")
    if ready is not None and ready["status"] != "True":
        return "node(s) were not ready"
    return "" if selects_node(spec, node) else SELECTOR


def fits(pod: JsonObject, node: JsonObject) -> bool:
    """May the pod go to this node, room and neighbours aside?"""
    return not refusal(pod, node)


def selects_node(spec: JsonObject, node: JsonObject) -> bool:
    """Do the nodeSelector and the required node affinity of a pod's spec take the node?"""
    labels = labels_of(node)
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = _node_affinity(spec).get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or any(_matches(term, node) for term in required.get("nodeSelectorTerms") or ())


def preference(pod: JsonObject, node: JsonObject) -> int:
    """How much the pod would like this node: weights of preferred node affinity, less untolerated PreferNoSchedule."""
    liked = 0
    for term in _node_affinity(pod["spec"]).get("preferredDuringSchedulingIgnoredDuringExecution") or ():
        if _matches(term.get("preference") or {}, node):
            liked += term.get("weight", 1)
    tolerations = pod["spec"].get("tolerations") or []
    for taint in node["spec"].get("taints") or ():
        if taint["effect"] == "PreferNoSchedule" and not is_tolerated(taint, tolerations):
            liked -= 100
    return liked


def wish_of(pod: JsonObject) -> bytes:
    """What of a pod decides `refusal` and `preference`: pods with equal wishes fit the same nodes."""
    spec = pod["spec"]
    wish = (spec.get("nodeSelector"), spec.get("tolerations"), _node_affinity(spec))
    return orjson.dumps(wish, option=orjson.OPT_SORT_KEYS)


def room_of(node: JsonObject) -> int:
    """How many pods the node takes."""
    status = node.get("status") or {}
    # A server writes 1000 as "1k".
    return int(quantity((status.get("allocatable") or status.get("capacity") or {}).get("pods", DEFAULT_ROOM)))


def offer_of(node: JsonObject) -> tuple[object, ...]:
    """What of a node decides whether pods fit."""
    ready = condition_of(node, "Ready")
    spec, status = node["spec"], node.get("status") or {}
    return (
        spec.get("unschedulable"),
        spec.get("taints"),
        labels_of(node),
        ready and ready["status"],
        status.get("allocatable") or status.get("capacity"),
    )


def _node_affinity(spec: JsonObject) -> JsonObject:
    found: JsonObject = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return found


def _matches(term: JsonObject, node: JsonObject) -> bool:
    """A term without any requirement takes nothing."""
    requirements = [(labels_of(node), each) for each in term.get("matchExpressions") or ()]
    requirements += [({"metadata.name": node["metadata"]["name"]}, each) for each in term.get("matchFields") or ()]
    return bool(requirements) and all(_meets(dict(labels), each) for labels, each in requirements)


def _meets(labels: dict[str, str], requirement: JsonObject) -> bool:
    value, values = labels.get(requirement["key"]), requirement.get("values") or ()
    match requirement["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    if value is None or not values or not (_is_number(value) and _is_number(values[0])):
        return False
    return int(value) > int(values[0]) if requirement["operator"] == "Gt" else int(value) < int(values[0])


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdigit()
