"""OpenAPI v2 from v3: the same schemas as `definitions`, the same paths, in the words of 2014.

What version 2 cannot say is left out: alternatives (`oneOf`, `anyOf`, `not`), `nullable`, defaults of objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kubesim.server.api import Json, JsonObject
from kubesim.types.catalog import PREFIX
from kubesim.types.schema import Node

UNSAID: Final = frozenset(("oneOf", "anyOf", "not", "nullable", "default"))
DEFINITIONS: Final = "#/definitions/"


def definition(node: Node) -> JsonObject:
    """A schema of version 3 as one of version 2."""
    result: JsonObject = {}
    for key, value in node.items():
        if key in UNSAID:
            continue
        if key == "$ref":
            result["$ref"] = value.replace(PREFIX, DEFINITIONS)
        elif key == "allOf":
            # A reference that stands beside something else; other uses of allOf only narrow what is said already.
            result.update(definition(value[0]) if len(value) == 1 and "$ref" in value[0] else {})
        elif key == "properties":
            result[key] = {name: definition(child) for name, child in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, Mapping):
            result[key] = definition(value)
        else:
            result[key] = value
    if "oneOf" in node and "type" not in node:
        # Quantities and IntOrStrings: version 2 knows one type only, and clients know what is meant.
        result["type"] = "string"
    return result


def path(item: JsonObject) -> JsonObject:
    """What may be done at a path, as version 2 says it."""
    return {
        method: [_parameter(each) for each in described] if method == "parameters" else _operation(described)
        for method, described in item.items()
    }


def _operation(described: JsonObject) -> JsonObject:
    result = {key: value for key, value in described.items() if key not in ("parameters", "requestBody", "responses")}
    parameters = [_parameter(each) for each in described.get("parameters", ())]
    content: dict[str, Any] = described.get("requestBody", {}).get("content", {})
    if content:
        schema = definition(next(iter(content.values()))["schema"])
        parameters.append({"name": "body", "in": "body", "required": True, "schema": schema})
    result["consumes"] = list(content) or ["*/*"]
    result["produces"] = ["application/json"]
    result["schemes"] = ["https"]
    if parameters:
        result["parameters"] = parameters
    result["responses"] = {code: _response(each) for code, each in described["responses"].items()}
    return result


def _parameter(described: JsonObject) -> JsonObject:
    return {**{key: value for key, value in described.items() if key != "schema"}, **described["schema"]}


def _response(described: JsonObject) -> Json:
    content: dict[str, Any] = described.get("content", {})
    said = {"description": described["description"]}
    return {**said, "schema": definition(next(iter(content.values()))["schema"])} if content else said
