"""The built-in kinds: their OpenAPI schemas and Go structs, from a data file of this package.

tools/kubernetes_types.py makes the file from the API description of Kubernetes (Apache-2.0, Copyright The Kubernetes
Authors). It is read once per process, at first use.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

import orjson

from kubesim.types.schema import Node, Schema

PREFIX: Final = "#/components/schemas/"
KINDS: Final = "x-kubernetes-group-version-kind"
RETIRED: Final = {("policy", "v1beta1"): "v1"}
"""Versions that Kubernetes serves no longer and this server does: same fields, no description of their own."""

GroupVersionKind = tuple[str, str, str]


class Catalog(NamedTuple):
    """What the data file holds. Types are named by their reference without PREFIX (`io.k8s.api.core.v1.Pod`)."""

    origin: str
    """What was described: `Kubernetes v1.33.4, https://…`."""
    schemas: Mapping[str, Node]
    structs: Mapping[str, list[tuple[str, int, str, int]]]
    """The fields of a Go struct: JSON name ("": inlined), number in protobuf (0: none), Go type, left out if empty."""
    named: Mapping[str, str]
    """Go types that are another name of something: `io.k8s.api.core.v1.PodPhase`: `string`."""
    kinds: Mapping[GroupVersionKind, str]
    """The type of each kind."""


@cache
def catalog() -> Catalog:
    """The catalogue of built-in types."""
    packed = files(__package__).joinpath("kubernetes.json.gz").read_bytes()
    raw: dict[str, Any] = orjson.loads(gzip.decompress(packed))
    schemas: dict[str, Node] = raw["schemas"]
    kinds = {
        (each["group"], each["version"], each["kind"]): name
        for name, node in schemas.items()
        for each in node.get(KINDS, ())
    }
    return Catalog(raw["origin"], schemas, raw["structs"], raw["named"], kinds)


@cache
def type_name(group: str, version: str, kind: str) -> str:
    """The type of a built-in kind (`io.k8s.api.core.v1.Pod`), or "" if there is no such kind."""
    return catalog().kinds.get((group, RETIRED.get((group, version), version), kind), "")


@cache
def built_in_type(group: str, version: str, kind: str) -> Schema | None:
    """The schema of a built-in kind, or None if there is no such kind."""
    name = type_name(group, version, kind)
    return named_type(name) if name else None


@cache
def named_type(name: str) -> Schema:
    """The schema of a built-in type by its name. Raises KeyError."""
    return Schema(catalog().schemas[name], resolved)


def resolved(reference: str) -> Node:
    """What a reference between built-in types stands for. Raises KeyError."""
    return catalog().schemas[reference.removeprefix(PREFIX)]
