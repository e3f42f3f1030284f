"""`/metrics` over HTTP: what Prometheus reads, what happens when a part cannot say how it stands, and where it
listens."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import aiohttp
import anyio
import anyio.lowlevel
import pytest
from aiohttp import web
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from support.servers import serving
from support.virtual import HandClock

from gracectl.controllers.termination.statistics import TerminationDurations
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.histogram import Distribution, SpanRef
from gracectl.runtime.supervise import while_running
from gracectl.telemetry.connections import BodyReader
from gracectl.telemetry.exposition import PATH, PROCESS_COLLECTOR, Exposition
from gracectl.telemetry.metrics import (
    EVENTS_RECORDED,
    PROTECTED_PODS,
    PROTECTION_HELD,
    TERMINATION_DURATION,
    Metric,
    Sample,
)
from gracectl.telemetry.server import CannotListen, Endpoint, Servers
from gracectl.telemetry.settings import MetricsSettings, ProbesSettings

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
COUNTS = (1, 0, 2, *[0] * 9, 1)
SAMPLES = (
    Sample(PROTECTION_HELD, ("do-not-disrupt", "elapsed"), Distribution(COUNTS, 300_000.5)),
    Sample(PROTECTED_PODS, ("do-not-disrupt", "time"), 3),
    Sample(PROTECTED_PODS, ("do-not-evict", "forever"), 0),
)


@asynccontextmanager
async def served(source: Callable[[], Iterable[Sample]]) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    exposition = Exposition(HandClock(), (source,))
    door = Endpoint("metrics.listen", "127.0.0.1:0", {PATH: exposition.handle})
    async with serving(door) as (_, urls), aiohttp.ClientSession() as session:
        yield session, urls[PATH]


async def test_prometheus_reads_every_sample_in_the_order_of_the_catalogue() -> None:
    body, content_type = await Exposition(HandClock(), (lambda: SAMPLES[:1], lambda: SAMPLES[1:])).render()
    assert content_type.startswith("text/plain; version=0.0.4")
    gauge, histogram = text_string_to_metric_families(body.decode())
    assert (gauge.name, gauge.type, gauge.documentation) == (PROTECTED_PODS.name, "gauge", PROTECTED_PODS.help)
    assert [(each.labels, each.value) for each in gauge.samples] == [
        ({"kind": "do-not-disrupt", "until": "time"}, 3.0),
        ({"kind": "do-not-evict", "until": "forever"}, 0.0),
    ]
    values = {(each.name.rpartition("_")[2], each.labels.get("le")): each.value for each in histogram.samples}
    assert values["bucket", "1.0"] == values["bucket", "10.0"] == 1.0
    assert values["bucket", "60.0"] == values["bucket", "259200.0"] == 3.0
    assert values["bucket", "+Inf"] == values["count", None] == 4.0
    assert values["sum", None] == 300_000.5


async def test_openmetrics_is_served_on_request() -> None:
    body, content_type = await Exposition(HandClock(), (lambda: SAMPLES,)).render(OPENMETRICS)
    assert content_type.startswith(OPENMETRICS)
    families = openmetrics(body.decode())  # type: ignore[no-untyped-call]
    assert [family.name for family in families] == [PROTECTED_PODS.name, PROTECTION_HELD.name]


async def test_others_run_wherever_a_source_lets_them() -> None:
    story: list[str] = []

    def source() -> Iterable[Sample | None]:
        for number in range(3):
            story.append(f"slice {number}")
            yield None
        yield from SAMPLES

    async def other() -> None:
        while True:
            story.append("other")
            await anyio.lowlevel.checkpoint()

    async with while_running(other):
        await anyio.lowlevel.checkpoint()
        body, _ = await Exposition(HandClock(), (source,)).render()
    assert PROTECTED_PODS.name in body.decode()
    assert [each for each in story if each != "other"] == ["slice 0", "slice 1", "slice 2"]
    assert all(story[story.index(f"slice {number}") + 1] == "other" for number in range(3))


async def test_a_metric_that_is_not_in_the_catalogue_is_a_mistake() -> None:
    stray = Sample(Metric("gracectl_stray", "gauge", "Stray."), (), 1)
    with pytest.raises(ValueError, match="gracectl_stray is not in the catalogue"):
        await Exposition(HandClock(), (lambda: (stray,),)).render()


@pytest.mark.real_time
async def test_it_is_served_anew_with_each_scrape_and_nothing_else_is() -> None:
    scrapes: list[int] = []

    def source() -> Iterable[Sample]:
        scrapes.append(len(scrapes))
        return (Sample(PROTECTED_PODS, ("do-not-disrupt", "time"), len(scrapes)),)

    async with served(source) as (session, url):
        assert scrapes == []
        for n in (1, 2):
            async with session.get(url) as answer:
                assert answer.status == 200
                assert f"}} {n}.0\n" in await answer.text()
        for method, path, status in (("POST", "", 405), ("GET", "/", 404)):
            async with session.request(method, url + path) as answer:
                assert answer.status == status
        assert len(scrapes) == 2


@pytest.mark.real_time
async def test_openmetrics_links_a_duration_to_its_trace() -> None:
    durations = TerminationDurations()
    durations.note(
        "node", 90.0, {"drain": 80.0}, span=SpanRef("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 7.0)
    )
    durations.note("node", 0.5, {"drain": 0.2})

    def source() -> Iterable[Sample]:
        return (Sample(TERMINATION_DURATION, ("node",), durations.whole()["node",]),)

    exposition = Exposition(HandClock(), (source,))
    linked = [line for line in (await exposition.render(OPENMETRICS))[0].decode().splitlines() if "#" in line[1:]]
    assert len(linked) == 1
    assert linked[0].endswith('# {trace_id="0af7651916cd43dd8448eb211c80319c"} 90.0')
    assert "trace_id" not in (await exposition.render())[0].decode()


@pytest.mark.real_time
async def test_it_is_compressed_for_those_who_accept_that() -> None:
    async with served(lambda: ()) as (session, url):
        for accepted, coding in (("gzip", "gzip"), ("identity", None)):
            async with session.get(url, headers={"Accept-Encoding": accepted}) as answer:
                assert (answer.status, answer.headers.get("Content-Encoding")) == (200, coding)
                assert await answer.text() is not None


@pytest.mark.real_time
async def test_a_failing_part_is_logged_and_the_next_scrape_works(caplog: pytest.LogCaptureFixture) -> None:
    moods = iter([ZeroDivisionError("broken"), None])

    def source() -> Iterable[Sample]:
        if error := next(moods):
            raise error
        return SAMPLES

    async with served(source) as (session, url):
        for status in (500, 200):
            async with session.get(url) as answer:
                assert answer.status == status
                assert "broken" not in await answer.text()
    assert "metrics: unexpected failure" in caplog.text


async def test_a_counter_keeps_its_name_in_either_format() -> None:
    exposition = Exposition(HandClock(), (lambda: (Sample(EVENTS_RECORDED, (), 7),),))
    for accept, kind in (("", "counter"), ("application/openmetrics-text; version=1.0.0", "counter")):
        text = (await exposition.render(accept))[0].decode()
        assert f"{EVENTS_RECORDED.name} 7.0\n" in text
        assert kind in text


async def test_the_process_is_described_as_by_every_client_library() -> None:
    text = (await Exposition(HandClock(), (), (PROCESS_COLLECTOR,)).render())[0].decode()
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds"):
        assert f"\n{name} " in text


async def hello(request: web.BaseRequest, _: BodyReader) -> web.Response:
    return web.Response(text=request.path)


@pytest.mark.real_time
async def test_a_port_that_is_taken_is_an_error_and_one_that_was_closed_is_free() -> None:
    first = Servers([Endpoint("metrics.listen", "127.0.0.1:0", {PATH: hello})], LoopClock())
    port = int((await first.open())[PATH].removesuffix(PATH).rpartition(":")[2])
    second = Servers(
        [
            Endpoint("metrics.listen", "127.0.0.1:0", {PATH: hello}),
            Endpoint("probes.listen", f"127.0.0.1:{port}", {"/healthz": hello}),
        ],
        LoopClock(),
    )
    with pytest.raises(CannotListen, match=rf"^probes.listen: cannot listen on 127.0.0.1:{port}: .*in use$"):
        await second.open()
    await first.close()
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.real_time
@pytest.mark.parametrize(("second", "servers"), [("127.0.0.1:0", 1), ("localhost:0", 2), ("", 1)])
async def test_two_doors_at_one_address_share_a_server(second: str, servers: int) -> None:
    doors = (Endpoint("a", "127.0.0.1:0", {"/a": hello}), Endpoint("b", second, {"/b": hello}))
    async with serving(*doors) as (running, urls):
        assert running.is_enabled
        assert len({url.rpartition("/")[0] for url in urls.values()}) == servers
        async with aiohttp.ClientSession() as session:
            for path, url in urls.items():
                async with session.get(url) as answer:
                    assert await answer.text() == path
    assert not Servers([Endpoint("a", "", {"/a": hello})], LoopClock()).is_enabled


@pytest.mark.parametrize(("listen", "address"), [
    ("", None), (":9090", (None, 9090)), ("0.0.0.0:9090", ("0.0.0.0", 9090)), ("127.0.0.1:0", ("127.0.0.1", 0)),
    ("localhost:65535", ("localhost", 65535)), ("[::1]:9090", ("::1", 9090)), ("[::]:9090", ("::", 9090)),
])  # fmt: skip
def test_addresses(listen: str, address: tuple[str | None, int] | None) -> None:
    assert MetricsSettings(listen).address() == ProbesSettings(listen).address() == address


@pytest.mark.parametrize(
    "listen", ["9090", "localhost", "localhost:", ":http", "::1:9090", ":-1", ":65536", "[::1]", ":٣", "http://a:9090"]
)
def test_what_is_no_address_is_refused(listen: str) -> None:
    with pytest.raises(ValueError, match=re_of(listen)):
        MetricsSettings(listen).address()


def re_of(text: str) -> str:
    """A pattern for a message that quotes `text`."""
    return repr(text).replace("[", r"\[").replace("]", r"\]")
