"""What the caches show of the cluster, joined into the view of one node that a plan is made from."""

from __future__ import annotations

import msgspec

from gracectl.kube.cache import Cache
from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.volume import VolumeAttachment
from gracectl.policy.budgets import budgets_of

BY_NODE = "node"
BY_NAMESPACE = "namespace"


class Observed(msgspec.Struct, frozen=True):
    """The caches that terminations read. Nothing is decided before all of them are live."""

    nodes: Cache[Node]
    pods: Cache[Pod]
    budgets: Cache[PodDisruptionBudget]
    attachments: Cache[VolumeAttachment]

    async def wait_live(self) -> None:
        """Return when each cache has taken over its first complete list."""
        await self.nodes.wait_live()
        await self.pods.wait_live()
        await self.budgets.wait_live()
        await self.attachments.wait_live()

    def node(self, name: str) -> Node | None:
        """The node of that name."""
        return self.nodes.get("", name)

    def pods_on(self, node: str) -> tuple[Pod, ...]:
        """The pods bound to a node."""
        return self.pods.by_index(BY_NODE, node)

    def attachments_on(self, node: str) -> tuple[VolumeAttachment, ...]:
        """The volumes attached to a node."""
        return self.attachments.by_index(BY_NODE, node)

    def budgets_by_pod(self, pods: tuple[Pod, ...]) -> dict[str, tuple[PodDisruptionBudget, ...]]:
        """For each pod that some budget selects, by UID, those budgets."""
        in_namespace = {ns: self.budgets.by_index(BY_NAMESPACE, ns) for ns in {pod.namespace for pod in pods}}
        # Pods of one workload share one label map (model.sharing): their budgets are looked for once.
        of_workload: dict[tuple[str, int], tuple[PodDisruptionBudget, ...]] = {}
        found = {}
        for pod in pods:
            workload = (pod.namespace, id(pod.labels))
            if workload not in of_workload:
                of_workload[workload] = budgets_of(pod, in_namespace[pod.namespace])
            if of_workload[workload]:
                found[pod.uid] = of_workload[workload]
        return found


def observe_nothing_yet() -> Observed:
    """Empty caches with the indexes that terminations need; reflectors fill them."""
    return Observed(
        nodes=Cache("nodes"),
        pods=Cache("pods", {BY_NODE: lambda pod: (pod.node_name,) if pod.node_name else ()}),
        budgets=Cache("budgets", {BY_NAMESPACE: lambda budget: (budget.namespace,)}),
        attachments=Cache("attachments", {BY_NODE: lambda attachment: (attachment.node_name,)}),
    )


def is_held(node: Node) -> bool:
    """Whether the node is being deleted and our finalizer holds it."""
    return node.deletion_timestamp is not None and names.FINALIZER in node.finalizers
