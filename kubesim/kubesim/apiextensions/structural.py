"""Whether a schema is structural: every field has a type, and alternatives only ever narrow what stands outside them.

https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kubesim.apiextensions.defaulting import Report, Shape
from kubesim.apiextensions.values import SchemaValidator
from kubesim.cel.regexes import PatternError, compiled
from kubesim.server.goformat import go_syntax
from kubesim.server.status import INVALID, Cause, forbidden_value, invalid_value, required
from kubesim.types.schema import MISSING, Schema

Node = Mapping[str, Any]

UNSTRUCTURED: Final = ("$ref", "id", "definitions", "dependencies", "patternProperties", "additionalItems")
INT_OR_STRING: Final = [{"type": "integer"}, {"type": "string"}]
LEVELS: Final = {
    "root": "must not be empty at the root",
    "item": "must not be empty for specified array items",
    "field": "must not be empty for specified object fields",
}
NESTED: Final = (
    ("type", "must be empty to be structural"),
    ("additionalProperties", "must be undefined to be structural"),
    ("default", "must be undefined to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("nullable", "must be false to be structural"),
    ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
    ("x-kubernetes-embedded-resource", "must be false to be structural"),
    ("x-kubernetes-int-or-string", "must be false to be structural"),
    ("x-kubernetes-list-map-keys", "must be empty to be structural"),
    ("x-kubernetes-list-type", "must be undefined to be structural"),
    ("x-kubernetes-map-type", "must be undefined to be structural"),
    ("x-kubernetes-validations", "must be empty to be structural"),
)
"""What a schema may not say inside of allOf, anyOf, oneOf and not."""


def is_readable(node: Node) -> bool:
    """Whether the schema uses only what structural schemas have words for; the rest is refused elsewhere."""
    if any(node.get(key) for key in UNSTRUCTURED) or isinstance(node.get("items"), list):
        return False
    return all(is_readable(child) for _, child in children(node))


def children(node: Node) -> Iterator[tuple[str, Node]]:
    """The schemas inside of a schema, each with the path to it."""
    for name, child in (node.get("properties") or {}).items():
        yield f"properties[{name}]", child
    for key in ("items", "additionalProperties", "not"):
        if isinstance(node.get(key), Mapping):
            yield key, node[key]
    for key in ("allOf", "anyOf", "oneOf"):
        for index, child in enumerate(node.get(key) or ()):
            yield f"{key}[{index}]", child


def structural_faults(node: Node, path: str) -> list[Cause]:
    """Why a schema is not structural, in the order of the messages."""
    found = [*_invariants(node, "root", path), *_completeness(node, node, path, path)]
    return sorted(found, key=lambda cause: f"{cause.field}: {cause.message}")


def _invariants(node: Node, level: str, path: str) -> Iterator[Cause]:
    type_ = node.get("type", "")
    if type_ == "array" and node.get("items") is None:
        yield required(f"{path}.items", "must be specified")
    if node.get("items") is not None:
        yield from _invariants(node["items"], "item", f"{path}.items")
    for name, child in (node.get("properties") or {}).items():
        yield from _invariants(child, "field", f"{path}.properties[{name}]")
    additional = node.get("additionalProperties")
    if additional is not None:
        if level == "root":
            yield forbidden_value(f"{path}.additionalProperties", "must not be used at the root")
        if isinstance(additional, Mapping):
            yield from _invariants(additional, "field", f"{path}.additionalProperties")
    yield from _extensions(node, path)
    yield from _alternatives(node, path, is_outermost=True)
    yield from _types(node, level, path)
    yield from _metadata(node, level, path)


def _extensions(node: Node, path: str) -> Iterator[Cause]:
    if node.get("x-kubernetes-int-or-string"):
        for key in ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"):
            if node.get(key):
                yield go_value(f"{path}.{key}", "true", "must be false if x-kubernetes-int-or-string is true")


def _types(node: Node, level: str, path: str) -> Iterator[Cause]:
    type_, embedded = node.get("type", ""), node.get("x-kubernetes-embedded-resource")
    keeps = node.get("x-kubernetes-preserve-unknown-fields")
    if embedded and type_ != "object":
        why = "must be object if x-kubernetes-embedded-resource is true"
        yield invalid_value(f"{path}.type", type_, why) if type_ else required(f"{path}.type", why)
    elif not type_ and not node.get("x-kubernetes-int-or-string") and not keeps:
        yield required(f"{path}.type", LEVELS[level])
    if embedded and node.get("additionalProperties") is not None:
        yield forbidden_value(
            f"{path}.additionalProperties", "must not be used if x-kubernetes-embedded-resource is set"
        )
    if level == "root" and type_ and type_ != "object":
        yield invalid_value(f"{path}.type", type_, "must be object at the root")
    if embedded and not keeps and not node.get("properties"):
        why = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields"
        yield required(f"{path}.properties", why)


def _metadata(node: Node, level: str, path: str) -> Iterator[Cause]:
    """metadata, kind and apiVersion are the server's: a schema may say little about them."""
    properties = node.get("properties") or {}
    if level != "root" and not node.get("x-kubernetes-embedded-resource"):
        return
    for name in ("kind", "apiVersion"):
        if name in properties and properties[name].get("type") != "string":
            yield invalid_value(f"{path}.properties[{name}].type", properties[name].get("type", ""), "must be string")
    metadata = properties.get("metadata")
    if metadata is None:
        return
    place = f"{path}.properties[metadata]"
    if metadata.get("type") != "object":
        yield invalid_value(f"{place}.type", metadata.get("type", ""), "must be object")
    if level == "root":
        names = set(metadata.get("properties") or {})
        more = {key for key, value in metadata.items() if value} - {"type", "properties", "description", "default"}
        if more or not names <= {"name", "generateName"}:
            why = "must not specify anything other than name and generateName, but metadata is implicitly specified"
            yield forbidden_value(place, why)


