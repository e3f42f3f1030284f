"""A cache, its indexes and what it tells never disagree."""

from __future__ import annotations

import gc
import tracemalloc

import anyio
import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gracectl.kube.cache import Cache


class Thing(msgspec.Struct, frozen=True):
    """An object: its name, which one it is, which state, and the values it is found under."""

    name: str
    uid: str = "u"
    resource_version: str = "1"
    groups: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        return ("n", self.name)


def groups_of(thing: Thing) -> tuple[str, ...]:
    return thing.groups


Told = list[tuple[Thing | None, Thing | None]]


def a_cache() -> tuple[Cache[Thing], Told]:
    """An empty cache and what it tells."""
    cache: Cache[Thing] = Cache("things", {"group": groups_of})
    news: Told = []
    cache.subscribe(lambda old, new: news.append((old, new)))
    return cache, news


def test_every_change_is_told_once_with_what_was_before() -> None:
    cache, changes = a_cache()
    first, second = Thing("a"), Thing("a", resource_version="2")
    cache.put(first)
    cache.put(first)
    cache.put(second)
    cache.remove(("n", "a"))
    cache.remove(("n", "a"))
    assert changes == [(None, first), (first, second), (second, None)]
    statistics = cache.statistics()
    assert (statistics.added, statistics.updated, statistics.deleted, statistics.objects) == (1, 1, 1, 0)


def test_what_is_held_is_found_by_its_state() -> None:
    cache, _ = a_cache()
    first = Thing("a")
    cache.put(first)
    again, later, other, unknown = Thing("a"), Thing("a", resource_version="2"), Thing("a", uid="u2"), Thing("b")
    assert cache.held(again) is first
    for new in (later, other, unknown):
        assert cache.held(new) is new


def test_another_object_under_the_same_name_is_a_deletion_and_an_addition() -> None:
    cache, changes = a_cache()
    first, second = Thing("a", uid="u1"), Thing("a", uid="u2")
    cache.put(first)
    cache.put(second)
    assert changes == [(None, first), (first, None), (None, second)]


def test_a_subscriber_sees_the_state_it_is_told_of() -> None:
    cache, _ = a_cache()
    seen: list[tuple[Thing | None, tuple[Thing, ...]]] = []
    cache.subscribe(lambda old, new: seen.append((cache.get("n", "a"), cache.by_index("group", "x"))))
    thing = Thing("a", groups=("x",))
    cache.put(thing)
    cache.remove(("n", "a"))
    assert seen == [(thing, (thing,)), (None, ())]


def test_a_list_tells_exactly_the_differences_deletions_first() -> None:
    cache, changes = a_cache()
    kept, changed, gone, reborn = Thing("kept"), Thing("changed"), Thing("gone"), Thing("reborn", uid="u1")
    cache.replace([kept, changed, gone, reborn])
    changes.clear()
    later, again, new = Thing("changed", resource_version="2"), Thing("reborn", uid="u2"), Thing("new")
    cache.replace([kept, later, again, new])
    assert changes == [(gone, None), (changed, later), (reborn, None), (None, again), (None, new)]
    assert set(cache.values()) == {kept, later, again, new}


def test_a_new_list_of_what_is_held_needs_no_second_view() -> None:
    """It is what sets the process' peak: 150,000 pods may be listed anew at any time."""
    cache, changes = a_cache()
    things = [Thing(f"thing-{number}") for number in range(10_000)]
    cache.replace(things)
    changes.clear()
    gc.collect()
    tracemalloc.start()
    try:
        cache.replace(things[:-1])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert changes == [(things[-1], None)]
    assert peak < 64 * len(things)  # a key of each alone would have 56 bytes


def test_what_was_read_does_not_change_while_one_looks_at_it() -> None:
    cache, _ = a_cache()
    cache.put(Thing("a", groups=("x",)))
    values, indexed = cache.values(), cache.by_index("group", "x")
    cache.remove(("n", "a"))
    assert (len(values), len(indexed)) == (1, 1)


