"""JSON patches of mutating webhooks (RFC 6902), refused in the words of the library that kube-apiserver uses.

Its habits differ from the RFC in one thing that webhooks rely on: `replace` of a key that is not there adds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from kubesim.server.api import Json, JsonObject
from kubesim.server.goformat import decoded_as

KINDS: Final = ("add", "remove", "replace", "move", "test", "copy")
Container = Any
"""A list or a dict that a step of a path leads into, or None."""


class PatchFault(Exception):
    """A patch that is none, or that does not apply; the text says why."""


def operations_of(raw: bytes) -> list[JsonObject]:
    """Read a patch. Raises PatchFault."""
    try:
        parsed = orjson.loads(raw)
    except orjson.JSONDecodeError:
        first = raw.decode(errors="replace").lstrip()[:1]
        raise PatchFault(f"invalid character '{first}' looking for beginning of value") from None
    if not isinstance(parsed, list):
        raise PatchFault(f"json: cannot unmarshal {decoded_as(parsed)} into Go value of type jsonpatch.Patch")
    for operation in parsed:
        if not isinstance(operation, dict):
            raise PatchFault(
                f"json: cannot unmarshal {decoded_as(operation)} into Go value of type jsonpatch.Operation"
            )
    return parsed


def patched(document: JsonObject, operations: list[JsonObject]) -> JsonObject:
    """The document after all operations; it shares nothing with `document` that they touched. Raises PatchFault."""
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
    if not path and kind in ("replace", "add"):
        return _whole(operation)
    into, key = _find(document, path)
    match kind:
        case "add":
            _there(into, f'add operation does not apply: doc is missing path: "{path}"')
            _add(into, key, operation.get("value"), f"error in add for path: '{path}'")
        case "remove":
            _there(into, f'remove operation does not apply: doc is missing path: "{path}"')
            _remove(into, key, f"error in remove for path: '{path}'")
        case "replace":
            _there(into, f"replace operation does not apply: doc is missing path: {path}")
            _replace(into, key, path, operation.get("value"))
        case "test":
            _test(document if not path else into, key, path, operation.get("value"))
        case _:
            _transfer(document, kind, operation, path)
    return document


def _whole(operation: Mapping[str, Json]) -> JsonObject:
    value = operation.get("value")
    if not isinstance(value, dict):
        raise PatchFault("replace operation value must be object or array")
    return value


def _transfer(document: JsonObject, kind: str, operation: Mapping[str, Json], path: str) -> None:
    """Move or copy."""
    source = operation.get("from")
    if not isinstance(source, str):
        raise PatchFault(f"{kind} operation failed to decode from: operation, missing from field: missing value")
    into, key = _find(document, source)
    _there(into, f"{kind} operation does not apply: doc is missing from path: {source}")
    value = _get(into, key)
    if kind == "move":
        _remove(into, key, f"error in move for path: '{key}'")
    else:
        value = orjson.loads(orjson.dumps(value))
    target, last = _find(document, path)
    _there(target, f"{kind} operation does not apply: doc is missing destination path: {path}")
    _add(target, last, value, f"error in {kind} for path: '{path}'")


def _find(document: JsonObject, path: str) -> tuple[Container, str]:
    """What holds the last step of a path (None: there is no such thing), and that step."""
    steps = [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]
    found: Container = document
    for step in steps[:-1]:
        found = _get(found, step)
        if not isinstance(found, dict | list):
            return None, steps[-1]
    return found, steps[-1] if steps else ""


def _get(container: Container, key: str) -> Json:
    if isinstance(container, dict):
        return container.get(key)
    index = _index(key, len(container))
    return None if index is None else container[index]


def _index(key: str, length: int) -> int | None:
    """The place in a list of that length, or None; negative ones count from its end."""
    try:
        index = int(key)
    except ValueError:
        return None
    return index % length if -length <= index < length else None


def _there(container: Container, why: str) -> None:
    if container is None:
        raise PatchFault(f"{why}: missing value")


def _add(container: Container, key: str, value: Json, where: str) -> None:
    if isinstance(container, dict):
        container[key] = value
    elif key == "-":
        container.append(value)
    else:
        index = _index(key, len(container) + 1)
        if index is None:
            raise PatchFault(f"{where}: {_bad_index(key)}")
        container.insert(index, value)


def _remove(container: Container, key: str, where: str) -> None:
    if isinstance(container, dict):
        if key not in container:
            raise PatchFault(f"{where}: Unable to remove nonexistent key: {key}: missing value")
        del container[key]
        return
    index = _index(key, len(container))
    if index is None:
        raise PatchFault(f"{where}: {_bad_index(key)}")
    del container[index]


def _replace(container: Container, key: str, path: str, value: Json) -> None:
    if isinstance(container, dict):
        container[key] = value
        return
    index = _index(key, len(container))
    if index is None:
        raise PatchFault(f"replace operation does not apply: doc is missing key: {path}: missing value")
    container[index] = value


def _test(container: Container, key: str, path: str, wanted: Json) -> None:
    _there(container, f"test operation does not apply: is missing path: {path}")
    found = container if not path else _get(container, key)
    if found != wanted or isinstance(found, bool) is not isinstance(wanted, bool):
        raise PatchFault(f"testing value {path} failed: test failed")


def _bad_index(key: str) -> str:
    try:
        return f"Unable to access invalid index: {int(key)}: invalid index referenced"
    except ValueError:
        return f"value was not a proper array index: '{key}': strconv.Atoi: parsing \"{key}\": invalid syntax"
