"""Settings from the environment: `GRACECTL__EVICTION__MAX_IN_FLIGHT=20` is `eviction.maxInFlight`.

Two underscores separate levels and follow the prefix, so no variable that Kubernetes sets for a Service named gracectl
(`GRACECTL_PORT`, `GRACECTL_SERVICE_HOST`) is taken for a setting. Values are YAML, as in the file. Invariant: a
variable with the prefix that is no field is rejected, as an unknown field of the file is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import msgspec

from gracectl.config.errors import ConfigError
from gracectl.config.fields import fields
from gracectl.config.messages import LISTED, suggestion
from gracectl.runtime.documents import DocumentError, parse_yaml

PREFIX: Final = "GRACECTL__"

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Override(msgspec.Struct, frozen=True):
    """Value of a variable: its field, text, and parsed value."""

    variable: str
    path: str
    text: str
    value: Any


def variable_of(path: str) -> str:
    """Variable of the field at this path."""
    return PREFIX + "__".join(_HUMP.sub("_", part).upper() for part in path.split("."))


@cache
def _paths() -> Mapping[str, str]:
    """Paths by variable; sections have none."""
    return {variable_of(path): path for path, field in fields().items() if not field.is_section}


def overrides(environ: Mapping[str, str]) -> tuple[Override, ...]:
    """Overrides of the environment; fields of an optional section come after it. Raises ConfigError."""
    found = [_override(name, text) for name, text in sorted(environ.items()) if name.startswith(PREFIX)]
    return tuple(sorted(found, key=lambda each: each.path.count(".")))


def _override(name: str, text: str) -> Override:
    path = _paths().get(name)
    if path is None:
        raise ConfigError(f"variable {name}: {_unknown_reason(name)}")
    try:
        value = parse_yaml(text)
    except DocumentError as error:
        raise ConfigError(f"variable {name}: its value {error}") from error
    if value is None and not text.partition("#")[0].strip():
        raise ConfigError(
            f"variable {name}: is empty; unset it to leave {path} as it is, or write null for no value, '\"\"' for an "
            "empty text"
        )
    return Override(name, path, text, value)


def _unknown_reason(name: str) -> str:
    section = next((path for path, field in fields().items() if field.is_section and variable_of(path) == name), None)
    if section is not None:
        first = next(path for path in fields() if path.startswith(f"{section}."))
        return f"{section} is a section; set its fields one by one, such as {variable_of(first)}"
    hint = suggestion(name.removeprefix(PREFIX).upper(), [each.removeprefix(PREFIX) for each in _paths()])
    hint = hint.replace("mean ", f"mean {PREFIX}")
    return f"there is no such setting; {hint}remove or correct it ({LISTED})"


def apply_overrides(document: Any, found: tuple[Override, ...]) -> Any:
    """The document with the overrides applied. Invalid parts of the document stay, so that they are reported."""
    for each in found:
        document = _with(document, each.path.split("."), each.value, "")
    return document


def _with(document: Any, parts: list[str], value: Any, before: str) -> Any:
    if not parts:
        return value
    if document is None and not (before and fields()[before].is_section):
        document = {}
    if not isinstance(document, dict):
        return document
    name, *rest = parts
    path = f"{before}.{name}" if before else name
    below = document.get(name, {} if rest else None)
    return {**document, name: _with(below, rest, value, path)}
