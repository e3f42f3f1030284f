"""JSON that is written: the same as msgspec's, and whatever a Decoder has returned."""

from __future__ import annotations

import ast
import json
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gracectl
from gracectl.model.encoding import INDENTED, SORTED, encode
from gracectl.model.untrusted import Decoder

PACKAGE = Path(gracectl.__file__).parent


class Kind(StrEnum):
    NODE = "node"


class Thing(msgspec.Struct, rename="camel", omit_defaults=True):
    node_name: str = ""
    kind: Kind | None = None
    parts: tuple[object, ...] = ()


@pytest.mark.parametrize(("value", "expected"), [
    (Thing("n1", Kind.NODE), '{"nodeName":"n1","kind":"node"}'),
    ({"things": [Thing("n1", parts=(Thing(), {1: 2}))]}, '{"things":[{"nodeName":"n1","parts":[{},{"1":2}]}]}'),
    ({"raw": msgspec.Raw(b'{"x": 1}')}, '{"raw":{"x": 1}}'),
    ([float("nan"), float("inf"), -0.0, 2**64 - 1, True, None], "[null,null,-0.0,18446744073709551615,true,null]"),
    (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), '"2026-01-02T03:04:05Z"'),
    ({1: "a", Kind.NODE: "b", None: "c"}, '{"1":"a","node":"b","null":"c"}'),
])  # fmt: skip
def test_values(value: object, expected: str) -> None:
    assert encode(value).decode() == expected


def test_options() -> None:
    assert encode({"b": {}, "a": [1]}, SORTED | INDENTED) == b'{\n  "a": [\n    1\n  ],\n  "b": {}\n}'


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def depth_of(value: Any) -> int:
    depth = 0
    while value:
        depth, value = depth + 1, value[0]
    return depth


def test_what_is_nested_too_deeply_is_cut_out() -> None:
    """A server stores JSON 10,000 deep; msgspec reads 1,000 of it, and orjson writes 254."""
    decoded = Decoder(Any).decode(nested(500))
    assert depth_of(json.loads(encode({"deep": decoded}))["deep"]) == 63
    assert encode(Decoder(Any).decode(nested(250))) == nested(250)


@pytest.mark.parametrize(("value", "expected"), [
    (10**30, b"1e+30"), (-(2**63) - 1, b"-9.223372036854775808e+18"), (10**400, b"null"), ("a\ud800b", b'"a?b"'),
    ({"\ud800": Thing("\udfff")}, b'{"?":{"nodeName":"?"}}'),
    (Thing(parts=(10**30, 5)), b'{"parts":[1e+30,5]}'),
])  # fmt: skip
def test_what_json_cannot_hold_is_replaced(value: object, expected: bytes) -> None:
    assert json.loads(encode(value)) == json.loads(expected)


def test_a_cycle_ends() -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    assert depth_of(json.loads(encode(cycle))) == 64


def test_a_type_that_json_lacks_is_refused() -> None:
    with pytest.raises(TypeError):
        encode({"a": object()})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_everything_that_is_read_can_be_written(value: object) -> None:
    read = Decoder(Any).decode(json.dumps(value, allow_nan=False) if _is_finite(value) else b"[]")
    assert Decoder(Any).decode(encode(read)) == read or _is_large(read)


def _is_finite(value: object) -> bool:
    return "NaN" not in (text := json.dumps(value)) and "Infinity" not in text


def _is_large(value: object) -> bool:
    """Whether some integer has become a float."""
    return any(len(digits) > 18 for digits in json.dumps(value).replace("-", " ").replace(",", " ").split())


def test_nothing_else_encodes_json() -> None:
    """json, and msgspec's encoder, are used nowhere; orjson reads nothing."""
    places = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name in _uses(path.read_text(encoding="utf-8"))
    ]
    assert places == []


def _uses(source: str) -> list[str]:
    if "json" not in source:
        return []
    tree = ast.parse(source)
    imported = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    banned = {"msgspec.json.encode", "msgspec.json.Encoder", "msgspec.json.format", "orjson.loads"}
    last = {each.rpartition(".")[2] for each in banned}
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in last)
    named = [ast.unparse(node) for node in attributes]
    return [name for name in imported if name == "json"] + [name for name in named if name in banned]
