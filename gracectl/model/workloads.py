"""Objects around pods, as inputs of warnings: workloads, services, volumes, and Pending pods.

Only commands read them, once: the controller watches none of these kinds. Invariant: unknown content reads as absent,
so it leads to no conclusion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

import msgspec

from gracectl.model import wire
from gracectl.model.meta import ClusterObject, NamespacedObject
from gracectl.model.parts import LONGEST_NAME
from gracectl.model.selectors import Requirement, WireLabelSelector, WireRequirement
from gracectl.model.untrusted import Decoder

MOST_TERMS: Final = 100
"""Maximum terms of a node affinity; an affinity with more reads as absent."""
LONGEST_QUANTITY: Final = 40
LONGEST_REASON: Final = 1000
"""Characters of the scheduler's message."""


class NodeTerm(msgspec.Struct, frozen=True):
    """An entry of nodeSelectorTerms: all of its requirements must match. An empty one matches no node."""

    labels: tuple[Requirement, ...] = ()
    names: tuple[Requirement, ...] = ()
    """Requirements of matchFields, which supports only metadata.name."""


class PodNeeds(msgspec.Struct, frozen=True):
    """Requirements of a pod template on its node. `terms`: one must match; empty: no affinity.

    `requests`: of its containers together, at least; what does not parse is left out.
    """

    node_selector: Mapping[str, str] = {}
    terms: tuple[NodeTerm, ...] = ()
    requests: Mapping[str, Fraction] = {}


class Workload(NamespacedObject, frozen=True):
    """A ReplicaSet or StatefulSet. `workload`: the name of the Deployment above it, or its own.

    `selector`: its matchLabels; None if it has expressions.
    """

    workload: str = ""
    replicas: int = 0
    selector: Mapping[str, str] | None = None
    labels: Mapping[str, str] = {}
    """Labels of the workload's pods."""
    needs: PodNeeds = PodNeeds()


class Service(NamespacedObject, frozen=True):
    """A service. `is_local`: load balancers reach its pods only through their own nodes."""

    selector: Mapping[str, str] = {}
    is_local: bool = False


class PersistentVolume(ClusterObject, frozen=True):
    """`is_on_disk`: its source is a path of a node. `terms`: its node affinity, if any."""

    is_on_disk: bool = False
    terms: tuple[NodeTerm, ...] = ()


class PendingPod(NamespacedObject, frozen=True):
    """A pod that is not bound to a node. `reason`: the scheduler's; empty if it has not said that none fits."""

    labels: Mapping[str, str] = {}
    owner: str = ""
    """Uid of its controller."""
    reason: str = ""


class NodeRoom(ClusterObject, frozen=True):
    """Allocatable resources of a node."""

    allocatable: Mapping[str, Fraction] = {}


# -- JSON --------------------------------------------------------------------------------------------------------------


class _Meta(wire.Object):
    name: str
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str] | None = None
    owner_references: list[wire.Owner] | None = None


class _Term(wire.Object):
    match_expressions: list[WireRequirement] | None = None
    match_fields: list[WireRequirement] | None = None


class _NodeSelector(wire.Object):
    node_selector_terms: list[_Term] | None = None


class _NodeAffinity(wire.Object):
    required: _NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class _Affinity(wire.Object):
    node_affinity: _NodeAffinity | None = None


class _Resources(wire.Object):
    requests: dict[str, str | int | float] | None = None


class _Container(wire.Object):
    resources: _Resources | None = None


class _PodSpec(wire.Object):
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    containers: list[_Container] | None = None


class _TemplateMeta(wire.Object):
    labels: dict[str, str] | None = None


class _Template(wire.Object):
    metadata: _TemplateMeta | None = None
    spec: _PodSpec | None = None


class _WorkloadSpec(wire.Object):
    replicas: wire.Integer | None = None
    selector: WireLabelSelector | None = None
    template: _Template | None = None


class _Workload(wire.Object):
    metadata: _Meta
    spec: _WorkloadSpec | None = None


class _ServiceSpec(wire.Object):
    type: str | None = None
    selector: dict[str, str] | None = None
    external_traffic_policy: str | None = None


class _Service(wire.Object):
    metadata: _Meta
    spec: _ServiceSpec | None = None


class _VolumeAffinity(wire.Object):
    required: _NodeSelector | None = None


class _VolumeSpec(wire.Object):
    local: wire.Present | None = None
    host_path: wire.Present | None = None
    node_affinity: _VolumeAffinity | None = None


class _Volume(wire.Object):
    metadata: _Meta
    spec: _VolumeSpec | None = None


class _PendingStatus(wire.Object):
    conditions: list[wire.Condition] | None = None


class _Pending(wire.Object):
    metadata: _Meta
    status: _PendingStatus | None = None


class _RoomStatus(wire.Object):
    allocatable: dict[str, str | int | float] | None = None


class _Room(wire.Object):
    metadata: _Meta
    status: _RoomStatus | None = None


_WORKLOAD: Final = Decoder(_Workload)
_SERVICE: Final = Decoder(_Service)
_VOLUME: Final = Decoder(_Volume)
_PENDING: Final = Decoder(_Pending)
_ROOM: Final = Decoder(_Room)


