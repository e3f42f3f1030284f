"""The rules for the spans of tests find what they are for, without being asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.collector import collecting
from support.span_rules import flaws
from support.stage import staged
from support.traces import Collector

from gracectl.telemetry.spans import GAP, Span, Trace
from gracectl.telemetry.tracing import Tracing, over_http

TRACE = Trace.of("a", 0.0)


def a_span(name: str, start: float, end: float, **changes: Any) -> Span:
    attributes = {"k8s.node.name": "n1"}
    return Span(**{"trace": TRACE, "name": name, "start": start, "end": end, "attributes": attributes, **changes})


def a_root(**changes: Any) -> Span:
    return a_span("root", 0.0, **{"end": 10.0, "id": TRACE.root, **changes})


def below(name: str, start: float, end: float, **changes: Any) -> Span:
    return a_span(name, start, end, **{"parent": TRACE.root, **changes})


@pytest.mark.parametrize(("spans", "expected"), [
    ([a_root(), below("a", 1.0, 2.0 - GAP), below("b", 2.0, 3.0)], []),
    ([a_root(), below("a", 1.0, 2.0), below("b", 2.0, 3.0)], ["touching: a and b"]),
    ([a_root(), below("a", 1.0, 1.0)], ["no length: a", "outside of root: a [(-1.0, 9.0)]", "touching: a and a"]),
    ([a_root(), below("a", 1.0, 11.0)], ["outside of root: a [(-1.0, -1.0)]"]),
    ([a_root(), below("a", 1.0, 2.0, attributes={})], ["no node: a"]),
    ([a_root(), below("a", 1.0, 2.0, parent=7)], ["no parent: a"]),
    ([below("a", 1.0, 2.0)], []),  # its root is not there yet
    ([a_root(), a_root()], [f"2 roots: {TRACE.id:032x}", f"2 with one id: {TRACE.root:016x}"]),
    ([a_root(), below("a", 1.0, 2.0, id=7), below("a", 3.0, 4.0, id=7)], [f"2 with one id: {7:016x}"]),
])  # fmt: skip
def test_flaws(spans: Sequence[Span], expected: list[str]) -> None:
    assert flaws(spans) == expected


@pytest.mark.anyio
async def test_a_stage_whose_controllers_export_such_spans_does_not_end_well() -> None:
    with pytest.raises(AssertionError, match="no length: root"):
        async with staged() as stage:
            Collector(stage).outlet().emit(a_root(end=0.0))


@pytest.mark.anyio
@pytest.mark.real_time
async def test_nor_does_a_collector_that_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def told() -> None:
        with collecting() as collector:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
            tracing = Tracing([over_http(lambda: 0.0)], lambda: 0.0)
            tracing.emit(a_root(attributes={}))
            assert await tracing.close(20.0)

    with pytest.raises(AssertionError, match="no node: root"):
        await told()
