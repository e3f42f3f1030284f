"""Validation of values against schemas, in the words and the order of kube-openapi's validator.

Order: type; anyOf, oneOf, allOf, not; length, format, range, items; enum; properties and required fields. An unchanged
value is not checked again (ratcheting).
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation-ratcheting
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

import orjson

from kubesim.apiextensions.formats import Check, format_check
from kubesim.cel.regexes import compiled
from kubesim.server.goformat import go_text, quoted
from kubesim.server.status import Cause, not_supported, required
from kubesim.types.schema import Schema

NO_PLACE: Final = "<nil>"
"""How a fault without a field is written (recording crds)."""

TYPE_INVALID, TOO_LONG, TOO_MANY = "FieldValueTypeInvalid", "FieldValueTooLong", "FieldValueTooMany"
ABSENT: Final = object()
"""There is no old value to compare with."""


class Findings:
    """Faults and passed checks of a value: of several failing alternatives the best one is reported."""

    def __init__(self) -> None:
        self.faults: list[Cause] = []
        self.passed = 0

    def add(self, other: Findings) -> None:
        """Take another's findings over."""
        self.faults.extend(other.faults)
        self.passed += other.passed


class SchemaValidator:
    """Checks values against one node of a schema. Its children are made when first needed."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        raw = schema.raw
        self._types = ("integer", "string") if schema.int_or_string else tuple(filter(None, (schema.type,)))
        self._format: Check | None = format_check(schema.format) if schema.format else None
        self._enum: list[Any] | None = raw.get("enum")

    @cached_property
    def _properties(self) -> dict[str, SchemaValidator]:
        return {name: SchemaValidator(field) for name, field in self._schema.properties.items()}

    @cached_property
    def _additional(self) -> SchemaValidator | None:
        return None if self._schema.additional is None else SchemaValidator(self._schema.additional)

    @cached_property
    def _items(self) -> SchemaValidator | None:
        return None if self._schema.items is None else SchemaValidator(self._schema.items)

    @cached_property
    def _alternatives(self) -> dict[str, list[SchemaValidator]]:
        raw = self._schema.raw
        found = {key: raw[key] for key in ("anyOf", "oneOf", "allOf") if raw.get(key)}
        if "not" in raw:
            found["not"] = [raw["not"]]
        return {key: [SchemaValidator(Schema(node)) for node in nodes] for key, nodes in found.items()}

    def faults(self, value: Any, path: str = "", old: Any = ABSENT) -> list[Cause]:
        """What is wrong with a value. `path` is its field; `old` what it was before a change."""
        return self._findings(value, path, old).faults

    def _findings(self, value: Any, path: str, old: Any = ABSENT) -> Findings:
        findings = Findings()
        if value is old:
            return findings
        self._check_type(value, path, findings)
        if value is not None:
            self._check_alternatives(value, path, findings)
            self._check_content(value, path, old, findings)
            findings.passed += 1
        if findings.faults and old is not ABSENT and value == old:
            findings.faults.clear()
        return findings

    def _check_type(self, value: Any, path: str, findings: Findings) -> None:
        schema, found = self._schema, json_type(value)
        if value is None:
            if self._types and not schema.nullable:
                findings.faults.append(wrong_type(path, ",".join(self._types), found))
            return
        findings.passed += 1
        if not self._types:
            return
        is_whole = isinstance(value, float) and value.is_integer() and "integer" in self._types
        fits = found in self._types or is_whole or (found == "integer" and "number" in self._types)
        if self._format is not None and found in ("string", "array") and self._types == ("string",):
            fits = True  # the format decides
        if not fits:
            findings.faults.append(wrong_type(path, ",".join(self._types), found))

    # -- alternatives --------------------------------------------------------------------------------------------------

    def _check_alternatives(self, value: Any, path: str, findings: Findings) -> None:
        alternatives = self._alternatives
        if "anyOf" in alternatives:
            self._any_of(alternatives["anyOf"], value, path, findings)
        if "oneOf" in alternatives:
            self._one_of(alternatives["oneOf"], value, path, findings)
        if "allOf" in alternatives:
            results = [each._findings(value, path) for each in alternatives["allOf"]]
            for result in results:
                findings.add(result)
            valid = sum(not result.faults for result in results)
            if valid < len(results):
                more = "" if valid else ". None validated"
                findings.faults.append(nowhere(f'"{path}" must validate all the schemas (allOf){more}'))
        if "not" in alternatives and not alternatives["not"][0]._findings(value, path).faults:
            findings.faults.append(nowhere(f'"{path}" must not validate the schema (not)'))
        findings.passed += 1

    @staticmethod
    def _any_of(schemas: list[SchemaValidator], value: Any, path: str, findings: Findings) -> None:
        best: Findings | None = None
        for each in schemas:
            result = each._findings(value, path)
            if not result.faults:
                findings.add(result)
                return
            if best is None or result.passed > best.passed:
                best = result
        findings.faults.append(nowhere(f'"{path}" must validate at least one schema (anyOf)'))
        if best is not None:
            findings.add(best)

    @staticmethod
    def _one_of(schemas: list[SchemaValidator], value: Any, path: str, findings: Findings) -> None:
        results = [each._findings(value, path) for each in schemas]
        valid = [result for result in results if not result.faults]
        if len(valid) == 1:
            findings.add(valid[0])
            return
        found = f"Found {len(valid)} valid alternatives" if valid else "Found none valid"
        findings.faults.append(nowhere(f'"{path}" must validate one and only one schema (oneOf). {found}'))
        if not valid:
            findings.add(max(results, key=lambda result: result.passed))

    # -- content -------------------------------------------------------------------------------------------------------

    def _check_content(self, value: Any, path: str, old: Any, findings: Findings) -> None:
        raw = self._schema.raw
        match value:
            case str():
                self._check(findings, self._of_text(value, path))
                if self._format is not None:
                    fault = None if self._format(value) else wrong_type(path, self._schema.format, value)
                    self._check(findings, filter(None, (fault,)))
            case int() | float() if not isinstance(value, bool):
                self._check(findings, of_number(raw, value, path))
            case list():
                self._check_items(value, path, old, findings)
        if self._enum is not None:
            known = any(each == value and isinstance(each, bool) == isinstance(value, bool) for each in self._enum)
            words = [each if isinstance(each, str) else orjson.dumps(each).decode() for each in self._enum]
            fault = not_supported(path, quoted(value) if isinstance(value, str) else go_text(value), words)
            self._check(findings, () if known else (fault,))
        else:
            findings.passed += 1
        if isinstance(value, dict):
            self._check_fields(value, path, old, findings)

    @staticmethod
    def _check(findings: Findings, faults: Any) -> None:
        findings.faults.extend(faults)
        findings.passed += 1

    def _of_text(self, value: str, path: str) -> Iterator[Cause]:
        raw = self._schema.raw
        if "maxLength" in raw and len(value) > raw["maxLength"]:
            yield Cause(TOO_LONG, f"Too long: may not be more than {raw['maxLength']} bytes", path)
        elif "minLength" in raw and len(value) < raw["minLength"]:
            yield about(path, value, f"should be at least {raw['minLength']} chars long")
        elif raw.get("pattern") and compiled(raw["pattern"]).search(value) is None:
            yield about(path, value, f"should match '{raw['pattern']}'")

    def _check_items(self, value: list[Any], path: str, old: Any, findings: Findings) -> None:
        raw = self._schema.raw
        if self._items is not None:
            before = self._correlated(old)
            for index, item in enumerate(value):
                findings.add(self._items._findings(item, f"{path}[{index}]", before(index, item)))
        if "minItems" in raw and len(value) < raw["minItems"]:
            findings.faults.append(about(path, len(value), f"should have at least {raw['minItems']} items"))
        if "maxItems" in raw and len(value) > raw["maxItems"]:
            findings.faults.append(too_many(path, len(value), raw["maxItems"]))
        findings.passed += 2

    def _correlated(self, old: Any) -> Any:
        """Finds what an item was before: by its keys in a list of type map, and not at all in others."""
        keys = self._schema.list_keys
        if self._schema.list_type != "map" or not isinstance(old, list):
            return lambda index, item: ABSENT
        known = {key_of(item, keys): item for item in old if isinstance(item, dict)}
        return lambda index, item: known.get(key_of(item, keys), ABSENT) if isinstance(item, dict) else ABSENT

    def _check_fields(self, value: dict[str, Any], path: str, old: Any, findings: Findings) -> None:
        raw = self._schema.raw
        before = old if isinstance(old, dict) else {}
        if "minProperties" in raw and len(value) < raw["minProperties"]:
            findings.faults.append(about(path, len(value), f"should have at least {raw['minProperties']} properties"))
        if "maxProperties" in raw and len(value) > raw["maxProperties"]:
            findings.faults.append(too_many(path, len(value), raw["maxProperties"]))
        if self._additional is not None:
            for name, item in value.items():
                if name not in self._properties:
                    findings.add(self._additional._findings(item, f"{path}.{name}", before.get(name, ABSENT)))
        for name, field in self._properties.items():
            if name in value:
                findings.add(field._findings(value[name], f"{path}.{name}" if path else name, before.get(name, ABSENT)))
        findings.faults.extend(
            required(f"{path}.{name}".lstrip(".")) for name in self._schema.required if name not in value
        )
        findings.passed += 1


def key_of(item: dict[str, Any], keys: tuple[str, ...]) -> bytes:
    """Key of an item of a list of type map."""
    return orjson.dumps([item.get(key) for key in keys])


def of_number(raw: Any, value: float, path: str) -> Iterator[Cause]:
    """The faults of a number."""
    if "multipleOf" in raw and not (value / raw["multipleOf"]).is_integer():
        yield about(path, value, f"should be a multiple of {go_text(raw['multipleOf'])}")
    if "maximum" in raw:
        exclusive = raw.get("exclusiveMaximum", False)
        if value > raw["maximum"] or (exclusive and value == raw["maximum"]):
            yield about(
                path, value, f"should be less than {'' if exclusive else 'or equal to '}{go_text(raw['maximum'])}"
            )
    if "minimum" in raw:
        exclusive = raw.get("exclusiveMinimum", False)
        if value < raw["minimum"] or (exclusive and value == raw["minimum"]):
            words = f"should be greater than {'' if exclusive else 'or equal to '}{go_text(raw['minimum'])}"
            yield about(path, value, words)


def about(path: str, value: Any, why: str) -> Cause:
    """A fault of what a field holds."""
    shown = quoted(value) if isinstance(value, str) else go_text(value)
    return Cause("FieldValueInvalid", f"Invalid value: {shown}: {path} in body {why}", path)


def nowhere(message: str) -> Cause:
    """A fault that names no field."""
    return Cause("FieldValueInvalid", f'Invalid value: "": {message}', NO_PLACE)


def wrong_type(path: str, wanted: str, found: str) -> Cause:
    """A fault of a value's type (or format)."""
    message = f'Invalid value: "{found}": {path} in body must be of type {wanted}: "{found}"'
    return Cause(TYPE_INVALID, message, path or NO_PLACE)


def too_many(path: str, count: int, most: int) -> Cause:
    """A fault of too many items or properties."""
    return Cause(TOO_MANY, f"Too many: {count}: must have at most {most} items", path)


def json_type(value: Any) -> str:
    """The type of a value as a schema names it."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"
