"""The ring of changes, and clients that do not read."""

from __future__ import annotations

import anyio
import pytest

from gracectl.cli.ui import stream
from gracectl.cli.ui.stream import ChangeRing, SlowClient, message, send


def test_changes_after_a_place_come_in_order() -> None:
    ring = ChangeRing()
    for text in (b"a", b"b", b"c"):
        ring.append(text)
    assert ring.after(0) == [b"a", b"b", b"c"]
    assert ring.after(2) == [b"c"]
    assert ring.after(3) == []


@pytest.mark.parametrize("place", [-1, 4])
def test_a_place_that_never_was_has_no_changes(place: int) -> None:
    ring = ChangeRing()
    for text in (b"a", b"b", b"c"):
        ring.append(text)
    assert ring.after(place) is None


def test_the_ring_keeps_so_many_bytes_and_forgets_the_oldest_changes() -> None:
    ring = ChangeRing(most_bytes=10)
    for number in range(1000):
        ring.append(b"%03d" % number)
        assert ring.held_bytes <= 10
    assert ring.after(997) == [b"997", b"998", b"999"]
    assert ring.after(996) is None
    ring.append(b"too large for it")
    assert ring.after(1000) == [b"too large for it"]
    assert ring.after(999) is None


@pytest.mark.anyio
async def test_a_waiting_client_is_woken_by_a_change() -> None:
    ring = ChangeRing()
    async with anyio.create_task_group() as group:
        group.start_soon(ring.wait_beyond, 0, 1000.0)
        await anyio.sleep(1)
        ring.append(b"a")
    assert anyio.current_time() < 100


@pytest.mark.anyio
async def test_a_message_is_written_part_by_part() -> None:
    parts: list[bytes] = []

    async def write(part: bytes) -> None:
        parts.append(part)

    whole = b"x" * (stream.PART * 2 + 5)
    await send(whole, write)
    assert [len(part) for part in parts] == [stream.PART, stream.PART, 5]
    assert b"".join(parts) == whole


@pytest.mark.anyio
async def test_a_client_that_takes_nothing_for_ten_seconds_is_slow() -> None:
    began = anyio.current_time()

    async def write(part: bytes) -> None:
        await anyio.sleep_forever()

    with pytest.raises(SlowClient):
        await send(b"x", write)
    assert anyio.current_time() - began == pytest.approx(stream.WRITE_SECONDS, abs=0.5)


def test_a_message_has_its_id_its_event_and_one_line_of_data() -> None:
    assert message("change", "ab-7", b"{}") == b"id: ab-7\nevent: change\ndata: {}\n\n"
