"""Decoder of foreign JSON: a value or msgspec.DecodeError, whatever the bytes are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gracectl
from gracectl.model.decode import (
    decode_attachment,
    decode_budget,
    decode_claim,
    decode_lease,
    decode_node,
    decode_node_budget,
    decode_pod,
    decode_volume_claim,
)
from gracectl.model.envelope import decode_event, decode_page, decode_status
from gracectl.model.machine import decode_machine, decode_membership
from gracectl.model.times import EARLIEST, LATEST
from gracectl.model.untrusted import MAXIMUM_DEPTH, Decoder, finish, repair

OBJECTS: tuple[Callable[[bytes], Any], ...] = (
    decode_attachment, decode_budget, decode_claim, decode_lease, decode_machine, decode_membership, decode_node,
    decode_node_budget, decode_pod, decode_volume_claim,
)  # fmt: skip
ANY: Decoder[Any] = Decoder(Any)


def nested(depth: int, opening: bytes = b'{"f:\\"[{a":', closing: bytes = b"}") -> bytes:
    return opening * depth + b"1" + closing * depth


def managed(fields: bytes, name: bytes = b"a") -> bytes:
    managed_fields = b'"managedFields":[{"manager":"m","fieldsV1":' + fields + b"}]"
    return b'{"metadata":{"name":"' + name + b'",' + managed_fields + b',"uid":"u"},"spec":{"nodeName":"n1"}}'


@pytest.mark.parametrize("decode", OBJECTS)
@pytest.mark.parametrize("depth", [900, 9_990])
@pytest.mark.parametrize("brackets", [(b'{"f:\\"[{a":', b"}"), (b"[", b"]"), (b'[{},{"b":[[]],"a":', b"}]")])
def test_skipped_nesting_is_harmless(decode: Callable[[bytes], Any], depth: int, brackets: tuple[bytes, bytes]) -> None:
    assert decode(managed(nested(depth, *brackets))).name == "a"


def test_nesting_has_no_limit() -> None:
    assert decode_pod(managed(nested(200_000))).uid == "u"


def test_pages_events_and_refusals_are_read_around_what_is_nested() -> None:
    deep = managed(nested(9_990))
    page = decode_page(b'{"metadata":{"resourceVersion":"7"},"items":[' + deep + b"," + managed(b"1", b"b") + b"]}")
    assert [decode_pod(raw).name for raw in page.items] == ["a", "b"]
    assert page.resource_version == "7"
    event = decode_event(b'{"type":"ADDED","object":' + deep + b"}")
    assert decode_pod(event.object).node_name == "n1"
    status = decode_status(b'{"kind":"Status","extra":' + nested(9_990) + b',"code":429}')
    assert status is not None
    assert status.code == 429


@pytest.mark.parametrize("body", [
    nested(20_000)[:-1], b"[" * 20_000, b'{"a":' * 20_000, b'"' * 20_001, b'"' + b"\\" * 20_001, b"]" * 20_000,
    b"[" * 100 + b"]" * 200, b'{"metadata":{"name":"\xe4"}}', b'{"metadata":{"name":"\\ud800"}}', b"\xff\xfe", b"",
])  # fmt: skip
@pytest.mark.parametrize("decode", OBJECTS)
def test_what_is_no_object_is_a_decode_error(decode: Callable[[bytes], Any], body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(body)


@pytest.mark.parametrize("number", [b"1e400", b"9223372036854775808", b"-9223372036854775809", b"1" * 5_000])
def test_a_number_that_go_cannot_hold_names_its_field(number: bytes) -> None:
    with pytest.raises(msgspec.ValidationError, match="generation"):
        decode_pod(b'{"metadata":{"name":"a","generation":' + number + b"}}")


@pytest.mark.parametrize("text", ["0000-01-01T00:00:00Z", "-0001-12-31T00:01:00Z", "0001-01-01T00:00:00+23:59"])
def test_an_instant_before_all_counts_as_the_earliest(text: str) -> None:
    assert _transition(text) == EARLIEST


@pytest.mark.parametrize("text", [
    "9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59.999999Z", "10000-01-01T23:58:59Z",
    "292277026596-12-04T15:30:08Z",
])  # fmt: skip
def test_an_instant_after_all_counts_as_the_latest(text: str) -> None:
    assert _transition(text) == LATEST


@pytest.mark.parametrize("text", ["2026-13-01T00:00:00Z", "soon", "10000"])
def test_what_is_no_instant_names_its_field(text: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="lastTransitionTime"):
        _transition(text)


def test_the_text_of_an_annotation_stays_as_it_is() -> None:
    body = msgspec.json.encode({"a": "0000-01-01T00:00:00Z", "note": '"aTime":"0000-01-01T00:00:00Z"'})
    assert repair(body) == body


LEAVES = st.none() | st.booleans() | st.integers() | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(VALUES, st.integers(min_value=0, max_value=MAXIMUM_DEPTH))
def test_only_what_is_nested_too_deeply_is_cut_out(value: object, around: int) -> None:
    depth = _depth(value)
    for _ in range(around):
        value = [value, "]", {"}": "["}]
    body = msgspec.json.encode(value)
    repaired = repair(body)
    if depth + around <= MAXIMUM_DEPTH - 1:
        assert repaired == body
    assert _depth(msgspec.json.decode(repaired)) <= MAXIMUM_DEPTH


def test_a_large_body_is_mended_in_slices() -> None:
    body = b"[" * 5_000 + b"[]," * 50_000 + b"1" + b"]" * 5_000
    slices = ANY.decode_in_slices(body)
    steps = sum(1 for _ in iter(lambda: next(slices, "done"), "done"))
    assert steps > 5
    assert finish(Decoder(list[int]).decode_in_slices(b"[1]")) == [1]


def test_foreign_json_is_decoded_here_only() -> None:
    # The schema of our own settings, our own definitions and our own requests aside: none is written by others.
    apart = re.compile(r"^(cli/crds\.py|cli/drain/server_side\.py|config/fields\.py|model/untrusted\.py)")
    pattern = re.compile(r"msgspec\.json\.(decode|Decoder)\b|\bjson\.loads?\b|\.json\(\)")
    package = Path(gracectl.__file__).parent
    match = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if pattern.search(path.read_text(encoding="utf-8"))
    ]
    assert [path for path in match if not apart.match(path)] == []


def _transition(text: str) -> float | None:
    conditions = [{"type": "Ready", "lastTransitionTime": text}]
    return (
        decode_node(msgspec.json.encode({"metadata": {"name": "a"}, "status": {"conditions": conditions}}))
        .conditions[0]
        .last_transition
    )


def _depth(value: object) -> int:
    deepest, row = 0, [value]
    while row := [each for each in row if isinstance(each, (dict, list))]:
        deepest += 1
        row = [inner for each in row for inner in (each.values() if isinstance(each, dict) else each)]
    return deepest
