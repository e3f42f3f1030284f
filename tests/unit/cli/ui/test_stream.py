"""The ring of changes, and clients that do not read."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from gracectl.cli.ui import stream
from gracectl.cli.ui.stream import ChangeRing, SlowClient, Streams, encoded, message, send
from gracectl.model.foreign import visible


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
        assert ring._bytes <= 10
    assert ring.after(997) == [b"997", b"998", b"999"]
    assert ring.after(996) is None
    ring.append(b"too large for it")
    assert ring.after(1000) == [b"too large for it"]
    assert ring.after(999) is None


async def test_a_waiting_client_is_woken_by_a_change() -> None:
    ring = ChangeRing()
    async with anyio.create_task_group() as group:
        group.start_soon(ring.wait_beyond, 0, 1000.0)
        await anyio.sleep(1)
        ring.append(b"a")
    assert anyio.current_time() < 100


async def test_a_message_is_written_part_by_part() -> None:
    parts: list[bytes] = []

    async def write(part: bytes) -> None:
        parts.append(part)

    whole = b"x" * (stream.PART * 2 + 5)
    await send(whole, write)
    assert [len(part) for part in parts] == [stream.PART, stream.PART, 5]
    assert b"".join(parts) == whole


async def test_a_client_that_takes_nothing_for_ten_seconds_is_slow() -> None:
    began = anyio.current_time()

    async def write(part: bytes) -> None:
        await anyio.sleep_forever()

    with pytest.raises(SlowClient):
        await send(b"x", write)
    assert anyio.current_time() - began == pytest.approx(stream.WRITE_SECONDS, abs=0.5)


def test_a_message_has_its_id_its_event_and_one_line_of_data() -> None:
    assert message("change", "ab-7", b"{}") == b"id: ab-7\nevent: change\ndata: {}\n\n"


def test_a_client_takes_as_many_changes_as_fit_into_a_part_and_at_least_one() -> None:
    ring = ChangeRing()
    for text in (b"aa", b"bb", b"cccccc", b"d"):
        ring.append(text)
    assert ring.after(0, 4) == [b"aa", b"bb"]
    assert ring.after(1, 1) == [b"bb"]
    assert ring.after(2, 4) == [b"cccccc"]
    assert (ring.has(0), ring.has(4), ring.has(5), ring.has(-1)) == (True, True, False, False)


def test_a_change_larger_than_any_message_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LARGEST_MESSAGE", 10)
    ring = ChangeRing(most_bytes=5)
    ring.append(b"a")
    ring.append(b"x" * 11)
    assert (ring.latest, ring._bytes, ring.after(1), ring.after(2)) == (2, 0, None, [])
    ring.append(b"b")
    assert ring.after(2) == [b"b"]


async def test_a_message_that_is_no_longer_needed_is_not_sent_to_its_end() -> None:
    parts: list[bytes] = []

    async def write(part: bytes) -> None:
        parts.append(part)

    with pytest.raises(SlowClient):
        await send(b"x" * stream.PART * 9, write, lambda: len(parts) < 2)
    assert len(parts) == 2


@pytest.mark.parametrize(("opened", "newcomer", "loses"), [
    ("ab", "c", None),  # there is room
    ("aaa", "b", 0),  # the oldest of the peer with the most
    ("baa", "b", "refused"),  # b would have the most then
    ("aba", "c", 0), ("baac", "c", "refused"), ("baaa", "b", 1),
    ("aaaa", "a", "refused"),  # a proxy: none takes the stream of another
    ("abcd", "e", "refused"), ("aabb", "a", "refused"), ("aabb", "b", "refused"),
])  # fmt: skip
async def test_the_peer_with_the_most_streams_makes_room(opened: str, newcomer: str, loses: int | str | None) -> None:
    streams = Streams(max(len(opened), 3))
    scopes = [streams.add(peer) for peer in opened]
    added = streams.add(newcomer)
    canceled = [place for place, scope in enumerate(scopes) if scope is not None and scope.cancel_called]
    assert (added is None) == (loses == "refused")
    assert canceled == ([loses] if isinstance(loses, int) else [])


HIDDEN = "a\x1b[2J\x08\r\u202e\u200b\x7f\x85\ufeff"


def nested(text: str) -> object:
    return {text: [text, {"uid": "x", "more": {"message": text}}]}


def test_nothing_that_leaves_has_characters_that_hide_or_reorder() -> None:
    assert msgspec.json.decode(encoded(nested(HIDDEN))) == nested(visible(HIDDEN))


def test_other_text_leaves_as_it_is() -> None:
    value = {"remedy": 'kubectl patch -p \'{"a":"b"}\'\n\tnext', "literal": r"\u202e \x1b \b \\", "any": "ü 東京 😀"}
    assert msgspec.json.decode(encoded(value)) == value
