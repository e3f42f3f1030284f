"""Which of 1,000 budgets cover the pods of a node: by what the caches know, and by looking at each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import msgspec
import pytest

from benchmarks.micro import pods
from benchmarks.micro.conftest import Measure
from benchmarks.micro.covered import budget_over, decoded, hostile_budget
from gracectl.controllers.cluster.cache import empty_cluster_cache
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.model.selectors import LabelSelector, selects

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


@pytest.mark.parametrize("is_hostile", [False, True])
@pytest.mark.parametrize("count", [100, 1000, 2000])
def test_budgets_of_workloads(count: int, is_hostile: bool, measure: Measure) -> None:
    """The first look at a workload: its labels are not known yet."""
    observed, namespace = empty_cluster_cache(), pods.namespace_of(0)
    observed.budgets.replace(_budgets(count, is_hostile, namespace))
    workloads: list[Pod] = []

    def prepare() -> None:
        workloads[:] = _with_labels_of_their_own(namespace)

    def work() -> None:
        found = observed.budgets_by_pod(tuple(workloads))
        assert len(found) == min(len(workloads), count // 2 if is_hostile else count)

    words = ", half of them hostile" if is_hostile else ""
    measure(f"a workload's budgets, of {count:,}{words}", len(OF_NODE), work, prepare)


def test_budgets_that_select_all(measure: Measure) -> None:
    observed, namespace = empty_cluster_cache(), pods.namespace_of(0)
    budgets = (budget_over(number, namespace=namespace) for number in range(2000))
    observed.budgets.replace(msgspec.structs.replace(budget, selector=LabelSelector()) for budget in budgets)
    workloads: list[Pod] = []

    def prepare() -> None:
        workloads[:] = _with_labels_of_their_own(namespace)

    def work() -> None:
        assert all(len(found) == 2 for found in observed.budgets_by_pod(tuple(workloads)).values())

    measure("a workload's budgets, of 2,000 that select all", len(OF_NODE), work, prepare)


@pytest.mark.parametrize("is_hostile", [False, True])
def test_selectors_that_change(is_hostile: bool, measure: Measure) -> None:
    """Each selector that changes is followed by a look at a pod, which others have not changed."""
    observed, namespace = empty_cluster_cache(), pods.namespace_of(0)
    observed.budgets.replace(_budgets(2000, is_hostile, namespace))
    looked_at = tuple(_with_labels_of_their_own(namespace))
    observed.budgets_by_pod(looked_at)
    versions = itertools.count(2)

    def work() -> None:
        for number, pod in enumerate(looked_at):
            changed = budget_over(500 + number, namespace=namespace, version=(version := next(versions)))
            selector = LabelSelector({"app.kubernetes.io/instance": f"other-{version}"})
            observed.budgets.put(msgspec.structs.replace(changed, selector=selector))
            assert observed.budgets_by_pod((pod,))

    words = ", half of them hostile" if is_hostile else ""
    measure(f"a selector changes, of 2,000{words}", len(looked_at), work)


def _budgets(count: int, is_hostile: bool, namespace: str) -> Iterator[PodDisruptionBudget]:
    ordinary = count // 2 if is_hostile else count
    yield from (budget_over(workload, namespace=namespace) for workload in range(ordinary))
    yield from (hostile_budget(number, namespace) for number in range(ordinary, count))


def _with_labels_of_their_own(namespace: str) -> Iterator[Pod]:
    for pod in OF_NODE:
        yield msgspec.structs.replace(pod, namespace=namespace, labels=dict(pod.labels))


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