def _alternatives(node: Node, path: str, *, is_outermost: bool = False) -> Iterator[Cause]:
    exempt = is_outermost and node.get("anyOf") == INT_OR_STRING
    if not exempt:
        for index, child in enumerate(node.get("anyOf") or ()):
            yield from _nested(child, f"{path}.anyOf[{index}]")
    for index, child in enumerate(node.get("allOf") or ()):
        if not (is_outermost and index == 0 and child.get("anyOf") == INT_OR_STRING):
            yield from _nested(child, f"{path}.allOf[{index}]")
    for index, child in enumerate(node.get("oneOf") or ()):
        yield from _nested(child, f"{path}.oneOf[{index}]")
    if isinstance(node.get("not"), Mapping):
        yield from _nested(node["not"], f"{path}.not")
    if node.get("pattern"):
        try:
            compiled(node["pattern"])
        except PatternError as error:
            why = f"must be a valid regular expression, but isn't: {error}"
            yield invalid_value(f"{path}.pattern", node["pattern"], why)


def _nested(node: Node, path: str) -> Iterator[Cause]:
    yield from _alternatives(node, path)
    if isinstance(node.get("items"), Mapping):
        yield from _nested(node["items"], f"{path}.items")
    for name, child in (node.get("properties") or {}).items():
        yield from _nested(child, f"{path}.properties[{name}]")
    for key, why in NESTED:
        if node.get(key):
            yield forbidden_value(f"{path}.{key}", why)
    if "metadata" in (node.get("properties") or {}):
        yield forbidden_value(f"{path}.properties[metadata]", "must not be specified in a nested context")


def _completeness(nested: Node, outer: Node | None, place: str, path: str) -> Iterator[Cause]:
    """Fields in the alternatives of the root must be specified outside too (as on a real server only there)."""
    for key in ("not", "allOf", "anyOf", "oneOf"):
        found = nested.get(key) or ()
        for index, child in enumerate([found] if isinstance(found, Mapping) else found):
            yield from _complete(child, outer, place, f"{path}.{key}" if key == "not" else f"{path}.{key}[{index}]")


def _complete(nested: Node, outer: Node | None, place: str, path: str) -> Iterator[Cause]:
    if outer is None:
        yield required(place, f"because it is defined in {path}")
        return
    yield from _completeness(nested, outer, place, path)
    if isinstance(nested.get("items"), Mapping):
        yield from _complete(nested["items"], outer.get("items"), f"{place}.items", f"{path}.items")
    for name, child in (nested.get("properties") or {}).items():
        known = (outer.get("properties") or {}).get(name)
        yield from _complete(child, known, f"{place}.properties[{name}]", f"{path}.properties[{name}]")


def default_faults(schema: Schema, path: str) -> Iterator[Cause]:
    """Why the defaults of a schema are none: they must be values of it, and say nothing it does not know."""
    default = schema.default
    if default is not MISSING and default is not None:
        report = Report()
        Shape(schema).prune(default, report)
        if report.unknown:
            yield go_value(f"{path}.default", go_syntax(default), "must not have unknown fields")
        for cause in SchemaValidator(schema).faults(default):
            field = f"{path}.default.{cause.field}" if cause.field and cause.field[0] != "<" else f"{path}.default"
            yield Cause(cause.reason, cause.message, field)
    if schema.items is not None:
        yield from default_faults(schema.items, f"{path}.items")
    for name, field_schema in schema.properties.items():
        yield from default_faults(field_schema, f"{path}.properties[{name}]")


def go_value(field: str, shown: str, why: str) -> Cause:
    """A fault of a value that Go prints in a way of its own."""
    return Cause(INVALID, f"Invalid value: {shown}: {why}", field)
