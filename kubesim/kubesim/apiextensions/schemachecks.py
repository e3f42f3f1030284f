"""Validation of a definition's schema, node by node, and of its rules.

Rules of a node are compiled only if the schema at and below the node is valid.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from kubesim.apiextensions.celrules import VALIDATIONS, Rule
from kubesim.apiextensions.fieldpaths import FieldPathError, field_at
from kubesim.apiextensions.structural import (
    Node,
    children,
    default_faults,
    go_value,
    is_readable,
    structural_faults,
)
from kubesim.cel.errors import CompileError
from kubesim.cel.types import Exposed, exposed
from kubesim.server.goformat import go_strings
from kubesim.server.status import Cause, forbidden_value, invalid_value, not_supported, required
from kubesim.types.schema import Schema

TYPES: Final = ("array", "boolean", "integer", "number", "object", "string")
REASONS: Final = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
UNSUPPORTED: Final = ("id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref")
META: Final = ("metadata", "kind", "apiVersion")
LINES: Final = re.compile(r"[\n\r]")


def schema_faults(node: Node, path: str) -> list[Cause]:
    """Everything wrong with the schema of one version; `path` is its field."""
    found: list[Cause] = []
    if node.get("nullable"):
        found.append(forbidden_value(f"{path}.nullable", "nullable cannot be true at the root"))
    sound = is_readable(node)
    if sound:
        found += structural_faults(node, path) or list(default_faults(Schema(node), path))
        sound = not found
    specification = _Specification()
    specification.visit(node, Here(path, True, root=True), exposed(Schema(node), root=True) if sound else None)
    return [*found, *specification.faults, *specification.rule_faults]


class Here(NamedTuple):
    """Where in a schema we are, and what holds there."""

    path: str
    defaults: bool
    """Defaults may be set."""
    why_not: str = ""
    in_meta: bool = False
    uncorrelated: str = ""
    """Path of the list (or map) with items that have no identity over a change, or ""."""
    root: bool = False


class _Specification:
    """Walks one schema."""

    def __init__(self) -> None:
        self.faults: list[Cause] = []
        self.rule_faults: list[Cause] = []

    def visit(self, node: Node, here: Here, seen: Exposed | None) -> None:
        """Look at a node and what is in it; `seen`: what rules see of its values (None: rules are not compiled)."""
        before = len(self.faults)
        self.faults.extend(_keywords(node, here))
        if node.get("properties") and node.get("additionalProperties") not in (None, True):
            why = "additionalProperties and properties are mutual exclusive"
            self.faults.append(forbidden_value(f"{here.path}.additionalProperties", why))
        for place, child in children(node):
            self.visit(child, _inside(node, place, here), self._seen(child, place, seen))
        self.faults.extend(_lists(node, here.path))
        rules = node.get(VALIDATIONS) or ()
        for index, rule in enumerate(rules):
            self.faults.extend(_rule_texts(node, rule, f"{here.path}.{VALIDATIONS}[{index}]"))
        if rules and len(self.faults) == before and seen is not None:
            for index, rule in enumerate(rules):
                self.rule_faults.extend(_rule_faults(rule, seen, here, f"{here.path}.{VALIDATIONS}[{index}]"))

    @staticmethod
    def _seen(child: Node, place: str, seen: Exposed | None) -> Exposed | None:
        if seen is None or place.startswith(("allOf", "anyOf", "oneOf", "not")):
            return None
        return exposed(Schema(child))


def _inside(node: Node, place: str, here: Here) -> Here:
    path = f"{here.path}.{place}"
    inner = here._replace(path=path, root=False)
    if place.startswith("properties["):
        name = place[len("properties[") : -1]
        if name in META and (here.root or node.get("x-kubernetes-embedded-resource")):
            inner = inner._replace(in_meta=True)
            if here.root:
                inner = inner._replace(defaults=False, why_not=f"in top-level {name}")
    elif place == "additionalProperties" and here.in_meta:
        why = "inside additionalProperties applying to object metadata"
        inner = inner._replace(defaults=False, why_not=why)
    elif place == "items" and node.get("x-kubernetes-list-type") != "map":
        inner = inner._replace(uncorrelated=here.uncorrelated or here.path)
    return inner


def _keywords(node: Node, here: Here) -> Iterator[Cause]:
    path, type_ = here.path, node.get("type", "")
    if type_ and type_ not in TYPES:
        yield not_supported(f"{path}.type", f'"{type_}"', TYPES)
    if node.get("default") is not None and not here.defaults:
        yield forbidden_value(f"{path}.default", f"must not be set {here.why_not}")
    for key in UNSUPPORTED:
        if node.get(key):
            yield forbidden_value(f"{path}.{key}", f"{key} is not supported")
    if type_ == "null":
        yield forbidden_value(f"{path}.type", "type cannot be set to null, use nullable as an alternative")
    if isinstance(node.get("items"), list):
        yield forbidden_value(f"{path}.items", "items must be a schema object and not an array")
    if here.in_meta and node.get("x-kubernetes-embedded-resource"):
        yield forbidden_value(f"{path}.x-kubernetes-embedded-resource", "must not be used inside of resource meta")
    if node.get("uniqueItems"):
        why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield forbidden_value(f"{path}.uniqueItems", why)


def _lists(node: Node, path: str) -> Iterator[Cause]:
    if node.get("x-kubernetes-preserve-unknown-fields") is False:
        yield go_value(f"{path}.x-kubernetes-preserve-unknown-fields", "false", "must be true or undefined")
    yield from _kind_of(node, path, "x-kubernetes-map-type", "object", ("atomic", "granular"))
    yield from _kind_of(node, path, "x-kubernetes-list-type", "array", ("atomic", "set", "map"))
    items = node.get("items") if isinstance(node.get("items"), Mapping) else None
    list_type, keys = node.get("x-kubernetes-list-type"), node.get("x-kubernetes-list-map-keys") or []
    if list_type == "set" and items is not None:
        word = {"array": "list", "object": "map"}.get(items.get("type", ""), "")
        given = items.get(f"x-kubernetes-{word}-type", "atomic" if word == "list" else None)
        if word and given != "atomic":
            why = "must be atomic as item of a list with x-kubernetes-list-type=set"
            yield invalid_value(
                f"{path}.items.x-kubernetes-{word}-type", items.get("x-kubernetes-list-type", "null"), why
            )
    if keys and list_type != "map":
        why, place = "must be map if x-kubernetes-list-map-keys is non-empty", f"{path}.x-kubernetes-list-type"
        yield invalid_value(place, list_type, why) if list_type else required(place, why)
    if list_type == "map":
        yield from _map_keys(items, keys, path)
    if list_type in ("set", "map") and items is not None:
        yield from _identities(items, list_type, keys, path)


def _kind_of(node: Node, path: str, key: str, type_: str, allowed: tuple[str, ...]) -> Iterator[Cause]:
    """An extension that belongs to one type, and has few values."""
    if key not in node:
        return
    why = f"must be {type_} if {key} is specified"
    if node.get("type", "") != type_:
        yield invalid_value(f"{path}.type", node["type"], why) if node.get("type") else required(f"{path}.type", why)
    if node[key] not in allowed:
        yield not_supported(f"{path}.{key}", f'"{node[key]}"', allowed)


def _map_keys(items: Node | None, keys: list[str], path: str) -> Iterator[Cause]:
    place = f"{path}.x-kubernetes-list-map-keys"
    if not keys:
        yield required(place, "must not be empty if x-kubernetes-list-type is map")
    if items is None:
        yield required(f"{path}.items", "must have a schema if x-kubernetes-list-type is map")
        return
    if items.get("type") != "object":
        why = "must be object if parent array's x-kubernetes-list-type is map"
        yield invalid_value(f"{path}.items.type", items.get("type", ""), why)
        return
    shown = go_strings(keys)
    for index, key in enumerate(keys):
        known = (items.get("properties") or {}).get(key)
        if known is None:
            yield go_value(place, shown, "entries must all be names of item properties")
        elif known.get("type") in ("array", "object"):
            why = "must be a scalar type if parent array's x-kubernetes-list-type is map"
            yield invalid_value(f"{path}.items.properties[{key}].type", items.get("type", ""), why)
        if key in keys[:index]:
            yield go_value(place, shown, "must not contain duplicate entries")


def _identities(items: Node, list_type: str, keys: list[str], path: str) -> Iterator[Cause]:
    """Items with an identity are never null, and their keys are not either."""
    if items.get("nullable"):
        why = f"cannot be nullable when x-kubernetes-list-type is {list_type}"
        yield forbidden_value(f"{path}.items.nullable", why)
    if list_type != "map":
        return
    for key in keys:
        known = (items.get("properties") or {}).get(key)
        if known is None:
            continue
        place = f"{path}.items.properties[{key}]"
        if key not in (items.get("required") or ()) and known.get("default") is None:
            why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
            yield required(f"{place}.default", why)
        if known.get("nullable"):
            why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable"
            yield forbidden_value(f"{place}.nullable", why)


# -- rules -------------------------------------------------------------------------------------------------------------


def _rule_texts(node: Node, rule: Mapping[str, Any], path: str) -> Iterator[Cause]:
    text, message = rule.get("rule", "").strip(), rule.get("message", "")
    if not text:
        yield required(f"{path}.rule", "rule is not specified")
    elif message and not message.strip():
        yield invalid_value(f"{path}.message", message, "message must be non-empty if specified")
    elif LINES.search(message.strip()):
        yield invalid_value(f"{path}.message", message, "message must not contain line breaks")
    elif LINES.search(text) and not message.strip():
        yield required(f"{path}.message", "message must be specified if rule contains line breaks")
    wording = rule.get("messageExpression", "")
    if wording and not wording.strip():
        yield required(f"{path}.messageExpression", "messageExpression must be non-empty if specified")
    if rule.get("reason") and rule["reason"] not in REASONS:
        yield not_supported(f"{path}.reason", f'"{rule["reason"]}"', REASONS)
    field = rule.get("fieldPath", "")
    if field:
        if not field.strip():
            yield invalid_value(f"{path}.fieldPath", field, "fieldPath must be non-empty if specified")
        if LINES.search(field):
            yield invalid_value(f"{path}.fieldPath", field, "fieldPath must not contain line breaks")
        try:
            field_at(Schema(node), field)
        except FieldPathError:
            yield invalid_value(f"{path}.fieldPath", field, "fieldPath must be a valid path")


def _rule_faults(raw: Mapping[str, Any], seen: Exposed, here: Here, path: str) -> Iterator[Cause]:
    try:
        rule = Rule(raw, seen.type)
    except CompileError as error:
        yield go_value(f"{path}.rule", go_rule(raw), _compiling(error, raw["rule"], "compilation failed: "))
        return
    try:
        rule.compile_wording()
    except CompileError as error:
        words = _compiling(error, raw["messageExpression"], "messageExpression compilation failed: ")
        yield go_value(f"{path}.messageExpression", go_rule(raw), words)
    if rule.uses_old and here.uncorrelated:
        why = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {here.uncorrelated}"
        yield invalid_value(f"{path}.rule", raw["rule"], why)
    if not rule.uses_old and raw.get("optionalOldSelf") is not None:
        shown = "true" if raw["optionalOldSelf"] else "false"
        yield go_value(f"{path}.optionalOldSelf", shown, "may not be set if oldSelf is not used in rule")


def _compiling(error: CompileError, source: str, prefix: str) -> str:
    return error.message if error.offset < 0 else prefix + error.shown_in(source)


def go_rule(raw: Mapping[str, Any]) -> str:
    """A rule as Go prints it (a reason that is set prints as its address in memory; a made-up one stands here)."""
    reason = "(0xc000000000)" if raw.get("reason") else "(nil)"
    old = "(*bool)(nil)" if raw.get("optionalOldSelf") is None else "(*bool)(0xc000000000)"
    texts = ", ".join(
        f'{word}:"{raw.get(key, "")}"'
        for word, key in (("Rule", "rule"), ("Message", "message"), ("MessageExpression", "messageExpression"))
    )
    return (
        f"apiextensions.ValidationRule{{{texts}, Reason:(*apiextensions.FieldValueErrorReason){reason}, "
        f'FieldPath:"{raw.get("fieldPath", "")}", OptionalOldSelf:{old}}}'
    )
