"""Strategies for hostile bytes: recorded and made objects with parts exchanged, and texts with bytes exchanged."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import yaml
from hypothesis import strategies as st

RECORDINGS = Path(__file__).parents[2] / "kubesim" / "tests" / "conformance" / "recordings"
MOST_RECORDED = 12
"""Objects of a kind: they resemble each other."""

DEEP = [
    msgspec.Raw(opening * depth + b"1" + closing * depth)
    for opening, closing in ((b"[", b"]"), (b'{"f:a":', b"}"))
    for depth in (60, 70, 1_200, 9_990)
]
HOSTILE: Sequence[Any] = (
    None,
    True,
    0,
    -1,
    2**31,
    2**63 - 1,
    -(2**63),
    2**63,
    1e308,
    msgspec.Raw(b"1e400"),
    msgspec.Raw(b"9" * 400),
    msgspec.Raw(b'"\\ud800"'),
    msgspec.Raw(b'"\xe4\xf6"'),
    "",
    "x" * 5_000,
    "\x1b[31m\u202e\x9b\x00",
    "0000-01-01T00:00:00Z",
    "-0001-12-31T00:01:00Z",
    "9999-12-31T23:59:59-23:59",
    "10000-01-01T00:00:00Z",
    "2026-01-01T00:00:00Z",
    "4h",
    "2562047h47m16.854775807s",
    "100%",
    "9" * 290 + "%",
    "true",
    "Never",
    [],
    {},
    [None],
    {"": None},
    {"a": "b"},
    ["a"] * 300,
    {f"key-{number}": "v" for number in range(300)},
    *DEEP,
)
WORDS = (
    *("eyJ-", "bearer ", "authorization: ", "admission webhook ", "ValidatingAdmissionPolicy '", "is forbidden: User "),
    *(
        "1h",
        "0.",
        "=,",
        "in (a),",
        "!",
        "-",
        "a.",
        "00-",
        "[[",
        "{{",
        "- ",
        "&a ",
        "\\u0000",
        "\t",
        "\n",
        "\x1b[",
        "%",
        "'",
        '"',
    ),
)
"""What parsers and patterns look for: many of it must not take them long."""
LONGEST_REPEATED = 200_000
"""Characters. Annotations have up to 256 KiB."""
CHUNKS = (b"{", b"}", b"[" * 70, b"]", b'"', b"\\", b",", b":", b"null", b"\x00", b"\xff", b"\xe4", b"\n", b"1" * 30)


def recorded(kind: str) -> tuple[Any, ...]:
    """Objects of that kind as a real server has sent them."""
    found: dict[str, Any] = {}
    for each in _recordings().get(kind, ()):
        found.setdefault(",".join(sorted(map(str, _keys(each)))), each)
    return tuple(found.values())[:MOST_RECORDED]


@cache
def _recordings() -> dict[str, list[Any]]:
    """All that has a kind, by kind."""
    found: dict[str, list[Any]] = {}
    for path in sorted(RECORDINGS.glob("*.json")):
        for each in _dicts(json.loads(path.read_text(encoding="utf-8"))):
            if isinstance(kind := each.get("kind"), str):
                found.setdefault(kind, []).append(each)
    return found


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _dicts(inner)


def _keys(thing: dict[str, Any]) -> Iterator[str]:
    for key, value in thing.items():
        yield key
        if isinstance(value, dict):
            yield from (f"{key}.{inner}" for inner in value)


@st.composite
def documents(draw: st.DrawFn, seeds: Sequence[Any]) -> Any:
    """A sample with some of its parts exchanged, removed or added."""
    document = copy.deepcopy(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        place: Any = document
        while isinstance(place, (dict, list)) and place:
            keys: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
            # Most of what is interesting lies deep inside.
            inner = [key for key in keys if isinstance(place[key], (dict, list)) and place[key]]
            if inner and draw(st.integers(0, 4)) > 0:
                place = place[draw(st.sampled_from(inner))]
                continue
            key = draw(st.sampled_from(keys))
            if draw(st.integers(0, 5)):
                part = draw(st.sampled_from(HOSTILE) | st.text(max_size=20) | repeated())
                place[key] = copy.copy(part) if isinstance(part, (dict, list)) else part
            else:
                del place[key]
            break
    if isinstance(document, dict) and draw(st.integers(0, 3)) == 0:
        document["managedFields"] = draw(st.sampled_from(DEEP))
    return document


@st.composite
def spoilt(draw: st.DrawFn, bodies: st.SearchStrategy[bytes]) -> bytes:
    """Bytes with a few of them cut off, exchanged, repeated or put in."""
    body = draw(bodies)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(body), 1)))
        chunk = draw(st.sampled_from(CHUNKS) | st.binary(max_size=4))
        how = draw(st.sampled_from(["cut", "put", "exchange", "repeat"]))
        if how == "cut":
            body = body[:at]
        elif how == "repeat":
            body = body[:at] + body[max(at - 200, 0) : at] * 3 + body[at:]
        else:
            body = body[:at] + chunk + body[at + (len(chunk) if how == "exchange" else 0) :]
    return body


def json_bytes(*seeds: Any) -> st.SearchStrategy[bytes]:
    """JSON that resembles the samples, damaged JSON, or no JSON at all."""
    return mostly_whole(documents(seeds).map(msgspec.json.encode))


def mostly_whole(bodies: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """These bytes, in some cases spoilt, in a few any others."""
    return st.integers(0, 7).flatmap(
        lambda case: bodies if case < 5 else spoilt(bodies) if case < 7 else st.binary(max_size=200)
    )


def yaml_bytes(*seeds: Any) -> st.SearchStrategy[bytes]:
    """The same for YAML."""
    odd = (b"a: &a [*a]", b"!!bool often", b"2026-13-01", b"? [a]\n: b", b"[" * 400, b"- " * 400, b"a: 1\na: 2\n")
    plain = documents(seeds).map(_short).map(lambda value: yaml.safe_dump(value, allow_unicode=True).encode())
    return mostly_whole(plain | st.sampled_from(odd))


def _short(value: Any) -> Any:
    """Plain values of moderate size: PyYAML looks at each character several times."""
    if isinstance(value, msgspec.Raw):
        return "raw"
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in list(value.items())[:20]}
    if isinstance(value, list):
        return [_short(inner) for inner in value[:20]]
    return value[:200] if isinstance(value, str) else value


def repeated() -> st.SearchStrategy[str]:
    """A word again and again, and an end that may spoil what it began."""
    return st.builds(
        lambda word, size, end: word * (size // len(word)) + end,
        st.sampled_from(WORDS),
        st.sampled_from((100, 5_000, LONGEST_REPEATED)),
        st.sampled_from(("", ".", "x", ")", "\x00")),
    )


def texts(*seeds: str, alphabet: str = "") -> st.SearchStrategy[str]:
    """Values of annotations and headers: samples with characters exchanged, words of an alphabet, any text."""
    changed = spoilt(st.sampled_from([seed.encode() for seed in seeds]))
    words = st.text(alphabet, max_size=80) if alphabet else st.nothing()
    hostile = st.sampled_from([each for each in HOSTILE if isinstance(each, str)])
    return (
        changed.map(lambda body: body.decode("utf-8", "replace")) | words | st.text(max_size=100) | hostile | repeated()
    )
