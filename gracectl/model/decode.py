"""From the API server's bytes to the structs that decisions read: the second phase of decoding (wire.py is the first).

Every decoder takes one JSON object as bytes or as `msgspec.Raw` and raises msgspec.DecodeError (ValidationError where
the JSON is fine and the object is not: the message names the field). What Go writes as null or leaves out reads as
empty. PodDecoder and NodeDecoder own the pools of what their objects share: make one for each cache. The plain
functions share nothing and are for single objects and for kinds of which there are few.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Final

import msgspec

from gracectl.model import names, wire
from gracectl.model.budget import NodeDisruptionBudget, PodDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.envelope import UndecodableObject
from gracectl.model.meta import Condition, ConfigMap, Lease, condition_of
from gracectl.model.node import Node, Taint
from gracectl.model.pod import LONGEST_DURATION, LONGEST_GRACE, PersistentVolumeClaim, Pod, UnknownPod, VolumeAttachment
from gracectl.model.selectors import LabelSelector, SelectorError, WireLabelSelector
from gracectl.model.sharing import Sharing
from gracectl.model.times import in_range
from gracectl.model.untrusted import Decoder

# One empty map for all objects without annotations; for reading only, like every shared value.
_NO_ANNOTATIONS: Final[Mapping[str, str]] = {}
MOST_ADDRESSES: Final = 32
"""Of a node; a kubelet may write any number of them."""
_ADDRESS: Final = re.compile(r"[0-9A-Za-z._:-]{1,253}")

LONGEST_ANNOTATION: Final = 1024
"""Characters of one on a node or a claim: an instant, or a few words."""
LONGEST_NAME: Final = 253
"""Characters: no object has a longer one, so a volume of a longer one is never mounted."""

LONGEST_VOLUME_ID: Final = 1024
"""Characters: no cloud has a longer one."""


class _SharingDecoder:
    """Shares what its objects have in common through `sharing` (its own, unless one is given)."""

    def __init__(self, sharing: Sharing | None = None) -> None:
        self.sharing = sharing or Sharing()


class PodDecoder(_SharingDecoder):
    """Reads pods."""

    def __call__(self, raw: bytes | msgspec.Raw | wire.Pod) -> Pod:
        """The pod in this JSON object, or in what was read of it with others of its page."""
        read = raw if isinstance(raw, wire.Pod) else _POD.decode(raw)
        meta = read.metadata
        spec = read.spec or _NO_POD_SPEC
        status = read.status or _NO_POD_STATUS
        share = self.sharing
        labels = share.labels(meta.labels)
        annotations = (
            _NO_ANNOTATIONS
            if meta.annotations is None or meta.annotations == _NO_POD_ANNOTATIONS
            else _annotations(meta.annotations, LONGEST_DURATION + 1)
        )
        volumes = spec.volumes
        # In the order of the fields: with their names this takes ten times as long, a quarter of a pod's decoding.
        return Pod(
            share.string(meta.namespace),
            meta.name,
            meta.uid or "",
            meta.resource_version or "",
            share.string(spec.node_name),
            labels,
            annotations,
            share.owners(meta.owner_references),
            _created(meta.creation_timestamp),
            _instant(status.start_time) if annotations or names.DO_NOT_EVICT in labels else None,
            _end_of_grace(meta.deletion_timestamp, meta.deletion_grace_period_seconds),
            _grace(meta.deletion_grace_period_seconds),
            _grace(spec.termination_grace_period_seconds),
            spec.priority,
            share.string(spec.priority_class_name),
            share.tolerations(spec.tolerations),
            share.string(status.phase),
            _is_ready(status.conditions or ()),
            _volume_claims(meta.name, volumes) if volumes else (),
            spec.restart_policy in ("Never", "OnFailure"),
            volumes is not None and any(volume.empty_dir is not None for volume in volumes),
            _inline_volumes(volumes) if volumes else (),
            "" if spec.scheduler_name == names.DEFAULT_SCHEDULER else share.string(spec.scheduler_name),
        )


class NodeDecoder(_SharingDecoder):
    """Reads nodes; they have zones and the words of their conditions in common."""

    def __call__(self, raw: bytes | msgspec.Raw) -> Node:
        """The node in this JSON object."""
        read = _NODE.decode(raw)
        meta = read.metadata
        spec = read.spec or wire.NodeSpec()
        share = self.sharing
        return Node(
            # Its pods name it: with one pool for both kinds that is one string.
            name=share.string(meta.name),
            uid=meta.uid or "",
            resource_version=meta.resource_version or "",
            labels=share.words(meta.labels),
            annotations=_annotations(meta.annotations, LONGEST_ANNOTATION),
            created=_created(meta.creation_timestamp),
            deletion_timestamp=_instant(meta.deletion_timestamp),
            finalizers=meta.finalizers or (),
            unschedulable=bool(spec.unschedulable),
            taints=tuple(
                Taint(share.string(taint.key), share.string(taint.value), share.string(taint.effect))
                for taint in spec.taints or ()
            ),
            provider_id=spec.provider_id or "",
            addresses=_addresses(read.status),
            conditions=_conditions(read.status, share.string),
        )


class ClaimDecoder(_SharingDecoder):
    """Reads NodeClaims, v1 and v1beta1 alike; they have as much in common with their nodes as with each other."""

    def __call__(self, raw: bytes | msgspec.Raw) -> NodeClaim:
        """The claim in this JSON object."""
        read = _NODE_CLAIM.decode(raw)
        meta = read.metadata
        spec = read.spec or wire.NodeClaimSpec()
        status = read.status or wire.NodeClaimStatus()
        share = self.sharing
        return NodeClaim(
            name=meta.name,
            uid=meta.uid or "",
            resource_version=meta.resource_version or "",
            labels=share.words(meta.labels),
            annotations=_annotations(meta.annotations, LONGEST_ANNOTATION),
            created=_created(meta.creation_timestamp),
            deletion_timestamp=_instant(meta.deletion_timestamp),
            finalizers=meta.finalizers or (),
            termination_grace_period=spec.termination_grace_period,
            expire_after=spec.expire_after,
            provider_id=status.provider_id or "",
            node_name=share.string(status.node_name),
            conditions=_conditions(status, share.string),
        )


def decode_pod(raw: bytes | msgspec.Raw | wire.Pod) -> Pod:
    """One pod that shares nothing with others: a cache uses a PodDecoder."""
    return PodDecoder()(raw)


def unknown_pod(found: UndecodableObject) -> UnknownPod:
    """What stands for a pod that cannot be decoded."""
    return UnknownPod(
        namespace=found.namespace,
        name=found.name,
        uid=found.uid,
        resource_version=found.resource_version,
        node_name=found.node_name,
        error=found.error,
    )


def decode_node(raw: bytes | msgspec.Raw) -> Node:
    """One node that shares nothing with others: a cache uses a NodeDecoder."""
    return NodeDecoder()(raw)


def decode_claim(raw: bytes | msgspec.Raw) -> NodeClaim:
    """One NodeClaim, v1 or v1beta1, that shares nothing with others: a cache uses a ClaimDecoder."""
    return ClaimDecoder()(raw)


def decode_budget(raw: bytes | msgspec.Raw) -> PodDisruptionBudget:
    """The PodDisruptionBudget in this JSON object."""
    read = _BUDGET.decode(raw)
    meta = read.metadata
    spec = read.spec or wire.BudgetSpec()
    status = read.status or wire.BudgetStatus()
    return PodDisruptionBudget(
        namespace=meta.namespace or "",
        name=meta.name,
        uid=meta.uid or "",
        resource_version=meta.resource_version or "",
        generation=meta.generation or 0,
        observed_generation=status.observed_generation or 0,
        # The eviction API passes over a budget whose selector is invalid.
        selector=_checked_selector(spec.selector)[0],
        min_available=spec.min_available,
        max_unavailable=spec.max_unavailable,
        unhealthy_pod_eviction_policy=spec.unhealthy_pod_eviction_policy or "",
        disruptions_allowed=status.disruptions_allowed or 0,
        current_healthy=status.current_healthy or 0,
        desired_healthy=status.desired_healthy or 0,
        expected_pods=status.expected_pods or 0,
        disrupted_pods={pod: _created(evicted) for pod, evicted in (status.disrupted_pods or {}).items()},
        verdict=condition_of(_conditions(status, _or_empty), names.DISRUPTION_ALLOWED),
        deletion_timestamp=_instant(meta.deletion_timestamp),
    )


def decode_node_budget(raw: bytes | msgspec.Raw) -> NodeDisruptionBudget:
    """The NodeDisruptionBudget in this JSON object."""
    read = _NODE_BUDGET.decode(raw)
    meta = read.metadata
    spec = read.spec or wire.NodeBudgetSpec()
    status = read.status or wire.NodeBudgetStatus()
    selector, selector_error = _checked_selector(spec.selector)
    return NodeDisruptionBudget(
        name=meta.name,
        uid=meta.uid or "",
        resource_version=meta.resource_version or "",
        generation=meta.generation or 0,
        observed_generation=status.observed_generation or 0,
        selector=selector,
        selector_error=selector_error,
        min_available=spec.min_available,
        max_unavailable=spec.max_unavailable,
        expected_nodes=status.expected_nodes or 0,
        current_available=status.current_available or 0,
        desired_available=status.desired_available or 0,
        disruptions_allowed=status.disruptions_allowed or 0,
        disrupted_nodes={node: _created(admitted) for node, admitted in (status.disrupted_nodes or {}).items()},
        verdict=condition_of(_conditions(status, _or_empty), names.DISRUPTION_ALLOWED),
        deletion_timestamp=_instant(meta.deletion_timestamp),
    )


def decode_attachment(raw: bytes | msgspec.Raw) -> VolumeAttachment:
    """The VolumeAttachment in this JSON object."""
    read = _ATTACHMENT.decode(raw)
    meta = read.metadata
    spec = read.spec or wire.AttachmentSpec()
    source = spec.source or wire.AttachmentSource()
    inline = source.inline_volume_spec
    return VolumeAttachment(
        name=meta.name,
        uid=meta.uid or "",
        resource_version=meta.resource_version or "",
        node_name=spec.node_name or "",
        volume_name=source.persistent_volume_name or "",
        attached=bool(read.status and read.status.attached),
        deletion_timestamp=_instant(meta.deletion_timestamp),
        driver=spec.attacher or "",
        volume_handle=(inline.csi.volume_handle if inline and inline.csi else None) or "",
    )


def decode_volume_claim(raw: bytes | msgspec.Raw) -> PersistentVolumeClaim:
    """The PersistentVolumeClaim in this JSON object."""
    read = _VOLUME_CLAIM.decode(raw)
    meta = read.metadata
    return PersistentVolumeClaim(
        namespace=meta.namespace or "",
        name=meta.name,
        volume_name=(read.spec.volume_name if read.spec else None) or "",
        uid=meta.uid or "",
        resource_version=meta.resource_version or "",
    )


def decode_lease(raw: bytes | msgspec.Raw) -> Lease:
    """The Lease in this JSON object."""
    read = _LEASE.decode(raw)
    meta = read.metadata
    spec = read.spec or wire.LeaseSpec()
    return Lease(
        namespace=meta.namespace or "",
        name=meta.name,
        uid=meta.uid or "",
        resource_version=meta.resource_version or "",
        holder=spec.holder_identity or "",
        duration_seconds=spec.lease_duration_seconds or 0,
        acquire_time=_instant(spec.acquire_time),
        renew_time=_instant(spec.renew_time),
        transitions=spec.lease_transitions or 0,
    )


def decode_config_map(raw: bytes | msgspec.Raw) -> ConfigMap:
    """The ConfigMap in this JSON object."""
    read = _CONFIG_MAP.decode(raw)
    meta = read.metadata
    return ConfigMap(
        namespace=meta.namespace or "",
        name=meta.name,
        uid=meta.uid or "",
        resource_version=meta.resource_version or "",
        data=read.data or {},
    )


def _instant(moment: datetime | None) -> float | None:
    return None if moment is None else in_range(moment.timestamp())


def _created(moment: datetime | None) -> float:
    # Null only in objects that no server has stored: older than everything, as Go's zero time is.
    return 0.0 if moment is None else in_range(moment.timestamp())


def _grace(seconds: int | None) -> int | None:
    if seconds is None or -LONGEST_GRACE <= seconds <= LONGEST_GRACE:
        return seconds
    return LONGEST_GRACE if seconds > 0 else -LONGEST_GRACE


def _end_of_grace(moment: datetime | None, seconds: int | None) -> float | None:
    """The end of the grace as it is read.

    Servers count nanoseconds in 64 bits: the end of more than 292 years is written as an instant that has passed, and
    the pod would be taken for one that should have gone long ago.
    """
    ends = _instant(moment)
    if ends is None or seconds is None or (grace := _grace(seconds)) in (None, seconds):
        return ends
    counted = (seconds * 10**9 + 2**63) % 2**64 - 2**63
    return in_range(ends - counted / 10**9 + grace)


def _is_ready(conditions: Iterable[wire.PodCondition]) -> bool:
    for condition in conditions:  # noqa: SIM110  a generator takes twice as long, for each pod
        if condition.type == names.READY and condition.status == names.TRUE:
            return True
    return False


def _volume_claims(pod: str, volumes: Iterable[wire.Volume]) -> tuple[str, ...]:
    """The PersistentVolumeClaims behind the volumes; that of a generic ephemeral one is named <pod>-<volume>."""
    claims = []
    for volume in volumes:
        if volume.persistent_volume_claim is not None and volume.persistent_volume_claim.claim_name:
            claims.append(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            claims.append(f"{pod}-{volume.name}")
    return tuple([claim for claim in claims if len(claim) <= LONGEST_NAME])


def _inline_volumes(volumes: Iterable[wire.Volume]) -> tuple[str, ...]:
    """Ids of the disks that a pod names itself: kinds of volumes that are attached, by CSI drivers since migration."""
    found = []
    for volume in volumes:
        disk = (
            volume.aws_elastic_block_store
            or volume.azure_disk
            or volume.cinder
            or volume.gce_persistent_disk
            or volume.portworx_volume
            or volume.vsphere_volume
        )
        if disk is not None and disk.id and len(disk.id) <= LONGEST_VOLUME_ID:
            found.append(disk.id)
    return tuple(found)


def _annotations(read: wire.PodAnnotations | wire.ClaimAnnotations | None, longest: int) -> Mapping[str, str]:
    """Those that an object has, each cut to `longest` characters: others may write 256 KiB."""
    if read is None:
        return _NO_ANNOTATIONS
    found = ((name, getattr(read, field)) for field, name in _ANNOTATIONS[type(read)])
    return {name: value[:longest] for name, value in found if value is not None} or _NO_ANNOTATIONS


def _conditions(status: wire.Conditions | None, kept: Callable[[str | None], str]) -> tuple[Condition, ...]:
    if status is None or not status.conditions:
        return ()
    return tuple(
        Condition(
            kept(read.type),
            kept(read.status),
            kept(read.reason),
            kept(read.message),
            _instant(read.last_transition_time),
        )
        for read in status.conditions
    )


def _addresses(status: wire.NodeStatus | None) -> tuple[str, ...]:
    found = (each.address or "" for each in (status.addresses if status else None) or ())
    return tuple(islice((each for each in found if _ADDRESS.fullmatch(each)), MOST_ADDRESSES))


def _or_empty(text: str | None) -> str:
    return text or ""


def _checked_selector(read: WireLabelSelector | None) -> tuple[LabelSelector | None, str]:
    """The selector, and why it is none if it is invalid."""
    if read is None:
        return None, ""
    selector = read.selector()
    try:
        selector.validate()
    except SelectorError as error:
        return None, str(error)
    return selector, ""


_NO_POD_SPEC: Final = wire.PodSpec()
_NO_POD_STATUS: Final = wire.PodStatus()
_NO_POD_ANNOTATIONS: Final = wire.PodAnnotations()

_ANNOTATIONS: Final = {
    type_: [(field.name, field.encode_name) for field in msgspec.structs.fields(type_)]
    for type_ in (wire.PodAnnotations, wire.ClaimAnnotations, wire.NodeAnnotations)
}

_POD = Decoder(wire.Pod)
_NODE = Decoder(wire.Node)
_NODE_CLAIM = Decoder(wire.NodeClaim)
_BUDGET = Decoder(wire.Budget)
_NODE_BUDGET = Decoder(wire.NodeBudget)
_ATTACHMENT = Decoder(wire.Attachment)
_VOLUME_CLAIM = Decoder(wire.VolumeClaim)
_LEASE = Decoder(wire.Lease)
_CONFIG_MAP = Decoder(wire.ConfigMap)
