"""Whether a document fits: JSON Schema, strict fields, and NodeClaims that a server accepts or refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from kubesim.types.catalog import PREFIX, resolved, type_name

# As much of JSON Schema (2020-12) as msgspec makes: whether a document fits.

JsonObject = Mapping[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list, tuple),
    "object": (dict,),
}
KNOWN = {
    *("$ref", "$defs", "$schema", "title", "description", "default", "type", "anyOf", "enum", "properties", "required"),
    *("additionalProperties", "items", "pattern", "minLength", "minimum", "maximum", "exclusiveMinimum"),
    "exclusiveMaximum",
}


def names_in(value: Any) -> set[str]:
    """The names of all fields of a JSON value and of the objects in it."""
    if isinstance(value, Mapping):
        return set(value).union(*map(names_in, value.values()))
    return set().union(*map(names_in, value)) if isinstance(value, list | tuple) else set()


def fits(value: Any, schema: JsonObject, root: JsonObject) -> bool:
    """Whether `value` is as this part of the schema `root` wants it."""
    assert schema.keys() <= KNOWN, f"not understood: {schema.keys() - KNOWN}"
    if (reference := schema.get("$ref")) and not fits(value, root["$defs"][reference.removeprefix("#/$defs/")], root):
        return False
    if "anyOf" in schema and not any(fits(value, each, root) for each in schema["anyOf"]):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    return _is_of_type(value, schema) and _is_in_bounds(value, schema) and _has_fields(value, schema, root)


def _is_of_type(value: Any, schema: JsonObject) -> bool:
    if "type" not in schema:
        return True
    is_number = schema["type"] in ("integer", "number")
    return isinstance(value, _TYPES[schema["type"]]) and not (is_number and isinstance(value, bool))


def _is_in_bounds(value: Any, schema: JsonObject) -> bool:
    if isinstance(value, str):
        return len(value) >= schema.get("minLength", 0) and re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    least, most = schema.get("minimum", value), schema.get("maximum", value)
    above, below = schema.get("exclusiveMinimum", value - 1), schema.get("exclusiveMaximum", value + 1)
    return bool(least <= value <= most and above < value < below)


def _has_fields(value: Any, schema: JsonObject, root: JsonObject) -> bool:
    if isinstance(value, list | tuple):
        return all(fits(each, schema.get("items", {}), root) for each in value)
    if not isinstance(value, dict):
        return True
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    if not value.keys() >= set(schema.get("required", ())):
        return False
    for name, each in value.items():
        if name in known:
            if not fits(each, known[name], root):
                return False
        elif others is False or (others is not True and not fits(each, others, root)):
            return False
    return True


# Whether an object is as strictly of its kind as an API server wants it with fieldValidation=Strict.
#
# Kubernetes' own kinds are those of kubesim.types. Those of others are in tests/packaging/chart/definitions.json.

FOREIGN: Final = Path(__file__).parents[1] / "packaging" / "chart" / "definitions.json"

Node = Mapping[str, Any]

_JSON_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_QUANTITY: Final = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
_SPECIAL: Final[Mapping[str, Callable[[Any], bool]]] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": lambda value: bool(_QUANTITY.fullmatch(str(value))),
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": lambda value: isinstance(value, int | str),
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON": lambda value: True,
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool": lambda value: True,
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray": lambda value: True,
}


@cache
def _foreign() -> Mapping[str, Any]:
    kinds: Mapping[str, Any] = json.loads(FOREIGN.read_text(encoding="utf-8"))["kinds"]
    return kinds


def misfits(body: Node) -> list[str]:
    """What is wrong with an object: each with its path. An unknown kind is an error as well."""
    group, _, version = body["apiVersion"].rpartition("/")
    kind = body["kind"]
    if name := type_name(group, version, kind):
        return list(_misfits(body, {"$ref": PREFIX + name}, kind))
    if schema := _foreign().get(f"{group}/{version}/{kind}"):
        whole = {
            **schema["properties"],
            "metadata": {"$ref": PREFIX + "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"},
        }
        return list(_misfits(body, {**schema, "properties": whole}, kind))
    return [f"{body['apiVersion']} {kind} is no kind that is known"]


def _misfits(value: Any, node: Node, path: str) -> Iterator[str]:
    if "allOf" in node and "$ref" not in node:
        for each in node["allOf"]:
            yield from _misfits(value, each, path)
        return
    if reference := node.get("$ref"):
        name = reference.removeprefix(PREFIX)
        if special := _SPECIAL.get(name):
            if not special(value):
                yield f"{path}: {value!r} is no {name.rpartition('.')[2]}"
            return
        node = resolved(reference)
    if value is None:
        # Servers take null for what is left out; a template that writes it has forgotten an `if`.
        yield f"{path}: is null"
        return
    if node.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str):
            yield f"{path}: {value!r} is neither a number nor a text"
        return
    yield from _of_type(value, node, path)


def _of_type(value: Any, node: Node, path: str) -> Iterator[str]:
    kind = node.get("type", "")
    is_wrong_bool = isinstance(value, bool) and kind != "boolean"
    if kind and (not isinstance(value, _JSON_TYPES[kind]) or is_wrong_bool):
        yield f"{path}: {value!r} is no {kind}"
    elif isinstance(value, dict):
        yield from _of_fields(value, node, path)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _misfits(each, node.get("items", {}), f"{path}[{number}]")
    elif "enum" in node and value not in node["enum"]:
        yield f"{path}: {value!r} is none of {', '.join(map(str, node['enum']))}"
    elif isinstance(value, str) and not re.search(node.get("pattern", ""), value):
        yield f"{path}: {value!r} does not match {node['pattern']}"


def _of_fields(value: dict[str, Any], node: Node, path: str) -> Iterator[str]:
    fields, others = node.get("properties", {}), node.get("additionalProperties")
    for name in node.get("required", ()):
        if name not in value:
            yield f"{path}.{name}: is missing"
    for name, each in value.items():
        if name in fields:
            yield from _misfits(each, fields[name], f"{path}.{name}")
        elif isinstance(others, dict):
            yield from _misfits(each, others, f"{path}.{name}")
        elif fields and not node.get("x-kubernetes-preserve-unknown-fields"):
            yield f"{path}.{name}: is no field"


# NodeClaims as users and Karpenter write them: those that must be taken, and those that must be refused, and where.
#
# Each is one change of a small manifest, so that a refusal has one reason.

V1: Final = "karpenter.sh/v1"
V1BETA1: Final = "karpenter.sh/v1beta1"
VERSIONS: Final = (V1, V1BETA1)
OLD_REFERENCE: Final = {"apiVersion": "karpenter.k8s.aws/v1beta1", "kind": "EC2NodeClass", "name": "default"}
REFERENCE: Final = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
ABSENT: Final = object()
"""Takes a field away."""


def claim(version: str = V1, /, *, name: str = "c", **spec: Any) -> dict[str, Any]:
    """A small claim with these fields in its spec."""
    fields = {"nodeClassRef": REFERENCE if version == V1 else OLD_REFERENCE, "requirements": [], **spec}
    kept = {key: value for key, value in fields.items() if value is not ABSENT}
    return {"apiVersion": version, "kind": "NodeClaim", "metadata": {"name": name}, "spec": kept}


def requirement(key: str = "example.com/size", operator: str = "In", **more: Any) -> dict[str, Any]:
    """The requirements of a spec, of which there is one."""
    return {"requirements": [{"key": key, "operator": operator, **more}]}


def taint(**fields: Any) -> dict[str, Any]:
    """The taints of a spec, of which there is one."""
    return {"taints": [{key: value for key, value in {**TAINT, **fields}.items() if value is not ABSENT}]}


TAINT: Final = {"key": "example.com/only", "effect": "NoSchedule"}

FULL_V1: Final[dict[str, Any]] = {
    "apiVersion": V1, "kind": "NodeClaim",
    "metadata": {
        "name": "general-7x2kq", "generateName": "general-",
        "labels": {
            "karpenter.sh/nodepool": "general", "karpenter.sh/capacity-type": "spot",
            "node.kubernetes.io/instance-type": "m7g.2xlarge", "topology.kubernetes.io/zone": "eu-central-1a",
        },
        "annotations": {"karpenter.sh/nodepool-hash": "1234567890", "karpenter.sh/nodepool-hash-version": "v3"},
        "finalizers": ["karpenter.sh/termination"],
    },
    "spec": {
        "expireAfter": "720h", "nodeClassRef": REFERENCE,
        "requirements": [
            {"key": "karpenter.sh/nodepool", "operator": "In", "values": ["general"]},
            {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"]},
            {"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]},
            {"key": "karpenter.k8s.aws/instance-cpu", "operator": "Gt", "values": ["3"]},
            {"key": "karpenter.k8s.aws/instance-memory", "operator": "Lte", "values": ["131072"]},
            {"key": "karpenter.k8s.aws/instance-hypervisor", "operator": "NotIn", "values": ["xen"]},
            {"key": "karpenter.k8s.aws/instance-local-nvme", "operator": "DoesNotExist"},
            {
                "key": "node.kubernetes.io/instance-type", "operator": "In",
                "values": ["m7g.2xlarge", "m7g.4xlarge", "c7g.4xlarge"], "minValues": 2,
            },
        ],
        "resources": {"requests": {"cpu": "4150m", "memory": "6Gi", "pods": 12, "ephemeral-storage": "1e9"}},
        "startupTaints": [{"key": "node.cilium.io/agent-not-ready", "value": "true", "effect": "NoExecute"}],
        "taints": [
            {"key": "example.com/gpu", "effect": "NoSchedule"},
            {"key": "shared", "value": "no", "effect": "NoExecute", "timeAdded": "2026-11-21T08:00:00Z"},
        ],
        "terminationGracePeriod": "24h",
    },
}  # fmt: skip
"""A claim of v1 that says everything."""

FULL_V1BETA1: Final[dict[str, Any]] = {
    "apiVersion": V1BETA1, "kind": "NodeClaim",
    "metadata": {"name": "old-b8t5n", "labels": {"karpenter.sh/nodepool": "old"}},
    "spec": {
        "kubelet": {
            "clusterDNS": ["10.0.0.10"], "cpuCFSQuota": True,
            "evictionHard": {"memory.available": "5%", "nodefs.available": "10%"}, "evictionMaxPodGracePeriod": 60,
            "evictionSoft": {"memory.available": "500Mi"}, "evictionSoftGracePeriod": {"memory.available": "1m30s"},
            "imageGCHighThresholdPercent": 85, "imageGCLowThresholdPercent": 80,
            "kubeReserved": {"cpu": "200m", "memory": "100Mi"}, "maxPods": 58, "podsPerCore": 4,
            "systemReserved": {"cpu": 1},
        },
        "nodeClassRef": OLD_REFERENCE,
        "requirements": [
            {"key": "karpenter.sh/nodepool", "operator": "In", "values": ["old"]},
            {"key": "karpenter.k8s.aws/instance-generation", "operator": "Gt", "values": ["2"]},
        ],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
        "startupTaints": [{"key": "example.com/not-yet", "effect": "NoSchedule"}],
        "taints": [{"key": "example.com/old", "value": "yes", "effect": "PreferNoSchedule"}],
        "terminationGracePeriod": "1h30m",
    },
}  # fmt: skip
"""A claim of v1beta1 that says everything."""

ANY_VERSION: Final[dict[str, dict[str, Any]]] = {
    "nothing more": {}, "expires never": {"expireAfter": "Never"},
    "expires after mixed units": {"expireAfter": "1h30m10s"}, "ends at once": {"terminationGracePeriod": "0s"},
    "ends after mixed units": {"terminationGracePeriod": "24h15m30s"},
    "ends after units in any order": {"terminationGracePeriod": "30s1h"},
    "as many requirements as there may be": {
        "requirements": [{"key": f"example.com/n{number}", "operator": "Exists"} for number in range(100)],
    },
    "one of several values": requirement(values=["a", "b"]), "none of no values": requirement(operator="NotIn"),
    "exists, and values all the same": requirement(operator="Exists", values=["a"]),
    "does not exist": requirement(operator="DoesNotExist", values=[]),
    "more than": requirement(operator="Gt", values=["0"]), "at least": requirement(operator="Gte", values=["16"]),
    "at most": requirement(operator="Lte", values=["16"]),
    "enough values": requirement(values=["a", "b"], minValues=2),
    "minValues where nothing is listed": requirement(operator="Exists", minValues=50),
    "values that are no label values": requirement(values=["a value!", "x" * 64, ""]),
    "a key without prefix": requirement("size", values=["a"]),
    "the pool": requirement("karpenter.sh/nodepool", values=["a"]),
    "the kind of capacity": requirement("karpenter.sh/capacity-type", values=["spot"]),
    "a key that only looks restricted": requirement("karpenter.sh.example.com/x", values=["a"]),
    "a long key": requirement(f"{'a' * 60}.example.com/{'b' * 63}", "Exists"),
    "resources without requests": {"resources": {}},
    "quantities of all kinds": {
        "resources": {"requests": {"a": 2, "b": "1.5", "c": "100m", "d": "2Gi", "e": "1e3", "f": "-1", "g": "+.5E-2"}},
    },
    "a taint with everything": taint(value="a.b_c-d", effect="NoExecute", timeAdded="2026-11-21T08:00:00+01:00"),
    "a taint without prefix": taint(key="only", effect="PreferNoSchedule"),
    "the same taint twice": {"taints": [TAINT, TAINT]}, "a startup taint": {"startupTaints": [TAINT]},
}  # fmt: skip
"""Specs that both versions take."""

OLD_ONLY: Final[dict[str, dict[str, Any]]] = {
    "a node class by its name only": {"nodeClassRef": {"name": "default"}},
    "a node class without kind": {"nodeClassRef": {"apiVersion": "a/v1", "name": "default"}},
    "a node class of which nothing is said": {"nodeClassRef": {"apiVersion": "", "kind": "", "name": ""}},
    "nothing for the kubelet": {"kubelet": {}},
}
"""Specs that v1beta1 takes, and of which v1 would want to know more."""


class Wrong(NamedTuple):
    """A spec, and the field that is named when it is refused."""

    spec: dict[str, Any]
    field: str


WRONG: Final[dict[str, Wrong]] = {
    "no spec": Wrong({}, "spec"),
    "no node class": Wrong({"nodeClassRef": ABSENT}, "spec.nodeClassRef"),
    "no requirements": Wrong({"requirements": ABSENT}, "spec.requirements"),
    "requirements that are none": Wrong({"requirements": None}, "spec.requirements"),
    "a node class without name": Wrong({"nodeClassRef": {"group": "a", "kind": "b"}}, "spec.nodeClassRef.name"),
    "a group with a version": Wrong({"nodeClassRef": {**REFERENCE, "group": "a/v1"}}, "spec.nodeClassRef.group"),
    **{
        f"expires after {text!r}": Wrong({"expireAfter": text}, "spec.expireAfter")
        for text in ("", "1d", "never", "1.5h", "-1h", "1h ", "720", "Never1h")
    },
    **{
        f"ends after {text!r}": Wrong({"terminationGracePeriod": text}, "spec.terminationGracePeriod")
        for text in ("", "0", "1d", "100ms", "1.5h", "-1h", "h", "15 m", "15m\n", "Never")
    },
    "ends after a number": Wrong({"terminationGracePeriod": 900}, "spec.terminationGracePeriod"),
    "too many requirements": Wrong(
        {"requirements": [{"key": f"example.com/n{number}", "operator": "Exists"} for number in range(101)]},
        "spec.requirements",
    ),
    "a requirement without key": Wrong({"requirements": [{"operator": "Exists"}]}, "spec.requirements[0].key"),
    "a requirement without operator": Wrong({"requirements": [{"key": "a"}]}, "spec.requirements[0].operator"),
    "an operator that is none": Wrong(requirement(operator="Equals"), "spec.requirements[0].operator"),
    "one of no values": Wrong(requirement(values=[]), "spec.requirements[0]"),
    "one of values that are not there": Wrong(requirement(), "spec.requirements[0]"),
    "more than what": Wrong(requirement(operator="Gt"), "spec.requirements[0]"),
    "more than two": Wrong(requirement(operator="Gt", values=["1", "2"]), "spec.requirements[0]"),
    "less than a word": Wrong(requirement(operator="Lt", values=["one"]), "spec.requirements[0]"),
    "at least less than nothing": Wrong(requirement(operator="Gte", values=["-1"]), "spec.requirements[0]"),
    "at most a fraction": Wrong(requirement(operator="Lte", values=["1.5"]), "spec.requirements[0]"),
    "fewer values than wanted": Wrong(requirement(values=["a"], minValues=2), "spec.requirements[0]"),
    "no value wanted": Wrong(requirement(values=["a"], minValues=0), "spec.requirements[0].minValues"),
    "too many values wanted": Wrong(requirement(operator="Exists", minValues=51), "spec.requirements[0].minValues"),
    "a label of Karpenter's": Wrong(requirement("karpenter.sh/registered", "Exists"), "spec.requirements[0].key"),
    "a label below Karpenter's": Wrong(requirement("x.karpenter.sh/y", "Exists"), "spec.requirements[0].key"),
    "the name of the machine": Wrong(requirement("kubernetes.io/hostname", "Exists"), "spec.requirements[0].key"),
    "a key that is no label": Wrong(requirement("a b", "Exists"), "spec.requirements[0].key"),
    "a key that is too long": Wrong(requirement("a" * 317, "Exists"), "spec.requirements[0].key"),
    "an empty key": Wrong(requirement("", "Exists"), "spec.requirements[0].key"),
    "a quantity that is none": Wrong({"resources": {"requests": {"cpu": "much"}}}, "spec.resources.requests.cpu"),
    "a quantity that is a list": Wrong({"resources": {"requests": {"cpu": []}}}, "spec.resources.requests.cpu"),
    "a taint without key": Wrong(taint(key=ABSENT), "spec.taints[0].key"),
    "a taint with an empty key": Wrong(taint(key=""), "spec.taints[0].key"),
    "a taint without effect": Wrong(taint(effect=ABSENT), "spec.taints[0].effect"),
    "a taint with another effect": Wrong(taint(effect="NoEntry"), "spec.taints[0].effect"),
    "a taint with an empty value": Wrong(taint(value=""), "spec.taints[0].value"),
    "a taint with a strange value": Wrong(taint(value="a b"), "spec.taints[0].value"),
    "a taint of yesterday": Wrong(taint(timeAdded="yesterday"), "spec.taints[0].timeAdded"),
    "a startup taint without effect": Wrong({"startupTaints": [{"key": "a"}]}, "spec.startupTaints[0].effect"),
}
"""What both versions refuse."""

NEW_ONLY: Final[dict[str, Wrong]] = {
    "a node class without group": Wrong({"nodeClassRef": {"kind": "b", "name": "c"}}, "spec.nodeClassRef.group"),
    "a node class by apiVersion": Wrong({"nodeClassRef": OLD_REFERENCE}, "spec.nodeClassRef.group"),
    "a node class without kind": Wrong({"nodeClassRef": {"group": "a", "name": "c"}}, "spec.nodeClassRef.kind"),
    "an empty group": Wrong({"nodeClassRef": {**REFERENCE, "group": ""}}, "spec.nodeClassRef.group"),
    "an empty kind": Wrong({"nodeClassRef": {**REFERENCE, "kind": ""}}, "spec.nodeClassRef.kind"),
    "an empty name": Wrong({"nodeClassRef": {**REFERENCE, "name": ""}}, "spec.nodeClassRef.name"),
}
"""What v1 refuses, and v1beta1 does not."""


def wrong(name: str, version: str) -> tuple[dict[str, Any], str]:
    """A manifest that this version refuses, and the field that it names."""
    spec, field = {**WRONG, **NEW_ONLY}[name]
    manifest = claim(version, **spec)
    if field == "spec":
        del manifest["spec"]
    return manifest, field
