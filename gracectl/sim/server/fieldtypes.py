"""JSON of the wrong type, refused in Go's words (recordings leases, writes-refused, nodes-cordon).

Only fields whose type clients get wrong in practice are checked: strategies name them by path. A POST or PUT that
brings such a value is a 400, a patch that leads to one a 422 that quotes the whole object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import orjson

from gracectl.sim.server.api import Json, JsonObject
from gracectl.sim.server.calls import Call
from gracectl.sim.server.status import Kind, Refusal, bad_request, invalid, invalid_value

MICRO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)\Z")
WHOLE_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
LAYOUT: Final = "2006-01-02T15:04:05.000000Z07:00"
METADATA: Final = {"metadata.labels": "map", "metadata.annotations": "map"}


def fault_in(kind: str, object_: JsonObject, types: Mapping[str, str]) -> str:
    """What Go's decoder says about the first value of a wrong type, or "". `types`: int32, string, MicroTime, map."""
    for path, wanted in (*METADATA.items(), *types.items()):
        value: Json = object_
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            found = _fault(kind, path, value, wanted)
            if found:
                return found
    return ""


def _fault(kind: str, path: str, value: Json, wanted: str) -> str:
    match wanted:
        case "int32":
            right = isinstance(value, int) and not isinstance(value, bool)
        case "string":
            right = isinstance(value, str)
        case "map":
            wrong = [item for item in value.values() if not isinstance(item, str)] if isinstance(value, dict) else []
            return _cannot(wrong[0], "ObjectMeta", path, "string") if wrong else ""
        case _:
            return _micro_time_fault(value)
    return "" if right else _cannot(value, f"{kind}Spec", path, wanted)


def _cannot(value: Json, struct: str, path: str, wanted: str) -> str:
    words = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return f"json: cannot unmarshal {words[type(value)]} into Go struct field {struct}.{path} of type {wanted}"


def _micro_time_fault(value: Json) -> str:
    text = str(value)
    if MICRO_TIME.match(text):
        return ""
    whole = WHOLE_TIME.match(text)
    rest, expected = (text[whole.end() :], ".000000") if whole else (text, "2006")
    return f'parsing time "{text}" as "{LAYOUT}": cannot parse "{rest}" as "{expected}"'


class FieldTypes:
    """The body check that knows only those types which strategies name."""

    def sent(self, call: Call, body: JsonObject) -> JsonObject:
        """The object of a POST or PUT. Raises Refusal (400)."""
        words = call.route.resource.words
        fault = fault_in(words.kind, body, call.route.resource.strategy.types)
        if fault:
            version = str(body["apiVersion"]).rpartition("/")[2]
            raise bad_request(f'{words.kind} in version "{version}" cannot be handled as a {words.kind}: {fault}')
        return body

    def patched(self, call: Call, patched: JsonObject) -> JsonObject:
        """The object that a patch led to. Raises Refusal (422)."""
        resource = call.route.resource
        fault = fault_in(resource.kind, patched, resource.strategy.types)
        if fault:
            raise quoted(patched, fault)
        return patched


def quoted(patched: JsonObject, fault: str) -> Refusal:
    """The refusal of a patch, with the object that it would have made."""
    shown = orjson.dumps(patched).decode().replace('"', '\\"')
    refusal = invalid(Kind("", "", ""), "", [invalid_value("patch", shown, "")])
    refusal.message = f"{refusal.message.removesuffix(': ')}: {fault}"
    cause = {"reason": "FieldValueInvalid", "message": f'Invalid value: "{shown}": {fault}', "field": "patch"}
    refusal.details = {"causes": [cause]}
    return refusal
