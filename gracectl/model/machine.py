"""Machine of Cluster API, which represents one instance, and the annotations of Cluster API on its node."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from gracectl.model import names, wire
from gracectl.model.bounds import cut
from gracectl.model.meta import NamespacedObject
from gracectl.model.parts import identity, instant
from gracectl.model.times import in_range
from gracectl.model.untrusted import Decoder


class Machine(NamespacedObject, frozen=True, gc=False):
    """One Machine, v1beta2 or v1beta1."""

    cluster: str = ""
    provider_id: str = ""
    """Empty until its instance is made."""
    annotations: frozenset[str] = frozenset()
    """Names of annotations that Cluster API obeys; their values do not matter."""
    is_deleted: bool = False
    """Whether the machine was deleted; finalizers keep it since."""
    is_paused: bool = False
    """Cluster API leaves it alone while that is so."""
    node_name: str = ""
    """The node that Cluster API has found for it; empty: none so far."""
    deletion_message: str = ""
    """Message of Cluster API about its deletion; empty without one."""
    is_draining: bool = False
    """Whether Cluster API drains its node now."""
    drain_ends: float | None = None
    """When Cluster API gives up the drain (Unix seconds); None: never."""

    def __str__(self) -> str:
        return f"Machine {self.namespace}/{self.name}"


class Membership(msgspec.Struct, frozen=True):
    """Annotations of Cluster API on a node: its cluster, and its Machine."""

    name: str
    provider_id: str = ""
    cluster: str = ""
    namespace: str = ""
    machine: str = ""
    """Empty: it has not made this node from a Machine."""
    owner_kind: str = ""


class _DeletionSpec(wire.Object):
    node_drain_timeout_seconds: int | None = None


class _Spec(wire.Object):
    cluster_name: str | None = None
    provider_id: str | None = msgspec.field(default=None, name="providerID")
    deletion: _DeletionSpec | None = None


class _Conditions(wire.Object):
    conditions: tuple[wire.Condition, ...] | None = None


class _NodeRef(wire.Object):
    name: str | None = None


class _DeletionStatus(wire.Object):
    node_drain_start_time: datetime | None = None


class _Status(_Conditions):
    deletion: _DeletionStatus | None = None
    phase: str | None = None
    node_ref: _NodeRef | None = None
    v1beta2: _Conditions | None = None


class _MachineMeta(wire.Meta):
    annotations: dict[str, str] | None = None


class _Machine(wire.Object):
    metadata: _MachineMeta
    spec: _Spec | None = None
    status: _Status | None = None


class _Marks(wire.Object):
    cluster: str | None = msgspec.field(default=None, name=names.CLUSTER_API_CLUSTER)
    namespace: str | None = msgspec.field(default=None, name=names.CLUSTER_API_NAMESPACE)
    machine: str | None = msgspec.field(default=None, name=names.CLUSTER_API_MACHINE)
    owner_kind: str | None = msgspec.field(default=None, name=names.CLUSTER_API_OWNER_KIND)


class _NodeMeta(wire.Object):
    name: str
    annotations: _Marks | None = None


class _Node(wire.Object):
    metadata: _NodeMeta
    spec: _Spec | None = None


_OBEYED: Final = frozenset({names.CLUSTER_API_PAUSED, names.EXCLUDE_NODE_DRAINING, names.EXCLUDE_VOLUME_DETACH})

_MACHINE: Final = Decoder(_Machine)
_NODE: Final = Decoder(_Node)


def decode_machine(raw: bytes | msgspec.Raw) -> Machine:
    """The Machine in this JSON object; msgspec.DecodeError if there is none."""
    read = _MACHINE.decode(raw)
    meta, spec, status = read.metadata, read.spec or _Spec(), read.status or _Status()
    annotations = _OBEYED & (meta.annotations or {}).keys()
    # v1beta1 has its own conditions, and the v1beta2 conditions in a separate field (from Cluster API 1.9).
    conditions = {each.type: each for each in (*(status.conditions or ()), *_apart(status))}
    paused, deleting = conditions.get("Paused"), conditions.get("Deleting")
    began = instant(status.deletion.node_drain_start_time) if status.deletion else None
    seconds = spec.deletion.node_drain_timeout_seconds if spec.deletion else None
    return Machine(
        namespace=meta.namespace or "",
        name=meta.name,
        uid=meta.uid or "",
        resource_version=meta.resource_version or "",
        cluster=cut(spec.cluster_name),
        provider_id=identity("spec.providerID", spec.provider_id),
        annotations=annotations,
        is_deleted=meta.deletion_timestamp is not None,
        is_paused=names.CLUSTER_API_PAUSED in annotations or (paused is not None and paused.status == names.TRUE),
        node_name=identity("status.nodeRef.name", status.node_ref.name if status.node_ref else None),
        deletion_message=cut(_deletion_message(status, conditions)),
        is_draining=deleting is not None and (deleting.status, deleting.reason) == (names.TRUE, "DrainingNode"),
        drain_ends=in_range(began + seconds) if began is not None and seconds else None,
    )


def decode_membership(raw: bytes | msgspec.Raw) -> Membership:
    """Decode the annotations of Cluster API on the Node in this JSON object. Raises msgspec.DecodeError without
    them."""
    read = _NODE.decode(raw)
    spec, marks = read.spec or _Spec(), read.metadata.annotations or _Marks()
    return Membership(
        name=read.metadata.name,
        provider_id=identity("spec.providerID", spec.provider_id),
        cluster=identity(names.CLUSTER_API_CLUSTER, marks.cluster),
        namespace=identity(names.CLUSTER_API_NAMESPACE, marks.namespace),
        machine=identity(names.CLUSTER_API_MACHINE, marks.machine),
        owner_kind=cut(marks.owner_kind),
    )


def _apart(status: _Status) -> tuple[wire.Condition, ...]:
    return (status.v1beta2.conditions if status.v1beta2 else None) or ()


def _deletion_message(status: _Status, conditions: dict[str | None, wire.Condition]) -> str:
    """Why it is not deleted yet: the condition about the deletion, else the first that is not well and has a
    message.
    """
    found = conditions.get("Deleting")
    if found is None or found.status != names.TRUE:
        bad = (each for each in conditions.values() if each.status == "False" and each.message and each.type != "Ready")
        found = next(bad, None)
    if found is None:
        return f"phase {status.phase}" if status.phase else ""
    return ": ".join(filter(None, (found.reason or found.type, found.message)))
