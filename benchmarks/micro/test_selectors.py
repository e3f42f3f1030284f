"""Which of 1,000 budgets cover the pods of a node: by what the caches know, and by looking at each."""

from __future__ import annotations

from typing import Final

import msgspec
import pytest

from benchmarks.micro import pods
from benchmarks.micro.conftest import Measure
from benchmarks.micro.covered import budget_over, decoded
from gracectl.controllers.cluster.cache import empty_cluster_cache
from gracectl.model.selectors import selects

BUDGETS: Final = 1000
OF_NODE: Final = decoded(range(0, 110 * pods.REPLICAS, pods.REPLICAS))
"""Each of another workload: nothing that was found for one pod is of use to the next."""


@pytest.mark.parametrize(("spread", "words"), [(True, "in 200 namespaces"), (False, "in one namespace")])
def test_budgets_of_a_node(spread: bool, words: str, measure: Measure) -> None:
    observed, namespace = empty_cluster_cache(), "" if spread else pods.namespace_of(0)
    observed.budgets.replace(budget_over(workload, namespace=namespace) for workload in range(BUDGETS))
    of_node = tuple(msgspec.structs.replace(pod, namespace=namespace or pod.namespace) for pod in OF_NODE)

    def work() -> None:
        assert len(observed.budgets_by_pod(of_node)) == len(of_node)

    measure(f"a pod's budgets, of 1,000 {words}", len(OF_NODE), work)


def test_naive(measure: Measure) -> None:
    budgets = tuple(map(budget_over, range(BUDGETS)))

    def work() -> None:
        for pod in OF_NODE:
            assert [budget for budget in budgets if selects(budget.selector, pod.labels)]

    measure("a pod's budgets, by looking at all 1,000", len(OF_NODE), work)


def test_match(measure: Measure) -> None:
    selectors = [budget_over(workload).selector for workload in range(BUDGETS)]
    labels = OF_NODE[0].labels

    def work() -> None:
        for selector in selectors:
            selects(selector, labels)

    measure("one selector against one pod", BUDGETS, work)
