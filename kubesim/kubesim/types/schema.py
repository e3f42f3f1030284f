"""One node of an OpenAPI v3 schema with Kubernetes' extensions.

Used for built-in types (catalog) and for CustomResourceDefinitions. Invariant: a schema is a value; its children are
created at first use and stay the same objects, so that readers can cache by node. Types may contain themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal

Node = Mapping[str, Any]
"""A schema as JSON."""

Resolve = Callable[[str], Node]
"""What a `$ref` stands for. Raises KeyError for an unknown one."""


class Missing:
    """The type of MISSING."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final = Missing()
"""No default, as opposed to a default of null."""


class Schema:
    """A schema and, lazily, the schemas in it. Never change `raw`."""

    def __init__(self, raw: Node, resolve: Resolve | None = None) -> None:
        """`resolve` answers the `$ref`s in `raw`; without it there may be none. Raises KeyError for an unknown one."""
        self._resolve = resolve
        self.reference: Final[str] = _reference(raw)
        """The `$ref` that this node came by, or ""."""
        self.raw: Final[Node] = _resolved(raw, self.reference, resolve)
        """The node itself; a reference is replaced by its target. Siblings of the reference (defaults, list types)
        override fields of the target."""

    @cached_property
    def type(self) -> str:
        """`object`, `array`, `string`, `integer`, `number`, `boolean`, or "" for any."""
        return str(self.raw.get("type", ""))

    @cached_property
    def format(self) -> str:
        """`int32`, `date-time`, `byte`…, or ""."""
        return str(self.raw.get("format", ""))

    @cached_property
    def description(self) -> str:
        """What the field is for, or ""."""
        return str(self.raw.get("description", ""))

    @cached_property
    def properties(self) -> Mapping[str, Schema]:
        """The fields of an object by name."""
        found: Node = self.raw.get("properties") or {}
        return MappingProxyType({name: Schema(node, self._resolve) for name, node in found.items()})

    @cached_property
    def additional(self) -> Schema | None:
        """What every value of a map is; None if it is no map."""
        found = self.raw.get("additionalProperties")
        if found is None or found is False:
            return None
        return Schema({} if found is True else found, self._resolve)

    @cached_property
    def items(self) -> Schema | None:
        """What every item of a list is; None if nothing is said."""
        found = self.raw.get("items")
        return None if found is None else Schema(found, self._resolve)

    @cached_property
    def required(self) -> tuple[str, ...]:
        """The fields that an object must have."""
        return tuple(self.raw.get("required") or ())

    def field(self, name: str) -> Schema | None:
        """What a field of an object is: a property, else what the map holds, else None."""
        return self.properties.get(name) or self.additional

    @cached_property
    def list_type(self) -> Literal["atomic", "set", "map"]:
        """Merge of a list by apply: whole, by value, or by `list_keys`. Older types use their patch strategy.
        https://github.com/kubernetes/kube-openapi/blob/master/pkg/schemaconv/smd.go"""
        match self.raw.get("x-kubernetes-list-type"):
            case "set":
                return "set"
            case "map":
                return "map"
            case "atomic":
                return "atomic"
        if "merge" not in self.patch_strategies:
            return "atomic"
        return "map" if self.merge_key else "set"

    @cached_property
    def list_keys(self) -> tuple[str, ...]:
        """Fields that identify the items of a list of type `map`."""
        if "x-kubernetes-list-type" in self.raw:
            return tuple(self.raw.get("x-kubernetes-list-map-keys") or ())
        return (self.merge_key,) if self.list_type == "map" else ()

    @cached_property
    def map_type(self) -> Literal["granular", "atomic"]:
        """How a map or an object merges when it is applied: field by field, or whole."""
        return "atomic" if self.raw.get("x-kubernetes-map-type") == "atomic" else "granular"

    @cached_property
    def patch_strategies(self) -> frozenset[str]:
        """How a strategic merge patch treats the field: `merge`, `retainKeys`, `replace`, or nothing said."""
        return frozenset(filter(None, str(self.raw.get("x-kubernetes-patch-strategy", "")).split(",")))

    @cached_property
    def merge_key(self) -> str:
        """The field by which a strategic merge patch finds the items of a list, or ""."""
        return str(self.raw.get("x-kubernetes-patch-merge-key", ""))

    @cached_property
    def int_or_string(self) -> bool:
        """Whether both an integer and a string are right."""
        return bool(self.raw.get("x-kubernetes-int-or-string")) or self.format == "int-or-string"

    @cached_property
    def preserves_unknown(self) -> bool:
        """Whether fields that are not listed are kept."""
        return bool(self.raw.get("x-kubernetes-preserve-unknown-fields"))

    @cached_property
    def embedded(self) -> bool:
        """Whether the value is a whole Kubernetes object, with apiVersion, kind and metadata of its own."""
        return bool(self.raw.get("x-kubernetes-embedded-resource"))

    @cached_property
    def nullable(self) -> bool:
        """Whether null is a value."""
        return bool(self.raw.get("nullable"))

    @cached_property
    def default(self) -> Any:
        """What an absent field becomes (any JSON value), or MISSING."""
        return self.raw.get("default", MISSING)

    def __repr__(self) -> str:
        return f"<Schema {self.reference.rpartition('/')[2] or self.type or 'any'}>"


def _reference(raw: Node) -> str:
    """The `$ref` of a node: OpenAPI v3 wraps it into an `allOf` if the reference has siblings."""
    if "$ref" in raw:
        return str(raw["$ref"])
    parts = raw.get("allOf")
    return str(parts[0]["$ref"]) if parts and len(parts) == 1 and "$ref" in parts[0] else ""


def _resolved(raw: Node, reference: str, resolve: Resolve | None) -> Node:
    if not reference:
        return raw
    if resolve is None:
        raise KeyError(reference)
    siblings = {key: value for key, value in raw.items() if key not in ("$ref", "allOf")}
    target = resolve(reference)
    return {**target, **siblings} if siblings else target
