"""Turns of nodes: how many at the same time, in which order, and when the next one begins."""

from __future__ import annotations

import msgspec
from support.builders import a_budget, a_node, a_pod

from gracectl.cli.drain.turns import Turns, quickest_first
from gracectl.controllers.cluster.cache import ClusterCache, empty_cluster_cache

NODES = [a_node(f"n{number}") for number in range(1, 4)]


def test_without_a_limit_all_begin() -> None:
    assert Turns(NODES, None).next({node.uid for node in NODES}) == NODES


def test_the_next_begins_when_one_is_done() -> None:
    turns, left = Turns(NODES, 2), {node.uid for node in NODES}
    assert turns.next(left) == NODES[:2]
    assert turns.next(left) == []
    assert turns.next(left - {"uid-n2"}) == NODES[2:]
    assert list(turns.waiting) == []


def with_healthy(cluster: ClusterCache, number: int) -> None:
    (budget,) = cluster.budgets.values()
    version = str(int(budget.resource_version) + 1)
    cluster.budgets.put(msgspec.structs.replace(budget, current_healthy=number, resource_version=version))


def test_the_next_waits_for_pods_that_become_ready_elsewhere() -> None:
    cluster, turns = empty_cluster_cache(), Turns(NODES, 1)
    cluster.pods.put(a_pod("web"))
    cluster.budgets.put(a_budget("web"))
    left = {node.uid for node in NODES}
    assert turns.next(left, cluster) == NODES[:1]
    with_healthy(cluster, 2)
    assert turns.next(left - {"uid-n1"}, cluster) == []
    with_healthy(cluster, 3)
    assert turns.next(left - {"uid-n1"}, cluster) == NODES[1:2]


def test_without_a_forecast_the_order_stays() -> None:
    assert quickest_first(NODES, None) == NODES
