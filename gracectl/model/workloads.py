"""Objects around pods, as inputs of warnings and replacements: workloads, services, volumes, and Pending pods.

They are read on demand: the controller watches none of these kinds. Invariant: unknown content reads as absent, so it
leads to no conclusion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Final, Generic, TypeVar

import msgspec

from gracectl.model import wire
from gracectl.model.meta import ClusterObject, NamespacedObject
from gracectl.model.parts import LONGEST_NAME
from gracectl.model.selectors import Requirement, WireLabelSelector, WireRequirement
from gracectl.model.untrusted import Decoder

Spec = TypeVar("Spec")
Status = TypeVar("Status")

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


class RolloutState(msgspec.Struct, frozen=True):
    """State of a workload's rollout. `kind_above`: of its controller, empty without one; `strategy`: Recreate, say."""

    kind_above: str = ""
    strategy: str = ""
    is_observed: bool = True
    is_deleted: bool = False
    updated: int = 0
    """Pods of the newest revision."""
    failure: str = ""
    """Why it cannot create pods; empty if it can."""


class Workload(NamespacedObject, frozen=True):
    """A ReplicaSet, StatefulSet, Deployment or Argo Rollout. `workload`: the name of the one above it, or its own.

    `selector`: its matchLabels; None if it has expressions. `limits`: as `needs.requests`. `claims`: names of the
    PersistentVolumeClaims that all of its pods share. `uses_host`: host ports, or the network of the host.
    """

    workload: str = ""
    replicas: int = 0
    selector: Mapping[str, str] | None = None
    labels: Mapping[str, str] = {}
    """Labels of the workload's pods."""
    needs: PodNeeds = PodNeeds()
    limits: Mapping[str, Fraction] = {}
    claims: tuple[str, ...] = ()
    uses_host: bool = False
    rollout: RolloutState = RolloutState()


class NetworkPolicy(NamespacedObject, frozen=True):
    """`keys`: the labels that its selectors of pods name."""

    keys: frozenset[str] = frozenset()


class ResourceQuota(NamespacedObject, frozen=True):
    """Limits of a namespace and what is used of them; empty if it has scopes, so that it may not apply."""

    hard: Mapping[str, Fraction] = {}
    used: Mapping[str, Fraction] = {}


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
    resource_version: str | None = None
    generation: wire.Integer | None = None
    deletion_timestamp: wire.Instant | None = None
    labels: dict[str, str] | None = None
    owner_references: list[wire.Owner] | None = None


class _Thing(wire.Object, Generic[Spec, Status]):
    """An object; wire.Present for a part that is not read."""

    metadata: _Meta
    spec: Spec | None = None
    status: Status | None = None


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
    limits: dict[str, str | int | float] | None = None


class _Port(wire.Object):
    host_port: wire.Integer | None = None


class _Container(wire.Object):
    resources: _Resources | None = None
    ports: list[_Port] | None = None


class _PodSpec(wire.Object):
    host_network: bool | None = None
    volumes: list[wire.Volume] | None = None
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    containers: list[_Container] | None = None


class _TemplateMeta(wire.Object):
    labels: dict[str, str] | None = None


class _Template(wire.Object):
    metadata: _TemplateMeta | None = None
    spec: _PodSpec | None = None


class _Strategy(wire.Object):
    type: str | None = None


class _WorkloadSpec(wire.Object):
    replicas: wire.Integer | None = None
    selector: WireLabelSelector | None = None
    template: _Template | None = None
    strategy: _Strategy | None = None


class _WorkloadStatus(wire.Conditions):
    # Argo writes it as a text.
    observed_generation: wire.Integer | str | None = None
    updated_replicas: wire.Integer | None = None


class _Peer(wire.Object):
    pod_selector: WireLabelSelector | None = None


class _Rule(wire.Object):
    peers_from: list[_Peer] | None = msgspec.field(default=None, name="from")
    to: list[_Peer] | None = None


class _PolicySpec(wire.Object):
    pod_selector: WireLabelSelector | None = None
    ingress: list[_Rule] | None = None
    egress: list[_Rule] | None = None


class _QuotaSpec(wire.Object):
    scopes: list[str] | None = None
    scope_selector: wire.Present | None = None


class _QuotaStatus(wire.Object):
    hard: dict[str, str | int | float] | None = None
    used: dict[str, str | int | float] | None = None


class _ServiceSpec(wire.Object):
    type: str | None = None
    selector: dict[str, str] | None = None
    external_traffic_policy: str | None = None


class _VolumeAffinity(wire.Object):
    required: _NodeSelector | None = None


class _VolumeSpec(wire.Object):
    local: wire.Present | None = None
    host_path: wire.Present | None = None
    node_affinity: _VolumeAffinity | None = None


class _PendingStatus(wire.Object):
    conditions: list[wire.Condition] | None = None


class _RoomStatus(wire.Object):
    allocatable: dict[str, str | int | float] | None = None


