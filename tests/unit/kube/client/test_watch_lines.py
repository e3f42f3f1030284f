"""Lines are cut from pieces of any size; of one that is too long the head is kept and read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers import World, event, lease, page

from gracectl.kube.client.watch import LineSplitter, OversizeLine, read_head

LONGEST, HEAD = 6, 3


@given(st.text(alphabet="a\n", max_size=60).map(str.encode), st.lists(st.integers(0, 60)))
def test_where_the_pieces_end_makes_no_difference(text: bytes, cuts: list[int]) -> None:
    splitter, at, lines = LineSplitter(LONGEST, HEAD), 0, []
    for cut in [*sorted(cuts), len(text)]:
        lines += splitter.feed(text[at:cut])
        at = max(at, cut)
    *ended, begun = text.split(b"\n")
    assert [*lines, splitter.rest()] == [line if len(line) <= LONGEST else line[:HEAD] for line in [*ended, begun]]
    assert [isinstance(line, OversizeLine) for line in lines] == [len(line) > LONGEST for line in ended]


def head_of(line: bytes) -> tuple[str, str, str, str, str]:
    event = read_head(OversizeLine(line))
    return (event.happened, event.namespace, event.name, event.uid, event.resource_version)


META = b'"metadata":{"name":"web-1","generateName":"web-","namespace":"shop","uid":"u-1","resourceVersion":"77",'


@pytest.mark.parametrize(("line", "expected"), [
    (b'{"type":"MODIFIED","object":{"kind":"Pod","apiVersion":"v1",' + META + b'"labels":{"name":"no","uid":"no"',
     ("MODIFIED", "shop", "web-1", "u-1", "77")),
    (b'{"type":"DELETED","object":{' + META, ("DELETED", "shop", "web-1", "u-1", "77")),
    (b'{"type":"ADDED","object":{"apiVersion":"a/v1","kind":"T","metadata":{"annotations":{"name":"no"},',
     ("ADDED", "", "", "", "")),
    (b'{"type":"ADDED","object":{"spec":{"metadata":{"name":"no"}}', ("", "", "", "", "")),
    (b"xxxxxx", ("", "", "", "", "")), (b"", ("", "", "", "", "")),
], ids=["changed", "gone", "annotations first", "no metadata first", "nonsense", "nothing"])  # fmt: skip
def test_what_a_head_tells(line: bytes, expected: tuple[str, str, str, str, str]) -> None:
    assert head_of(line) == expected


async def test_one_line_is_no_reason_to_list_anew(caplog: pytest.LogCaptureFixture) -> None:
    def too_long(type_: str, name: str, version: int) -> OversizeLine:
        head = f'{{"type":"{type_}","object":{{"metadata":{{"name":"{name}","namespace":"n","uid":"uid-{name}",'
        return OversizeLine(f'{head}"resourceVersion":"{version}","annotations":{{"x":"'.encode())

    world = World()
    world.transport.answers.append(page(7, lease("a", 1), lease("b", 2)))
    lines = [
        too_long("MODIFIED", "a", 8), too_long("DELETED", "b", 9), OversizeLine(b"{"), event("ADDED", lease("c", 10)),
    ]  # fmt: skip
    world.transport.streams.append([*lines])
    async with world.running(1):
        assert world.transport.story == ["list leases", "watch leases @7", "watch leases @10"]
        assert world.dedup_key == ["+a:a", "+b:b", "-b:b", "+c:c"]
        assert world.reflector.statistics().undecodable == 2
        assert [(each.key, each.uid, each.resource_version) for each in world.cache.undecodable] == [
            (("n", "a"), "uid-a", "8")
        ]
        assert world.cache.get("n", "a") is not None
    assert "leases n/a: cannot be decoded, and is set aside: its line of the watch has more than" in caplog.text
    assert "a line has more than 33,554,432 bytes, and its head names no object" in caplog.text