# -- decoding ----------------------------------------------------------------------------------------------------------


def decode_workload(raw: bytes | msgspec.Raw) -> Workload:
    """The ReplicaSet or StatefulSet in this JSON object. Raises msgspec.DecodeError."""
    read = _WORKLOAD.decode(raw)
    meta, spec = read.metadata, read.spec or _WorkloadSpec()
    template = spec.template or _Template()
    above = next((owner.name for owner in meta.owner_references or () if owner.controller and owner.name), None)
    selector = spec.selector or WireLabelSelector()
    return Workload(
        namespace=meta.namespace or "",
        name=meta.name,
        uid=meta.uid or "",
        workload=above or meta.name,
        replicas=1 if spec.replicas is None else spec.replicas,
        selector=None if selector.match_expressions else selector.match_labels or None,
        labels=(template.metadata.labels if template.metadata else None) or {},
        needs=_needs(template.spec or _PodSpec()),
    )


def decode_service(raw: bytes | msgspec.Raw) -> Service:
    """The Service in this JSON object. Raises msgspec.DecodeError."""
    read = _SERVICE.decode(raw)
    meta, spec = read.metadata, read.spec or _ServiceSpec()
    is_local = spec.type == "LoadBalancer" and spec.external_traffic_policy == "Local"
    return Service(meta.namespace or "", meta.name, meta.uid or "", selector=spec.selector or {}, is_local=is_local)


def decode_volume(raw: bytes | msgspec.Raw) -> PersistentVolume:
    """The PersistentVolume in this JSON object. Raises msgspec.DecodeError."""
    read = _VOLUME.decode(raw)
    spec = read.spec or _VolumeSpec()
    return PersistentVolume(
        name=read.metadata.name,
        uid=read.metadata.uid or "",
        is_on_disk=spec.local is not None or spec.host_path is not None,
        terms=_terms(spec.node_affinity.required if spec.node_affinity else None),
    )


def decode_pending(raw: bytes | msgspec.Raw) -> PendingPod:
    """The unbound pod in this JSON object. Raises msgspec.DecodeError."""
    read = _PENDING.decode(raw)
    meta = read.metadata
    reasons = [
        condition.message or ""
        for condition in (read.status.conditions if read.status else None) or ()
        if condition.type == "PodScheduled" and condition.status == "False" and condition.reason == "Unschedulable"
    ]
    return PendingPod(
        namespace=meta.namespace or "",
        name=meta.name,
        uid=meta.uid or "",
        labels=meta.labels or {},
        owner=next((owner.uid or "" for owner in meta.owner_references or () if owner.controller), ""),
        reason=reasons[0][:LONGEST_REASON] if reasons else "",
    )


def decode_room(raw: bytes | msgspec.Raw) -> NodeRoom:
    """Decode the allocatable resources of the node in this JSON object. Raises msgspec.DecodeError."""
    read = _ROOM.decode(raw)
    allocatable = (read.status.allocatable if read.status else None) or {}
    return NodeRoom(name=read.metadata.name, uid=read.metadata.uid or "", allocatable=_quantities(allocatable))


def _needs(spec: _PodSpec) -> PodNeeds:
    requests: dict[str, Fraction] = {}
    for container in spec.containers or ():
        found = _quantities((container.resources.requests if container.resources else None) or {})
        for resource, amount in found.items():
            requests[resource] = requests.get(resource, Fraction(0)) + amount
    affinity = spec.affinity.node_affinity if spec.affinity else None
    return PodNeeds(spec.node_selector or {}, _terms(affinity.required if affinity else None), requests)


def _terms(selector: _NodeSelector | None) -> tuple[NodeTerm, ...]:
    terms = (selector.node_selector_terms if selector else None) or ()
    if len(terms) > MOST_TERMS:
        return ()
    return tuple(NodeTerm(_requirements(each.match_expressions), _requirements(each.match_fields)) for each in terms)


def _requirements(found: Sequence[WireRequirement] | None) -> tuple[Requirement, ...]:
    return tuple(Requirement(each.key or "", each.operator or "", each.values or ()) for each in found or ())


def _quantities(found: Mapping[str, str | int | float]) -> dict[str, Fraction]:
    read = {name: quantity(str(text)) for name, text in found.items() if len(name) <= LONGEST_NAME}
    return {name: amount for name, amount in read.items() if amount is not None}


_SUFFIXES: Final = {
    "": Fraction(1),
    **{suffix: Fraction(1, 1000**power) for power, suffix in enumerate("mun", 1)},
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", 1)},
}


def quantity(text: str) -> Fraction | None:
    """`1500m`, `2Gi`, `1e3`: the number that a resource.Quantity writes; None if it is none, or negative."""
    digits = text.rstrip("munkMGTPEKi")
    scale = _SUFFIXES.get(text[len(digits) :])
    if scale is None or not digits.isascii() or len(text) > LONGEST_QUANTITY:
        return None
    mantissa, _, exponent = digits.lower().partition("e")
    if len(exponent) > 2 or "/" in digits or "_" in digits:
        return None
    try:
        found = Fraction(mantissa) * scale * Fraction(10) ** int(exponent or 0)
    except ValueError:
        return None
    return found if found >= 0 else None
