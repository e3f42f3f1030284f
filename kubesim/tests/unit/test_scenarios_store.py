"""Loading many objects at once leaves the store as a restarted server's: everything there, no history before it."""

from __future__ import annotations

import pytest
from kubesim.server.api import JsonObject
from kubesim.server.store import Store, TooOldError


def thing(name: str, namespace: str = "ns") -> JsonObject:
    return {"metadata": {"name": name, "namespace": namespace}}


def test_the_past_is_forgotten_and_the_future_is_not() -> None:
    store = Store()
    table = store.table("things")
    store.put(table, thing("z"), None)
    position = table.position
    store.load(table, [thing("a")])
    loaded = store.revision
    with pytest.raises(TooOldError):
        table.changes(position)
    with pytest.raises(TooOldError):
        table.position_after(loaded - 1)
    with pytest.raises(TooOldError):
        store.snapshot(table, loaded - 1)
    later = table.position_after(loaded)
    assert later == table.position
    old = table.get("ns", "a")
    assert old is not None
    store.put(table, {**old, "more": 1}, old)
    assert [change.revision for change in table.changes(later)] == [loaded + 1]
    assert store.snapshot(table, loaded).objects == [old, table.get("ns", "z")]


@pytest.mark.parametrize("names", [["a", "a"], ["b", "taken"]])
def test_a_name_that_is_taken_is_refused_and_nothing_is_put_in(names: list[str]) -> None:
    store = Store()
    table = store.table("things")
    store.put(table, thing("taken"), None)
    revision = store.revision
    with pytest.raises(ValueError, match="exists already"):
        store.load(table, map(thing, names))
    assert (len(table), store.revision) == (1, revision)
