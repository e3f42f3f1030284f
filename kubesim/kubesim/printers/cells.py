"""What the cells of kubectl's tables are made of: fields, ages, selectors, in the words of kube-apiserver's printers.

A cell is read from the stored object and the present instant; ages are text, as the server sends them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kubesim.server.api import Json, JsonObject
from kubesim.server.resource import Cell, Column
from kubesim.values import parse_time

NONE: Final = "<none>"
UNKNOWN: Final = "<unknown>"
NAME: Final = Column("Name", lambda object_, now: object_["metadata"].get("name", ""), format="name")


def age(object_: JsonObject, now: float) -> str:
    """How old an object is, as kubectl words it."""
    return since(object_["metadata"].get("creationTimestamp"), now)


def since(instant: str | None, now: float) -> str:
    """How long ago an instant was: `5s`, `3m12s`, `2h`, `4d`."""
    if not instant:
        return UNKNOWN
    return duration(int(now - parse_time(instant)))


def duration(seconds: int) -> str:
    """Seconds as duration.HumanDuration of apimachinery words them: coarser with distance."""
    if seconds < 0:
        return "0s" if seconds >= -1 else "<invalid>"
    if seconds < 120:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return _two(days, "d", hours % 24, "h")
    return f"{days}d" if days < 730 else f"{days // 365}y"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"


def path(*keys: str, missing: Json = NONE) -> Cell:
    """A cell that shows one field."""

    def read(object_: JsonObject, now: float) -> Json:
        value: Json = object_
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return missing if value in (None, "") else value

    return read


def labels_of(*keys: str) -> Cell:
    """A cell that shows labels that must be met: `app=web,tier=front`."""
    read = path(*keys, missing={})
    return lambda object_, now: ",".join(f"{key}={value}" for key, value in sorted(read(object_, now).items())) or NONE


def selector_of(*keys: str) -> Cell:
    """A cell that shows a label selector: `app=web,tier in (a,b),!old`."""
    read = path(*keys, missing={})

    def show(object_: JsonObject, now: float) -> str:
        selector = read(object_, now)
        terms = {(key, 0): f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()}
        for at, each in enumerate(selector.get("matchExpressions") or (), start=1):
            terms[each["key"], at] = _term(each["key"], each["operator"], each.get("values") or ())
        return ",".join(term for _, term in sorted(terms.items())) or NONE

    return show


def _term(key: str, operator: str, values: Sequence[str]) -> str:
    match operator:
        case "Exists":
            return key
        case "DoesNotExist":
            return f"!{key}"
    return f"{key} {operator.lower()} ({','.join(sorted(values))})"


def containers(*keys: str, field: str) -> Cell:
    """A cell that joins one field of all containers of a template."""
    read = path(*keys, "containers", missing=[])
    return lambda object_, now: ",".join(container.get(field, "") for container in read(object_, now))


def number(name: str, *keys: str, wide: bool = False) -> Column:
    """A column that shows one number, 0 where there is none."""
    return Column(name, path(*keys, missing=0), "integer", wide)


def count(*keys: str) -> Cell:
    """A cell that shows how many entries a list or a mapping has."""
    read = path(*keys, missing=())
    return lambda object_, now: len(read(object_, now))


AGE: Final = Column("Age", age)
