"""NodeClaims as Karpenter leaves them when their nodes have joined: launched, registered, initialized, same labels.

Pure. The cluster creates them with their nodes; no controller of this package acts on a claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from kubesim.server.api import JsonObject

NODE_CLAIMS: Final = "/apis/karpenter.sh/v1/nodeclaims"
API_VERSION: Final = "karpenter.sh/v1"
GROUP: Final = "karpenter.sh/"
_OPEN: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
NODE_CLAIM: Final[JsonObject] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "nodeclaims.karpenter.sh"},
    "spec": {
        "group": "karpenter.sh",
        "scope": "Cluster",
        "names": {
            "kind": "NodeClaim",
            "listKind": "NodeClaimList",
            "plural": "nodeclaims",
            "singular": "nodeclaim",
            "categories": ["karpenter"],
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _OPEN, "status": _OPEN}}},
                "additionalPrinterColumns": [
                    {"name": "Node", "type": "string", "jsonPath": ".status.nodeName"},
                    {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
            }
        ],
    },
}
"""Definition that accepts any claim, for clusters without a definition; the one of Karpenter validates more."""
NODE_CLASS: Final = {"group": "kubesim", "kind": "Machine", "name": "default"}
KARPENTER_NODE_CLASS: Final = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
"""Of claims with a NodePool: Karpenter made them."""
JOINED: Final = {f"{GROUP}registered": "true", f"{GROUP}initialized": "true"}
"""What a node is labeled with when it has come up; the claim is not."""
UPWARDS: Final = ("Launched", "Registered", "Initialized", "Ready")
"""The conditions of a claim on its way up, in their order."""
NODES_OWN: Final = "kubernetes.io/hostname"


class ClaimSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A NodeClaim for one node. `name` "": the node's with `-claim`. `node_pool`: of Karpenter, "" for none.
    `termination_grace_period`, `expire_after`: as in manifests, "" for none. `labels` go to claim and node,
    `annotations` to the claim. `spec` overrides everything.
    """

    name: str = ""
    node_pool: str = ""
    capacity_type: str = "on-demand"
    termination_grace_period: str = ""
    expire_after: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    spec: JsonObject = {}

    def name_for(self, node: str) -> str:
        """The name of the claim of a node."""
        return self.name or f"{node}-claim"

    @property
    def node_labels(self) -> dict[str, str]:
        """What the node of the claim is labeled with on account of it."""
        pool = {f"{GROUP}nodepool": self.node_pool} if self.node_pool else {}
        return {**pool, f"{GROUP}capacity-type": self.capacity_type, **JOINED, **self.labels}


def claim_manifest(claim: ClaimSpec, node: JsonObject) -> JsonObject:
    """What is to be created for a node (its manifest, which has the labels of the claim already)."""
    kept = {key: value for key, value in node["metadata"]["labels"].items() if key not in (NODES_OWN, *JOINED)}
    taints = node["spec"].get("taints")
    spec: JsonObject = {
        "nodeClassRef": dict(KARPENTER_NODE_CLASS if claim.node_pool else NODE_CLASS),
        "requirements": [{"key": key, "operator": "In", "values": [value]} for key, value in _demanded(kept)],
        "resources": {"requests": {}},
        **({"taints": taints} if taints else {}),
        **({"terminationGracePeriod": claim.termination_grace_period} if claim.termination_grace_period else {}),
        **({"expireAfter": claim.expire_after} if claim.expire_after else {}),
        **claim.spec,
    }
    metadata: JsonObject = {"name": claim.name_for(node["metadata"]["name"]), "labels": kept}
    if claim.annotations:
        metadata["annotations"] = dict(claim.annotations)
    return {"apiVersion": API_VERSION, "kind": "NodeClaim", "metadata": metadata, "spec": spec}


def _demanded(labels: Mapping[str, str]) -> list[tuple[str, str]]:
    """Requirements may name only two labels of karpenter.sh: node pool and capacity type."""
    can_be = (f"{GROUP}nodepool", f"{GROUP}capacity-type")
    return sorted(item for item in labels.items() if item[0] in can_be or GROUP not in item[0])


def owned_by(claim: JsonObject, node: JsonObject) -> JsonObject:
    """The manifest of a node that belongs to a claim."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": "NodeClaim",
        "name": claim["metadata"]["name"],
        "uid": claim["metadata"]["uid"],
        "blockOwnerDeletion": True,
    }
    return {**node, "metadata": {**node["metadata"], "ownerReferences": [owner]}}


def claim_status(node: JsonObject, now: str) -> JsonObject:
    """Status of a claim with a registered node."""
    conditions = [
        {
            "type": type_,
            "status": "True",
            "reason": type_,
            "message": "",
            "lastTransitionTime": now,
            "observedGeneration": 1,
        }
        for type_ in UPWARDS
    ]
    return {
        "nodeName": node["metadata"]["name"],
        "providerID": node["spec"]["providerID"],
        "imageID": node["status"]["nodeInfo"]["osImage"],
        "capacity": node["status"]["capacity"],
        "allocatable": node["status"]["allocatable"],
        "conditions": conditions,
    }
