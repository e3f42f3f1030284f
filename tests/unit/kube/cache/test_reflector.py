"""A cache follows the server through every way in which a stream can end; to the exact instant."""

from __future__ import annotations

import logging
import random

import anyio
import anyio.lowlevel
import pytest
from support.servers import FOREVER, LOST, World, answer, bookmark, event, expired, lease, page, refusal

from gracectl.kube import errors
from gracectl.kube.cache.reflector import ReflectorSettings
from gracectl.kube.client import ClientSettings
from gracectl.kube.transport import Request, Response
from gracectl.model.meta import Lease


async def test_lists_then_watches_from_the_version_of_the_list() -> None:
    world = World()
    world.transport.answers.extend([1.0, page(7, lease("a", 3), token="t"), page(7, lease("b", 5))])
    world.transport.streams.append([2.0, event("ADDED", lease("c", 8)), event("DELETED", lease("a", 9)), FOREVER])
    async with world.running(10):
        assert world.cache.live
        assert world.told == [(1.0, "+a:a"), (1.0, "+b:b"), (3.0, "+c:c"), (3.0, "-a:a")]
        assert world.transport.story == ["list leases", "list leases t", "watch leases @7"]
        query = dict(world.transport.asked[-1][1].query)
        assert (query["allowWatchBookmarks"], query["timeoutSeconds"]) == ("true", "600")


async def test_nothing_is_told_before_the_list_is_complete() -> None:
    world = World()
    world.transport.answers.extend([page(7, lease("a", 3), token="t"), 5.0, page(7, lease("b", 5))])
    async with world.running(4):
        assert not world.cache.live
        assert world.told == []


async def test_a_first_list_of_many_leaves_turns_to_other_tasks() -> None:
    world, turns = World(), [0]
    world.transport.answers.append(page(9, *(lease(f"l-{number:03}", 3) for number in range(350))))

    async def others() -> None:
        while not world.cache.live:
            turns.append(len(world.told))
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(others)
        async with world.running(1):
            assert len(world.told) == 350
    assert {100, 200, 300} <= {*turns}


async def test_resumes_from_the_last_version_of_an_event_a_deletion_or_a_bookmark() -> None:
    world = World()
    world.transport.answers.append(page(7, lease("a", 3)))
    world.transport.streams.extend(
        [
            [20.0, event("MODIFIED", lease("a", 8))], [20.0, event("DELETED", lease("a", 9))], [20.0, bookmark(15)],
            [20.0],
        ],
    )  # fmt: skip
    async with world.running(85):
        assert world.transport.story == [
            "list leases", "watch leases @7", "watch leases @8", "watch leases @9", "watch leases @15",
            "watch leases @15",
        ]  # fmt: skip
        # The server's end of a stream that has lasted is no failure: the next is opened at once.
        assert world.transport.instants == [0.0, 0.0, 20.0, 40.0, 60.0, 80.0]
        assert world.dedup_key == ["+a:a", "~a:a", "-a:a"]
        assert world.reflector.statistics().failures == 0


async def test_a_broken_stream_is_resumed_after_a_pause_that_doubles_until_one_lasts() -> None:
    world = World()
    world.transport.answers.append(page(7))
    world.transport.streams.extend([[LOST], LOST, [1.0, LOST], [20.0, LOST], LOST, [FOREVER]])
    async with world.running(40):
        pauses = [0.0, 0.0, 0.2, 0.2 + 0.4, 0.6 + 1.0 + 0.8, 2.4 + 20.0 + 0.2, 22.6 + 0.4]
        assert world.transport.instants == pytest.approx(pauses)
        assert set(world.transport.story[1:]) == {"watch leases @7"}


async def test_a_server_that_ends_every_stream_at_once_is_not_asked_in_a_tight_loop() -> None:
    world = World()
    world.transport.answers.append(page(7))
    world.transport.streams.extend([[], [], []])
    async with world.running(10):
        assert world.transport.instants == pytest.approx([0.0, 0.0, 0.2, 0.6, 1.4])


