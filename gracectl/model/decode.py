"""From the API server's bytes to the structs that decisions read: the second phase of decoding (wire.py is the first).

Every decoder takes one JSON object as bytes or as `msgspec.Raw` and raises msgspec.DecodeError (ValidationError where
the JSON is fine and the object is not: the message names the field). What Go writes as null or leaves out reads as
empty. Decoder classes own the pools of what their objects share, and charge what is large (bounds.py): make one for
each cache. The plain functions share nothing and are for single objects and for kinds of which there are few.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from gracectl.model import names, wire
from gracectl.model.bounds import OverLimit, cut
from gracectl.model.budget import NodeDisruptionBudget, PodDisruptionBudget, UnknownBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.envelope import UndecodableObject
from gracectl.model.meta import ConfigMap, Lease, condition_of
from gracectl.model.node import Node
from gracectl.model.nodedrain import gates_of
from gracectl.model.parts import (
    EVERY_NODE,
    LONGEST_NAME,
    LONGEST_VOLUME_ID,
    MOST_CONDITIONS,
    addresses,
    bound,
    checked_selector,
    conditions,
    created,
    cut_or_none,
    disrupted,
    finalizers,
    identity,
    identity_in_namespace,
    identity_of,
    instant,
    taints,
    windows,
)
from gracectl.model.pod import (
    LONGEST_DURATION,
    LONGEST_GRACE,
    LONGEST_RELEASE,
    PersistentVolumeClaim,
    Pod,
    UnknownPod,
    VolumeAttachment,
)
from gracectl.model.selectors import LabelSelector
from gracectl.model.sharing import PackedLabels, Sharing
from gracectl.model.times import in_range
from gracectl.model.untrusted import Decoder

# One empty map for all objects without annotations; for reading only, like every shared value.
_NO_ANNOTATIONS: Final[Mapping[str, str]] = {}
_ONLY_MIRROR: Final[Mapping[str, str]] = {names.MIRROR_POD: ""}
"""Of all mirror pods without other annotations: nothing reads the checksum, and each node has some."""


LONGEST_ANNOTATION: Final = 1024
"""Characters of one on a node or a claim: an instant, or a few words."""
MOST_MODES: Final = 4
"""Access modes of a claim."""
MOST_CLAIMS: Final = 128
"""Volumes of a pod that are kept: no node attaches more. `spec.volumes` may have 15,000."""


class _SharingDecoder:
    """Shares what its objects have in common through `sharing` (its own, unless one is given)."""

    def __init__(self, sharing: Sharing | None = None) -> None:
        self.sharing = sharing or Sharing()


class PodDecoder(_SharingDecoder):
    """Reads pods. Pods of one second in a row, as a rollout makes them, share the number of their creation."""

    _moment: datetime | None = None
    _created = 0.0

    def __call__(self, raw: bytes | msgspec.Raw | wire.Pod) -> Pod:
        """Decode the pod in this JSON object, or from a partly decoded page. Also raises OverLimit."""
        read = raw if isinstance(raw, wire.Pod) else _POD.decode(raw)
        meta = read.metadata
        spec = read.spec or _NO_POD_SPEC
        status = read.status or _NO_POD_STATUS
        share = self.sharing
        if meta.creation_timestamp != self._moment:
            self._moment, self._created = meta.creation_timestamp, created(meta.creation_timestamp)
        labels = share.labels(meta.labels)
        if type(labels) is PackedLabels:
            share.charge_labels(labels, meta.namespace or "")
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
            self._created,
            instant(status.start_time) if annotations or names.DO_NOT_EVICT in labels else None,
            None
            if meta.deletion_timestamp is None
            else _end_of_grace(meta.deletion_timestamp, meta.deletion_grace_period_seconds),
            _grace(meta.deletion_grace_period_seconds),
            _grace(spec.termination_grace_period_seconds),
            spec.priority,
            share.string(spec.priority_class_name) if spec.priority_class_name else "",
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
    """Reads nodes; they have zones and the words of their conditions in common, and in a row their finalizers."""

    _finalizers: tuple[str, ...] = ()

    def __call__(self, raw: bytes | msgspec.Raw) -> Node:
        """The node in this JSON object."""
        read = _NODE.decode(raw)
        meta = read.metadata
        spec = read.spec or wire.NodeSpec()
        share = self.sharing
        if (found := finalizers(meta)) != self._finalizers:
            self._finalizers = found
        return Node(
            # Its pods name it: with one pool for both kinds that is one string.
            name=share.string(meta.name),
            uid=meta.uid or "",
            resource_version=meta.resource_version or "",
            labels=share.words(meta.labels),
            annotations=_annotations(meta.annotations, LONGEST_ANNOTATION),
            created=created(meta.creation_timestamp),
            deletion_timestamp=instant(meta.deletion_timestamp),
            finalizers=self._finalizers,
            unschedulable=bool(spec.unschedulable),
            taints=taints(spec.taints or (), share),
            provider_id=identity("spec.providerID", spec.provider_id),
            addresses=addresses(read.status),
            conditions=conditions(read.status, share.string),
            gates=gates_of(raw) if meta.annotations is not None else (),
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
        if status.conditions is not None and len(status.conditions) > MOST_CONDITIONS:
            # Conditions of custom resources are replaced by their places, so none may be left out.
            raise OverLimit(f"status.conditions has {len(status.conditions):,} entries, more than {MOST_CONDITIONS}")
        return NodeClaim(
            *identity_of(meta),
            labels=share.words(meta.labels),
            annotations=_annotations(meta.annotations, LONGEST_ANNOTATION),
            created=created(meta.creation_timestamp),
            deletion_timestamp=instant(meta.deletion_timestamp),
            finalizers=finalizers(meta),
            termination_grace_period=cut_or_none(spec.termination_grace_period),
            expire_after=cut_or_none(spec.expire_after),
            node_class=share.string(_node_class(spec.node_class_ref)),
            provider_id=identity("status.providerID", status.provider_id),
            node_name=share.string(identity("status.nodeName", status.node_name)),
            conditions=conditions(status, share.string),
        )


class BudgetDecoder(_SharingDecoder):
    """Reads PodDisruptionBudgets."""

    def __call__(self, raw: bytes | msgspec.Raw) -> PodDisruptionBudget:
        """The budget in this JSON object. Raises OverLimit, too."""
        read = _BUDGET.decode(raw)
        meta = read.metadata
        spec = read.spec or wire.BudgetSpec()
        status = read.status or wire.BudgetStatus()
        # The eviction API ignores a budget with an invalid selector.
        selector, _ = checked_selector(spec.selector)
        if selector is not None:
            key = (PodDisruptionBudget, meta.namespace, meta.name)
            self.sharing.quota.charge(selector, key, meta.namespace or "")
        return PodDisruptionBudget(
            *identity_in_namespace(meta),
            generation=meta.generation or 0,
            observed_generation=status.observed_generation or 0,
            selector=selector,
            min_available=bound(spec.min_available),
            max_unavailable=bound(spec.max_unavailable),
            unhealthy_pod_eviction_policy=cut(spec.unhealthy_pod_eviction_policy),
            disruptions_allowed=status.disruptions_allowed or 0,
            current_healthy=status.current_healthy or 0,
            desired_healthy=status.desired_healthy or 0,
            expected_pods=status.expected_pods or 0,
            disrupted_pods=disrupted(status.disrupted_pods),
            verdict=condition_of(conditions(status, cut), names.DISRUPTION_ALLOWED),
            created=created(meta.creation_timestamp),
            deletion_timestamp=instant(meta.deletion_timestamp),
        )


class NodeBudgetDecoder(_SharingDecoder):
    """Reads NodeDisruptionBudgets. One with too large a selector counts as invalid, and selects every node."""

    def __call__(self, raw: bytes | msgspec.Raw) -> NodeDisruptionBudget:
        """The budget in this JSON object."""
        read = _NODE_BUDGET.decode(raw)
        meta = read.metadata
        spec = read.spec or wire.NodeBudgetSpec()
        status = read.status or wire.NodeBudgetStatus()
        try:
            selector, selector_error = checked_selector(spec.selector)
            if selector is not None:
                self.sharing.quota.charge(selector, (NodeDisruptionBudget, meta.name))
        except OverLimit as error:
            selector, selector_error = EVERY_NODE, str(error)
        return NodeDisruptionBudget(
            *identity_of(meta),
            generation=meta.generation or 0,
            observed_generation=status.observed_generation or 0,
            selector=selector,
            selector_error=selector_error,
            min_available=bound(spec.min_available),
            max_unavailable=bound(spec.max_unavailable),
            windows=windows(spec.windows),
            expected_nodes=status.expected_nodes or 0,
            current_available=status.current_available or 0,
            desired_available=status.desired_available or 0,
            disruptions_allowed=status.disruptions_allowed or 0,
            disrupted_nodes=disrupted(status.disrupted_nodes),
            verdict=condition_of(conditions(status, cut), names.DISRUPTION_ALLOWED),
            deletion_timestamp=instant(meta.deletion_timestamp),
        )


def decode_pod(raw: bytes | msgspec.Raw | wire.Pod) -> Pod:
    """One pod that shares nothing with others: a cache uses a PodDecoder."""
    return PodDecoder()(raw)


def unknown_pod(found: UndecodableObject) -> UnknownPod:
    """Substitute for a pod that cannot be decoded."""
    return UnknownPod(*_identity_of(found), node_name=found.node_name, error=found.error)


def decode_node(raw: bytes | msgspec.Raw) -> Node:
    """One node that shares nothing with others: a cache uses a NodeDecoder."""
    return NodeDecoder()(raw)


def decode_claim(raw: bytes | msgspec.Raw) -> NodeClaim:
    """One NodeClaim, v1 or v1beta1, that shares nothing with others: a cache uses a ClaimDecoder."""
    return ClaimDecoder()(raw)


def decode_budget(raw: bytes | msgspec.Raw) -> PodDisruptionBudget:
    """One PodDisruptionBudget that is charged alone: a cache uses a BudgetDecoder."""
    return BudgetDecoder()(raw)


def unknown_budget(found: UndecodableObject) -> UnknownBudget:
    """Substitute for a budget that is set aside."""
    return UnknownBudget(*_identity_of(found), selector=LabelSelector(), error=found.error)


def _identity_of(found: UndecodableObject) -> tuple[str, str, str, str]:
    return found.namespace, found.name, found.uid, found.resource_version


def decode_node_budget(raw: bytes | msgspec.Raw) -> NodeDisruptionBudget:
    """One NodeDisruptionBudget that is charged alone: a cache uses a NodeBudgetDecoder."""
    return NodeBudgetDecoder()(raw)


def decode_attachment(raw: bytes | msgspec.Raw) -> VolumeAttachment:
    """The VolumeAttachment in this JSON object."""
    read = _ATTACHMENT.decode(raw)
    meta = read.metadata
    spec = read.spec or wire.AttachmentSpec()
    source = spec.source or wire.AttachmentSource()
    inline = source.inline_volume_spec
    return VolumeAttachment(
        *identity_of(meta),
        node_name=identity("spec.nodeName", spec.node_name),
        volume_name=identity("spec.source.persistentVolumeName", source.persistent_volume_name),
        attached=bool(read.status and read.status.attached),
        deletion_timestamp=instant(meta.deletion_timestamp),
        driver=cut(spec.attacher),
        volume_handle=identity("volumeHandle", inline.csi.volume_handle if inline and inline.csi else None),
    )


def decode_volume_claim(raw: bytes | msgspec.Raw) -> PersistentVolumeClaim:
    """The PersistentVolumeClaim in this JSON object."""
    read = _VOLUME_CLAIM.decode(raw)
    volume_name = identity("spec.volumeName", read.spec.volume_name if read.spec else None)
    modes = (read.spec.access_modes if read.spec else None) or ()
    return PersistentVolumeClaim(
        *identity_in_namespace(read.metadata), volume_name=volume_name, access_modes=modes[:MOST_MODES]
    )


def decode_lease(raw: bytes | msgspec.Raw) -> Lease:
    """The Lease in this JSON object."""
    read = _LEASE.decode(raw)
    meta = read.metadata
    spec = read.spec or wire.LeaseSpec()
    return Lease(
        *identity_in_namespace(meta),
        holder=cut(spec.holder_identity),
        duration_seconds=spec.lease_duration_seconds or 0,
        acquire_time=instant(spec.acquire_time),
        renew_time=instant(spec.renew_time),
        transitions=spec.lease_transitions or 0,
    )


def decode_config_map(raw: bytes | msgspec.Raw) -> ConfigMap:
    """The ConfigMap in this JSON object."""
    read = _CONFIG_MAP.decode(raw)
    return ConfigMap(*identity_in_namespace(read.metadata), data=read.data or {})


def _grace(seconds: int | None) -> int | None:
    if seconds is None or -LONGEST_GRACE <= seconds <= LONGEST_GRACE:
        return seconds
    return LONGEST_GRACE if seconds > 0 else -LONGEST_GRACE


def _node_class(reference: wire.NodeClassReference | None) -> str:
    if reference is None or not reference.kind:
        return ""
    group = reference.group or (reference.api_version or "").rpartition("/")[0]
    return f"{cut(reference.kind)}.{cut(group)}".rstrip(".")


def _end_of_grace(moment: datetime | None, seconds: int | None) -> float | None:
    """The end of the grace as it is read.

    Servers count nanoseconds in 64 bits: the end of more than 292 years is written as an instant that has passed, and
    the pod would be taken for one that should have gone long ago.
    """
    ends = instant(moment)
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
    if len(claims) > MOST_CLAIMS:
        del claims[MOST_CLAIMS:]
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
    if len(found) > MOST_CLAIMS:
        del found[MOST_CLAIMS:]
    return tuple(found)


def _annotations(read: wire.PodAnnotations | wire.ClaimAnnotations | None, longest: int) -> Mapping[str, str]:
    """Annotations of the object, each cut to `longest` characters (released-from to LONGEST_RELEASE): other clients may
    write 256 KiB.
    """
    if read is None:
        return _NO_ANNOTATIONS
    found = ((name, getattr(read, field)) for field, name in _ANNOTATIONS[type(read)])
    kept = {
        name: value[: LONGEST_RELEASE if name == names.RELEASED_FROM else longest]
        for name, value in found
        if value is not None
    } or _NO_ANNOTATIONS
    return _ONLY_MIRROR if kept.keys() == _ONLY_MIRROR.keys() else kept


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
