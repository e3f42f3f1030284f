"""Budgets, workloads, volumes, leases and namespaces: their defaults and what is special about them.

Controllers that act on these kinds live in `controllers`; here is only what the API server itself does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from kubesim.kinds.conditions import filled_conditions
from kubesim.kinds.eventttl import Expiry
from kubesim.kinds.podspec import with_template_defaults
from kubesim.kinds.templatevalidation import immutable_selector, template_faults
from kubesim.server.api import Json, JsonObject
from kubesim.server.resource import Occasion, Strategy
from kubesim.server.selectors import label_selector_faults
from kubesim.server.status import INVALID, Cause, forbidden_value, invalid_value, not_supported, required

BUDGET_STATUS: Final[Mapping[str, Json]] = {
    "disruptionsAllowed": 0,
    "currentHealthy": 0,
    "desiredHealthy": 0,
    "expectedPods": 0,
}
EVICTION_POLICIES: Final = ("AlwaysAllow", "IfHealthyBudget")
PERCENT: Final = re.compile(r"[0-9]+%\Z")
PERCENT_RULE: Final = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for "
    "validation is '[0-9]+%')"
)
BOTH_BOUNDS: Final = (
    "policy.PodDisruptionBudgetSpec{MinAvailable:(*intstr.IntOrString)(0xc000a1b2c0), "
    "Selector:(*v1.LabelSelector)(0xc000a1b2c3), MaxUnavailable:(*intstr.IntOrString)(0xc000a1b2d0)}: "
    "minAvailable and maxUnavailable cannot be both set"
)
NOTHING: Final[JsonObject] = {
    "matchExpressions": [{"key": "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match", "operator": "Exists"}]
}
NO_INLINE: Final = "(*core.PersistentVolumeSpec)(nil)"


def filled(given: JsonObject, defaults: Mapping[str, Json]) -> JsonObject:
    """What is given, with defaults where it says nothing. A default that has a type holds for its own type only: what
    rolls has no meaning to a strategy that recreates."""
    if "type" in defaults and given.get("type", defaults["type"]) != defaults["type"]:
        return given
    result = {**defaults, **given}
    for name, default in defaults.items():
        if isinstance(default, dict) and isinstance(result[name], dict):
            result[name] = filled(result[name], default)
    return result


class Plain(Strategy):
    """A kind with a spec that is never missing."""

    def __init__(self, status: Mapping[str, Json] | None = None, **spec_defaults: Json) -> None:
        """`status`: what a new object starts with; `spec_defaults`: what the spec gets where it says nothing."""
        self._status = status
        self._spec_defaults = spec_defaults

    def prepare_create(self, new: JsonObject, occasion: Occasion) -> JsonObject:
        new = {**new, "spec": filled(new.get("spec") or {}, self._spec_defaults)}
        new.pop("status", None)
        if self._status is not None:
            new["status"] = dict(self._status)
        return new


class Counted(Plain):
    """A kind with generations."""

    counts_generations = True


class Templated(Counted):
    """A kind that makes pods of a template."""

    restarts: tuple[str, ...] = ("Always",)

    def __init__(self, kind: str, status: Mapping[str, Json], **spec_defaults: Json) -> None:
        """`kind` is the word that faults use; the rest as for Plain."""
        super().__init__(status, **spec_defaults)
        self._kind = kind

    def normalise(self, new: JsonObject) -> JsonObject:
        spec = new.get("spec") or {}
        template = with_template_defaults(spec.get("template"))
        return new if template is spec.get("template") else {**new, "spec": {**spec, "template": template}}

    def validate(self, new: JsonObject) -> list[Cause]:
        return list(template_faults(self._kind, new["spec"], self.restarts))

    def faults_of_change(self, new: JsonObject, old: JsonObject, occasion: Occasion) -> list[Cause]:
        return [] if new["spec"] is old["spec"] else super().faults_of_change(new, old, occasion)

    def validate_update(self, new: JsonObject, old: JsonObject) -> list[Cause]:
        return list(immutable_selector(new, old))


class Stateful(Templated):
    """StatefulSets may change only in part."""

    _changeable: Final = (
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    )

    def validate_update(self, new: JsonObject, old: JsonObject) -> list[Cause]:
        after, before = new["spec"], old["spec"]
        if all(
            after.get(key) == before.get(key) for key in after.keys() | before.keys() if key not in self._changeable
        ):
            return []
        fields = ", ".join(f"'{field}'" for field in self._changeable[:-1])
        why = f"updates to statefulset spec for fields other than {fields} and '{self._changeable[-1]}' are forbidden"
        return [forbidden_value("spec", why)]


class Job(Templated):
    """Jobs: a selector of the server's own making, which the pods' labels meet."""

    restarts = ("OnFailure", "Never")

    def prepare_create(self, new: JsonObject, occasion: Occasion) -> JsonObject:
        new = super().prepare_create(new, occasion)
        spec = new["spec"]
        if spec.get("completions") is None and spec.get("parallelism") is None:
            spec["completions"] = 1
        spec.setdefault("parallelism", 1)
        if spec.get("manualSelector"):
            return new
        uid, name = new["metadata"]["uid"], new["metadata"].get("name", "")
        own = {"controller-uid": uid, "job-name": name}
        own |= {f"batch.kubernetes.io/{key}": value for key, value in own.items()}
        template = spec.get("template") or {}
        metadata = template.get("metadata") or {}
        labels = {**(metadata.get("labels") or {}), **own}
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
        spec["template"] = {**template, "metadata": {**metadata, "labels": labels}}
        return new


class Budget(Counted):
    """New PodDisruptionBudgets have zeros and no observedGeneration, so evictions wait for the controller. Bounds:
    recording pdb-status."""

    unconditional_update = False
    empty: Mapping[str, Json] = {"spec": {}, "status": BUDGET_STATUS}

    def __init__(self) -> None:
        super().__init__(BUDGET_STATUS)

    def normalise(self, new: JsonObject) -> JsonObject:
        status = {key: value for key, value in (new.get("status") or {}).items() if value != {}}
        return filled_conditions({**new, "status": {**BUDGET_STATUS, **status}}, ("lastTransitionTime",))

    def validate(self, new: JsonObject) -> list[Cause]:
        spec = new.get("spec") or {}
        minimum, maximum = spec.get("minAvailable"), spec.get("maxUnavailable")
        causes: list[Cause] = []
        if minimum is not None and maximum is not None:
            causes.append(Cause(INVALID, f"Invalid value: {BOTH_BOUNDS}", "spec"))
        for name, bound in (("minAvailable", minimum), ("maxUnavailable", maximum)):
            fault = bound_fault(bound)
            if fault:
                causes.append(Cause(INVALID, f"Invalid value: {fault}", f"spec.{name}"))
        policy = spec.get("unhealthyPodEvictionPolicy")
        if policy not in (None, *EVICTION_POLICIES):
            causes.append(not_supported("spec.unhealthyPodEvictionPolicy", f'"{policy}"', EVICTION_POLICIES))
        causes += label_selector_faults(spec.get("selector") or {}, "spec.selector")
        return causes


def bound_fault(bound: Json) -> str:
    """What is wrong with a bound of a budget (a number or a percentage), in the server's words; "" if nothing is."""
    if isinstance(bound, int):
        return "" if bound >= 0 else f"{bound}: must be greater than or equal to 0"
    if not isinstance(bound, str):
        return ""
    shown = f'intstr.IntOrString{{Type:1, IntVal:0, StrVal:"{bound}"}}'
    if not PERCENT.match(bound):
        return f"{shown}: {PERCENT_RULE}"
    return f"{shown}: must not be greater than 100%" if int(bound[:-1]) > 100 else ""


