"""Who uses a budget up, and what it keeps from leaving."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.builders import NOW, READY, a_budget, a_node, a_pod, cluster

from gracectl.controllers.settings import TerminationSettings
from gracectl.inspect.budget_status import (
    BlockedObject,
    BudgetState,
    NodeBudgetUsage,
    PodBudgetUsage,
    UnavailableObject,
    node_budget_usages,
    pod_budget_usages,
)
from gracectl.model import names
from gracectl.model.budget import NodeDisruptionBudget, PodDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import Condition
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.selectors import LabelSelector
from gracectl.policy.nodebudgets import NodeCounts

SETTINGS = TerminationSettings()
POOL = {"pool": "a"}
TERMINABLE = {names.LIFECYCLE_PHASE: names.LIFECYCLE_PHASE_TERMINABLE}


def member(name: str, **fields: Any) -> Node:
    labels = {**POOL, **fields.pop("labels", {})}
    return a_node(name, **{"conditions": READY, "created": NOW - 1000, **fields, "labels": labels})


def for_nodes(**fields: Any) -> NodeDisruptionBudget:
    budget = NodeDisruptionBudget(name="pool-a", uid="b", selector=LabelSelector(POOL), max_unavailable=1)
    return msgspec.structs.replace(budget, **fields)


def held(
    *nodes: Node, budget: NodeDisruptionBudget | None = None, claims: tuple[NodeClaim, ...] = ()
) -> NodeBudgetUsage:
    cache = cluster(*nodes, claims=claims)
    (holding,) = node_budget_usages(cache, (budget or for_nodes(),), SETTINGS, NOW)
    return holding


def test_nodes_that_are_unavailable_hold_their_budget_and_each_says_why() -> None:
    lost = (Condition(names.READY, "Unknown", last_transition=NOW - 250),)
    usage = held(
        member("a", deletion_timestamp=NOW - 12),
        member("b", conditions=lost),
        member("c"),
        member("d"),
        a_node("of-another-pool", conditions=READY),
        budget=for_nodes(disrupted_nodes={"c": NOW - 3, "gone": NOW - 3}),
    )
    assert usage.unavailable == (
        UnavailableObject("a", "being deleted", NOW - 12),
        UnavailableObject("b", "not Ready", NOW - 250),
        UnavailableObject("c", "admitted for deletion", NOW - 3),
    )
    assert usage.counted == NodeCounts(4, 1, 3)


def test_of_the_nodes_that_may_not_go_those_come_first_that_are_to() -> None:
    sick = (Condition(names.READY, "True"), Condition("Broken", "True", last_transition=0.0))
    ending: dict[str, Any] = {"deletion_timestamp": NOW - 5, "finalizers": (names.FINALIZER,)}
    usage = held(
        member("a"),
        member("b", labels=TERMINABLE),
        member("c"),
        member("d"),
        member("e", conditions=sick),
        member("f", labels={**TERMINABLE, names.CONTROL_PLANE_ROLE: ""}),  # is not managed
        claims=(
            NodeClaim("c-claim", "c-claim", node_name="c", **ending),
            NodeClaim("d-claim", "d-claim", node_name="d", created=NOW - 700, expire_after="600s"),
        ),
    )
    assert usage.state is BudgetState.SPENT
    assert usage.blocked == (
        BlockedObject("b", "labeled terminable"),
        BlockedObject("c", "its NodeClaim is being deleted"),
        BlockedObject("d", "its NodeClaim has expired"),
        BlockedObject("a"),
        BlockedObject("e"),
        BlockedObject("f"),
    )


def test_what_allows_something_blocks_nothing() -> None:
    usage = held(member("a", labels=TERMINABLE), budget=for_nodes(disruptions_allowed=1))
    assert (usage.state, usage.blocked) == (BudgetState.ALLOWING, ())


@pytest.mark.parametrize(
    ("budget", "state", "problem"),
    [
        (for_nodes(), BudgetState.SPENT, ""),
        (for_nodes(generation=2, observed_generation=1), BudgetState.UNOBSERVED, ""),
        (for_nodes(selector=None), BudgetState.SPENT, "the selector selects no node"),
        (
            for_nodes(min_available=1),
            BudgetState.UNCOUNTED,
            "spec: minAvailable and maxUnavailable are both set; remove one of them",
        ),
    ],
)
def test_how_a_budget_for_nodes_stands(budget: NodeDisruptionBudget, state: BudgetState, problem: str) -> None:
    usage = held(member("a"), budget=budget)
    assert usage.state is state
    assert usage.problem.startswith(problem)
    assert bool(usage.problem) == bool(problem)


def held_pods(
    *pods: Pod, budgets: tuple[PodDisruptionBudget, ...], nodes: tuple[Node, ...] = (), namespace: str = ""
) -> tuple[PodBudgetUsage, ...]:
    return pod_budget_usages(cluster(*nodes, pods=pods, budgets=budgets), SETTINGS, NOW, namespace)


def test_pods_that_are_missing_or_not_well_hold_their_budget() -> None:
    budget = a_budget("web", expected_pods=6, disrupted_pods={"c": NOW - 2})
    pods = (
        a_pod("a", deletion_timestamp=NOW + 10),
        a_pod("b", ready=False),
        a_pod("c"),
        a_pod("d", ready=False, phase=names.PENDING),
        a_pod("e"),
        a_pod("done", phase=names.SUCCEEDED, ready=False),
    )
    (usage,) = held_pods(*pods, budgets=(budget,))
    assert usage.unavailable == (
        UnavailableObject("shop/a", "terminating"),
        UnavailableObject("shop/b", "not Ready"),
        UnavailableObject("shop/c", "evicted", NOW - 2),
        UnavailableObject("shop/d", "pending"),
    )
    assert usage.missing == 1


def test_of_the_pods_that_may_not_go_those_come_first_whose_node_empties() -> None:
    nodes = (
        a_node("deleted", conditions=READY, deletion_timestamp=NOW),
        a_node("kept", conditions=READY, annotations={names.KEEP_DRAINED: "2026-01-01T00:00:00Z"}),
        a_node("to-end", conditions=READY, labels=TERMINABLE),
        a_node("stays", conditions=READY),
    )
    pods = tuple(a_pod(f"on-{node.name}", node_name=node.name) for node in reversed(nodes))
    (usage,) = held_pods(*pods, budgets=(a_budget("web", disruptions_allowed=0),), nodes=nodes)
    assert usage.blocked == (
        BlockedObject("shop/on-deleted", "node deleted is being deleted"),
        BlockedObject("shop/on-kept", "maintenance of node kept"),
        BlockedObject("shop/on-to-end", "labeled terminable"),
        BlockedObject("shop/on-stays"),
    )


def test_a_pod_that_is_not_ready_is_kept_by_a_budget_that_lacks_healthy_ones_and_not_by_one_that_lets_it_go() -> None:
    """What keeps a node whose only pod crashes again and again."""
    pods = (a_pod("ill", ready=False), a_pod("pending", ready=False, phase=names.PENDING), a_pod("well"))
    short = a_budget("web", disruptions_allowed=0, current_healthy=1, desired_healthy=2, expected_pods=3)
    (usage,) = held_pods(*pods, budgets=(short,))
    assert usage.blocked == (BlockedObject("shop/ill"), BlockedObject("shop/well"))
    lenient = msgspec.structs.replace(short, unhealthy_pod_eviction_policy=names.ALWAYS_ALLOW)
    (usage,) = held_pods(*pods, budgets=(lenient,))
    assert usage.blocked == (BlockedObject("shop/well"),)


def test_a_pod_under_several_budgets_is_blocked_whatever_they_allow() -> None:
    both = (a_budget("one", disruptions_allowed=5), a_budget("two", disruptions_allowed=5))
    assert [each.blocked for each in held_pods(a_pod("a"), budgets=both)] == [(BlockedObject("shop/a"),)] * 2


def test_a_pod_whose_eviction_was_granted_is_not_said_to_be_blocked() -> None:
    budget = a_budget("web", disruptions_allowed=0, disrupted_pods={"a": NOW - 2})
    (usage,) = held_pods(a_pod("a"), a_pod("b"), budgets=(budget,))
    assert usage.blocked == (BlockedObject("shop/b"),)


def test_pods_under_several_budgets_and_budgets_over_no_pods_are_told() -> None:
    one, two = a_budget("one"), a_budget("two")
    none = a_budget("none", selector=LabelSelector({"app": "missing"}))
    problems = {each.budget.name: each.problem for each in held_pods(a_pod("a"), budgets=(one, two, none))}
    assert problems == {
        "none": "the selector selects no pod",
        "one": "two selects the same pods: the eviction API refuses their evictions",
        "two": "one selects the same pods: the eviction API refuses their evictions",
    }


def test_one_namespace_by_itself() -> None:
    budgets = (a_budget("web"), a_budget("web", namespace="bank"))
    assert [each.budget.namespace for each in held_pods(budgets=budgets)] == ["bank", "shop"]
    assert [each.budget.namespace for each in held_pods(budgets=budgets, namespace="bank")] == ["bank"]
