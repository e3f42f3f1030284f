"""The JSON of the API server, field by field as it is written there: the first of two phases of decoding.

msgspec fills these straight from bytes and skips every field that is not named. Go writes null for whatever is
empty (`creationTimestamp: null`, `conditions: null`), so everything but a name may be null or absent; decode.py turns
that into the plain values of the public structs. Nothing here outlives a decode.

Parts that many objects have word for word in common (labels, owners, tolerations) stay undecoded: sharing.py looks
their bytes up before it reads them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec

from gracectl.model import names
from gracectl.model.selectors import WireLabelSelector
from gracectl.model.untrusted import Decoder

ABSENT: Final = msgspec.Raw(b"null")
"""Value of a part that was left out."""

# Without a zone an instant would be read in the zone of this machine.
Instant = Annotated[datetime, msgspec.Meta(tz=True)]

# As Go's int64: larger values could not be converted to a float.
Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Object(msgspec.Struct, rename="camel", gc=False):
    """A JSON object: field names in camel case, unknown fields ignored."""


class Version(Object):
    resource_version: str | None = None


class Bookmark(Object):
    metadata: Version


class Meta(Object):
    name: str
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: Integer | None = None
    labels: msgspec.Raw = ABSENT
    creation_timestamp: Instant | None = None
    deletion_timestamp: Instant | None = None
    deletion_grace_period_seconds: Integer | None = None
    finalizers: tuple[str, ...] | None = None
    owner_references: msgspec.Raw = ABSENT


class Plain(Object):
    """An object of which only the metadata is read."""

    metadata: Meta


class Owner(Object):
    api_version: str | None = None
    kind: str | None = None
    name: str | None = None
    uid: str | None = None
    controller: bool | None = None


class Condition(Object):
    type: str | None = None
    status: str | None = None
    reason: str | None = None
    message: str | None = None
    last_transition_time: Instant | None = None


# -- pods ---------------------------------------------------------------------------------------------


class PodAnnotations(Object):
    do_not_disrupt: str | None = msgspec.field(default=None, name=names.DO_NOT_DISRUPT)
    do_not_evict: str | None = msgspec.field(default=None, name=names.DO_NOT_EVICT)
    replace_first: str | None = msgspec.field(default=None, name=names.REPLACE_FIRST)
    released_from: str | None = msgspec.field(default=None, name=names.RELEASED_FROM)
    replacement_failed: str | None = msgspec.field(default=None, name=names.REPLACEMENT_FAILED)
    mirror_pod: str | None = msgspec.field(default=None, name=names.MIRROR_POD)
    autoscaler_daemon_pod: str | None = msgspec.field(default=None, name=names.AUTOSCALER_DAEMON_POD)
    a8r_owner: str | None = msgspec.field(default=None, name=names.A8R_OWNER)
    owner: str | None = None
    team: str | None = None
    contact: str | None = None


class PodMeta(Meta):
    annotations: PodAnnotations | None = None


class Toleration(Object):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class ClaimSource(Object):
    claim_name: str | None = None


class Present(Object):
    """A source of which it matters only that it is there."""


class DiskById(Object):
    """Volume source of AWS, Cinder and Portworx."""

    id: str | None = msgspec.field(default=None, name="volumeID")


class AzureDisk(Object):
    id: str | None = msgspec.field(default=None, name="diskURI")


class GceDisk(Object):
    id: str | None = msgspec.field(default=None, name="pdName")


class VsphereDisk(Object):
    id: str | None = msgspec.field(default=None, name="volumePath")


class Volume(Object):
    name: str | None = None
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: Present | None = None
    empty_dir: Present | None = None
    aws_elastic_block_store: DiskById | None = None
    azure_disk: AzureDisk | None = None
    cinder: DiskById | None = None
    gce_persistent_disk: GceDisk | None = None
    portworx_volume: DiskById | None = None
    vsphere_volume: VsphereDisk | None = None


class PodSpec(Object):
    node_name: str | None = None
    termination_grace_period_seconds: Integer | None = None
    restart_policy: str | None = None
    priority: Integer | None = None
    priority_class_name: str | None = None
    scheduler_name: str | None = None
    tolerations: msgspec.Raw = ABSENT
    volumes: list[Volume] | None = None


class PodCondition(Object):
    type: str | None = None
    status: str | None = None


class PodStatus(Object):
    phase: str | None = None
    start_time: Instant | None = None
    conditions: list[PodCondition] | None = None


class Pod(Object):
    metadata: PodMeta
    spec: PodSpec | None = None
    status: PodStatus | None = None


# -- nodes and their claims ---------------------------------------------------------------------------


class ClaimAnnotations(Object):
    termination_timestamp: str | None = msgspec.field(default=None, name=names.TERMINATION_TIMESTAMP)
    forced_deadline: str | None = msgspec.field(default=None, name=names.FORCED_DEADLINE)
    traceparent: str | None = msgspec.field(default=None, name=names.TRACEPARENT)


class ClaimMeta(Meta):
    annotations: ClaimAnnotations | None = None


class NodeAnnotations(ClaimAnnotations):
    do_not_disrupt: str | None = msgspec.field(default=None, name=names.DO_NOT_DISRUPT)
    keep_drained: str | None = msgspec.field(default=None, name=names.KEEP_DRAINED)
    drain_deadline: str | None = msgspec.field(default=None, name=names.DRAIN_DEADLINE)
    cordoned: str | None = msgspec.field(default=None, name=names.CORDONED)
    uncordoned: str | None = msgspec.field(default=None, name=names.UNCORDONED)
    pending_cordoned: str | None = msgspec.field(default=None, name=names.PENDING_CORDONED)
    shutdown_cordoned: str | None = msgspec.field(default=None, name=names.SHUTDOWN_CORDONED)
    interruption: str | None = msgspec.field(default=None, name=names.INTERRUPTION)
    node_drain: str | None = msgspec.field(default=None, name=names.NODE_DRAIN)


class NodeMeta(Meta):
    annotations: NodeAnnotations | None = None


class Taint(Object):
    key: str | None = None
    value: str | None = None
    effect: str | None = None


class NodeSpec(Object):
    unschedulable: bool | None = None
    taints: list[Taint] | None = None
    # Not the camel case of msgspec.
    provider_id: str | None = msgspec.field(default=None, name="providerID")


class Conditions(Object):
    conditions: list[Condition] | None = None


class NodeAddress(Object):
    address: str | None = None


class NodeStatus(Conditions):
    addresses: list[NodeAddress] | None = None


class Node(Object):
    metadata: NodeMeta
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class NodeClassReference(Object):
    """v1 has a group; v1beta1, an apiVersion."""

    group: str | None = None
    api_version: str | None = None
    kind: str | None = None


class NodeClaimSpec(Object):
    termination_grace_period: str | None = None
    expire_after: str | None = None
    node_class_ref: NodeClassReference | None = None


class NodeClaimStatus(Conditions):
    provider_id: str | None = msgspec.field(default=None, name="providerID")
    node_name: str | None = None


class NodeClaim(Object):
    metadata: ClaimMeta
    spec: NodeClaimSpec | None = None
    status: NodeClaimStatus | None = None


# -- the others ---------------------------------------------------------------------------------------


class Window(Object):
    schedule: str | None = None
    duration: str | None = None
    time_zone: str | None = None


class CommonBudgetSpec(Object):
    selector: msgspec.Raw = ABSENT
    min_available: Integer | str | None = None
    max_unavailable: Integer | str | None = None


class NodeBudgetSpec(CommonBudgetSpec):
    windows: tuple[Window, ...] | None = None


class BudgetSpec(CommonBudgetSpec):
    unhealthy_pod_eviction_policy: str | None = None


class BudgetStatus(Conditions):
    observed_generation: Integer | None = None
    disruptions_allowed: Integer | None = None
    current_healthy: Integer | None = None
    desired_healthy: Integer | None = None
    expected_pods: Integer | None = None
    disrupted_pods: dict[str, Instant | None] | None = None


class Budget(Object):
    metadata: Meta
    spec: BudgetSpec | None = None
    status: BudgetStatus | None = None


class NodeBudgetStatus(Conditions):
    observed_generation: Integer | None = None
    expected_nodes: Integer | None = None
    current_available: Integer | None = None
    desired_available: Integer | None = None
    disruptions_allowed: Integer | None = None
    disrupted_nodes: dict[str, Instant | None] | None = None


class NodeBudget(Object):
    metadata: Meta
    spec: NodeBudgetSpec | None = None
    status: NodeBudgetStatus | None = None


class CsiVolume(Object):
    volume_handle: str | None = None


class InlineVolume(Object):
    csi: CsiVolume | None = None


class AttachmentSource(Object):
    persistent_volume_name: str | None = None
    inline_volume_spec: InlineVolume | None = None


class AttachmentSpec(Object):
    attacher: str | None = None
    node_name: str | None = None
    source: AttachmentSource | None = None


class AttachmentStatus(Object):
    attached: bool | None = None


class Attachment(Object):
    metadata: Meta
    spec: AttachmentSpec | None = None
    status: AttachmentStatus | None = None


class VolumeClaimSpec(Object):
    volume_name: str | None = None
    access_modes: tuple[str, ...] | None = None


class VolumeClaim(Object):
    metadata: Meta
    spec: VolumeClaimSpec | None = None


class LeaseSpec(Object):
    holder_identity: str | None = None
    lease_duration_seconds: Integer | None = None
    acquire_time: Instant | None = None
    renew_time: Instant | None = None
    lease_transitions: Integer | None = None


class Lease(Object):
    metadata: Meta
    spec: LeaseSpec | None = None


class ConfigMap(Object):
    metadata: Meta
    data: dict[str, str] | None = None


def read_selector(raw: msgspec.Raw) -> WireLabelSelector | None:
    """Decode the selector that was left undecoded. Errors name its field, as for a whole budget."""
    try:
        return _SELECTOR.decode(raw)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        raise msgspec.ValidationError(f"{reason} - at `$.spec.selector{place.rstrip('`')}`") from error


def read_labels(raw: msgspec.Raw) -> dict[str, str]:
    """The map that was left undecoded."""
    return _LABELS.decode(raw) or {}


_LABELS = Decoder(dict[str, str] | None)
_SELECTOR: Decoder[WireLabelSelector | None] = Decoder(WireLabelSelector | None)


# -- events -------------------------------------------------------------------------------------------


class Reference(Object):
    kind: str | None = None
    namespace: str | None = None
    name: str | None = None
    uid: str | None = None


class EventSource(Object):
    component: str | None = None


class Event(Object):
    metadata: Meta
    involved_object: Reference | None = None
    source: EventSource | None = None
    reporting_component: str | None = None
    type: str | None = None
    reason: str | None = None
    message: str | None = None
    count: Integer | None = None
    first_timestamp: Instant | None = None
    last_timestamp: Instant | None = None
    event_time: Instant | None = None

    @property
    def at(self) -> float:
        """When it was last seen (Unix seconds); 0: unknown."""
        found = (self.last_timestamp, self.event_time, self.first_timestamp, self.metadata.creation_timestamp)
        return next((each.timestamp() for each in found if each is not None), 0.0)
