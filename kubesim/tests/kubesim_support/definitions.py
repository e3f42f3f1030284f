"""Definitions for tests of custom resources: a small one, and NodeClaims with the rules that Karpenter has for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock

from kubesim_support.caller import Caller

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
RULES = "x-kubernetes-validations"


def rule(text: str, **more: Any) -> dict[str, Any]:
    """One rule."""
    return {"rule": text, **more}


def whole(spec: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The schema of objects with these fields in their spec."""
    return {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}, **more}


def version(name: str, schema: dict[str, Any], *, storage: bool = True, **more: Any) -> dict[str, Any]:
    """A version that is served."""
    return {"name": name, "served": True, "storage": storage, "schema": {"openAPIV3Schema": schema}, **more}


def definition(plural: str, versions: Sequence[dict[str, Any]], **spec: Any) -> dict[str, Any]:
    """A CustomResourceDefinition in the group c.example."""
    group = spec.get("group", "c.example")
    names = {"plural": plural, "kind": plural.removesuffix("s").capitalize()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Cluster", "names": names, "versions": list(versions), **spec},
    }


async def serving(*definitions: dict[str, Any]) -> Caller:
    """A client of a server that serves these."""
    api = Caller(ApiServer(LoopClock()))
    for each in definitions:
        await api.create(DEFINITIONS, each)
    await anyio.sleep(1)
    return api


QUALIFIED = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(\/))?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$"
)
QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|"
    r"([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
OPERATORS = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"]
NOT_EMPTY = [rule("self != ''", message="may not be empty")]
REQUIREMENT = {
    "type": "object",
    "required": ["key", "operator"],
    "properties": {
        "key": {
            "type": "string",
            "maxLength": 316,
            "pattern": QUALIFIED,
            RULES: [
                rule(
                    'self in ["karpenter.sh/capacity-type", "karpenter.sh/nodepool"] || '
                    '!self.find("^([^/]+)").endsWith("karpenter.sh")',
                    message="label domain is restricted",
                ),
                rule('self != "kubernetes.io/hostname"', message="label is restricted"),
            ],
        },
        "operator": {"type": "string", "enum": OPERATORS},
        "values": {"type": "array", "items": TEXT},
        "minValues": {"type": "integer", "minimum": 1, "maximum": 50},
    },
}
REQUIREMENTS = {
    "type": "array",
    "maxItems": 100,
    "items": REQUIREMENT,
    RULES: [
        rule("self.all(x, x.operator == 'In' ? x.values.size() != 0 : true)", message="In needs values"),
        rule(
            "self.all(x, (x.operator == 'Gt' || x.operator == 'Lt' || x.operator == 'Gte' || x.operator == 'Lte') ? "
            "(x.values.size() == 1 && int(x.values[0]) >= 0) : true)",
            message="a comparison needs one number",
        ),
        rule(
            "self.all(x, (x.operator == 'In' && has(x.minValues)) ? x.values.size() >= x.minValues : true)",
            message="fewer values than minValues",
        ),
    ],
}
AMOUNTS = {
    "type": "object",
    "additionalProperties": {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": QUANTITY,
        "x-kubernetes-int-or-string": True,
    },
}
CLAIM = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "apiVersion": TEXT,
        "kind": TEXT,
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "required": ["nodeClassRef", "requirements"],
            RULES: [rule("self == oldSelf", message="spec is immutable")],
            "properties": {
                "expireAfter": {"type": "string", "pattern": r"^(([0-9]+(s|m|h))+|Never)$", "default": "720h"},
                "nodeClassRef": {
                    "type": "object",
                    "required": ["group", "kind", "name"],
                    "properties": {
                        "group": {"type": "string", "pattern": "^[^/]*$", RULES: NOT_EMPTY},
                        "kind": {"type": "string", RULES: NOT_EMPTY},
                        "name": {"type": "string", RULES: NOT_EMPTY},
                    },
                },
                "requirements": REQUIREMENTS,
                "resources": {"type": "object", "properties": {"requests": AMOUNTS}},
                "terminationGracePeriod": {"type": "string", "pattern": "^([0-9]+(s|m|h))+$"},
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "capacity": AMOUNTS,
                "nodeName": TEXT,
                "conditions": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["lastTransitionTime", "status", "type"],
                        "properties": {
                            "lastTransitionTime": {"type": "string", "format": "date-time"},
                            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                            "type": TEXT,
                        },
                    },
                },
            },
        },
    },
}
READY = '.status.conditions[?(@.type=="Ready")].status'
CLAIM_DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "nodeclaims.karpenter.sh"},
    "spec": {
        "group": "karpenter.sh",
        "scope": "Cluster",
        "names": {"plural": "nodeclaims", "singular": "nodeclaim", "kind": "NodeClaim", "categories": ["karpenter"]},
        "versions": [
            version(
                "v1",
                CLAIM,
                subresources={"status": {}},
                additionalPrinterColumns=[
                    {
                        "name": "Type",
                        "type": "string",
                        "jsonPath": r".metadata.labels.node\.kubernetes\.io/instance-type",
                    },
                    {"name": "Node", "type": "string", "jsonPath": ".status.nodeName"},
                    {"name": "Ready", "type": "string", "jsonPath": READY},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
            )
        ],
    },
}


def claim(*requirements: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A NodeClaim named c."""
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": "c"},
        "spec": {"nodeClassRef": reference, "requirements": list(requirements), **spec},
    }
