"""The columns of a custom resource's table: its name, and what its definition asks for by JSONPath."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kubesim.apiextensions.jsonpath import JsonPath, printed
from kubesim.printers.columns import AGE, NAME, since
from kubesim.server.api import Json, JsonObject
from kubesim.server.resource import Cell, Column

CREATED: Final = Column("Created At", lambda object_, now: object_["metadata"]["creationTimestamp"], "date")
DEFINITION_COLUMNS: Final = (NAME, CREATED)
"""How the definitions themselves are shown."""

DESCRIPTION: Final = "Custom resource definition column (in JSONPath format): {}"


def columns_of(raw: Iterable[Mapping[str, Any]]) -> tuple[Column, ...]:
    """The columns of a version, by default the age. As on a real server an invalid JSONPath ends the list."""
    given = list(raw)
    if not given:
        return (NAME, AGE._replace(type="date"))
    columns = [NAME]
    for each in given:
        try:
            path = JsonPath(each["jsonPath"])
        except ValueError:
            break
        columns.append(
            Column(
                name=each["name"],
                cell=_cell(path, each["type"]),
                type=each["type"],
                wide=each.get("priority", 0) > 0,
                format=each.get("format", ""),
                description=each.get("description") or DESCRIPTION.format(each["jsonPath"]),
            )
        )
    return tuple(columns)


def _cell(path: JsonPath, type_: str) -> Cell:
    def show(object_: JsonObject, now: float) -> Json:
        found = path.found(object_)
        if not found:
            return None
        return printed(found[0]) if type_ == "string" else _typed(found[0], type_, now)

    return show


def _typed(value: Any, type_: str, now: float) -> Json:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match type_:
        case "integer" if number:
            return int(value)
        case "number" if number:
            return float(value)
        case "boolean" if isinstance(value, bool):
            return value
        case "date" if isinstance(value, str):
            try:
                return since(value, now)
            except ValueError:
                return "<invalid>"
    return None