async def test_watches_are_asked_for_between_five_and_ten_minutes() -> None:
    world = World(rng=random.Random(3))
    world.transport.answers.append(page(7))
    world.transport.streams.extend([[11.0] for _ in range(50)])
    async with world.running(600):
        asked = [int(dict(request.query)["timeoutSeconds"]) for _, request in world.transport.asked[1:]]
    assert len(set(asked)) > 30
    assert min(asked) >= 300
    assert max(asked) <= 600


@pytest.mark.parametrize("end", [[expired()], refusal(410, "Expired")], ids=["ERROR event in HTTP 200", "HTTP 410"])
async def test_after_lost_history_only_differences_are_told(end: list[bytes | Exception | float] | Response) -> None:
    world = World()
    world.transport.answers.extend(
        [
            page(7, lease("kept", 1), lease("changed", 2), lease("gone", 3), lease("reborn", 4, uid="1")),
            5.0,
            page(30, lease("kept", 1), lease("changed", 20), lease("reborn", 21, uid="2"), lease("new", 22)),
        ]
    )
    world.transport.streams.append(end)
    async with world.running(5.1):
        # The new list takes five seconds; until then the old view stands.
        assert world.cache.live
        assert [thing.name for thing in world.cache.values()] == ["kept", "changed", "gone", "reborn"]
        world.told.clear()
        await world.clock.sleep(1)
        assert world.told == [
            (5.2, "-gone:gone"), (5.2, "~changed:changed"), (5.2, "-reborn:1"), (5.2, "+reborn:2"), (5.2, "+new:new"),
        ]  # fmt: skip
        assert world.transport.story == ["list leases", "watch leases @7", "list leases", "watch leases @30"]


async def test_a_list_of_few_objects_may_come_from_the_servers_cache_but_never_leads_back() -> None:
    world = World(ReflectorSettings(cached=True))
    world.transport.answers.extend([page(7, lease("a", 3)), refusal(504, "Timeout"), page(9, lease("a", 8)), page(11)])
    world.transport.streams.extend([[expired()], [expired()], [FOREVER]])
    async with world.running(10):
        lists = [dict(request.query) for _, request in world.transport.asked if "watch" not in dict(request.query)]
    assert [(each.get("resourceVersion"), each.get("resourceVersionMatch"), each.get("limit")) for each in lists] == [
        ("0", "NotOlderThan", None),
        ("7", "NotOlderThan", None),
        (None, None, "500"),  # a cache that has not come so far is not waited for
        ("9", "NotOlderThan", None),
    ]


@pytest.mark.parametrize("end", [[expired()], refusal(410, "Expired")])
async def test_a_server_without_history_is_listed_without_delay(
    end: list[bytes | Exception | float] | Response,
) -> None:
    world = World()
    world.transport.answers.extend([page(7), page(30)])
    world.transport.streams.extend([LOST] * 8)
    world.transport.streams.extend([end, [FOREVER]])
    async with world.running(60):
        pauses = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6]
        instants = [0.0, *(sum(pauses[:number]) for number in range(9)), 51.2, 51.2]
        assert world.transport.instants == pytest.approx(instants)
        assert world.transport.story[-2:] == ["list leases", "watch leases @30"]


async def test_lists_whose_history_is_lost_each_time_grow_rare() -> None:
    world = World()
    world.transport.answers.extend([page(7)] * 5)
    world.transport.streams.extend([[expired()] for _ in range(4)])
    world.transport.streams.append([FOREVER])
    async with world.running(10):
        assert world.transport.instants[::2] == pytest.approx([0.0, 0.2, 0.6, 1.4, 3.0])


async def test_history_compacted_between_two_pages_begins_the_list_again() -> None:
    world = World()
    world.transport.answers.extend([page(7, lease("a", 1), token="t"), refusal(410, "Expired"), page(9, lease("b", 8))])
    async with world.running(1):
        assert world.transport.story == ["list leases", "list leases t", "list leases", "watch leases @9"]
        assert world.dedup_key == ["+b:b"]


async def test_another_error_event_is_a_new_list_too() -> None:
    world = World()
    world.transport.answers.extend([page(7), page(9)])
    world.transport.streams.append([event("ERROR", {"kind": "Status", "code": 500, "message": "etcd lost"})])
    async with world.running(1):
        assert world.transport.story == ["list leases", "watch leases @7", "list leases", "watch leases @9"]
        assert "etcd lost" in world.reflector.statistics().last_error


