"""Optional labels of metrics that name the kind of a node: its pool, its capacity type and its zone.

The values are tenants' text. Invariant: only the first MAXIMUM_VALUES values of a label and the first
MAXIMUM_COMBINATIONS of all labels are distinguished; others are `other`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gracectl.model.foreign import harmless
from gracectl.telemetry.settings import NodeLabel

MAXIMUM_VALUES: Final = 100
MAXIMUM_COMBINATIONS: Final = 300
OTHER: Final = "other"

LONGEST: Final = 63
"""Characters, as Kubernetes allows them in the value of a label."""

KEYS: Final[Mapping[NodeLabel, tuple[str, ...]]] = {
    "nodepool": (
        "karpenter.sh/nodepool",
        "eks.amazonaws.com/nodegroup",
        "alpha.eksctl.io/nodegroup-name",
        "cloud.google.com/gke-nodepool",
        "kubernetes.azure.com/agentpool",
        "agentpool",
        "doks.digitalocean.com/node-pool",
        "ibm-cloud.kubernetes.io/worker-pool-name",
        "k8s.scaleway.com/pool-name",
        "worker.gardener.cloud/pool",
        "kops.k8s.io/instancegroup",
        "pool",
    ),
    "capacity_type": (
        "karpenter.sh/capacity-type",
        "eks.amazonaws.com/capacityType",
        "cloud.google.com/gke-provisioning",
        "kubernetes.azure.com/scalesetpriority",
    ),
    "zone": ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
}
"""Labels of nodes and node claims, by the label of a metric; the first one that an object has counts."""


class NodeLabels:
    """Values of the labels that are switched on, bounded over the life of the process."""

    def __init__(self, switched_on: tuple[NodeLabel, ...] = ()) -> None:
        self.names = switched_on
        self._values: dict[NodeLabel, set[str]] = {name: set() for name in switched_on}
        self._seen: set[tuple[str, ...]] = set() if switched_on else {()}

    def of(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Values for an object with these labels, in the order of `names`; "" for one that it does not have."""
        found = tuple(self._bounded(name, value_of(name, labels)) for name in self.names)
        if found not in self._seen and len(self._seen) >= MAXIMUM_COMBINATIONS:
            found = (OTHER,) * len(self.names)
        self._seen.add(found)
        return found

    def seen(self) -> list[tuple[str, ...]]:
        """All combinations so far, sorted: each has a series of every metric that takes these labels."""
        return sorted(self._seen)

    def _bounded(self, name: NodeLabel, value: str) -> str:
        values = self._values[name]
        if value not in values and len(values) >= MAXIMUM_VALUES:
            return OTHER
        values.add(value)
        return value


def value_of(name: NodeLabel, labels: Mapping[str, str]) -> str:
    """Value of one label, clipped and visible; capacity types as Karpenter spells them (`ON_DEMAND`: `on-demand`)."""
    value = harmless(next((labels[key] for key in KEYS[name] if key in labels), ""), LONGEST)
    return value.lower().replace("_", "-") if name == "capacity_type" else value
