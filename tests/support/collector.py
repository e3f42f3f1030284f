"""An OTLP collector over HTTP in a thread of its own, and metrics in a form that tests can compare."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from gracectl.app.controller import Controller
from gracectl.runtime.histogram import Distribution
from gracectl.telemetry.spans import Span, Trace
from support.servers import answering
from support.traces import assert_flawless, orphans

# A collector of traces and metrics: OTLP over HTTP, read with the real protobuf types, in a thread of its own.
#
# So it serves tests on any event loop as well as other processes. It can be told to be slow, to refuse, and to hang.

PATH, METRICS_PATH, PROTOBUF = "/v1/traces", "/v1/metrics", "application/x-protobuf"
SECONDS = 20.0
"""Before a test that waits gives up."""


class SeenEvent(msgspec.Struct, frozen=True):
    """Of a span, in nanoseconds."""

    name: str
    at: int
    attributes: Mapping[str, Any]


class SeenSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A span as it came. Ids are hexadecimal, `parent` "" stands for none, times are nanoseconds."""

    trace: str
    id: str
    parent: str
    name: str
    start: int
    end: int
    attributes: Mapping[str, Any]
    events: tuple[SeenEvent, ...]
    is_error: bool
    error: str
    resource: Mapping[str, Any]


class SeenMetrics(msgspec.Struct, frozen=True):
    """Metrics of one request, by name, and the resource that they are of."""

    metrics: Mapping[str, metrics_pb2.Metric]
    resource: Mapping[str, Any]


class Tree(msgspec.Struct, frozen=True):
    """A span and what is below it, in the order of their beginnings."""

    span: SeenSpan
    children: tuple[Tree, ...]

    def names(self) -> list[str]:
        """Of the children."""
        return [child.span.name for child in self.children]


class Conduct(msgspec.Struct, frozen=True):
    """How a collector answers: with this status, after so many seconds, or never before the end of the test."""

    status: int = 200
    retry_after: int | None = None
    seconds: float = 0.0
    hangs: bool = False
    then: Conduct | None = None
    """From the second request on; None: the same."""


WILLING, HANGING = Conduct(), Conduct(hangs=True)


