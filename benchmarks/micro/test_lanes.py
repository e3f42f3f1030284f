"""A lane wakes up: its budget gets room, and the next of its pods is chosen, granted, and seen to go."""

from __future__ import annotations

import random
from typing import Final

import msgspec
import pytest

from benchmarks.micro.conftest import Measure
from benchmarks.micro.covered import budget_over, decoded
from benchmarks.micro.pods import namespace_of
from gracectl.controllers.cluster.cache import empty_cluster_cache
from gracectl.eviction.pdb_queue import Evict, EvictionCandidate, Idle, PdbQueue, PodLookup, Wait
from gracectl.eviction.settings import EvictionSettings
from gracectl.policy.budgets import BudgetKey
from gracectl.runtime.backoff import Backoff

NOW: Final = 1000.0
PASSING: Final = 100
"""Pods that go in a round: where there are more, the lane stays about as long as it was."""


class Chain:
    """One budget over so many pods that all want to leave."""

    def __init__(self, count: int) -> None:
        self._pods = tuple(
            msgspec.structs.replace(pod, namespace=namespace_of(0), labels={}) for pod in decoded(range(count))
        )
        self._key: BudgetKey = budget_over(0).key
        self.fresh()

    def fresh(self) -> None:
        """All of them wait, and the budget allows nothing."""
        self._observed = observed = empty_cluster_cache()
        observed.pods.replace(self._pods)
        observed.budgets.replace([budget_over(0, allowed=0)])
        self._lookup = PodLookup(pod=observed.pods.get, budget=lambda key: observed.budgets.get(*key))
        backoff = Backoff(0.1, 10.0, rng=random.Random(1))
        self._lane = PdbQueue((self._key,), EvictionSettings(), backoff, NOW)
        for pod in self._pods:
            self._lane.add(EvictionCandidate(pod.namespace, pod.name, pod.uid, pod.node_name, (self._key,), NOW))
        assert isinstance(self._lane.decide(NOW, self._lookup), Wait)

    def pass_by(self) -> None:
        """Let some go, one after another."""
        lane, lookup, budgets, version = self._lane, self._lookup, self._observed.budgets, 1
        for _ in range(PASSING):
            version += 2
            budgets.put(budget_over(0, version=version))
            request = lane.decide(NOW, lookup)
            assert isinstance(request, Evict)
            lane.begin(request.candidate)
            lane.on_evicted(request, NOW)
            self._observed.pods.remove((request.candidate.namespace, request.candidate.name))
            taken = budget_over(0, version=version + 1, allowed=0)
            budgets.put(taken := msgspec.structs.replace(taken, disrupted_pods={request.candidate.name: NOW}))
            lane.budget_changed(taken)
            assert isinstance(lane.decide(NOW, lookup), Wait | Idle)


@pytest.mark.parametrize("count", [100, 1000, 5000])
def test_lane(count: int, measure: Measure) -> None:
    chain = Chain(count)
    measure(f"lane of {count:,}: a pod's way through it", PASSING, chain.pass_by, chain.fresh)
