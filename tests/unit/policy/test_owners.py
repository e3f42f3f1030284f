"""Who drains a node: what shows Karpenter's nodes and claims, and what does not."""

from __future__ import annotations

import pytest

from gracectl.model.claim import NodeClaim
from gracectl.model.decode import decode_claim
from gracectl.model.encoding import encode
from gracectl.model.node import Node, Taint
from gracectl.model.selectors import LabelSelector
from gracectl.policy.owners import (
    EVERY_NODE,
    DrainOwner,
    ManagedNodes,
    other_owner,
    other_owner_of_claim,
)

ALL = ManagedNodes(LabelSelector())


def a_node(*taints: str, **labels: str) -> Node:
    return Node("n1", "uid-n1", labels=labels, taints=tuple(Taint(key, effect="NoExecute") for key in taints))


@pytest.mark.parametrize(("labels", "reason"), [
    ({"karpenter.sh/nodepool": "general"}, "label karpenter.sh/nodepool=general"),
    ({"karpenter.sh/nodepool": "a\x1b[2J"}, "label karpenter.sh/nodepool=a\\x1b[2J"),
    ({"karpenter.k8s.aws/ec2nodeclass": "default"}, "label karpenter.k8s.aws/ec2nodeclass"),
    ({"karpenter.azure.com/aksnodeclass": "default"}, "label karpenter.azure.com/aksnodeclass"),
    ({"karpenter.kwok.sh/kwoknodeclass": "default"}, "label karpenter.kwok.sh/kwoknodeclass"),
    ({"karpenter-ibm.sh/ibmnodeclass": "default"}, "label karpenter-ibm.sh/ibmnodeclass"),
    ({"eks.amazonaws.com/nodeclass": "default"}, "label eks.amazonaws.com/nodeclass"),
    ({}, ""),
    ({"nodeclass": "large"}, ""),
    ({"example.com/nodeclass": "large"}, ""),
    ({"eks.amazonaws.com/nodegroup": "system"}, ""),
    ({"karpenter.sh/capacity-type": "spot"}, ""),
    ({"karpenter.sh/lifecycle-phase": "terminable"}, ""),
])  # fmt: skip
def test_labels_of_nodes_and_claims(labels: dict[str, str], reason: str) -> None:
    node, claim = a_node(**labels), NodeClaim("c1", "uid-c1", labels=labels)
    owner = other_owner(node, ())
    assert ("" if owner is None else owner.reason) == reason
    assert ALL.includes(node) is (not reason)
    assert EVERY_NODE.includes(node)
    if reason:
        assert str(owner) == f"Karpenter drains it ({reason})"
        of_claim = other_owner_of_claim(claim)
        assert of_claim is not None
        assert of_claim.owner is DrainOwner.KARPENTER


@pytest.mark.parametrize(("reference", "kind", "is_karpenters"), [
    ({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass"}, "EC2NodeClass.karpenter.k8s.aws", True),
    ({"apiVersion": "karpenter.k8s.aws/v1beta1", "kind": "EC2NodeClass"}, "EC2NodeClass.karpenter.k8s.aws", True),
    ({"group": "eks.amazonaws.com", "kind": "NodeClass"}, "NodeClass.eks.amazonaws.com", True),
    ({"group": "oci.oraclecloud.com", "kind": "OCINodeClass"}, "OCINodeClass.oci.oraclecloud.com", True),
    ({"group": "karpenter.example.com", "kind": "Template"}, "Template.karpenter.example.com", True),
    ({"kind": "EC2NodeClass"}, "EC2NodeClass", True),
    ({"group": "example.com", "kind": "Machine"}, "Machine.example.com", False),
    ({"group": "g", "kind": "K"}, "K.g", False),
    ({"name": "default"}, "", False),
    ({"group": None, "kind": None}, "", False),
    (None, "", False),
])  # fmt: skip
def test_node_classes_of_claims(reference: dict[str, str] | None, kind: str, is_karpenters: bool) -> None:
    metadata = {"name": "c1", "uid": "uid-c1"}
    claim = decode_claim(encode({"metadata": metadata, "spec": {"nodeClassRef": reference}}))
    assert claim.node_class == kind
    owner = other_owner(a_node(), (claim,))
    assert (owner is not None) is is_karpenters
    assert ALL.includes(a_node(), (claim,)) is not is_karpenters
    if owner is not None:
        assert owner.reason == f"NodeClaim c1: nodeClassRef {kind}"


def test_a_node_that_karpenter_has_not_labeled_yet() -> None:
    owner = other_owner(a_node("karpenter.sh/unregistered"), ())
    assert str(owner) == "Karpenter drains it (taint karpenter.sh/unregistered)"
    assert other_owner(a_node("karpenter.sh/disrupted"), ()) is None


def test_the_selector_decides_about_the_rest() -> None:
    managed = ManagedNodes(LabelSelector({"pool": "a"}))
    assert managed.includes(a_node(pool="a"))
    assert not managed.includes(a_node(pool="b"))
    assert not managed.includes(a_node(**{"pool": "a", "karpenter.sh/nodepool": "a"}))
