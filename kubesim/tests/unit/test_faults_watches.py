"""What rules do to watches, those that are open already included."""

from __future__ import annotations

import anyio
import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.faults import DropWatch, FreezeWatch, LateWatch, Partition, Reset, Rule
from kubesim.server.api import ConnectionLost, EventStream
from kubesim_support.caller import LEASES, Caller, next_events

pytestmark = pytest.mark.anyio


@pytest.fixture
def caller() -> Caller:
    return Caller(ApiServer(LoopClock(), seed=3))


class Reader:
    """Reads a watch and remembers when it saw what."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self.seen: list[tuple[float, str]] = []

    async def run(self) -> None:
        """Read until the stream ends or breaks."""
        try:
            async for event in self._stream:
                self.seen.append((anyio.current_time(), event.object["metadata"]["name"]))
            self.seen.append((anyio.current_time(), "ended"))
        except ConnectionLost:
            self.seen.append((anyio.current_time(), "broken"))


async def test_a_watch_that_sleeps_is_broken_when_a_rule_comes(caller: Caller) -> None:
    reader = Reader(await caller.watch(LEASES))
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await anyio.sleep(3)
        caller.server.faults.add(Rule(fault=DropWatch(after=2.0)))
    assert reader.seen == [(5.0, "broken")]


async def test_an_interruption_loses_nothing(caller: Caller) -> None:
    reader = Reader(await caller.watch(LEASES))
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await anyio.sleep(1)
        for name in ("a", "b", "c"):
            caller.server.faults.add(Rule(fault=FreezeWatch(after=1000)))
            await caller.create(LEASES, {"metadata": {"name": name}})
        await anyio.sleep(1)
        group.cancel_scope.cancel()
    assert reader.seen == [(1.0, "a"), (1.0, "b"), (1.0, "c")]


async def test_events_come_late_and_in_order(caller: Caller) -> None:
    caller.server.faults.add(Rule(fault=LateWatch(2.0, 2.0)))
    reader = Reader(await caller.watch(LEASES))
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await anyio.sleep(1)
        await caller.create(LEASES, {"metadata": {"name": "a"}})
        await anyio.sleep(0.5)
        await caller.create(LEASES, {"metadata": {"name": "b"}})
        await anyio.sleep(10)
        group.cancel_scope.cancel()
    assert reader.seen == [(3.0, "a"), (3.5, "b")]


async def test_a_partition_holds_back_events_and_the_end_until_it_heals(caller: Caller) -> None:
    reader = Reader(await caller.watch(LEASES, timeoutSeconds="20"))
    rule = Rule(fault=Partition())
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await anyio.sleep(1)
        caller.server.faults.add(Rule(fault=Partition(), method="NONE"))
        await caller.create(LEASES, {"metadata": {"name": "before"}})
        await anyio.sleep(1)
        caller.server.faults.add(rule)
        group.start_soon(caller.create, LEASES, {"metadata": {"name": "held"}})
        await anyio.sleep(40)
        assert reader.seen == [(1.0, "before")]
        caller.server.faults.remove(rule)
    assert reader.seen[1:] in ([(42.0, "held"), (42.0, "ended")], [(42.0, "ended")])


async def test_rules_that_say_the_same_are_two_rules(caller: Caller) -> None:
    reader = Reader(await caller.watch(LEASES, timeoutSeconds="1"))
    one, other = (Rule(fault=Partition(), method="GET") for _ in range(2))
    caller.server.faults.add(one)
    caller.server.faults.add(other)
    async with anyio.create_task_group() as group:
        group.start_soon(reader.run)
        await anyio.sleep(5)
        caller.server.faults.remove(other)
        await anyio.sleep(5)
        assert reader.seen == []
        caller.server.faults.remove(one)
    assert reader.seen == [(10.0, "ended")]
    with pytest.raises(ValueError, match="Rule"):
        caller.server.faults.remove(one)


async def test_a_reader_that_gives_up_on_a_late_event_gets_it_on_the_next_read(caller: Caller) -> None:
    stream = await caller.watch(LEASES)
    caller.server.faults.add(Rule(fault=LateWatch(least=5, most=5)))
    await caller.create(LEASES, {"metadata": {"name": "one"}})
    with anyio.move_on_after(1) as patience:
        await stream.__anext__()
    assert patience.cancelled_caught
    assert await next_events(stream, 1) == [("ADDED", "one")]


async def test_a_watch_that_is_over_is_struck_no_more(caller: Caller) -> None:
    ended = await caller.watch(LEASES, timeoutSeconds="1")
    assert [event async for event in ended] == []
    drop, reset = Rule(fault=DropWatch(after=1), count=1), Rule(fault=Reset(carried_out=True), count=1)
    caller.server.faults.add(drop)
    assert caller.server.faults.struck(drop) == 0
    broken = await caller.watch(LEASES)
    with pytest.raises(ConnectionLost):
        await broken.__anext__()
    caller.server.faults.add(reset)
    with pytest.raises(ConnectionLost):
        await caller.watch(LEASES)
    late = Rule(fault=LateWatch(least=1, most=1))
    caller.server.faults.add(late)
    assert caller.server.faults.struck(late) == 0
