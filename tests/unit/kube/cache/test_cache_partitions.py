"""Several writers fill one cache, each a part of it; what it shows in the end is what there is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gracectl.kube.cache import Cache, CachePartition

PLACES = "xyz"


class Thing(msgspec.Struct, frozen=True):
    """An object that stays in its place; one that comes up elsewhere under its name is another one."""

    name: str
    place: str
    uid: str = "u"
    resource_version: str = "1"

    @property
    def key(self) -> tuple[str, str]:
        return ("n", self.name)


Told = list[tuple[Thing | None, Thing | None]]


def place_of(thing: Thing) -> tuple[str, ...]:
    return (thing.place,)


def a_cache() -> tuple[Cache[Thing], Told]:
    """An empty cache and what it tells."""
    cache: Cache[Thing] = Cache("things", {"place": place_of})
    news: Told = []
    cache.subscribe(lambda old, new: news.append((old, new)))
    return cache, news


def test_a_list_of_a_part_takes_nothing_from_the_others() -> None:
    cache, changes = a_cache()
    here, there = cache.partition("place", "x"), cache.partition("place", "y")
    kept, gone, other = Thing("kept", "x"), Thing("gone", "x"), Thing("other", "y")
    here.replace([kept, gone])
    there.replace([other])
    changes.clear()
    new = Thing("new", "x", resource_version="7")
    here.replace([new, kept])
    assert changes == [(gone, None), (None, new)]
    assert (len(here), len(there), len(cache)) == (2, 1, 3)
    assert cache.statistics().replaced == 3


def test_a_namesake_elsewhere_survives_the_late_news_of_its_predecessor() -> None:
    cache, changes = a_cache()
    here, there = cache.partition("place", "x"), cache.partition("place", "y")
    old, new = Thing("web-0", "x", "u1", "9"), Thing("web-0", "y", "u2", "12")
    here.put(old)
    there.put(new)
    here.put(msgspec.structs.replace(old, resource_version="11"))
    here.remove(old.key)
    here.replace([])
    here.drop()
    assert changes == [(None, old), (old, None), (None, new)]
    assert cache.get("n", "web-0") is new


def test_a_cache_of_parts_is_live_when_their_owner_says_so() -> None:
    cache, _ = a_cache()
    cache.partition("place", "x").replace([Thing("a", "x")])
    assert not cache.live
    cache.complete()
    assert cache.live


def test_a_part_is_of_an_index_that_there_is() -> None:
    cache, _ = a_cache()
    with pytest.raises(KeyError):
        cache.partition("colour", "red")


class History:
    """A server's objects, and for each place what a watch of it would tell: `news[place]` is a thing, or a key that is
    gone; with the number of changes that there had been by then."""

    def __init__(self, changes: list[tuple[str, str]]) -> None:
        self.states: list[dict[str, Thing]] = [{}]
        self.dedup_key: dict[str, list[tuple[int, Thing | tuple[str, str]]]] = {place: [] for place in PLACES}
        for number, (name, place) in enumerate(changes, start=1):
            self._change(number, name, place)

    def _change(self, number: int, name: str, place: str) -> None:
        state = dict(self.states[-1])
        before = state.pop(name, None)
        if before is not None and before.place == place:
            state[name] = msgspec.structs.replace(before, resource_version=str(number))
            self.dedup_key[place].append((number, state[name]))
        elif before is not None:  # nothing moves: it has to go before its namesake comes
            self.dedup_key[before.place].append((number, before.key))
        elif place:
            state[name] = Thing(name, place, f"u{number}", str(number))
            self.dedup_key[place].append((number, state[name]))
        self.states.append(state)

    def listed(self, place: str, number: int) -> list[Thing]:
        """What a list of this place shows after so many changes."""
        return [thing for thing in self.states[number].values() if thing.place == place]


class Writer:
    """A reflector of one place that lags behind as it likes."""

    def __init__(self, history: History, place: str, part: CachePartition[Thing]) -> None:
        self._history = history
        self._place = place
        self._part = part
        self._left = list(history.dedup_key[place])
        self._seen = 0

    def tell(self) -> None:
        """The next line of the watch, if there is one."""
        if self._left:
            self._seen, dedup_key = self._left.pop(0)
            if isinstance(dedup_key, Thing):
                self._part.put(dedup_key)
            else:
                self._part.remove(dedup_key)

    def list_anew(self, ahead: int) -> None:
        """A list of a state that lies so many changes after what was seen."""
        self._seen = min(self._seen + ahead, len(self._history.states) - 1)
        self._part.replace(self._history.listed(self._place, self._seen))
        self._left = [each for each in self._left if each[0] > self._seen]

    def catch_up(self) -> None:
        while self._left:
            self.tell()


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", *PLACES])), max_size=30),
    st.lists(st.tuples(st.sampled_from(PLACES), st.one_of(st.none(), st.integers(0, 9))), max_size=60),
    st.permutations(PLACES),
)
def test_parts_that_are_told_in_any_order_end_as_one_that_is_told_in_order(
    changes: list[tuple[str, str]], steps: list[tuple[str, int | None]], order: list[str]
) -> None:
    history = History(changes)
    cache, _ = a_cache()
    mirror: dict[tuple[str, str], Thing] = {}

    def follow(old: Thing | None, new: Thing | None) -> None:
        if old is not None:
            assert mirror.pop(old.key) is old
        if new is not None:
            assert old is None or (old.uid, old.place) == (new.uid, new.place)
            mirror[new.key] = new

    cache.subscribe(follow)
    writers = {place: Writer(history, place, cache.partition("place", place)) for place in PLACES}

    def check() -> None:
        assert {thing.key: thing for thing in cache.values()} == mirror
        for place in PLACES:
            assert set(cache.by_index("place", place)) == {each for each in mirror.values() if each.place == place}

    for place, ahead in steps:
        if ahead is None:
            writers[place].tell()
        else:
            writers[place].list_anew(ahead)
        check()
    for place in order:
        writers[place].catch_up()
        check()
    assert {thing.name: thing for thing in cache.values()} == history.states[-1]
    cache.partition("place", order[0]).drop()
    check()
    assert {thing.place for thing in cache.values()} <= set(order[1:])