def old_budget(stored: JsonObject) -> JsonObject:
    """A budget as policy/v1beta1 shows it: there an empty selector takes nothing."""
    return {**_with_selector(stored, NOTHING, {}), "apiVersion": "policy/v1beta1"}


def new_budget(shown: JsonObject) -> JsonObject:
    """A budget of policy/v1beta1 as it is stored: its empty selector becomes one that takes nothing (pdb-status)."""
    return {**_with_selector(shown, {}, NOTHING), "apiVersion": "policy/v1"}


def _with_selector(budget: JsonObject, one: JsonObject, other: JsonObject) -> JsonObject:
    spec = budget.get("spec") or {}
    return {**budget, "spec": {**spec, "selector": other}} if spec.get("selector") == one else budget


class LeaseStrategy(Strategy):
    """Leases may be created by PUT. The server never looks at their expiry."""

    created_by_put = True
    unconditional_update = False

    def normalise(self, new: JsonObject) -> JsonObject:
        return {**new, "spec": new.get("spec") or {}}

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


class VolumeStrategy(Protected):
    """PersistentVolumes say since when they are in their phase (1.31)."""

    def prepare_create(self, new: JsonObject, occasion: Occasion) -> JsonObject:
        new = super().prepare_create(new, occasion)
        return {**new, "status": {**new["status"], "lastPhaseTransitionTime": occasion.now}}

    def prepare_update(self, new: JsonObject, old: JsonObject, occasion: Occasion) -> JsonObject:
        new = super().prepare_update(new, old, occasion)
        before, after = old.get("status") or {}, new.get("status") or {}
        is_same = before.get("phase") == after.get("phase")
        if is_same or before.get("lastPhaseTransitionTime") != after.get("lastPhaseTransitionTime"):
            return new
        return {**new, "status": {**after, "lastPhaseTransitionTime": occasion.now}}


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

    def prepare_update(self, new: JsonObject, old: JsonObject, occasion: Occasion) -> JsonObject:
        return new


class EventStrategy(TopLevel):
    """Core events: everything at the top level, a few zero fields always shown (recording events)."""

    def __init__(self, expiry: Expiry | None = None) -> None:
        """`expiry`: is notified of every write."""
        self._expiry = expiry

    _zeros: Final[Mapping[str, Callable[[], Json]]] = {
        "involvedObject": dict,
        "source": dict,
        "firstTimestamp": lambda: None,
        "lastTimestamp": lambda: None,
        "eventTime": lambda: None,
        "reportingComponent": str,
        "reportingInstance": str,
    }

    def prepare_create(self, new: JsonObject, occasion: Occasion) -> JsonObject:
        return self._noted(new)

    def prepare_update(self, new: JsonObject, old: JsonObject, occasion: Occasion) -> JsonObject:
        return self._noted(new)

    def _noted(self, new: JsonObject) -> JsonObject:
        metadata = new["metadata"]
        if self._expiry is not None:
            self._expiry.note(metadata.get("namespace", ""), metadata.get("name", ""))
        return new

    def normalise(self, new: JsonObject) -> JsonObject:
        missing = {key: zero() for key, zero in self._zeros.items() if key not in new}
        return {**new, **missing} if missing else new

    def validate(self, new: JsonObject) -> list[Cause]:
        namespace = new["metadata"].get("namespace", "")
        about = (new.get("involvedObject") or {}).get("namespace", "")
        if about == namespace or (not about and namespace == "default"):
            return []
        return [invalid_value("involvedObject.namespace", about, "does not match event.namespace")]
