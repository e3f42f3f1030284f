"""Index of the budgets of a namespace by the labels that their selectors require or exclude.

A namespace may have thousands of budgets, of which one or two select a pod; tenants write them. Each budget is a bit in
the bit set of one label that it requires (the one with the fewest budgets), and in the bit sets of labels that it
excludes, so that few candidates are left to match. Invariant: a search finds the same budgets, in the same order, as
matching every budget by name.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from gracectl.model.selectors import LabelSelector
from gracectl.policy.budgets import TOO_MANY_BUDGETS

Names = tuple[str, ...]

MOST_VALUES: Final = 5_000
"""Maximum values of a requirement that are indexed (a millisecond or two); with more, only the key is."""

BATCH: Final = 500
"""Effort between two yields of a search."""

_FEW: Final = 64
"""Up to this number, candidates are sorted by name; among more, two matches are found soon in name order."""

_KEY: Final = 8
_COMMON_KEY: Final = 1000
"""Cost of indexing by key only, as a number of budgets under a value; higher for keys with indexed values, which pods
have."""

_Values = frozenset[str] | None


class _Table:
    """Budgets, as bits, by key and value of a label, and by the key alone."""

    def __init__(self) -> None:
        self.by_value: dict[str, dict[str, int]] = {}
        self.by_key: dict[str, int] = {}

    def add(self, key: str, values: _Values, bit: int) -> None:
        """Index under each of `values`, or under the key (None)."""
        for entries, entry in self._entries(key, values):
            # Shares the budget's own int where there is no other budget: thousands of values need no new objects.
            entries[entry] = entries[entry] | bit if entry in entries else bit

    def remove(self, key: str, values: _Values, bit: int) -> None:
        """Undo `add`."""
        for entries, entry in self._entries(key, values):
            entries[entry] ^= bit
            if not entries[entry]:
                del entries[entry]
        if values and not self.by_value[key]:
            del self.by_value[key]

    def of(self, pairs: Iterable[tuple[str, str]]) -> int:
        """Budgets indexed under any of these labels, as bits."""
        found, by_value, by_key = 0, self.by_value, self.by_key
        for key, value in pairs:
            if (entries := by_value.get(key)) is not None and (bits := entries.get(value)) is not None:
                found |= bits
            if (bits := by_key.get(key)) is not None:
                found |= bits
        return found

    def crowd(self, key: str, values: _Values) -> tuple[int, int]:
        """Sort key of an index entry: number of budgets there, or the cost of a key only; then the number of values."""
        if values is None:
            return self.by_key.get(key, 0).bit_count() + (_COMMON_KEY if key in self.by_value else _KEY), 0
        entries = self.by_value.get(key, {})
        return max((entries.get(value, 0).bit_count() for value in values), default=-1), len(values)

    def _entries(self, key: str, values: _Values) -> Iterator[tuple[dict[str, int], str]]:
        if values is None:
            yield self.by_key, key
        elif values:
            entries = self.by_value.setdefault(key, {})
            for value in values:
                yield entries, value


class _Budget(msgspec.Struct, frozen=True):
    """A budget with its bit, and the index entries with that bit."""

    selector: LabelSelector
    bit: int
    required: tuple[str, _Values] | None
    excluded: Mapping[str, _Values]
    size: int
    """Number of labels and requirements."""


class BudgetIndex:
    """Budgets of one namespace, by name."""

    def __init__(self) -> None:
        self._budgets: dict[str, _Budget] = {}
        self._names: dict[int, str] = {}  # by bit
        self._in_order: list[str] = []
        self._used = 0  # bits
        self._unconditional = 0  # bits of budgets that require no label
        self._required, self._excluded = _Table(), _Table()

    def put(self, name: str, selector: LabelSelector | None) -> None:
        """Set the selector of a budget; None selects nothing."""
        if (before := self._budgets.pop(name, None)) is not None:
            self._remove(name, before)
        if selector is not None:
            bit = ~self._used & (self._used + 1)  # the lowest that is free
            size = len(selector.match_labels) + len(selector.match_expressions)
            excluded = _indexed_exclusions(selector)
            self._budgets[name] = budget = _Budget(selector, bit, self._best_place(selector), excluded, size)
            self._names[bit] = name
            insort(self._in_order, name)
            self._used |= bit
            if budget.required is None:
                self._unconditional |= bit
            else:
                self._required.add(*budget.required, bit)
            for key, values in excluded.items():
                self._excluded.add(key, values, bit)

    def search(self, labels: Mapping[str, str]) -> Generator[int, None, Names]:
        """The budgets that select a pod with these labels: the first two by name, as a third changes nothing.

        Yields the effort of each step before it. Budgets that are put meanwhile may or may not be found.
        """
        required, excluded = self._required, self._excluded
        tables = (required.by_value, required.by_key, excluded.by_value, excluded.by_key)
        keys = len(tables[0]) + len(tables[1]) + len(tables[2]) + len(tables[3])
        effort = 1 + min(len(labels), keys)
        if effort > BATCH:
            yield effort
            effort = 0
        pairs: Iterable[tuple[str, str]] = labels.items()
        if len(labels) > keys:
            pairs = [(key, labels[key]) for key in set[str]().union(*tables) if key in labels]
        found: list[str] = []
        for name in self._in_names((self._unconditional | required.of(pairs)) & ~excluded.of(pairs)):
            if (budget := self._budgets.get(name)) is None:
                continue  # gone meanwhile
            effort += 1 + min(budget.size, len(labels))
            if effort > BATCH:
                yield effort
                effort = 0
            if budget.selector.matches(labels):
                found.append(name)
                if len(found) == TOO_MANY_BUDGETS:
                    break
        yield effort
        return tuple(found)

    def _in_names(self, bits: int) -> Iterable[str]:
        if bits.bit_count() > _FEW:
            budgets = self._budgets
            return (name for name in tuple(self._in_order) if name in budgets and budgets[name].bit & bits)
        names = []
        while bits:
            bit = bits & -bits
            bits ^= bit
            names.append(self._names[bit])
        return sorted(names)

    def _best_place(self, selector: LabelSelector) -> tuple[str, _Values] | None:
        """The least crowded label that is required; None: there is none."""
        places = (
            (key, None if values and len(values) > MOST_VALUES else values) for key, values in selector.required.items()
        )
        return min(places, key=lambda place: self._required.crowd(*place), default=None)

    def _remove(self, name: str, budget: _Budget) -> None:
        bit = budget.bit
        self._used ^= bit
        self._unconditional &= ~bit
        del self._names[bit], self._in_order[bisect_left(self._in_order, name)]
        if budget.required is not None:
            self._required.remove(*budget.required, bit)
        for key, values in budget.excluded.items():
            self._excluded.remove(key, values, bit)


def _indexed_exclusions(selector: LabelSelector) -> Mapping[str, _Values]:
    return selector.excluded if selector.size <= MOST_VALUES else {}
