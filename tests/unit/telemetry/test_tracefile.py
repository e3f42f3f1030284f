"""Traces in a file: OTLP as JSON, as its standard has it, and never half a file."""

from __future__ import annotations

import base64
import json
import os
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from support.collector import read, tree

from gracectl.telemetry.spans import Span, SpanEvent, Trace
from gracectl.telemetry.tracefile import IDS, TraceFile
from gracectl.telemetry.tracing import Tracing

AT = 1_767_225_600.0
TRACE = Trace.of("a", AT)
ROOT = Span(trace=TRACE, name="terminate node", id=TRACE.root, start=AT, end=AT + 60, error="left behind")
DRAIN = Span(
    trace=TRACE, name="drain", parent=TRACE.root, id=TRACE.span("drain"), start=AT + 1, end=AT + 9,
    attributes={"gracectl.lane": ["a/b"], "count": 3, "late": 0.5, "rewritten": True},
    events=(SpanEvent("evicted", AT + 2, {"code": 429}),),
)  # fmt: skip


async def a_file(*spans: Span) -> TraceFile:
    """One that has got these."""
    kept = TraceFile()
    tracing = Tracing([kept], lambda: 0.0)
    for span in spans:
        tracing.emit(span)
    assert await tracing.close(20.0)
    return kept


def with_base64_ids(value: Any) -> Any:
    """What protobuf's own JSON would have in their place."""
    if isinstance(value, Mapping):
        return {
            key: base64.b64encode(bytes.fromhex(inner)).decode() if key in IDS else with_base64_ids(inner)
            for key, inner in value.items()
        }
    return [with_base64_ids(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.real_time
class TestDocument:
    async def test_the_real_types_read_it(self, tmp_path: Path) -> None:
        path = tmp_path / "traces.json"
        assert (await a_file(DRAIN, ROOT)).write(path) == 2
        document = json.loads(path.read_bytes())
        spans = tree(tuple(read(ParseDict(with_base64_ids(document), TracesData()))))
        (drain,) = spans.children
        assert (spans.span.name, spans.span.error, spans.names()) == ("terminate node", "left behind", ["drain"])
        assert spans.span.resource["service.name"] == "gracectl"
        assert drain.span.attributes == DRAIN.attributes
        assert [(event.name, event.attributes) for event in drain.span.events] == [("evicted", {"code": 429})]

    async def test_ids_are_hexadecimal_enumerations_numbers_and_times_text(self, tmp_path: Path) -> None:
        path = tmp_path / "traces.json"
        (await a_file(DRAIN, ROOT)).write(path)
        (of_resource,) = json.loads(path.read_bytes())["resourceSpans"]
        (of_scope,) = of_resource["scopeSpans"]
        spans = {span["name"]: span for span in of_scope["spans"]}
        drain, root = spans["drain"], spans["terminate node"]
        assert of_scope["scope"]["name"] == "gracectl"
        assert (drain["traceId"], drain["spanId"]) == (TRACE.hex, f"{TRACE.span('drain'):016x}")
        assert drain["parentSpanId"] == root["spanId"] == f"{TRACE.root:016x}"
        assert "parentSpanId" not in root
        assert (drain["kind"], root["status"]["code"]) == (1, 2)
        assert drain["startTimeUnixNano"] == "1767225601000000000"


@pytest.mark.real_time
class TestFile:
    async def test_what_was_there_is_replaced_with_one_stroke(self, tmp_path: Path) -> None:
        path = tmp_path / "traces.json"
        path.write_text("something else")
        before = path.stat().st_ino
        (await a_file(ROOT)).write(path)
        assert path.stat().st_ino != before
        assert os.listdir(tmp_path) == [path.name]

    async def test_a_failure_keeps_and_names_the_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "traces.json"
        path.write_text("something else")
        kept = await a_file(ROOT)

        def full(self: Path, target: Path) -> Path:
            raise OSError(28, "No space left on device", str(self))

        monkeypatch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space left on device") as failure:
            kept.write(path)
        assert failure.value.filename == str(path)
        assert path.read_text() == "something else"
        assert os.listdir(tmp_path) == [path.name]

    async def test_a_link_stays_one(self, tmp_path: Path) -> None:
        path, target = tmp_path / "link", tmp_path / "target"
        path.symlink_to(target)
        target.write_text("")
        (await a_file(ROOT)).write(path)
        assert path.is_symlink()
        assert json.loads(target.read_bytes())["resourceSpans"]

    async def test_a_pipe_is_written_to_and_not_replaced(self, tmp_path: Path) -> None:
        path, got = tmp_path / "pipe", list[bytes]()
        os.mkfifo(path)
        reader = threading.Thread(target=lambda: got.append(path.read_bytes()))
        reader.start()
        (await a_file(ROOT)).write(path)
        reader.join()
        assert json.loads(got[0])["resourceSpans"]
        assert stat.S_ISFIFO(path.stat().st_mode)
