"""A fenced client: what does not leave the process, what is cut, and what passes all the same."""

from __future__ import annotations

import math

import anyio
import pytest
from support.servers import FOREVER, ScriptedTransport, answer, lease, refusal
from unit.kube.client.test_client import (
    BUSY,
    CREATE,
    DELETE_UID,
    EVICT,
    FAULT,
    JSON_VERSION,
    KEY,
    MERGE_UID,
    READ,
    NoJitter,
    Verb,
)

from gracectl.kube import errors
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.client.retry import RetrySettings
from gracectl.kube.resources import LEASES
from gracectl.kube.transport.operation import Operation
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.fence import Fence, FenceClosed

ONCE = ClientSettings(retry=RetrySettings(attempts=1))
BODY = {"metadata": {"resourceVersion": "7"}, "spec": {}}
UPDATE: Verb = lambda client: client.update(LEASES, KEY, BODY)  # noqa: E731  a name for the table below
WRITES = [CREATE, MERGE_UID, JSON_VERSION, UPDATE, DELETE_UID, EVICT]


class Place:
    """A fenced client of a scripted server, and the same client without a fence."""

    def __init__(self) -> None:
        clock = LoopClock()
        self.transport = ScriptedTransport(clock)
        self.fence = Fence(clock)
        self.free = KubeClient(self.transport, clock, rng=NoJitter())
        self.client = self.free.fenced(self.fence)

    def lead(self, begin: float, end: float) -> None:
        self.fence.extend(self.fence.mark(), begin, end)


async def evict(client: KubeClient) -> None:
    await client.evict(KEY, uid="u")


@pytest.mark.parametrize("write", WRITES)
async def test_no_write_leaves_while_the_fence_is_closed(write: Verb) -> None:
    place = Place()
    with pytest.raises(errors.NotLeading) as caught:
        await write(place.client)
    assert isinstance(caught.value, FenceClosed)
    assert place.transport.asked == []
    assert place.client.statistics().attempts == {}
    place.transport.answers.append(answer(lease("a", 1)))
    await write(place.free)
    assert len(place.transport.asked) == 1


async def test_reads_pass() -> None:
    place = Place()
    place.transport.answers.append(answer(lease("a", 1)))
    await READ(place.client)


@pytest.mark.parametrize("write", WRITES)
async def test_no_write_is_repeated_when_the_fence_has_closed_meanwhile(write: Verb) -> None:
    place = Place()
    place.lead(2.0, 4.0)
    place.transport.answers.append(BUSY)  # for three seconds
    with pytest.raises(errors.NotLeading):
        await write(place.client)
    assert place.transport.instants == [0.0]
    assert anyio.current_time() == 3.0


@pytest.mark.parametrize("write", WRITES)
async def test_a_write_under_way_is_cut_even_if_it_is_shielded(write: Verb) -> None:
    place = Place()
    place.lead(2.0, 4.0)
    place.transport.answers.append(FOREVER)
    with anyio.move_on_after(1.0), pytest.raises(errors.RequestTimeout, match="no answer in 4 s"):
        # Not as the client repeats it: the wait before that is cancelled.
        await write(KubeClient(place.transport, place.transport.clock, settings=ONCE).fenced(place.fence))
    assert anyio.current_time() == 4.0
    assert place.fence.statistics().cut == 1
    assert place.fence.unanswered == 4.0


async def test_a_write_under_way_lives_on_when_the_lease_is_renewed() -> None:
    place = Place()
    place.lead(2.0, 4.0)
    place.transport.answers.extend([6.0, answer()])
    async with anyio.create_task_group() as group:
        group.start_soon(evict, place.client)
        await anyio.sleep(1.0)
        place.lead(10.0, 12.0)
    assert anyio.current_time() == 6.0
    assert place.fence.unanswered == -math.inf


async def test_the_end_of_the_process_cuts_what_would_take_too_long() -> None:
    place = Place()
    place.fence.open()
    place.transport.answers.append(FOREVER)
    async with anyio.create_task_group() as group:

        async def write() -> None:
            with pytest.raises(errors.RequestTimeout, match="no answer in 5 s"):
                await EVICT(place.client)

        group.start_soon(write)
        await anyio.sleep(1.0)
        place.fence.limit(4.0)
    assert anyio.current_time() == 5.0


async def test_a_refusal_is_an_answer_and_a_broken_connection_is_none() -> None:
    place = Place()
    place.fence.open()
    place.transport.answers.extend([refusal(403), FAULT])
    for _ in range(2):
        with pytest.raises(errors.ApiError):
            await EVICT(place.client)
    assert place.fence.unanswered == -math.inf
    place.transport.answers.append(errors.Unreachable(Operation("get", "", "x", "", "", ""), "cut", sent=True))
    with pytest.raises(errors.Unreachable):
        await EVICT(place.client)
    assert place.fence.unanswered == 0.0


async def test_both_clients_wait_for_a_busy_server_and_count_as_one() -> None:
    place = Place()
    place.fence.open()
    place.transport.answers.extend([BUSY, answer(lease("a", 1)), answer(lease("a", 1))])
    async with anyio.create_task_group() as group:
        group.start_soon(evict, place.client)
        await anyio.sleep(1.0)
        await READ(place.free)
    assert place.transport.instants == [0.0, 3.0, 3.0]
    assert place.free.statistics() == place.client.statistics()
    assert place.free.statistics().throttle_pauses == 1