class Collector:
    """What has come so far. `conduct` may be changed at any time, by any thread."""

    def __init__(self) -> None:
        self.url = ""
        self.conduct = WILLING
        self.headers: list[Mapping[str, str]] = []
        """Of each request, those that were refused among them; names are in lower case."""
        self.faults: list[str] = []
        """What no exporter should do."""
        self._spans: list[SeenSpan] = []
        self._metrics: list[SeenMetrics] = []
        self._news = threading.Condition()
        self._over = asyncio.Event()

    def spans(self, trace: str = "") -> tuple[SeenSpan, ...]:
        """Those of a trace, or all, in the order in which they came."""
        with self._news:
            return tuple(span for span in self._spans if trace in ("", span.trace))

    def traces(self) -> list[str]:
        """Their ids, in the order in which they came."""
        return list(dict.fromkeys(span.trace for span in self.spans()))

    def wait_for_requests(self, count: int) -> None:
        """Return when so many have come, whatever became of them."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.headers) >= count, SECONDS), f"only {len(self.headers)} came"

    def wait_for_spans(self, count: int) -> None:
        """Return when so many have been taken."""
        with self._news:
            assert self._news.wait_for(lambda: len(self._spans) >= count, SECONDS), f"only {len(self._spans)} came"

    def wait_for_metrics(self, count: int) -> list[SeenMetrics]:
        """All requests with metrics that have been taken, when there are so many."""
        with self._news:
            assert self._news.wait_for(lambda: len(self._metrics) >= count, SECONDS), f"only {len(self._metrics)} came"
            return list(self._metrics)

    def tree(self, trace: str) -> Tree:
        """The trace from its root on, of which there must be one."""
        return tree(self.spans(trace))

    def _refuse(self, fault: str) -> web.Response:
        self.faults.append(fault)
        return web.Response(status=400, text=fault)

    async def _take(self, request: web.Request) -> web.Response:
        conduct, body = self.conduct, await request.read()  # decompressed, if the header says so
        with self._news:
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
            self._news.notify_all()
        if conduct.then is not None:
            self.conduct = conduct.then
        if conduct.hangs:
            await self._over.wait()
        await asyncio.sleep(conduct.seconds)  # noqa: TID251  it is the test's, not on the test's clock
        if conduct.status != 200:
            after = {} if conduct.retry_after is None else {"Retry-After": str(conduct.retry_after)}
            return web.Response(status=conduct.status, headers=after)
        if request.path == METRICS_PATH and request.content_type == PROTOBUF:
            return self._take_metrics(ExportMetricsServiceRequest.FromString(body))
        if request.path != PATH or request.content_type != PROTOBUF:
            return self._refuse(f"{request.content_type} to {request.path}")
        spans = read(ExportTraceServiceRequest.FromString(body))
        with self._news:
            self._spans.extend(spans)
            self._news.notify_all()
        return web.Response(body=ExportTraceServiceResponse().SerializeToString(), content_type=PROTOBUF)

    def _take_metrics(self, message: ExportMetricsServiceRequest) -> web.Response:
        (of_resource,) = message.resource_metrics
        (of_scope,) = of_resource.scope_metrics
        metrics = {metric.name: metric for metric in of_scope.metrics}
        assert len(metrics) == len(of_scope.metrics), "a metric is there twice"
        with self._news:
            self._metrics.append(SeenMetrics(metrics, attributes_of(of_resource.resource.attributes)))
            self._news.notify_all()
        return web.Response(body=ExportMetricsServiceResponse().SerializeToString(), content_type=PROTOBUF)

    async def _serve(self, started: threading.Event, ended: threading.Event) -> None:
        async with answering(self._take) as port:
            self.url = f"http://127.0.0.1:{port}"
            started.set()
            await asyncio.get_running_loop().run_in_executor(None, ended.wait)
            self._over.set()


@contextmanager
def collecting(conduct: Conduct = WILLING) -> Iterator[Collector]:
    """A collector of the traces of controllers while the block runs; none of their spans may have a flaw."""
    with receiving(conduct) as collector:
        yield collector
    assert_flawless(map(as_span, collector.spans()))


@contextmanager
def receiving(conduct: Conduct = WILLING) -> Iterator[Collector]:
    """A collector of any spans while the block runs, which must not have met anything that is no OTLP."""
    collector, started, ended = Collector(), threading.Event(), threading.Event()
    collector.conduct = conduct
    thread = threading.Thread(target=lambda: asyncio.run(collector._serve(started, ended)), name="collector")
    thread.start()
    try:
        assert started.wait(SECONDS)
        yield collector
    finally:
        ended.set()
        thread.join()
    assert collector.faults == []


def read(message: ExportTraceServiceRequest | trace_pb2.TracesData) -> list[SeenSpan]:
    """The spans of a message, in its order."""
    return [
        _span(span, attributes_of(of_resource.resource.attributes))
        for of_resource in message.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def as_span(seen: SeenSpan) -> Span:
    """A span as a collector has received it."""
    return Span(
        trace=Trace(int(seen.trace, 16), 0),
        id=int(seen.id, 16),
        parent=int(seen.parent, 16) if seen.parent else None,
        name=seen.name,
        start=seen.start / 1e9,
        end=seen.end / 1e9,
        attributes=seen.attributes,
    )


def duplicates(spans: tuple[SeenSpan, ...]) -> list[str]:
    """Ids that more than one span has."""
    return [id_ for (_, id_), count in Counter((span.trace, span.id) for span in spans).items() if count > 1]


def tree(spans: tuple[SeenSpan, ...]) -> Tree:
    """One trace, whole: one root, and every span below it, once."""
    assert orphans(map(as_span, spans)) == []
    assert duplicates(spans) == []
    (root,) = (span for span in spans if not span.parent)

    def below(span: SeenSpan) -> Tree:
        children = sorted((each for each in spans if each.parent == span.id), key=lambda each: (each.start, each.name))
        return Tree(span, tuple(map(below, children)))

    root_and_below = below(root)
    assert _size(root_and_below) == len(spans), "a circle, or two traces"
    return root_and_below


def _size(branch: Tree) -> int:
    return 1 + sum(map(_size, branch.children))


def _span(span: trace_pb2.Span, resource: Mapping[str, Any]) -> SeenSpan:
    return SeenSpan(
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        name=span.name,
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=attributes_of(span.attributes),
        events=tuple(SeenEvent(each.name, each.time_unix_nano, attributes_of(each.attributes)) for each in span.events),
        is_error=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        error=span.status.message,
        resource=resource,
    )


def attributes_of(pairs: Any) -> dict[str, Any]:
    """Attributes as a mapping."""
    attributes: dict[str, Any] = {}
    pair: KeyValue
    for pair in pairs:
        assert pair.key not in attributes, f"{pair.key} is there twice"
        attributes[pair.key] = _value(pair.value)
    return attributes


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    assert kind is not None
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


# A controller's metrics, in a form that tests can compare.

Figure = Any
"""A number or, of a histogram, how often and how much all together."""


def figures(controller: Controller, *names: str) -> dict[tuple[str, ...], Figure]:
    """By name (without its `gracectl_`) and labels, what is not 0; of these metrics, or of all."""
    by_labels: dict[tuple[str, ...], Figure] = {}
    for sample in filter(None, controller.process.samples()):
        name = sample.metric.name.removeprefix("gracectl_")
        if names and name not in names:
            continue
        if isinstance(sample.value, Distribution):
            if sample.value.count:
                by_labels[name, *map(str, sample.labels)] = (sample.value.count, round(sample.value.total, 3))
        elif sample.value:
            by_labels[name, *map(str, sample.labels)] = round(sample.value, 3)
    return by_labels


def series(controller: Controller) -> set[tuple[str, ...]]:
    """Every name with every value of its labels that is shown."""
    shown = [(sample.metric.name, *map(str, sample.labels)) for sample in filter(None, controller.process.samples())]
    assert len(shown) == len(set(shown))
    return set(shown)
