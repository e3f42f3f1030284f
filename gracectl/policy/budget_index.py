"""Index of the budgets of a namespace by labels that their selectors require.

A namespace may have thousands of budgets, of which one or two select a pod. Each stands under one label that it
requires, the least crowded one; those that only exclude labels stand together. Invariant: a search finds what a match
of every budget, in the order of their names, would find.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Generator, Iterator, Mapping

import msgspec

from gracectl.model.selectors import LabelSelector
from gracectl.policy.budgets import TOO_MANY_BUDGETS

Names = tuple[str, ...]
_Table = dict[str, Names]

_NO_KEY = ""
"""Stands for the key of budgets that require no label; no label has it."""


class _Place(msgspec.Struct, frozen=True):
    """Where a budget stands: under each of `values` of `key`, or under the key itself (None)."""

    selector: LabelSelector
    key: str
    values: frozenset[str] | None


class BudgetIndex:
    """Budgets of one namespace, by name."""

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}
        self._by_value: dict[str, _Table] = {}
        self._by_key: _Table = {}

    def put(self, name: str, selector: LabelSelector | None) -> None:
        """The budget has this selector now; None selects nothing."""
        if (before := self._places.pop(name, None)) is not None:
            self._remove(name, before)
        if selector is not None:
            required = selector.required
            key = min(required, key=lambda key: self._crowd(key, required[key]), default=_NO_KEY)
            self._places[name] = place = _Place(selector, key, required.get(key))
            for table, entry in self._entries(place):
                names = table.get(entry, ())
                position = bisect_left(names, name)
                table[entry] = (*names[:position], name, *names[position:])

    def search(self, labels: Mapping[str, str]) -> Generator[int, None, Names]:
        """The budgets that select a pod with these labels: the first two by name, as a third changes nothing.

        Yields the effort of what comes next before it. What is put meanwhile may be found or not.
        """
        yield 1 + min(len(labels), len(self._by_value) + len(self._by_key))
        found: list[str] = []
        candidates = list(self._candidates(labels))
        for name in candidates[0] if len(candidates) == 1 else heapq.merge(*candidates):
            if (place := self._places.get(name)) is None:
                continue
            yield place.selector.effort(labels)
            if place.selector.matches(labels):
                found.append(name)
                if len(found) == TOO_MANY_BUDGETS:
                    break
        return tuple(found)

    def _candidates(self, labels: Mapping[str, str]) -> Iterator[Names]:
        """All that may select a pod with these labels, each once, in lists by name."""
        by_value, by_key = self._by_value, self._by_key
        if others := by_key.get(_NO_KEY):
            yield others
        if len(labels) <= len(by_value) + len(by_key):
            pairs = iter(labels.items())
        else:
            pairs = ((key, labels[key]) for key in {*by_value, *by_key} if key in labels)
        for key, value in pairs:
            if (table := by_value.get(key)) is not None and (names := table.get(value)) is not None:
                yield names
            if (names := by_key.get(key)) is not None:
                yield names

    def _crowd(self, key: str, values: frozenset[str] | None) -> tuple[int, bool, int]:
        """How many budgets stand there already; of equal places the narrower one comes first."""
        if values is None:
            return len(self._by_key.get(key, ())), True, 0
        table = self._by_value.get(key, {})
        return max((len(table.get(value, ())) for value in values), default=-1), False, len(values)

    def _entries(self, place: _Place) -> Iterator[tuple[_Table, str]]:
        if place.values is None:
            yield self._by_key, place.key
        elif place.values:
            table = self._by_value.setdefault(place.key, {})
            for value in place.values:
                yield table, value

    def _remove(self, name: str, place: _Place) -> None:
        for table, entry in self._entries(place):
            left = tuple([each for each in table[entry] if each != name])
            if left:
                table[entry] = left
            else:
                del table[entry]
        if place.values is not None and not self._by_value.get(place.key):
            self._by_value.pop(place.key, None)
