"""Exporter of spans to a file: OTLP as JSON, which Jaeger's UI and any collector read.

The encoding is the standard's (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding): that of protobuf,
except for ids, which are hexadecimal, and enumerations, which are numbers.
"""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

IDS: Final = frozenset({"traceId", "spanId", "parentSpanId"})


class TraceFile(SpanExporter):
    """Collects all spans for one `write`: an incomplete trace file could not be loaded."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []
        self._lock = threading.Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See SpanExporter."""
        with self._lock:
            self._spans.extend(spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """See SpanExporter."""

    def write(self, path: Path) -> int:
        """Write all spans so far; returns their number. Raises OSError, and leaves no partial file then."""
        with self._lock:
            spans = tuple(self._spans)
        document, target = as_json(spans), path.resolve()
        if target.exists() and not target.is_file():  # a pipe, or /dev/null: never replaced
            path.write_bytes(document)
            return len(spans)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            temporary.write_bytes(document)
            temporary.replace(target)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error  # with the name that the user gave
        finally:
            temporary.unlink(missing_ok=True)
        return len(spans)


def as_json(spans: Sequence[ReadableSpan]) -> bytes:
    """JSON document of these spans."""
    document = MessageToDict(encode_spans(spans), use_integers_for_enums=True)
    return orjson.dumps(_with_hexadecimal_ids(document), option=orjson.OPT_INDENT_2)


def _with_hexadecimal_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: base64.b64decode(inner).hex() if key in IDS else _with_hexadecimal_ids(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_with_hexadecimal_ids(inner) for inner in value]
    return value
