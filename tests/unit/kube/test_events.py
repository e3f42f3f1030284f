"""Events are written beside the work: at once, once per window, and never in its way."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from support.servers import ScriptedTransport, answer, refusal

from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.conditions import ConditionUpdate
from gracectl.kube.events import EventRecorder, EventSettings, Subject
from gracectl.kube.resources import NODES, PODS
from gracectl.kube.transport import Request, Response
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.supervise import while_running

POD = Subject("v1", "Pod", "shop", "web-1", "u1")
NODE = Subject("v1", "Node", "", "worker-1", "u2")


class Desk:
    """A recorder and the server it writes to, which takes everything unless told otherwise."""

    def __init__(self, settings: EventSettings | None = None) -> None:
        self.clock = LoopClock(epoch=1_767_225_600.0)
        self.transport = ScriptedTransport(self.clock)
        self.refuse: Response | None = None
        self.client = KubeClient(self.transport, self.clock, settings=ClientSettings(timeout=30.0))
        self.recorder = EventRecorder(self.client, self.clock, instance="gracectl-0", settings=settings)

    def _answer(self, request: Request) -> Response:
        return self.refuse or answer({}, 201)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """The recorder at work; at the end it is cancelled and takes its leave."""
        self.transport.answers.extend([self._answer] * 500)
        async with while_running(self.recorder.run):
            yield

    @property
    def written(self) -> list[tuple[float, str, Any]]:
        """(instant, method, count) of every write."""
        return [
            (instant, request.method, self.transport.body(index)["count"])
            for index, (instant, request) in enumerate(self.transport.asked)
        ]


async def test_the_first_is_written_at_once_and_whole() -> None:
    desk = Desk()
    async with desk.open():
        await desk.clock.sleep(2.5)
        desk.recorder.record(POD, "Evicted", "evicted for a drain", "Warning")
        await desk.clock.sleep(0)
        await desk.clock.sleep(0.5)
    (instant, request) = desk.transport.asked[0]
    assert (instant, request.method, request.path) == (2.5, "POST", "/api/v1/namespaces/shop/events")
    body = desk.transport.body(0)
    name = body["metadata"].pop("name")
    assert name.startswith("web-1.")
    assert body == {
        "apiVersion": "v1", "kind": "Event", "metadata": {"namespace": "shop"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web-1", "uid": "u1"},
        "reason": "Evicted", "message": "evicted for a drain", "type": "Warning", "count": 1,
        "firstTimestamp": "2026-01-01T00:00:02Z", "lastTimestamp": "2026-01-01T00:00:02Z",
        "source": {"component": "gracectl"}, "reportingComponent": "gracectl", "reportingInstance": "gracectl-0",
    }  # fmt: skip


async def test_an_event_about_a_node_lives_in_default() -> None:
    desk = Desk()
    async with desk.open():
        desk.recorder.record(NODE, "Draining", "three pods left")
        await desk.clock.sleep(1)
    assert desk.transport.asked[0][1].path == "/api/v1/namespaces/default/events"
    assert desk.transport.body(0)["involvedObject"]["namespace"] == ""


async def test_repeats_are_counted_and_written_once_when_the_window_ends() -> None:
    desk = Desk()
    async with desk.open():
        for second in range(10):
            desk.recorder.record(NODE, "FailedDraining", f"{10 - second} pods left")
            await desk.clock.sleep(1)
        await desk.clock.sleep(600)
    assert desk.written == [(0.0, "POST", 1), (300.0, "PATCH", 10)]
    (_, posted), (_, patched) = desk.transport.asked
    assert patched.path.startswith(posted.path + "/worker-1.")
    assert patched.content_type == "application/strategic-merge-patch+json"
    assert desk.transport.body(1) == {
        "count": 10, "lastTimestamp": "2026-01-01T00:00:09Z", "message": "1 pods left", "type": "Normal",
    }  # fmt: skip
    statistics = desk.recorder.statistics()
    assert (statistics.recorded, statistics.written, statistics.merged) == (10, 2, 9)


async def test_never_more_than_one_write_per_object_and_reason_in_a_window() -> None:
    desk = Desk()
    async with desk.open():
        for _ in range(143):
            desk.recorder.record(NODE, "FailedDraining", "blocked")
            await desk.clock.sleep(7)
    assert desk.written == [
        (0.0, "POST", 1), (300.0, "PATCH", 43), (600.0, "PATCH", 86), (900.0, "PATCH", 129), (1001.0, "PATCH", 143),
    ]  # fmt: skip


async def test_news_is_written_at_once_beside_what_was_said_before() -> None:
    desk = Desk()
    async with desk.open():
        for end in ("15:00", "15:00", "12:00"):
            desk.recorder.record(NODE, "Expiring", f"ends by {end}", dedup_key=end)
            await desk.clock.sleep(1)
        await desk.clock.sleep(600)
    assert desk.written == [(0.0, "POST", 1), (2.0, "POST", 1), (300.0, "PATCH", 2)]
    assert [desk.transport.body(n)["message"] for n in range(2)] == ["ends by 15:00", "ends by 12:00"]


async def test_a_quiet_window_ends_a_series() -> None:
    desk = Desk()
    async with desk.open():
        desk.recorder.record(NODE, "Draining", "begins")
        await desk.clock.sleep(301)
        desk.recorder.record(NODE, "Draining", "begins again")
        await desk.clock.sleep(1)
    assert desk.written == [(0.0, "POST", 1), (301.0, "POST", 1)]
    names = {desk.transport.body(index)["metadata"]["name"] for index in (0, 1)}
    assert len(names) == 2


async def test_other_objects_and_reasons_are_written_on_their_own() -> None:
    desk = Desk()
    reborn = Subject("v1", "Pod", "shop", "web-1", "u9")
    async with desk.open():
        for subject, reason in ((POD, "Evicted"), (POD, "Deleted"), (reborn, "Evicted"), (NODE, "Evicted")):
            desk.recorder.record(subject, reason, "m")
        await desk.clock.sleep(1)
    assert [method for _, method, _ in desk.written] == ["POST"] * 4


async def test_an_event_that_the_server_has_forgotten_is_created_anew() -> None:
    desk = Desk()

    def gone(request: Request) -> Response:
        return refusal(404, "NotFound", name=request.path.rpartition("/")[2])

    async with desk.open():
        desk.recorder.record(NODE, "Draining", "one")
        desk.recorder.record(NODE, "Draining", "two")
        await desk.clock.sleep(1)
        desk.recorder.record(NODE, "Draining", "three")
        desk.transport.answers.appendleft(gone)
        await desk.clock.sleep(400)
    assert [(method, count) for _, method, count in desk.written] == [("POST", 2), ("PATCH", 3), ("POST", 3)]


async def test_what_is_owed_is_written_at_shutdown() -> None:
    desk = Desk()
    async with desk.open():
        desk.recorder.record(NODE, "Draining", "one")
        await desk.clock.sleep(1)
        desk.recorder.record(NODE, "Draining", "two")
        desk.recorder.record(POD, "Evicted", "never seen by the writer")
    assert desk.written == [(0.0, "POST", 1), (1.0, "PATCH", 2), (1.0, "POST", 1)]


async def test_a_server_that_hangs_holds_up_the_end_for_the_flush_at_most() -> None:
    desk = Desk(EventSettings(flush=5.0))
    async with desk.open():
        desk.recorder.record(POD, "Evicted", "m")
        desk.recorder.record(NODE, "Draining", "m")
        await desk.clock.sleep(0.5)
        desk.recorder.record(POD, "Evicted", "m")
        desk.recorder.record(NODE, "Draining", "m")
        await desk.clock.sleep(0.5)
        desk.transport.answers.extendleft([60.0] * 2)
    assert anyio.current_time() == 6.0


async def test_recording_never_waits_and_the_backlog_is_bounded() -> None:
    desk = Desk(EventSettings(backlog=3))
    for number in range(10):
        desk.recorder.record(Subject("v1", "Pod", "shop", f"web-{number}", f"u{number}"), "Evicted", "m")
    desk.recorder.record(Subject("v1", "Pod", "shop", "web-0", "u0"), "Evicted", "again")
    statistics = desk.recorder.statistics()
    assert (statistics.recorded, statistics.backlog, statistics.dropped, statistics.merged) == (11, 3, 7, 1)
    async with desk.open():
        await desk.clock.sleep(1)
    assert [count for _, _, count in desk.written] == [2, 1, 1]


async def test_what_is_remembered_of_a_window_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(EventSettings(remembered=5))
    with caplog.at_level(logging.WARNING):
        async with desk.open():
            for number in range(9):
                desk.recorder.record(Subject("v1", "Pod", "shop", f"web-{number}", f"u{number}"), "Evicted", "m")
                await desk.clock.sleep(1)
            assert desk.recorder.statistics().dropped == 4
            desk.recorder.record(
                Subject("v1", "Pod", "shop", "web-0", "u0"), "Evicted", "a repeat is counted all the same"
            )
            await desk.clock.sleep(300)
            desk.recorder.record(Subject("v1", "Pod", "shop", "web-9", "u9"), "Evicted", "there is room again")
            await desk.clock.sleep(1)
    assert [count for _, _, count in desk.written] == [1, 1, 1, 1, 1, 2, 1]
    messages = [record.message for record in caplog.records]
    assert messages == ["events are lost: too many wait to be written, 1 found no room so far"]


async def test_a_storm_while_the_server_is_silent_takes_no_more_than_the_backlog() -> None:
    desk = Desk(EventSettings(backlog=50, flush=0.0))
    desk.transport.answers.extend([10_000.0] * 2000)
    async with desk.open():
        for number in range(5000):
            desk.recorder.record(Subject("v1", "Pod", "shop", f"web-{number}", f"u{number}"), "Evicted", "m" * 1000)
            await desk.clock.sleep(0.5)
        statistics = desk.recorder.statistics()
        assert statistics.backlog == 50
        assert (statistics.recorded, statistics.written) == (5000, 0)
        assert statistics.dropped > 3000
        assert statistics.dropped + statistics.failed > 4900


async def test_a_write_that_hangs_is_not_repeated_when_its_window_ends_and_holds_up_no_other() -> None:
    desk = Desk(EventSettings(window=10.0))
    desk.transport.answers.extend([25.0, answer({}, 201)])
    async with desk.open():
        desk.recorder.record(POD, "Evicted", "m")
        await desk.clock.sleep(1)
        desk.recorder.record(NODE, "Draining", "m")
        await desk.clock.sleep(60)
    assert desk.written == [(0.0, "POST", 1), (1.0, "POST", 1)]


async def test_a_series_that_ends_while_it_waits_for_its_turn_once_more_is_no_failure() -> None:
    desk = Desk(EventSettings(window=10.0))
    desk.transport.answers.extend([25.0, *[39.0] * 80])
    async with desk.open():
        desk.recorder.record(POD, "Evicted", "m")
        await desk.clock.sleep(0)
        for number in range(80):
            desk.recorder.record(Subject("v1", "Pod", "shop", f"api-{number}", f"v{number}"), "Evicted", "m")
        await desk.clock.sleep(600)
        statistics = desk.recorder.statistics()
        assert (statistics.written + statistics.failed, statistics.backlog) == (81, 0)


@pytest.mark.parametrize(("lasts", "written"), [(0.12, 0.16), (30.0, 0.51)], ids=["ends", "goes on"])
async def test_an_event_lets_a_storm_of_evictions_go_first_but_not_for_ever(lasts: float, written: float) -> None:
    desk = Desk()
    async with desk.open():
        async with anyio.create_task_group() as storm:
            desk.transport.answers.extendleft([lasts] * 32)
            for number in range(32):
                storm.start_soon(partial(desk.client.evict, ("shop", f"web-{number}"), uid=f"u{number}"))
            await desk.clock.sleep(0.01)
            desk.recorder.record(POD, "Evicted", "m")
        await desk.clock.sleep(1)
    (at,) = (instant for instant, request in desk.transport.asked if request.path.endswith("/events"))
    assert at == pytest.approx(written)


async def test_failures_are_logged_once_a_minute_and_never_raised(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.refuse = refusal(403, "Forbidden", 'User "x" cannot create resource "events"')
    with caplog.at_level(logging.WARNING):
        async with desk.open():
            for number in range(50):
                desk.recorder.record(Subject("v1", "Pod", "shop", f"web-{number}", f"u{number}"), "Evicted", "m")
                await desk.clock.sleep(2)
    assert desk.recorder.statistics().failed == 50
    assert desk.recorder.statistics().written == 0
    assert len([record for record in caplog.records if "events are lost" in record.message]) == 2


async def test_after_a_failure_the_next_repeat_brings_the_total() -> None:
    desk = Desk()
    desk.refuse = refusal(500)
    async with desk.open():
        desk.recorder.record(NODE, "Draining", "one")
        await desk.clock.sleep(1)
        desk.refuse = None
        desk.recorder.record(NODE, "Draining", "two")
        await desk.clock.sleep(400)
    assert desk.written == [(0.0, "POST", 1), (300.0, "POST", 2)]


async def test_long_messages_and_names_are_cut_to_what_the_server_takes() -> None:
    desk = Desk()
    async with desk.open():
        desk.recorder.record(Subject("v1", "Pod", "shop", "w" * 253, "u"), "Evicted", "m" * 5000)
        await desk.clock.sleep(1)
    body = desk.transport.body(0)
    assert len(body["message"]) == 1024
    assert len(body["metadata"]["name"]) <= 253


def test_a_subject_is_taken_from_an_object_of_a_kind() -> None:
    pod = Pod(namespace="shop", name="web-1", uid="u1")
    node = Node(name="worker-1", uid="u2")
    assert Subject.of(PODS, pod) == POD
    assert Subject.of(NODES, node) == NODE


async def test_foreign_text_in_a_message_does_nothing_where_it_is_shown() -> None:
    desk = Desk()
    async with desk.open():
        desk.recorder.record(NODE, "Invalid", 'it is "\x1b[2J\x9b\u202e\nx", which is nothing')
        await desk.clock.sleep(1)
    assert desk.transport.body(0)["message"] == r'it is "\x1b[2J\x9b\u202e\nx", which is nothing'


def test_nor_in_a_condition() -> None:
    word = ConditionUpdate("Drained", "False", "Draining", "held by \x1b[2J\u202e")
    assert word.entry(0.0)["message"] == word.message == r"held by \x1b[2J\u202e"