async def test_a_server_in_trouble_is_asked_to_go_on_not_to_list_again() -> None:
    world = World()
    world.transport.answers.append(page(7))
    world.transport.streams.extend([refusal(503), refusal(429, retryAfterSeconds=4), refusal(504), [FOREVER]])
    async with world.running(10):
        assert world.transport.story == ["list leases", *["watch leases @7"] * 4]
        # The third waits for the four seconds that the busy server asked for, its own pause being shorter.
        assert world.transport.instants == pytest.approx([0.0, 0.0, 0.2, 4.2, 5.0])


async def test_a_silent_stream_is_given_up_and_resumed() -> None:
    world = World()
    world.transport.answers.append(page(7))
    world.transport.streams.extend([[10.0, event("ADDED", lease("a", 8)), FOREVER], [FOREVER]])
    async with world.running(101):
        assert world.transport.story == ["list leases", "watch leases @7", "watch leases @8"]
        assert world.transport.instants == pytest.approx([0.0, 0.0, 100.2])
        statistics = world.reflector.statistics()
        assert (statistics.stalls, statistics.last_error) == (1, "no line for 90 s")
        assert statistics.last_line == pytest.approx(100.2)


async def test_bookmarks_are_signs_of_life() -> None:
    world = World()
    world.transport.answers.append(page(7))
    world.transport.streams.append([part for number in range(8) for part in (60.0, bookmark(8 + number))])
    async with world.running(479):
        statistics = world.reflector.statistics()
        assert (statistics.streams, statistics.stalls, statistics.bookmarks) == (1, 0, 7)
        assert statistics.last_line == 420.0


