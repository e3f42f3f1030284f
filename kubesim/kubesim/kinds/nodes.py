"""Nodes: defaults, zero values, taints, providerID (recordings writes-create, writes-patch, nodes-cordon)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubesim.kinds.conditions import filled_conditions
from kubesim.server.api import Json, JsonObject
from kubesim.server.metadata import validate
from kubesim.server.names import NAME_RULE, is_name
from kubesim.server.resource import Occasion, Strategy
from kubesim.server.status import (
    DUPLICATE,
    Cause,
    forbidden_value,
    invalid_value,
    not_supported,
    required,
)

EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
NOT_READY: Final = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
NODE_INFO: Final = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)


class NodeStrategy(Strategy):
    """Nodes. Their validation runs over metadata and taints twice on updates, and so repeats its causes."""

    empty: Mapping[str, Json] = {
        "spec": {},
        "status": {
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
            "nodeInfo": dict.fromkeys(NODE_INFO, ""),
        },
    }

    def __init__(self, *, new_are_tainted: bool = False) -> None:
        """`new_are_tainted`: taint new nodes until they are Ready (admission plugin TaintNodesByCondition; recordings
        lack it)."""
        self._new_are_tainted = new_are_tainted

    def prepare_create(self, new: JsonObject, occasion: Occasion) -> JsonObject:
        spec = new.get("spec") or {}
        if self._new_are_tainted:
            others = [taint for taint in spec.get("taints") or () if taint.get("key") != NOT_READY["key"]]
            spec = {**spec, "taints": [*others, NOT_READY]}
        return {**new, "spec": spec, "status": new.get("status") or {}}

    def validate(self, new: JsonObject) -> list[Cause]:
        return taint_faults(new["spec"].get("taints") or [])

    def validate_update(self, new: JsonObject, old: JsonObject) -> list[Cause]:
        causes = validate(new["metadata"])
        causes += taint_faults(new["spec"].get("taints") or [])
        before = old["spec"].get("providerID")
        if before and new["spec"].get("providerID") != before:
            why = 'node updates may not change providerID except from "" to valid'
            causes.append(forbidden_value("spec.providerID", why))
        return causes

    def normalise(self, new: JsonObject) -> JsonObject:
        spec = {key: value for key, value in (new.get("spec") or {}).items() if value}
        status: JsonObject = {**self.empty["status"], **(new.get("status") or {})}
        status["nodeInfo"] = {**self.empty["status"]["nodeInfo"], **(status["nodeInfo"] or {})}
        return filled_conditions({**new, "spec": spec, "status": status}, ("lastHeartbeatTime", "lastTransitionTime"))


def taint_faults(taints: list[JsonObject]) -> list[Cause]:
    """What is wrong with a node's taints. (The real server, too, calls the field metadata.taints.)"""
    causes: list[Cause] = []
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(taints):
        field = f"metadata.taints[{index}]"
        key, effect = taint.get("key", ""), taint.get("effect", "")
        if not key:
            causes.append(invalid_value(f"{field}.key", key, "name part must be non-empty"))
        if not is_name(key):
            causes.append(invalid_value(f"{field}.key", key, NAME_RULE))
        if not effect:
            causes.append(required(f"{field}.effect"))
        elif effect not in EFFECTS:
            causes.append(not_supported(f"{field}.effect", f'"{effect}"', EFFECTS))
        elif (key, effect) in seen:
            shown = f'core.Taint{{Key:"{key}", Value:"{taint.get("value", "")}", Effect:"{effect}", TimeAdded:<nil>}}'
            why = f"Duplicate value: {shown}: taints must be unique by key and effect pair"
            causes.append(Cause(DUPLICATE, why, field))
        seen.add((key, effect))
    return causes
