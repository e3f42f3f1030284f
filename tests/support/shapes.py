"""Whether an object is as strictly of its kind as an API server wants it with fieldValidation=Strict.

Kubernetes' own kinds are those of kubesim.types. Those of others are in tests/packaging/chart/definitions.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from kubesim.types.catalog import PREFIX, resolved, type_name

FOREIGN: Final = Path(__file__).parents[1] / "packaging" / "chart" / "definitions.json"

Node = Mapping[str, Any]

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
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
    if kind and (not isinstance(value, _TYPES[kind]) or is_wrong_bool):
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
