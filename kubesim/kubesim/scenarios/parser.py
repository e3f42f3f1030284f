"""Strict parser of scenario files.

Each complaint names the file, the path of the field, the mistake and the correct form.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import orjson
import yaml
from msgspec import inspect

from kubesim.scenarios.scenario import Scenario
from kubesim.values import parse_seconds

SNAKE = re.compile(r"_([a-z])")


class ScenarioError(Exception):
    """A scenario cannot be used; the message names the file, the field and the remedy."""


def read_file(path: Path) -> Scenario:
    """The scenario in a file. Raises ScenarioError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"scenario file {path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"scenario file {path}: is not UTF-8 text") from error
    return read_text(text, f"scenario file {path}")


def read_text(text: str, source: str) -> Scenario:
    """The scenario in a YAML text; `source` is what complaints call it. Raises ScenarioError."""
    try:
        read = yaml.load(text, _Loader)
        orjson.dumps(read, default=str, option=orjson.OPT_NON_STR_KEYS)  # refuses an anchor that holds itself
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # ValueError: a date such as 2026-13-01. LookupError, AttributeError: PyYAML's own, for such as !!bool often.
        raise ScenarioError(f"{source}: is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(read, dict):
        raise ScenarioError(f"{source}: is no mapping; it begins with `name:` and `description:`")
    complaints: list[str] = []
    shaped = _Shaper(complaints).shaped(read, inspect.type_info(Scenario), "")
    if complaints:
        raise ScenarioError("\n".join(f"{source}: {complaint}" for complaint in complaints))
    try:
        return msgspec.convert(shaped, Scenario)
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{source}: {_explained(error)}") from error


class _Loader(yaml.SafeLoader):
    """Refuses what YAML forbids and PyYAML accepts: a key that is written twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        # As written: merge keys are resolved later, and what they bring may be overridden.
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"found {key.value!r} twice", problem_mark=key.start_mark)
            seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


class _Shaper:
    """Converts file content for `msgspec.convert` and reports what that would ignore. Fields are camelCase; seconds may
    be a duration (`1m30s`); a tagged struct is written as its tag (`refuse: {status: 503}`)."""

    def __init__(self, complaints: list[str]) -> None:
        self._complaints = complaints

    def shaped(self, value: Any, kind: inspect.Type, place: str) -> Any:
        """The value as the type wants it; what does not fit is left for `convert` to complain of."""
        match kind:
            case inspect.Metadata():
                return self.shaped(value, kind.type, place)
            case inspect.StructType() if isinstance(value, dict):
                return self._struct(value, kind, place)
            case inspect.UnionType():
                return self._union(value, kind, place)
            case inspect.ListType() | inspect.VarTupleType() if isinstance(value, list):
                return [self.shaped(item, kind.item_type, f"{place}[{index}]") for index, item in enumerate(value)]
            case inspect.DictType() if isinstance(value, dict):
                return {key: self.shaped(item, kind.value_type, f"{place}.{key}") for key, item in value.items()}
            case inspect.LiteralType() if value not in kind.values:
                choices = ", ".join(map(str, kind.values))
                self._complain(place, f"{value!r} is none of the words it takes; choose one of {choices}")
            case inspect.FloatType() if isinstance(value, str):
                return self._seconds(value, place)
            case inspect.FloatType() if isinstance(value, float) and not math.isfinite(value):
                self._complain(place, f"{value} is no number to count with")
        return value

    def _struct(self, value: dict[Any, Any], kind: inspect.StructType, place: str) -> dict[str, Any]:
        names = {camel(field.encode_name): field for field in kind.fields}
        tagged = {name: (field, member) for field in kind.fields for name, member in _members(field)}
        result: dict[str, Any] = {}
        for key, item in value.items():
            where = f"{place}.{key}" if place else str(key)
            if key in tagged:
                field, member = tagged[key]
                if field.encode_name in result:
                    self._complain(where, f"only one of {', '.join(tagged)} can be here")
                body = self.shaped({} if item is None else item, member, where)
                result[field.encode_name] = {**body, "type": member.tag} if isinstance(body, dict) else body
            elif key in names and not _is_tagged(names[key]):
                result[names[key].encode_name] = self.shaped(item, names[key].type, where)
            else:
                known = [*(name for name, field in names.items() if not _is_tagged(field)), *tagged]
                self._complain(where, f"there is no such field here; {_remedy(str(key), known)}")
        for field in kind.fields:
            if _is_tagged(field) and field.required and field.encode_name not in result:
                self._complain(place, f"says not what happens; add one of {', '.join(tagged)}")
        return result

    def _union(self, value: Any, kind: inspect.UnionType, place: str) -> Any:
        """Of the members that could take the value's kind, the first shapes it."""
        for member in kind.types:
            inner = member.type if isinstance(member, inspect.Metadata) else member
            if isinstance(inner, inspect.StructType) and isinstance(value, dict):
                return self.shaped(value, inner, place)
            if isinstance(inner, inspect.FloatType) and isinstance(value, str | float):
                has_text = any(isinstance(other, inspect.StrType) for other in kind.types)
                return value if has_text else self.shaped(value, inner, place)
        return value

    def _seconds(self, value: str, place: str) -> float | str:
        try:
            return parse_seconds(value)
        except ValueError as error:
            self._complain(place, f"{error}; write seconds as a number, or a duration such as 1m30s or 250ms")
            return 0.0

    def _complain(self, place: str, what: str) -> None:
        self._complaints.append(f"{place or 'the document'}: {what}")


def camel(name: str) -> str:
    """`retry_after` as files write it: `retryAfter`."""
    return SNAKE.sub(lambda match: match.group(1).upper(), name)


def _members(field: inspect.Field) -> Iterator[tuple[str, inspect.StructType]]:
    """The tagged structs that a field may be, by the name that files give them: `DropWatch` is `dropWatch`."""
    kinds = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
    for kind in kinds:
        if isinstance(kind, inspect.StructType) and isinstance(kind.tag, str):
            yield kind.tag[:1].lower() + kind.tag[1:], kind


def _is_tagged(field: inspect.Field) -> bool:
    return any(True for _ in _members(field))


def _remedy(key: str, known: list[str]) -> str:
    """What would be right instead."""
    close = difflib.get_close_matches(key, known, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"known are {', '.join(known)}"


def _explained(error: msgspec.ValidationError) -> str:
    """`Expected int, got str - at $.nodes[0].count` becomes `nodes[0].count: expected int, got str`."""
    reason, _, place = str(error).partition(" - at `")
    field = camel(place.rstrip("`").removeprefix("$").removeprefix(".")) or "the document"
    reason = reason[:1].lower() + reason[1:]
    if match := re.match(r"object missing required field `(\w+)`", reason):
        name = camel(match.group(1))
        return f"{field}: {name} is missing; add `{name}:`"
    return f"{field}: {reason}"
