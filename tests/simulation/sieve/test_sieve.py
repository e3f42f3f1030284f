"""Every story of the catalogue, disturbed at one point after the other: it ends as if nothing had happened.

`make sieve` runs all points; other runs a fixed sample of them, one of each story and pattern.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any
from unittest.mock import patch

import anyio
import looptime
import pytest
from simulation.sieve import stories_ends, stories_proceeds, stories_starts
from simulation.sieve.ending import differences
from simulation.sieve.patterns import KINDS, OF_EVENTS, Kind, Pattern, Point
from simulation.sieve.story import CATALOGUE, Run, run

from gracectl.controllers.node.controller import NodeController
from gracectl.kube.cache import Cache
from gracectl.model.node import Node

ALL = os.environ.get("GRACECTL_SIEVE") == "all"
assert {stories_starts, stories_proceeds, stories_ends}  # whose import has filled the catalogue

pytestmark = pytest.mark.sieve


def alone(name: str, point: Point | None = None) -> Run:
    """A run on a loop of its own, whose time begins at 0."""
    loop = {"loop_factory": partial(looptime.new_event_loop, noop_cycles=1)}
    return anyio.run(run, CATALOGUE[name], point, backend="asyncio", backend_options=loop)


@lru_cache(maxsize=2)
def undisturbed(name: str) -> Run:
    return alone(name)


def points_of(found: Run, pattern: Pattern) -> list[Point]:
    kinds = KINDS[pattern]
    count = len(found.events if pattern is Pattern.WATCH else found.writes)
    return [Point(kind, number) for number in range(1, count + 1) for kind in kinds]


def sample(name: str, points: list[Point]) -> list[Point]:
    """All of them, or always the same one."""
    return points if ALL else [points[zlib.crc32(f"{name}/{len(points)}".encode()) % len(points)]]


def differing(name: str, point: Point) -> list[str]:
    """What is otherwise than in the undisturbed run when the story is disturbed here."""
    try:
        return differences(undisturbed(name).ending, alone(name, point).ending)
    except Exception as error:  # it was not over in time, say
        return [repr(error)]


def words(found: Run, point: Point) -> str:
    """What stands at a point of the undisturbed run."""
    return (found.events if point.kind in OF_EVENTS else found.writes)[point.number - 1]


@pytest.mark.parametrize("pattern", Pattern)
@pytest.mark.parametrize("name", CATALOGUE)
def test_a_disturbed_story_ends_as_the_undisturbed_one(
    name: str, pattern: Pattern, record_property: Callable[[str, object], None]
) -> None:
    expected = undisturbed(name)
    points = points_of(expected, pattern)
    failures = []
    for number, point in enumerate(chosen := sample(name, points), start=1):
        if found := differing(name, point):
            failures.append(f"{point} ({words(expected, point)}):\n  " + "\n  ".join(found))
        record_property("sieve", [pattern.value, number, len(points)])
    assert not failures, f"{len(failures)} of {len(chosen)}\n" + "\n".join(failures)


@pytest.mark.parametrize("name", list(CATALOGUE)[:: 1 if ALL else 8])
def test_the_same_story_is_the_same_run_twice(name: str) -> None:
    expected, found = undisturbed(name), alone(name)
    assert differences(expected.ending, found.ending) == []
    assert (found.writes, found.events) == (expected.writes, expected.events)


def test_the_catalogue_has_all_stories() -> None:
    assert len(CATALOGUE) >= 25
    assert {kind for kinds in KINDS.values() for kind in kinds} == set(Kind)


# -- bugs of the kind that it is to find -------------------------------------------------------------------------------

node_changed = NodeController._node_changed


def as_by_edges(self: NodeController, old: Node | None, new: Node | None) -> None:
    """A node that was deleted before the controller started is none of its business."""
    if old is not None or new is None or new.deletion_timestamp is None:
        node_changed(self, old, new)


def as_if_nothing_went(self: Cache[Any], objects: Iterable[Any], undecodable: object = ()) -> None:
    """What a new list lacks stays in the cache."""
    for each in objects:
        self.put(each)
    self.complete()


@pytest.mark.parametrize(
    ("pattern", "of", "method", "planted"),
    [
        (Pattern.CRASH, NodeController, "_node_changed", as_by_edges),
        (Pattern.WATCH, Cache, "replace", as_if_nothing_went),
        (Pattern.RESTART, NodeController, "_node_changed", as_by_edges),
    ],
)
def test_a_planted_bug_is_found(pattern: Pattern, of: type, method: str, planted: Callable[..., None]) -> None:
    name = "a webhook is slow with evictions"
    expected = undisturbed(name)
    with patch.object(of, method, planted):
        assert any(differing(name, point) for point in points_of(expected, pattern))
