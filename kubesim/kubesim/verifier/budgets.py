"""One PodDisruptionBudget, counted from its spec and from pods alone, never from its status.

How many pods there should be is fixed when the counting begins; from then on every event is judged.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kubesim.server.api import JsonObject
from kubesim.server.selectors import read_selector, selects
from kubesim.values import scaled_value
from kubesim.verifier.departures import PodState


class Violation(msgspec.Struct, frozen=True):
    """At `at` (epoch) an event about `pod` left `budget` with fewer `healthy` pods than `required`."""

    at: float
    budget: str
    pod: str
    healthy: int
    required: int


class BudgetRecord(msgspec.Struct, frozen=True):
    """Record of a budget. `bound`: `maxUnavailable: 1`; `expected`: pods; `lowest`: fewest healthy pods since it was
    first fulfilled (None: never)."""

    name: str
    bound: str
    expected: int
    required: int
    healthy: int
    lowest: int | None
    violations: int


class BudgetTracker:
    """Counts the healthy pods of one version of a budget's spec."""

    def __init__(self, budget: JsonObject) -> None:
        """Raises SelectorError for a selector that no API server would have taken."""
        metadata = budget["metadata"]
        self.uid: str = metadata["uid"]
        self.namespace: str = metadata["namespace"]
        self.name = f"{metadata['namespace']}/{metadata['name']}"
        self.spec: JsonObject = budget["spec"]
        self.required = 0
        self._expected = 0
        self._selector = read_selector(self.spec.get("selector"))
        self._selected: dict[str, str] = {}  # uid to workload
        self._healthy: set[str] = set()
        self._before = 0
        self._lowest: int | None = None
        self._violations = 0

    @property
    def bound(self) -> str:
        """`minAvailable: 80%`."""
        for field in ("minAvailable", "maxUnavailable"):
            if self.spec.get(field) is not None:
                return f"{field}: {self.spec[field]}"
        return "none"

    def see(self, uid: str, pod: PodState | None) -> bool:
        """The pod of that uid is so now, or gone (None). Returns whether it is, or was, one of the budget's."""
        was_selected = self._selected.pop(uid, None) is not None
        self._healthy.discard(uid)
        is_selected = pod is not None and selects(self._selector, pod.labels)
        if pod is not None and is_selected:
            self._selected[uid] = pod.workload
            if pod.is_healthy:
                self._healthy.add(uid)
        return was_selected or is_selected

    def begin(self, size_of: Callable[[str], int]) -> None:
        """Fix the requirement: `size_of` is the pod count of a workload (its controller's uid). Pods without a
        controller count towards health only."""
        workloads = {workload for workload in self._selected.values() if workload}
        self._expected = sum(map(size_of, workloads))
        self.required = self._demanded()
        self._lowest = None
        self._before = len(self._healthy)
        self._take_up()

    def judge(self, at: float, pod: str) -> Violation | None:
        """What the events since the last judgement have come to. A budget is held to nothing before it is fulfilled."""
        healthy, before = len(self._healthy), self._before
        self._before = healthy
        self._take_up()
        if self._lowest is None:
            return None
        self._lowest = min(self._lowest, healthy)
        if healthy >= min(self.required, before):
            return None
        self._violations += 1
        return Violation(at, self.name, pod, healthy, self.required)

    def record(self) -> BudgetRecord:
        """How it has fared so far."""
        return BudgetRecord(
            name=self.name,
            bound=self.bound,
            expected=self._expected,
            required=self.required,
            healthy=len(self._healthy),
            lowest=self._lowest,
            violations=self._violations,
        )

    def _take_up(self) -> None:
        healthy = len(self._healthy)
        if self._lowest is None and self._selected and healthy >= self.required:
            self._lowest = healthy

    def _demanded(self) -> int:
        """Percentages round up for both bounds (recording pdb-status)."""
        minimum, maximum = self.spec.get("minAvailable"), self.spec.get("maxUnavailable")
        if minimum is not None:
            return scaled_value(minimum, self._expected, round_up=True)
        if maximum is not None:
            return max(0, self._expected - scaled_value(maximum, self._expected, round_up=True))
        return 0
