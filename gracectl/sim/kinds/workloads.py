"""Budgets, workloads, volumes, leases and namespaces: their defaults and what is special about them.

Controllers that act on these kinds live in `world`; here is only what the API server itself does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gracectl.sim.kinds.conditions import filled_conditions
from gracectl.sim.server.api import Json, JsonObject
from gracectl.sim.server.resource import Occasion, Strategy
from gracectl.sim.server.status import INVALID, Cause, invalid_value, required

BUDGET_STATUS: Final[Mapping[str, Json]] = {
    "disruptionsAllowed": 0,
    "currentHealthy": 0,
    "desiredHealthy": 0,
    "expectedPods": 0,
}
NO_INLINE: Final = "(*core.PersistentVolumeSpec)(nil)"
OWNERS: Final = {"metadata.ownerReferences": "uid"}
CONDITIONS: Final = {"status.conditions": "type", **OWNERS}


class Plain(Strategy):
    """A kind with a spec that is never missing."""

    merge_keys: Mapping[str, str] = CONDITIONS

    def __init__(self, status: Mapping[str, Json] | None = None, **spec_defaults: Json) -> None:
        """`status`: what a new object starts with; `spec_defaults`: what the spec gets where it says nothing."""
        self._status = status
        self._spec_defaults = spec_defaults

    def prepare_create(self, new: JsonObject, occasion: Occasion) -> JsonObject:
        new = {**new, "spec": {**self._spec_defaults, **(new.get("spec") or {})}}
        new.pop("status", None)
        if self._status is not None:
            new["status"] = dict(self._status)
        return new


class Counted(Plain):
    """A kind whose generations the server counts."""

    counts_generations = True


class Budget(Counted):
    """PodDisruptionBudgets start with zeros and no observedGeneration: evictions wait for the controller."""

    unconditional_update = False
    empty: Mapping[str, Json] = {"spec": {}, "status": BUDGET_STATUS}

    def __init__(self) -> None:
        super().__init__(BUDGET_STATUS)

    def normalise(self, new: JsonObject) -> JsonObject:
        status = {key: value for key, value in (new.get("status") or {}).items() if value != {}}
        return filled_conditions({**new, "status": {**BUDGET_STATUS, **status}}, ("lastTransitionTime",))


class LeaseStrategy(Strategy):
    """Leases may be created by PUT. The server never looks at their expiry."""

    created_by_put = True
    unconditional_update = False
    types: Mapping[str, str] = {
        "spec.holderIdentity": "string",
        "spec.leaseDurationSeconds": "int32",
        "spec.acquireTime": "MicroTime",
        "spec.renewTime": "MicroTime",
        "spec.leaseTransitions": "int32",
        "spec.strategy": "string",
        "spec.preferredHolder": "string",
    }

    def normalise(self, new: JsonObject) -> JsonObject:
        spec = new.get("spec") or {}
        return {**new, "spec": {key: value for key, value in spec.items() if f"spec.{key}" in self.types}}

    def validate(self, new: JsonObject) -> list[Cause]:
        causes: list[Cause] = []
        duration = new["spec"].get("leaseDurationSeconds")
        if isinstance(duration, int) and duration <= 0:
            causes.append(invalid_value("spec.leaseDurationSeconds", duration, "must be greater than 0"))
        transitions = new["spec"].get("leaseTransitions")
        if isinstance(transitions, int) and transitions < 0:
            causes.append(invalid_value("spec.leaseTransitions", transitions, "must be greater than or equal to 0"))
        return causes


class Attachment(Plain):
    """VolumeAttachments: an immutable spec, status by its subresource only; DELETE answers with the object."""

    unconditional_update = False
    answers_with_object = True

    def __init__(self) -> None:
        super().__init__({"attached": False})

    def validate_update(self, new: JsonObject, old: JsonObject) -> list[Cause]:
        if new.get("spec") == old.get("spec"):
            return []
        spec = new.get("spec") or {}
        volume = (
            "(*string)(0xc000a1b2c3)" if (spec.get("source") or {}).get("persistentVolumeName") else "(*string)(nil)"
        )
        source = f"storage.VolumeAttachmentSource{{PersistentVolumeName:{volume}, InlineVolumeSpec:{NO_INLINE}}}"
        shown = f'Attacher:"{spec.get("attacher", "")}", Source:{source}, NodeName:"{spec.get("nodeName", "")}"'
        why = f"Invalid value: storage.VolumeAttachmentSpec{{{shown}}}: field is immutable"
        return [Cause(INVALID, why, "spec")]

    def validate(self, new: JsonObject) -> list[Cause]:
        source = new["spec"].get("source") or {}
        if bool(source.get("persistentVolumeName")) != bool(source.get("inlineVolumeSpec")):
            return []
        return [required("spec.source", "must specify exactly one of inlineVolumeSpec and persistentVolumeName")]


class Protected(Plain):
    """Volumes and claims: a finalizer of their own from the first moment."""

    answers_with_object = True

    def __init__(self, finalizer: str, **spec_defaults: Json) -> None:
        super().__init__({"phase": "Pending"}, **spec_defaults)
        self._finalizer = finalizer

    def prepare_create(self, new: JsonObject, occasion: Occasion) -> JsonObject:
        new = super().prepare_create(new, occasion)
        finalizers = new["metadata"].get("finalizers") or []
        if self._finalizer in finalizers:
            return new
        return {**new, "metadata": {**new["metadata"], "finalizers": [*finalizers, self._finalizer]}}


class NamespaceStrategy(Strategy):
    """Namespaces wait for the namespace controller to empty them."""

    answers_with_object = True
    empty: Mapping[str, Json] = {"spec": {}, "status": {}}

    def prepare_create(self, new: JsonObject, occasion: Occasion) -> JsonObject:
        metadata = new["metadata"]
        labels = {**metadata.get("labels", {}), "kubernetes.io/metadata.name": metadata.get("name", "")}
        return {
            **new,
            "metadata": {**metadata, "labels": labels},
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        }

    def prepare_update(self, new: JsonObject, old: JsonObject, occasion: Occasion) -> JsonObject:
        status = new.get("status") if occasion.subresource == "status" else old.get("status")
        spec = new.get("spec") if occasion.subresource == "finalize" else old.get("spec")
        return {**new, "spec": spec or {}, "status": status or {}}


class TopLevel(Strategy):
    """Kinds without spec and status: every field may be written (ConfigMap, Secret, StorageClass, PriorityClass)."""

    empty: Mapping[str, Json] = {}
    merge_keys: Mapping[str, str] = OWNERS

    def prepare_update(self, new: JsonObject, old: JsonObject, occasion: Occasion) -> JsonObject:
        return new


class EventStrategy(TopLevel):
    """Core events: everything at the top level, a few zero fields always shown (recording events)."""

    _zeros: Final[Mapping[str, Callable[[], Json]]] = {
        "involvedObject": dict,
        "source": dict,
        "firstTimestamp": lambda: None,
        "lastTimestamp": lambda: None,
        "eventTime": lambda: None,
        "reportingComponent": str,
        "reportingInstance": str,
    }

    def normalise(self, new: JsonObject) -> JsonObject:
        missing = {key: zero() for key, zero in self._zeros.items() if key not in new}
        return {**new, **missing} if missing else new

    def validate(self, new: JsonObject) -> list[Cause]:
        namespace = new["metadata"].get("namespace", "")
        about = (new.get("involvedObject") or {}).get("namespace", "")
        if about == namespace or (not about and namespace == "default"):
            return []
        return [invalid_value("involvedObject.namespace", about, "does not match event.namespace")]
