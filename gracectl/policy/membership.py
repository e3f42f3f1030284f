"""Membership of pods in budgets over time: a pod that has just lost its budget is not evicted without it yet.

When an operator moves a role from one pod to another, the budget over that label selects nothing for a moment, and the
pods that it meant could all be evicted. So a pod that was under a budget and is under none, as its labels or the
selector have changed, waits until the change has settled. A new pod was under none before; a budget that is deleted was
taken away on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.model.selectors import LabelSelector, selects
from gracectl.model.times import format_time

FORMER_LABELS: Final = 8
"""Label maps of one pod that are remembered: who changes labels more often loses the pause, for this pod only."""

FORMER_SELECTORS: Final = 8
"""Likewise selectors of one namespace."""

LARGEST_SELECTOR: Final = 1_000
"""Requirements and values: a larger former selector is not remembered, as each pod would be tried against it."""


class LostBudget(msgspec.Struct, frozen=True):
    """A budget (`namespace/name`) that selected a pod until `at`; the pod waits until `until` (Unix seconds)."""

    budget: str
    at: float
    until: float

    @property
    def reason(self) -> str:
        """Reason in a plan."""
        return f"budget {self.budget} selected it until {format_time(self.at)}; eviction waits"


class FormerPod(msgspec.Struct, frozen=True):
    """A pod as it was until `at` (Unix seconds), with other labels."""

    pod: Pod
    at: float


class FormerSelector(msgspec.Struct, frozen=True):
    """A selector that a budget (`namespace/name`) had until `at` (Unix seconds)."""

    budget: str
    selector: LabelSelector
    at: float


class Memberships:
    """Labels and selectors that have changed in the last `seconds`. `now`: Unix seconds, the server's clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._pods: dict[str, list[FormerPod]] = {}  # by uid, the latest last
        self._selectors: dict[str, list[FormerSelector]] = {}  # by namespace, the latest last

    def __len__(self) -> int:
        """Number of pods and namespaces with changes that are remembered."""
        return len(self._pods) + len(self._selectors)

    def pod_changed(self, old: Pod | None, new: Pod | None, now: float) -> None:
        """Note former labels of a pod."""
        if old is None:
            return
        if new is None or new.uid != old.uid:
            self._pods.pop(old.uid, None)
        elif new.labels != old.labels:
            former = [each for each in self._pods.get(old.uid, ()) if each.at + self.seconds > now]
            self._pods[old.uid] = [*former, FormerPod(old, now)][-FORMER_LABELS:]

    def budget_changed(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None, now: float) -> None:
        """Note the former selector of a budget."""
        if old is None or new is None or old.selector is None or old.selector == new.selector:
            return
        if old.uid == new.uid and old.selector.size <= LARGEST_SELECTOR:
            former = [each for each in self._selectors.get(old.namespace, ()) if each.at + self.seconds > now]
            entry = FormerSelector(old.full_name, old.selector, now)
            self._selectors[old.namespace] = [*former, entry][-FORMER_SELECTORS:]

    def former(self, pods: Iterable[Pod], now: float) -> list[FormerPod]:
        """These pods with the labels that they had lately, the latest last."""
        if not self._pods:
            return []
        return [each for pod in pods for each in self._pods.get(pod.uid, ()) if each.at + self.seconds > now]

    def lost(self, pods: Iterable[Pod], before: Iterable[tuple[FormerPod, str]], now: float) -> dict[str, LostBudget]:
        """Pods, by UID, that lost their budget a short time ago; none of `pods` has a budget now.

        `before`: former states of these pods that a budget (`namespace/name`) selects.
        """
        found = {former.pod.uid: LostBudget(budget, former.at, former.at + self.seconds) for former, budget in before}
        for pod in pods if self._selectors else ():
            for each in self._selectors.get(pod.namespace, ()):
                if each.at + self.seconds > now and pod.created < each.at and selects(each.selector, pod.labels):
                    known = found.get(pod.uid)
                    if known is None or known.at < each.at:
                        found[pod.uid] = LostBudget(each.budget, each.at, each.at + self.seconds)
        return found

    def forget_old(self, now: float) -> None:
        """Drop settled entries."""
        self._pods = {uid: kept for uid, kept in self._pods.items() if kept[-1].at + self.seconds > now}
        self._selectors = {name: kept for name, kept in self._selectors.items() if kept[-1].at + self.seconds > now}
