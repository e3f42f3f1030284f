"""Index of the budgets of a namespace by the labels that their selectors require or exclude.

A namespace may have thousands of budgets, of which one or two select a pod; tenants write all of them. A budget is a
bit in the number of one label that it requires, the least crowded one, and in those of the labels that it excludes, so
that few are left to be tried. Invariant: a search finds what a match of every budget, in the order of their names,
would find.
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
"""What is put into the index in one go takes a millisecond or two: of a requirement with more values only the key is,
or nothing."""

BATCH: Final = 500
"""Effort that is announced in one piece."""

_FEW: Final = 64
"""So many candidates are sorted by name; of more, two that match are soon found among all budgets in order."""

_KEY: Final = 8
_COMMON_KEY: Final = 1000
"""To stand under a key alone is as bad as so many others under a value; worse if others require values of it, as it is
one that pods have then."""

_Values = frozenset[str] | None


class _Table:
    """Budgets, as bits, by key and value of a label, and by the key alone."""

    def __init__(self) -> None:
        self.by_value: dict[str, dict[str, int]] = {}
        self.by_key: dict[str, int] = {}

    def add(self, key: str, values: _Values, bit: int) -> None:
        """Under each of `values`, or under the key (None)."""
        for entries, entry in self._entries(key, values):
            # The budget's own number where there is no other: nothing is kept for thousands of values but the entries.
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
        """All that stand under any of these labels."""
        found, by_value, by_key = 0, self.by_value, self.by_key
        for key, value in pairs:
            if (entries := by_value.get(key)) is not None and (bits := entries.get(value)) is not None:
                found |= bits
            if (bits := by_key.get(key)) is not None:
                found |= bits
        return found

    def crowd(self, key: str, values: _Values) -> tuple[int, int]:
        """How many budgets stand there, and more where more pods may be met; of equals the narrower comes first."""
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
    """A budget with its bit, and where that stands."""

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
        self._unconditional = 0  # bits of those that require no label
        self._required, self._excluded = _Table(), _Table()

    def put(self, name: str, selector: LabelSelector | None) -> None:
        """The budget has this selector now; None selects nothing."""
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

        Yields the effort of what comes next before it. What is put meanwhile may be found or not.
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
