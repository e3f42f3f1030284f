"""Matches of budget selectors and pod labels, memoised for each label map until a selector of its namespace changes.

Tenants write both, in any number and size, and the pods of a draining node are looked at often: a search is sliced, and
the memo is bounded. Invariant: a memoised answer is what the selectors would say of the labels now.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterable, Mapping
from typing import Final

from gracectl.kube.cache import Cache
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.labels import PackedLabels
from gracectl.model.pod import Pod
from gracectl.policy.budgets import matching_budgets
from gracectl.runtime.slices import Sliced

SLICE: Final = 20_000
"""Labels or requirements per slice: one or two milliseconds."""

MEMO_BYTES: Final = 32 * 1024 * 1024
"""Bytes of label maps that the memo may keep alive; beyond that it is cleared."""

PATIENCE: Final = 10_000
"""Slices for which a search waits for another one that has unpacked labels."""

BY_NAMESPACE: Final = "namespace"
"""Index of the budget cache."""

Names = tuple[str, ...]
Search = Generator[int, None, tuple[PodDisruptionBudget, ...]]
BudgetsByPod = Mapping[str, tuple[PodDisruptionBudget, ...]]


class BudgetMatcher:
    """Matcher that follows the budget cache while that lives."""

    def __init__(self, budgets: Cache[PodDisruptionBudget]) -> None:
        self._budgets = budgets
        self._namespaces: dict[str, _Namespace] = {}
        self._bytes = 0
        self._is_unpacked = False
        budgets.subscribe(self._changed)

    @property
    def remembered_bytes(self) -> int:
        """Bytes of label maps that the memo keeps alive, roughly."""
        return self._bytes

    def by_pod(self, pods: Iterable[Pod]) -> Sliced[BudgetsByPod]:
        """Budgets that select each pod, by pod UID, in their current state: one, or the first two; pods without one are
        missing."""
        spent = 0
        found: dict[str, tuple[str, Names]] = {}
        for pod in pods:
            namespace = self._namespace(pod.namespace)
            names = namespace.recall(pod.labels)
            if names is None:
                search = self._search(pod.labels, namespace.budgets)
                while names is None:
                    try:
                        spent += next(search)
                    except StopIteration as end:
                        names = tuple(budget.name for budget in end.value)
                    if spent >= SLICE:
                        spent = 0
                        yield
                self._remember(pod, namespace, names)
            if names:
                found[pod.uid] = (pod.namespace, names)
        return {uid: matching for uid, place in found.items() if (matching := self._current(*place))}

    def _search(self, labels: Mapping[str, str], budgets: Iterable[PodDisruptionBudget]) -> Search:
        if not isinstance(labels, PackedLabels):
            return (yield from matching_budgets(labels, budgets))
        # Unpacked they are quick to look up, and have 20 MB: one map at a time.
        for _ in range(PATIENCE):
            if not self._is_unpacked:
                break
            yield SLICE
        self._is_unpacked = True
        try:
            yield len(labels)
            return (yield from matching_budgets(labels.unpacked(), budgets))
        finally:
            self._is_unpacked = False

    def _current(self, namespace: str, names: Names) -> tuple[PodDisruptionBudget, ...]:
        return tuple([budget for name in names if (budget := self._budgets.get(namespace, name)) is not None])

    def _namespace(self, name: str) -> _Namespace:
        known = self._namespaces.get(name)
        if known is None:
            budgets = self._budgets.by_index(BY_NAMESPACE, name)
            known = self._namespaces[name] = _Namespace(tuple(sorted(budgets, key=lambda budget: budget.name)))
        return known

    def _remember(self, pod: Pod, namespace: _Namespace, names: Names) -> None:
        if self._namespaces.get(pod.namespace) is not namespace:
            return  # a selector has changed since the search began
        if self._bytes > MEMO_BYTES:
            self._namespaces.clear()
            self._bytes = 0
            return
        self._bytes += namespace.remember(pod.labels, names)

    def _changed(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        budget = new or old
        assert budget is not None
        if old is None or new is None or old.selector != new.selector:
            dropped = self._namespaces.pop(budget.namespace, None)
            self._bytes -= 0 if dropped is None else dropped.bytes


class _Namespace:
    """Budgets of a namespace, ordered by name, with their selectors; and the memo: names of budgets by identity of the
    label map."""

    def __init__(self, budgets: tuple[PodDisruptionBudget, ...]) -> None:
        self.budgets = budgets
        self.bytes = 0
        self._memo: dict[int, tuple[Mapping[str, str] | weakref.ref[PackedLabels], Names]] = {}

    def recall(self, labels: Mapping[str, str]) -> Names | None:
        if not self.budgets:
            return ()
        known = self._memo.get(id(labels))
        if known is None:
            return None
        tracked, names = known
        return names if (tracked() if isinstance(tracked, weakref.ref) else tracked) is labels else None

    def remember(self, labels: Mapping[str, str], names: Names) -> int:
        """Remember an answer; returns the bytes that it keeps alive, roughly."""
        if isinstance(labels, PackedLabels):
            self._memo[id(labels)] = (weakref.ref(labels), names)
            size = 400
        else:
            self._memo[id(labels)] = (labels, names)
            size = 400 + 150 * len(labels)
        self.bytes += size
        return size
