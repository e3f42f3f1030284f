"""JSONPath of printer columns: fields, indexes, `[*]`, and filters of one comparison.

kubectl's dialect (https://kubernetes.io/docs/reference/kubectl/jsonpath/) without ranges, unions and `..`. A path that
leads nowhere selects nothing and is no error.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import orjson

from kubesim.server.goformat import go_text

Step = Callable[[Any], Iterable[Any]]

_STEP: Final = re.compile(
    r"""\.(?P<name>(?:\\.|[^.\[\\])+)
      | \[(?P<index>-?\d+)\]
      | (?P<all>\[\*\]|\.\*)
      | \['(?P<quoted>(?:\\.|[^'\\])*)'\]
      | \[\?\(@(?P<path>[^=!<>]*?)\s*(?P<sign>==|!=|<=|>=|<|>)
        \s*(?P<value>"(?:\\.|[^"])*"|'(?:\\.|[^'])*'|[^\s)]+)\s*\)\]
      | \[\?\(@(?P<there>[^=!<>()]+)\)\]
    """,
    re.VERBOSE,
)
_SIGNS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class JsonPath:
    """A parsed path. Raises ValueError when made of what is none."""

    def __init__(self, text: str) -> None:
        """`text`: with its leading dot, without braces; `.` is the object itself."""
        self._steps: list[Step] = []
        position = 0
        while position < len(text) and text != ".":
            step = _STEP.match(text, position)
            if step is None:
                raise ValueError(f"{text!r} is no JSONPath at {text[position:]!r}")
            self._steps.append(_step(step))
            position = step.end()

    def found(self, value: Any) -> list[Any]:
        """The values that the path leads to."""
        values = [value]
        for step in self._steps:
            values = [inner for value in values for inner in step(value)]
        return values


def _step(found: re.Match[str]) -> Step:
    if found["all"]:
        return _all
    if found["index"] is not None:
        return partial(_index, index=int(found["index"]))
    if found["name"] is not None or found["quoted"] is not None:
        return partial(_name, name=re.sub(r"\\(.)", r"\1", found["name"] or found["quoted"] or ""))
    path = JsonPath((found["path"] if found["path"] is not None else found["there"]).strip())
    if found["sign"] is None:
        return lambda value: (item for item in _all(value) if path.found(item))
    return partial(_filter, path=path, compare=_SIGNS[found["sign"]], wanted=_constant(found["value"]))


def _name(value: Any, name: str) -> Iterable[Any]:
    return (value[name],) if isinstance(value, dict) and name in value else ()


def _index(value: Any, index: int) -> Iterable[Any]:
    return (value[index],) if isinstance(value, list) and -len(value) <= index < len(value) else ()


def _all(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _filter(value: Any, path: JsonPath, compare: Callable[[Any, Any], bool], wanted: Any) -> Iterable[Any]:
    for item in _all(value):
        for each in path.found(item)[:1]:
            try:
                matches = compare(each, wanted)
            except TypeError:
                continue
            if matches:
                yield item


def _constant(text: str) -> Any:
    if text[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def printed(value: Any) -> str:
    """A value as kubectl prints it: text as it is, objects and lists as JSON."""
    if isinstance(value, dict | list):
        return orjson.dumps(value).decode()
    return go_text(value)