def test_a_subscriber_can_leave() -> None:
    cache, changes = a_cache()
    also: Told = []
    leave = cache.subscribe(lambda old, new: also.append((old, new)))
    cache.put(Thing("a"))
    leave()
    cache.put(Thing("b"))
    assert (len(changes), len(also)) == (2, 1)


def test_a_late_subscriber_can_be_told_what_is_there_already() -> None:
    cache, _ = a_cache()
    cache.put(Thing("a"))
    late: Told = []
    cache.subscribe(lambda old, new: late.append((old, new)), replay=True)
    assert late == [(None, Thing("a"))]
    cache.put(Thing("b"))
    assert late == [(None, Thing("a")), (None, Thing("b"))]


def test_a_visitor_is_told_nothing_after_the_visit() -> None:
    cache, changes = a_cache()
    visitor: Told = []
    with cache.scoped_subscriptions():
        cache.subscribe(lambda old, new: visitor.append((old, new)))
        cache.put(Thing("a"))
    cache.put(Thing("b"))
    assert (len(changes), len(visitor)) == (2, 1)


async def test_a_cache_is_live_after_the_first_list_and_not_before() -> None:
    cache, _ = a_cache()
    cache.put(Thing("a"))
    assert not cache.statistics().live
    with anyio.move_on_after(10) as scope:
        await cache.wait_live()
    assert scope.cancelled_caught
    cache.replace([])
    assert cache.live
    await cache.wait_live()
    assert len(cache) == 0


THINGS = st.builds(
    Thing, st.sampled_from("abc"), st.sampled_from(["u1", "u2"]), st.sampled_from("123"),
    st.sets(st.sampled_from("xyz")).map(lambda groups: tuple(sorted(groups))),
)  # fmt: skip


@given(st.lists(st.one_of(THINGS, st.lists(THINGS, max_size=4), st.sampled_from("abc"))))
def test_indexes_and_news_agree_with_the_objects_after_anything(changes: list[Thing | list[Thing] | str]) -> None:
    cache, _ = a_cache()
    mirror: dict[tuple[str, str], Thing] = {}

    def follow(old: Thing | None, new: Thing | None) -> None:
        if old is not None:
            assert mirror.pop(old.key) is old
        if new is not None:
            assert new.key not in mirror
            assert old is None or old.uid == new.uid
            mirror[new.key] = new

    cache.subscribe(follow)
    for change in changes:
        if isinstance(change, Thing):
            cache.put(change)
        elif isinstance(change, list):
            cache.replace(change)
        else:
            cache.remove(("n", change))
        assert sorted(mirror.values(), key=lambda thing: thing.name) == sorted(
            cache.values(), key=lambda thing: thing.name
        )
        for value in "xyz":
            expected = {thing for thing in cache.values() if value in thing.groups}
            assert set(cache.by_index("group", value)) == expected


def test_what_a_response_says_to_be_gone_is_told_once_and_does_not_come_back_with_a_late_watch() -> None:
    cache, changes = a_cache()
    old, late, new = Thing("a", groups=("g",)), Thing("a", resource_version="2"), Thing("a", "v", "4")
    cache.put(old)
    cache.learn_gone(("n", "a"), "another")
    cache.learn_gone(("n", "b"), "u")
    assert changes == [(None, old)]
    cache.learn_gone(("n", "a"), "u")
    cache.put(late)
    cache.learn_gone(("n", "a"), "u")
    assert changes == [(None, old), (old, None)]
    assert cache.by_index("group", "g") == ()
    cache.put(new)
    assert changes[2:] == [(None, new)]
    cache.learn_gone(("n", "a"), "v")
    cache.remove(("n", "a"))
    assert changes[3:] == [(new, None)]


def test_a_list_knows_better_than_a_response() -> None:
    cache, changes = a_cache()
    thing = Thing("a")
    cache.put(thing)
    cache.learn_gone(("n", "a"), "u")
    cache.replace([thing])
    assert changes == [(None, thing), (thing, None), (None, thing)]
