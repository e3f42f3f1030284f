"""JSON Patch (RFC 6902) with the habits and error texts of the Go library behind kube-apiserver.

Clients' patches and webhooks' patches share this engine (recording json-patch). It differs from the RFC: `replace` of a
missing key adds the key, a missing key equals null, and negative indexes count from the end of a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from kubesim.server.api import Json, JsonObject

KINDS: Final = ("add", "remove", "replace", "move", "test", "copy")
Container = Any
"""The list or dict that the last step of a path leads into; None if it does not exist."""


class PatchFault(Exception):
    """A patch that does not apply; the text is the Go library's."""


def patched(document: JsonObject, operations: list[JsonObject]) -> JsonObject:
    """A patched copy of a document. Raises PatchFault."""
    copy: JsonObject = orjson.loads(orjson.dumps(document))
    for operation in operations:
        copy = _operate(copy, operation)
    return copy


def _operate(document: JsonObject, operation: Mapping[str, Json]) -> JsonObject:
    kind = operation.get("op")
    if kind not in KINDS:
        raise PatchFault(f"Unexpected kind: {'unknown' if kind is None else kind}")
    path = operation.get("path")
    if not isinstance(path, str):
        raise PatchFault(f"{kind} operation failed to decode path: missing value")
    value = operation.get("value")
    if not path and kind in ("replace", "add"):
        if not isinstance(value, dict):
            raise PatchFault("replace operation value must be object or array")
        return value
    container, key = _find(document, path)
    match kind:
        case "add":
            _require(container, f'add operation does not apply: doc is missing path: "{path}"')
            _add(container, key, value, f"error in add for path: '{path}'")
        case "remove":
            _require(container, f'remove operation does not apply: doc is missing path: "{path}"')
            _remove(container, key, f"error in remove for path: '{path}'")
        case "replace":
            _require(container, f"replace operation does not apply: doc is missing path: {path}")
            _replace(container, key, path, value)
        case "test":
            _test(document, container, key, path, value)
        case _:
            _transfer(document, kind, operation, path)
    return document


def _transfer(document: JsonObject, kind: str, operation: Mapping[str, Json], path: str) -> None:
    """Move or copy."""
    source = operation.get("from")
    if not isinstance(source, str):
        raise PatchFault(f"{kind} operation failed to decode from: operation, missing from field: missing value")
    container, key = _find(document, source)
    _require(container, f"{kind} operation does not apply: doc is missing from path: {source}")
    where = f"error in move for path: '{key}'" if kind == "move" else f"error in copy for from: '{source}'"
    value = _get(container, key, where)
    if kind == "move":
        _remove(container, key, where)
    else:
        value = orjson.loads(orjson.dumps(value))
    target, last = _find(document, path)
    _require(target, f"{kind} operation does not apply: doc is missing destination path: {path}")
    _add(target, last, value, f"error in {kind} for path: '{path}'")


def _find(document: JsonObject, path: str) -> tuple[Container, str]:
    """The container of a path's last step, and that step."""
    steps = [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]] or [""]
    container: Container = document
    try:
        for step in steps[:-1]:
            container = _get(container, step, "")
            if not isinstance(container, dict | list):
                return None, steps[-1]
    except PatchFault:
        return None, steps[-1]
    return container, steps[-1]


def _get(container: Container, key: str, where: str) -> Json:
    return container.get(key) if isinstance(container, dict) else container[_index(key, len(container), where)]


def _index(key: str, length: int, where: str) -> int:
    """An index from 0 to length - 1. Raises PatchFault."""
    try:
        index = int(key)
    except ValueError:
        raise PatchFault(f'{where}: strconv.Atoi: parsing "{key}": invalid syntax') from None
    if not -length <= index < length:
        raise PatchFault(f"{where}: Unable to access invalid index: {index}: invalid index referenced")
    return index % length


def _require(container: Container, why: str) -> None:
    if container is None:
        raise PatchFault(f"{why}: missing value")


def _add(container: Container, key: str, value: Json, where: str) -> None:
    if isinstance(container, dict):
        container[key] = value
    elif key == "-":
        container.append(value)
    else:
        container.insert(_index(key, len(container) + 1, where), value)


def _remove(container: Container, key: str, where: str) -> None:
    if isinstance(container, list):
        del container[_index(key, len(container), where)]
    elif key in container:
        del container[key]
    else:
        raise PatchFault(f"{where}: Unable to remove nonexistent key: {key}: missing value")


def _replace(container: Container, key: str, path: str, value: Json) -> None:
    if isinstance(container, dict):
        container[key] = value
        return
    try:
        index = _index(key, len(container), "")
    except PatchFault:
        raise PatchFault(f"replace operation does not apply: doc is missing key: {path}: missing value") from None
    container[index] = value


def _test(document: JsonObject, container: Container, key: str, path: str, expected: Json) -> None:
    _require(container, f"test operation does not apply: is missing path: {path}")
    value = _get(container, key, f"error in test for path: '{path}'") if path else document
    if value != expected or isinstance(value, bool) is not isinstance(expected, bool):
        raise PatchFault(f"testing value {path} failed: test failed")
