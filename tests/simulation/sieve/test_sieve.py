"""Every story of the catalogue, disturbed at one point after the other: it ends as if nothing had happened.

`make sieve` runs all points; other runs a fixed sample of them, some of each story and pattern.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from simulation.sieve import stories_campaigns, stories_ends, stories_proceeds, stories_replaces, stories_starts
from simulation.sieve.branches import Forks, run_branching
from simulation.sieve.ending import differences
from simulation.sieve.patterns import KINDS, OF_EVENTS, Kind, Pattern, Point
from simulation.sieve.story import CATALOGUE, Run

from gracectl.controllers.termination.wakeups import NodeWakeups
from gracectl.kube.cache import Cache
from gracectl.model.node import Node

ALL = os.environ.get("GRACECTL_SIEVE") == "all"
assert {
    stories_campaigns,
    stories_starts,
    stories_proceeds,
    stories_replaces,
    stories_ends,
}  # whose import has filled the catalogue

pytestmark = [pytest.mark.sieve, pytest.mark.thorough]


def is_in_sample(name: str, point: Point) -> bool:
    """Whether a point is run in any case: always the same ones, of each story and pattern one of the first five."""
    if ALL:
        return True
    is_of_kind = any(point.kind == kinds[zlib.crc32(name.encode()) % len(kinds)] for kinds in KINDS.values())
    return is_of_kind and point.number % 40 == zlib.crc32(f"{name}/{point.kind}".encode()) % 5 + 1


def words(outcome: Run, point: Point) -> str:
    """What stands at a point of the undisturbed run."""
    return (outcome.events if point.kind in OF_EVENTS else outcome.writes)[point.number - 1]


def failures_of(expected: Run, results: Mapping[Point, Run | str]) -> list[str]:
    """What is otherwise than in the undisturbed run, by point."""
    failures = []
    for point, outcome in results.items():
        differing = [outcome] if isinstance(outcome, str) else differences(expected.ending, outcome.ending)
        if differing:
            failures.append(f"{point} ({words(expected, point)}):\n  " + "\n  ".join(differing))
    return failures


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_disturbed_story_ends_as_the_undisturbed_one(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    forks = Forks(partial(is_in_sample, name))
    expected = run_branching(CATALOGUE[name], forks)
    assert expected.ending.broken == []
    for pattern, kinds in KINDS.items():
        there = len(expected.events if pattern is Pattern.WATCH else expected.writes)
        ran = sum(point.kind in kinds for point in forks.results)
        record_property("sieve", [pattern.value, ran, len(kinds) * there])
        assert ran == len(kinds) * there if ALL else ran >= 1
    failures = failures_of(expected, forks.results)
    assert not failures, f"{len(failures)} of {len(forks.results)}\n" + "\n".join(failures)


@pytest.mark.parametrize("name", list(CATALOGUE)[:: 1 if ALL else 8])
def test_the_same_story_is_the_same_run_twice(name: str) -> None:
    """Also when it forks: points are counted, and what is disturbed is what was counted."""
    expected = run_branching(CATALOGUE[name], Forks())
    outcome = run_branching(CATALOGUE[name], Forks(lambda point: point == Point(Kind.DELAYED, 2)))
    assert differences(expected.ending, outcome.ending) == []
    assert (outcome.writes, outcome.events) == (expected.writes, expected.events)


def test_the_catalogue_has_all_stories() -> None:
    assert len(CATALOGUE) >= 25
    assert {kind for kinds in KINDS.values() for kind in kinds} == set(Kind)


node_changed = NodeWakeups._node_changed


def as_by_edges(self: NodeWakeups, old: Node | None, new: Node | None) -> None:
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
        (Pattern.CRASH, NodeWakeups, "_node_changed", as_by_edges),
        (Pattern.WATCH, Cache, "replace", as_if_nothing_went),
        (Pattern.RESTART, NodeWakeups, "_node_changed", as_by_edges),
    ],
)
def test_a_planted_bug_is_found(pattern: Pattern, of: type, method: str, planted: Callable[..., None]) -> None:
    forks = Forks(lambda point: point.kind in KINDS[pattern] and point.number % 4 == 1)
    with patch.object(of, method, planted):
        expected = run_branching(CATALOGUE["a webhook is slow with evictions"], forks)
    assert failures_of(expected, forks.results)
