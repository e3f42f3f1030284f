"""Pods: defaults, immutable fields, grace of a DELETE (recordings writes-create, pod-deletion).

Includes the defaults of the priority and default-tolerations admission.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubesim.kinds.conditions import filled_conditions
from kubesim.kinds.podspec import with_spec_defaults
from kubesim.kinds.podvalidation import spec_faults
from kubesim.server.api import Json, JsonObject
from kubesim.server.resource import Occasion, Strategy, keep_from
from kubesim.server.status import Cause, Kind, forbidden, forbidden_value
from kubesim.server.store import Table

SYSTEM_PRIORITIES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
DEFAULT_TOLERATIONS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
CHANGEABLE: Final = (
    "activeDeadlineSeconds",
    "tolerations",
    "terminationGracePeriodSeconds",
    "schedulingGates",
)
ENDED: Final = ("Succeeded", "Failed")
WORDS: Final = Kind("", "pods", "Pod")


class PodStrategy(Strategy):
    """Pods end gracefully and answer a DELETE with themselves."""

    counts_generations = True
    """Since Kubernetes 1.33: 1 at creation, one more for a change of the spec and for a graceful deletion."""

    answers_with_object = True
    empty: Mapping[str, Json] = {"spec": {"containers": None}, "status": {}}

    def __init__(self, priority_classes: Table) -> None:
        self._priority_classes = priority_classes

    def prepare_create(self, new: JsonObject, occasion: Occasion) -> JsonObject:
        given: JsonObject = new.get("spec") or {}
        spec = with_spec_defaults(given)
        if spec["terminationGracePeriodSeconds"] < 0:
            spec["terminationGracePeriodSeconds"] = 1
        spec["tolerations"] = tolerations(given.get("tolerations") or [])
        self._set_priority(new["metadata"].get("name", ""), spec)
        spec.setdefault("enableServiceLinks", True)
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
        return {**new, "spec": spec, "status": {"phase": "Pending", "qosClass": quality(spec["containers"])}}

    def _set_priority(self, name: str, spec: JsonObject) -> None:
        wanted = spec.get("priorityClassName")
        if not wanted:
            spec["priority"] = self._default_priority(spec)
        elif wanted in SYSTEM_PRIORITIES:
            spec["priority"] = SYSTEM_PRIORITIES[wanted]
        else:
            found = self._priority_classes.get("", wanted)
            if found is None:
                raise forbidden(WORDS, name, f"no PriorityClass with name {wanted} was found")
            spec["priority"] = found.get("value", 0)

    def _default_priority(self, spec: JsonObject) -> int:
        for found in self._priority_classes:
            if found.get("globalDefault"):
                spec["priorityClassName"] = found["metadata"]["name"]
                value: int = found.get("value", 0)
                return value
        return 0

    def validate(self, new: JsonObject) -> list[Cause]:
        return list(spec_faults(new.get("spec") or {}))

    def prepare_update(self, new: JsonObject, old: JsonObject, occasion: Occasion) -> JsonObject:
        if occasion.subresource != "status":
            return keep_from(new, old, ("status",))
        status = {**(new.get("status") or {}), "qosClass": old["status"].get("qosClass")}
        return {**keep_from(new, old, ("spec",)), "status": status}

    def faults_of_change(self, new: JsonObject, old: JsonObject, occasion: Occasion) -> list[Cause]:
        # Most changes of pods are of their status, and frequent.
        return [] if new["spec"] is old["spec"] else super().faults_of_change(new, old, occasion)

    def validate_update(self, new: JsonObject, old: JsonObject) -> list[Cause]:
        before, after = old["spec"], new.get("spec") or {}
        if before is after or changeless(before) == changeless(after):
            return []
        why = (
            "pod updates may not change fields other than `spec.containers[*].image`, `spec.initContainers[*].image`, "
            "`spec.activeDeadlineSeconds`, `spec.tolerations` (only additions to existing tolerations) or "
            "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
        )
        return [forbidden_value("spec", why)]

    def normalise(self, new: JsonObject) -> JsonObject:
        return filled_conditions(new, ("lastProbeTime", "lastTransitionTime"))

    def graceful_period(self, old: JsonObject, asked: int | None) -> int | None:
        spec = old["spec"]
        if not spec.get("nodeName") or old["status"].get("phase") in ENDED:
            return 0
        period: int = asked if asked is not None else spec.get("terminationGracePeriodSeconds", 0)
        return 1 if period < 0 else period


def tolerations(given: list[JsonObject]) -> list[JsonObject]:
    """The tolerations with the 300 s for nodes that are not ready or unreachable, unless they say otherwise."""
    added = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in DEFAULT_TOLERATIONS
        if not any(
            toleration.get("key", key) == key and toleration.get("effect") in (None, "", "NoExecute")
            for toleration in given
        )
    ]
    return [*given, *added]


def quality(containers: list[JsonObject]) -> str:
    """The pod's quality of service class."""
    resources = [container.get("resources") or {} for container in containers]
    if not any(each.get("requests") or each.get("limits") for each in resources):
        return "BestEffort"
    for each in resources:
        limits = each.get("limits") or {}
        requests = each.get("requests") or limits
        if any(not limits.get(name) or requests.get(name, limits[name]) != limits[name] for name in ("cpu", "memory")):
            return "Burstable"
    return "Guaranteed"


def changeless(spec: JsonObject) -> JsonObject:
    """The part of a spec that an update may not change."""
    kept = {key: value for key, value in spec.items() if key not in CHANGEABLE}
    for field in ("containers", "initContainers"):
        if field in kept:
            kept[field] = [{**container, "image": ""} for container in kept[field] or ()]
    return kept
