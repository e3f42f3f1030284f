"""Objects as Go writes them, checked against Go: every field of many kinds, in JSON and in protobuf.

The oracle is made by tools/go_objects: what Go's own types write. Objects read from it and written again must be the
same, whichever way it came.
"""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from kubesim.server.status import Refusal
from kubesim.types.canonical import Unfit, canonical, parts
from kubesim.types.catalog import catalog, type_name
from kubesim.types.decoding import Reading
from kubesim.types.protobuf import decoded

ORACLE: list[dict[str, Any]] = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "oracles" / "go-objects.json.gz").read_bytes())
)
IDS = [f"{each['kind']}-{'sparse' if place % 2 else 'full'}" for place, each in enumerate(ORACLE)]
POD = type_name("", "v1", "Pod")
CRD = type_name("apiextensions.k8s.io", "v1", "CustomResourceDefinition")


def struct_of(case: dict[str, Any]) -> str:
    return type_name(case["group"], case["version"], case["kind"])


@pytest.mark.parametrize("case", ORACLE, ids=IDS)
def test_what_go_wrote_is_written_again(case: dict[str, Any]) -> None:
    written = canonical(struct_of(case), case["json"])
    # Byte for byte, the order of the fields included.
    assert json.dumps(written) == json.dumps(case["json"])


@pytest.mark.parametrize("case", ORACLE, ids=IDS)
def test_protobuf_says_the_same_as_json(case: dict[str, Any]) -> None:
    read = decoded(base64.b64decode(case["protobuf"]), case["kind"])
    assert canonical(struct_of(case), read) == case["json"]


@pytest.mark.parametrize("case", ORACLE, ids=IDS)
def test_the_careful_reader_finds_nothing_wrong(case: dict[str, Any]) -> None:
    reading = Reading(struct_of(case), case["json"])
    assert (reading.fault, reading.strict) == ("", [])
    assert canonical(struct_of(case), reading.value) == case["json"]


def test_every_kind_can_be_written() -> None:
    for name in catalog().kinds.values():
        assert canonical(name, canonical(name, {})) == canonical(name, {})


def test_a_part_that_stays_is_the_same_object() -> None:
    old = canonical(POD, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}})
    new = parts(POD).canonical({**old, "status": {"phase": "Failed", "message": ""}}, old)
    assert new["spec"] is old["spec"]
    assert new["status"] == {"phase": "Failed"}


def test_a_part_that_goes_leaves_its_zero() -> None:
    old = canonical(POD, {"metadata": {"name": "p"}, "status": {"phase": "Failed"}})
    gone = {name: value for name, value in old.items() if name != "status"}
    assert parts(POD).canonical(gone, old)["status"] == {}


@pytest.mark.parametrize("wrong", [{"spec": {"hostname": None}}, {"spec": {"x": 1}}, {"status": {"startTime": "now"}}])
def test_what_go_would_drop_or_refuse_is_unfit(wrong: dict[str, Any]) -> None:
    with pytest.raises(Unfit):
        canonical(POD, wrong)
    with pytest.raises(Unfit):
        parts(POD).canonical(wrong, {})


def test_unknown_fields_are_found_in_schemas_however_deep() -> None:
    deep = {"properties": {"a": {"items": {"additionalProperties": {"tpe": "string"}}}}}
    definition = {"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": deep}}]}}
    with pytest.raises(Unfit):
        canonical(CRD, definition)
    path = "spec.versions[0].schema.openAPIV3Schema.properties.a.items.additionalProperties.tpe"
    assert Reading(CRD, definition).strict == [f'unknown field "{path}"']


class TestProtobuf:
    """Answers of a real server to bodies that are none."""

    UNRECOGNIZED = "the object provided is unrecognized (must be of type Namespace): "
    UNHANDLED = 'Namespace in version "v1" cannot be handled as a Namespace: '

    @staticmethod
    def envelope(raw: bytes, version: bytes = b"v1", kind: bytes = b"Namespace") -> bytes:
        meta = b"\x0a%c%s\x12%c%s" % (len(version), version, len(kind), kind)
        return b"k8s\x00\x0a%c%s\x12%c%s\x1a\x00\x22\x00" % (len(meta), meta, len(raw), raw)

    @pytest.mark.parametrize(
        ("raw", "fault"),
        [
            (b"", "empty data (<empty>)"),
            (b"k8s\x00", "empty body (6b387300)"),
            (
                b"abc",
                "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0] (616263)",
            ),
            (b"k8s\x00\x0a\xff", "unexpected EOF (6b3873000aff)"),
        ],
    )
    def test_what_is_no_envelope(self, raw: bytes, fault: str) -> None:
        with pytest.raises(Refusal) as refused:
            decoded(raw, "Namespace")
        assert (refused.value.code, refused.value.message) == (400, f"{self.UNRECOGNIZED}{fault}")

    @pytest.mark.parametrize(
        ("raw", "fault"),
        [
            (b"\x0a\x50abc", "unexpected EOF"),
            (b"\x0f\x50abc", "proto: wrong wireType = 7 for field ObjectMeta"),
            (b"\x08\x05", "proto: wrong wireType = 0 for field ObjectMeta"),
        ],
    )
    def test_what_is_no_message(self, raw: bytes, fault: str) -> None:
        with pytest.raises(Refusal) as refused:
            decoded(self.envelope(raw), "Namespace")
        assert (refused.value.code, refused.value.message) == (400, f"{self.UNHANDLED}{fault}")

    def test_an_unknown_kind(self) -> None:
        with pytest.raises(Refusal) as refused:
            decoded(self.envelope(b"", b"v9", b"Foo"), "Namespace")
        assert refused.value.message == (
            'Foo in version "v9" cannot be handled as a Namespace: '
            'no kind "Foo" is registered for version "v9" in scheme "pkg/runtime/scheme.go:110"'
        )

    def test_a_body_without_a_kind_is_of_the_kind_of_its_path(self) -> None:
        raw = b"\x0a\x05\x0a\x03abc"
        assert decoded(self.envelope(raw, b"", b""), "Namespace") == {"metadata": {"name": "abc"}}

    def test_a_field_of_tomorrow_is_skipped(self) -> None:
        raw = b"\xf8\x01\x05\x0a\x05\x0a\x03abc"
        assert decoded(self.envelope(raw), "Namespace")["metadata"] == {"name": "abc"}