_WORKLOAD: Final = Decoder(_Thing[_WorkloadSpec, _WorkloadStatus])
_POLICY: Final = Decoder(_Thing[_PolicySpec, wire.Present])
_QUOTA: Final = Decoder(_Thing[_QuotaSpec, _QuotaStatus])
_SERVICE: Final = Decoder(_Thing[_ServiceSpec, wire.Present])
_VOLUME: Final = Decoder(_Thing[_VolumeSpec, wire.Present])
_PENDING: Final = Decoder(_Thing[wire.Present, _PendingStatus])
_ROOM: Final = Decoder(_Thing[wire.Present, _RoomStatus])


# -- decoding ----------------------------------------------------------------------------------------------------------


def decode_workload(raw: bytes | msgspec.Raw) -> Workload:
    """The workload in this JSON object. Raises msgspec.DecodeError."""
    read = _WORKLOAD.decode(raw)
    meta, spec = read.metadata, read.spec or _WorkloadSpec()
    template = spec.template or _Template()
    above = next((owner for owner in meta.owner_references or () if owner.controller and owner.name), wire.Owner())
    selector, pod = spec.selector or WireLabelSelector(), template.spec or _PodSpec()
    containers = pod.containers or []
    return Workload(
        namespace=meta.namespace or "",
        name=meta.name,
        uid=meta.uid or "",
        workload=above.name or meta.name,
        replicas=1 if spec.replicas is None else spec.replicas,
        selector=None if selector.match_expressions else selector.match_labels or None,
        labels=(template.metadata.labels if template.metadata else None) or {},
        needs=_needs(pod),
        limits=_summed(each.resources.limits for each in containers if each.resources),
        claims=tuple(
            each.persistent_volume_claim.claim_name
            for each in pod.volumes or ()
            if each.persistent_volume_claim is not None and each.persistent_volume_claim.claim_name
        ),
        uses_host=bool(pod.host_network) or any(port.host_port for each in containers for port in each.ports or ()),
        rollout=_rollout_state(read, above.kind or ""),
    )


def _rollout_state(read: _Thing[_WorkloadSpec, _WorkloadStatus], kind_above: str) -> RolloutState:
    status, strategy = read.status or _WorkloadStatus(), read.spec.strategy if read.spec else None
    failed = (each for each in status.conditions or () if each.type == "ReplicaFailure" and each.status == "True")
    return RolloutState(
        kind_above=kind_above,
        strategy=(strategy.type if strategy else None) or "",
        is_observed=str(status.observed_generation or 0) == str(read.metadata.generation or 0),
        is_deleted=read.metadata.deletion_timestamp is not None,
        updated=status.updated_replicas or 0,
        failure=next(((each.message or "")[:LONGEST_REASON] for each in failed), ""),
    )


def decode_network_policy(raw: bytes | msgspec.Raw) -> NetworkPolicy:
    """The NetworkPolicy in this JSON object. Raises msgspec.DecodeError."""
    read = _POLICY.decode(raw)
    spec = read.spec or _PolicySpec()
    rules = [*(spec.ingress or ()), *(spec.egress or ())]
    peers = (peer for rule in rules for peer in (*(rule.peers_from or ()), *(rule.to or ())))
    selectors = [spec.pod_selector, *(peer.pod_selector for peer in peers)]
    keys = {key for each in selectors if each for key in (*(each.match_labels or ()), *_expressed(each))}
    return NetworkPolicy(
        read.metadata.namespace or "", read.metadata.name, read.metadata.uid or "", "", frozenset(keys)
    )


def _expressed(selector: WireLabelSelector) -> list[str]:
    return [each.key or "" for each in selector.match_expressions or ()]


def decode_quota(raw: bytes | msgspec.Raw) -> ResourceQuota:
    """The ResourceQuota in this JSON object. Raises msgspec.DecodeError."""
    read = _QUOTA.decode(raw)
    status, spec = read.status or _QuotaStatus(), read.spec or _QuotaSpec()
    if spec.scopes or spec.scope_selector is not None:
        status = _QuotaStatus()
    hard, used = _quantities(status.hard or {}), _quantities(status.used or {})
    return ResourceQuota(read.metadata.namespace or "", read.metadata.name, read.metadata.uid or "", "", hard, used)


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


def _summed(amounts: Iterable[Mapping[str, str | int | float] | None]) -> dict[str, Fraction]:
    """Amounts of all containers together."""
    total: dict[str, Fraction] = {}
    for found in amounts:
        for resource, amount in _quantities(found or {}).items():
            total[resource] = total.get(resource, Fraction(0)) + amount
    return total


def decode_labels(raw: bytes | msgspec.Raw) -> Mapping[str, str]:
    """The labels of the object in this JSON object. Raises msgspec.DecodeError."""
    return _ROOM.decode(raw).metadata.labels or {}


def _needs(spec: _PodSpec) -> PodNeeds:
    requests = _summed(each.resources.requests for each in spec.containers or () if each.resources)
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
