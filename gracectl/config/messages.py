"""Error messages of invalid values: the field, what was expected, the value, and the remedy.

msgspec reports place and reason, but mostly not the value, which is looked up in the document.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import date
from difflib import get_close_matches
from typing import Any, Final

import msgspec
from msgspec import inspect

from gracectl.config.errors import InvalidField
from gracectl.config.fields import alternatives, described, kind_at, members, steps
from gracectl.config.settings import Settings
from gracectl.model.encoding import encode

WHOLE: Final = "the document"
"""Field of a message about the whole document."""

LISTED: Final = "docs/settings.md lists every field"

LONGEST: Final = 80
"""Characters of a value in a message."""

_MISSING: Final = object()
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_WRONG_TYPE = re.compile(r"Expected `(?P<expected>.*)`, got `(?P<got>.*)`")
_TYPES: Final = {bool: "bool", int: "int", float: "float", list: "array", dict: "object", type(None): "null"}


def invalid_field(error: msgspec.ValidationError, document: Any) -> InvalidField:
    """Error of a validation: `$.eviction.qps` becomes `eviction.qps`; the field, the reason, and the remedy."""
    reason, _, place = str(error).rpartition(" - at `")
    if not reason:
        reason, place = str(error), ""
    is_key = place.startswith("key` in `")
    field = place.removeprefix("key` in `").rstrip("`").removeprefix("$").removeprefix(".")
    value = _value_at(document, field, reason)
    if is_key:
        wrong = next((key for key in value if not isinstance(key, str)), None) if isinstance(value, dict) else None
        return InvalidField(field or WHOLE, f"Expected `str` as a key, got {display(wrong)}; put it in quotes")
    return InvalidField(field or WHOLE, _reason(reason, field, value))


def _reason(reason: str, field: str, value: Any) -> str:
    if unknown := _UNKNOWN.fullmatch(reason):
        return f"{reason}; {suggestion(unknown[1], _names_at(field))}remove it or correct its name ({LISTED})"
    if wrong := _WRONG_TYPE.fullmatch(reason):
        given = "" if value is None or value is _MISSING else f" ({display(value)})"
        return f"{reason}{given}{_remedy(wrong['expected'], wrong['got'], field, value)}"
    if choices := _choices(field):
        return f"{reason}; choose one of {', '.join(choices)}"
    if reason == "Number out of range":
        return f"{reason}: {display(value)}"
    if reason.startswith("Expected") and value is not _MISSING:
        kind = kind_at(field)
        meant = "" if kind is None else next(filter(None, map(described, (kind, *_parts(kind)))), "")
        return f"{reason}, got {display(value)}{f'; {meant}' if meant else ''}"
    return reason


def _remedy(expected: str, got: str, field: str, value: Any) -> str:
    wants = expected.split(" | ")
    if "str" in wants and got in ("bool", "int", "float", "date", "datetime"):
        if (choices := _choices(field)) and str(value) not in choices:
            return f"; choose one of {', '.join(choices)}"
        return "; put the word in quotes" if got == "bool" else "; put it in quotes"
    if got == "null" and "str" in wants:
        return '; write "" for none, or remove it'
    if got == "null":
        return "; remove it, or give it a value"
    if got == "str" and {"float", "int"} & {*wants} and _is_number(value):
        return f"; write {_number(value)}, without quotes"
    return ""


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, str) and math.isfinite(float(value))
    except ValueError:
        return False


def _number(text: str) -> str:
    number = float(text)
    return str(int(number)) if number.is_integer() else repr(number)


def suggestion(wrong: str, names: Iterable[str]) -> str:
    """`did you mean qps? `, if one of these names is similar; else ""."""
    matches = get_close_matches(wrong, tuple(names), n=1)
    return f"did you mean {matches[0]}? " if matches else ""


def _names_at(field: str) -> Iterable[str]:
    kind = kind_at(field) if field else inspect.type_info(Settings)
    return () if kind is None else members(kind)


def _choices(field: str) -> tuple[str, ...]:
    """Values of a field with a fixed set of values."""
    kind = kind_at(field)
    literals = (each for each in alternatives(kind) if isinstance(each, inspect.LiteralType)) if kind else ()
    return tuple(str(value) for each in literals for value in each.values)


def _parts(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    return kind.types if isinstance(kind, inspect.UnionType) else ()


def _value_at(document: Any, field: str, reason: str) -> Any:
    """Value in the document; `_MISSING` if unknown."""
    value = document
    for name, indices in steps(field):
        value = value.get(name, _MISSING) if isinstance(value, dict) else _MISSING
        for index in indices:
            value = _item_of(value, index, reason)
    return value


def _item_of(value: Any, index: str, reason: str) -> Any:
    if isinstance(value, list) and index.isdigit() and int(index) < len(value):
        return value[int(index)]
    if isinstance(value, dict):  # msgspec does not say which
        wrong = _WRONG_TYPE.fullmatch(reason)
        return next((each for each in value.values() if wrong and _TYPES.get(type(each)) == wrong["got"]), _MISSING)
    return _MISSING


def display(value: Any) -> str:
    """Value for a message, as in YAML, in one line."""
    match value:
        case str():
            text = repr(value)
        case float() if not math.isfinite(value):
            text = ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
        case date():
            text = value.isoformat()
        case int() | float() if not isinstance(value, bool):  # JSON has no integers of any length, and no infinity
            text = repr(value)
        case _:
            text = encode(value).decode()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
