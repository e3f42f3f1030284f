"""The kinds of object that gracectl reads and writes, each with its path and its decoder.

The one place that knows a resource's group, version and plural; adding a kind is adding a constant here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

import msgspec

from gracectl.model import wire
from gracectl.model.decode import (
    decode_attachment,
    decode_budget,
    decode_claim,
    decode_config_map,
    decode_lease,
    decode_node,
    decode_node_budget,
    decode_pod,
    decode_volume_claim,
    unknown_budget,
    unknown_pod,
)
from gracectl.model.envelope import UndecodableObject, decode_birth, decode_envelope
from gracectl.model.machine import decode_machine
from gracectl.model.names import CLUSTER_API_GROUP, GROUP, KARPENTER_GROUP, TERMINATION_GROUP, TERMINATION_VERSION
from gracectl.model.nodedrain import decode_node_drain
from gracectl.model.untrusted import Decoder
from gracectl.model.workloads import decode_workload

T = TypeVar("T")
U = TypeVar("U")
Raw = bytes | msgspec.Raw

_UNTYPED: Decoder[dict[str, Any]] = Decoder(dict[str, Any])


class Resource(msgspec.Struct, Generic[T], frozen=True):
    """A served resource and how to decode one object of it (malformed input raises msgspec.DecodeError).

    `wire_type`: a type of model's wire.py that `decode` takes as well: pages of a list and events of a watch are
    decoded to it whole, which saves a look at each object.
    `stand_in`: what lists and caches have in the place of one that cannot be decoded; None: nothing, or its last state.
    `cancellable`: a write in flight need not be finished when it is cancelled.
    """

    group: str
    version: str
    plural: str
    kind: str
    decode: Callable[[Raw], T]
    namespaced: bool = True
    wire_type: type | None = None
    stand_in: Callable[[UndecodableObject], T] | None = None
    cancellable: bool = False

    @property
    def api_version(self) -> str:
        """API version in the form of manifests: `policy/v1`, or `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """The plural with its group: `nodeclaims.karpenter.sh`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def read_by(self, decode: Callable[[Raw], U]) -> Resource[U]:
        """The same resource with another decoder: give a cache's reflector one that shares (model's PodDecoder)."""
        return cast("Resource[U]", msgspec.structs.replace(self, decode=decode))

    def read(self, raw: Raw) -> T:
        """The object, or its stand-in. Raises msgspec.DecodeError for kinds that have none."""
        try:
            return self.decode(raw)
        except msgspec.DecodeError as error:
            if self.stand_in is None:
                raise
            return self.stand_in(decode_envelope(raw, error))

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of a collection (no name), an object, or a subresource; no namespace = over all namespaces."""
        if namespace and not self.namespaced:
            raise ValueError(f"{self.plural} have no namespace, but {namespace!r} was given")
        if name and self.namespaced and not namespace:
            raise ValueError(f"{self.plural} {name!r} needs a namespace")
        parts = [f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"]
        if namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            # Names of some kinds (RBAC, Leases of the past) may hold colons and the like.
            parts.append(quote(name, safe=":"))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


def verbatim(raw: Raw) -> bytes:
    """Decoder of kinds without any field that is read."""
    return bytes(raw)


def untyped(raw: Raw) -> dict[str, Any]:
    """For objects that are written back whole, with the fields of others."""
    return _UNTYPED.decode(raw)


PODS = Resource("", "v1", "pods", "Pod", decode_pod, wire_type=wire.Pod, stand_in=unknown_pod)
NODES = Resource("", "v1", "nodes", "Node", decode_node, namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", decode_birth, namespaced=False)
"""Decoded to what tells one from another of the same name."""
BUDGETS = Resource(
    "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", decode_budget, stand_in=unknown_budget
)
VOLUME_ATTACHMENTS = Resource(
    "storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", decode_attachment, namespaced=False
)
VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", decode_volume_claim)
NODE_CLAIMS = Resource(KARPENTER_GROUP, "v1", "nodeclaims", "NodeClaim", decode_claim, namespaced=False)
NODE_CLAIM_VERSIONS = (NODE_CLAIMS, msgspec.structs.replace(NODE_CLAIMS, version="v1beta1"))
"""In order of preference. A cluster serves some versions, or none."""
NODE_POOLS = Resource(KARPENTER_GROUP, "v1", "nodepools", "NodePool", untyped, namespaced=False)
NODE_POOL_VERSIONS = (NODE_POOLS, msgspec.structs.replace(NODE_POOLS, version="v1beta1"))
"""Served where Karpenter is installed: gracectl ships no definition."""
NODE_BUDGETS = Resource(
    TERMINATION_GROUP,
    TERMINATION_VERSION,
    "nodedisruptionbudgets",
    "NodeDisruptionBudget",
    decode_node_budget,
    namespaced=False,
)
"""A cluster serves them, or (before `gracectl crds` was applied) not."""
NODE_DRAINS = Resource(GROUP, "v1alpha1", "nodedrains", "NodeDrain", decode_node_drain, namespaced=False)
"""A cluster serves them, or (before `gracectl crds` was applied) not."""
MACHINES = Resource(CLUSTER_API_GROUP, "v1beta2", "machines", "Machine", decode_machine, cancellable=True)
MACHINE_VERSIONS = (MACHINES, msgspec.structs.replace(MACHINES, version="v1beta1"))
"""In order of preference. A cluster without Cluster API serves none."""
ROLLOUTS = Resource("argoproj.io", "v1alpha1", "rollouts", "Rollout", decode_workload)
"""Served where Argo Rollouts is installed."""
DRAIN_RULES = Resource(CLUSTER_API_GROUP, "v1beta2", "machinedrainrules", "MachineDrainRule", untyped)
DRAIN_RULE_VERSIONS = (DRAIN_RULES, msgspec.structs.replace(DRAIN_RULES, version="v1beta1"))
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", decode_lease)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", decode_config_map)
EVENTS = Resource("", "v1", "events", "Event", verbatim, cancellable=True)
SECRETS = Resource("", "v1", "secrets", "Secret", untyped)
MUTATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    untyped,
    namespaced=False,
)
VALIDATING_WEBHOOKS: Resource[dict[str, Any]] = msgspec.structs.replace(
    MUTATING_WEBHOOKS, plural="validatingwebhookconfigurations", kind="ValidatingWebhookConfiguration"
)