@pytest.mark.parametrize("line", [
    b'{"type":"ADDED","obj\n', event("ADDED", {"metadata": {"name": 7}}), event("SHUFFLED", lease("a", 8)),
    ValueError("a line of a watch is too long"),
], ids=["cut off", "not a lease", "unknown type", "too long"])  # fmt: skip
async def test_an_undecodable_line_is_listed_anew(line: bytes | Exception, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.transport.answers.extend([page(7), page(9, lease("a", 8))])
    world.transport.streams.append([line])
    with caplog.at_level(logging.WARNING):
        async with world.running(1):
            assert world.transport.story == ["list leases", "watch leases @7", "list leases", "watch leases @9"]
            assert world.dedup_key == ["+a:a"]
            assert world.reflector.statistics().undecodable == 1
    assert "undecodable" in caplog.text


async def test_a_list_that_cannot_be_decoded_is_tried_again() -> None:
    world = World()
    world.transport.answers.extend([answer(b"<html>"), page(7, lease("a", 1))])
    async with world.running(1):
        assert world.cache.live
        assert world.transport.instants == pytest.approx([0.0, 0.2, 0.2])


@pytest.mark.parametrize(("refused", "meaning"), [
    (refusal(403, "Forbidden", "you cannot list it"), errors.Forbidden),
    (refusal(401, "Unauthorized"), errors.Unauthorized),
    (refusal(400, "BadRequest"), errors.Invalid),
    (answer(b"404 page not found", 404), errors.NotServed),
])  # fmt: skip
async def test_a_configuration_error_ends_the_first_list(refused: Response, meaning: type[errors.ApiError]) -> None:
    world = World()
    world.transport.answers.append(refused)
    with pytest.raises(meaning, match="list leases"):
        await world.reflector.run()


async def test_a_right_to_list_without_one_to_watch_is_told_at_the_start() -> None:
    world = World()
    world.transport.answers.append(page(7))
    message = 'leases.coordination.k8s.io is forbidden: User "x" cannot watch resource "leases"'
    world.transport.streams.append(refusal(403, "Forbidden", message))
    with pytest.raises(errors.Forbidden, match="add the verb watch on leases"):
        await world.reflector.run()


async def test_the_same_refusals_later_are_waited_out() -> None:
    world = World()
    world.transport.answers.extend([page(7), refusal(403, "Forbidden"), page(9)])
    world.transport.streams.extend([[20.0], refusal(401, "Unauthorized"), [expired()], [FOREVER]])
    async with world.running(60):
        assert world.transport.story == [
            "list leases", "watch leases @7", "watch leases @7", "watch leases @7", "list leases", "list leases",
            "watch leases @9",
        ]  # fmt: skip


async def test_an_unreachable_server_is_waited_for() -> None:
    world = World()
    world.transport.answers.extend([LOST, LOST, page(7, lease("a", 1))])
    async with world.running(1):
        assert world.transport.instants == pytest.approx([0.0, 0.2, 0.6, 0.6])
        assert world.cache.live


NOT_SERVED = answer(b"404 page not found", 404)


async def test_an_optional_resource_that_is_not_served_is_empty_until_it_is() -> None:
    world = World(ReflectorSettings(optional=True))
    world.transport.answers.extend([NOT_SERVED, NOT_SERVED, page(7, lease("a", 1))])
    async with world.running(61):
        assert world.transport.instants == [0.0, 30.0, 60.0, 60.0]
        assert world.cache.live
        assert world.told == [(60.0, "+a:a")]


async def test_a_starting_server_that_does_not_know_the_resource_yet_takes_nothing_away() -> None:
    world = World(ReflectorSettings(optional=True))
    world.transport.answers.extend([page(7, lease("a", 1)), NOT_SERVED, page(9, lease("a", 1))])
    world.transport.streams.append([expired()])
    async with world.running(60):
        assert world.dedup_key == ["+a:a"]


async def test_a_resource_that_is_no_longer_served_has_no_objects() -> None:
    world = World(ReflectorSettings(optional=True))
    world.transport.answers.extend([page(7, lease("a", 1)), NOT_SERVED, NOT_SERVED, NOT_SERVED])
    world.transport.streams.append([20.0, expired()])
    async with world.running(60):
        assert world.told == [(0.0, "+a:a"), (pytest.approx(50.2), "-a:a")]


async def test_a_burst_lets_others_run() -> None:
    world = World()
    world.transport.answers.append(page(7))
    world.transport.streams.append([event("ADDED", lease(f"l{number}", number + 8)) for number in range(450)])
    turns = 0

    async def count() -> None:
        nonlocal turns
        while len(world.cache) < 450:
            turns += len(world.cache) > 0
            await anyio.lowlevel.checkpoint()

    async with world.running(0), anyio.create_task_group() as tasks:
        tasks.start_soon(count)
    assert turns >= 3


async def test_a_subscriber_that_raises_ends_the_reflector() -> None:
    world = World()
    world.transport.answers.append(page(7, lease("a", 1)))

    def fail(old: Lease | None, new: Lease | None) -> None:
        raise ValueError("mine")

    world.cache.subscribe(fail)
    with pytest.raises(ValueError, match="mine"):
        await world.reflector.run()


async def test_a_subscriber_that_raises_on_an_event_is_not_taken_for_a_bad_line() -> None:
    world = World()
    world.transport.answers.append(page(7))
    world.transport.streams.append([event("ADDED", lease("a", 8))])

    def fail(old: Lease | None, new: Lease | None) -> None:
        raise ValueError("mine")

    world.cache.subscribe(fail)
    with pytest.raises(ValueError, match="mine"):
        await world.reflector.run()


async def test_staleness_can_be_read_at_any_time() -> None:
    world = World()
    world.transport.answers.append(page(7))
    world.transport.streams.append([30.0, bookmark(8), FOREVER])
    assert world.reflector.statistics().last_line is None
    async with world.running(50):
        last_line = world.reflector.statistics().last_line
        assert last_line is not None
        assert world.clock.monotonic() - last_line == 20.0


def test_defaults_are_what_the_design_says() -> None:
    assert ReflectorSettings() == ReflectorSettings(
        watch_minimum=300, watch_maximum=600, stall=90.0, healthy=10.0, initial_pause=0.2, maximum_pause=30.0
    )
    assert ClientSettings().page_size == 500
    assert Request(method="GET", path="/").timeout == 30.0
