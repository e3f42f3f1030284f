"""How budgets stand, for nodes and for pods: what each allows, who uses it up, and what it keeps from leaving.

Joins what a cluster shows; the arithmetic is that of policy, so this says what the gate and the lanes would say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.settings import TerminationSettings
from gracectl.model import names
from gracectl.model.budget import NodeDisruptionBudget, PodDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.selectors import selects
from gracectl.nodebudgets.admitter import STATES
from gracectl.policy.budgets import Allowance, eviction_verdict, failure_of
from gracectl.policy.explain import listed
from gracectl.policy.maintenance import is_in_maintenance
from gracectl.policy.nodebudgets import (
    NodeCounts,
    allowance_of,
    count_nodes,
    invalid_reason,
    is_admitted,
    is_available,
    selects_node,
)
from gracectl.policy.voluntary import Cause, triggers_of


class State(StrEnum):
    """What a budget says to the next who asks."""

    ALLOWING = "allowing"
    SPENT = "spent"
    UNCOUNTED = "uncounted"
    """Nobody can count by it: it allows nothing."""
    UNOBSERVED = "unobserved"
    """It has just been changed, or nobody counts."""


class Holder(msgspec.Struct, frozen=True):
    """A node, or a pod as `namespace/name`, that counts as unavailable: why, and since when (Unix seconds) if that
    stands somewhere."""

    name: str
    reason: str
    since: float | None = None


class Blocked(msgspec.Struct, frozen=True):
    """A node, or a pod as `namespace/name`, that may not go now; `waits`: why it is to, empty if nobody wants it."""

    name: str
    waits: str = ""


class NodeBudgetUsage(msgspec.Struct, frozen=True):
    """A budget for nodes. `counted`: by what the nodes are now, whatever its status says."""

    budget: NodeDisruptionBudget
    state: State
    counted: NodeCounts
    problem: str
    holders: tuple[Holder, ...]
    blocked: tuple[Blocked, ...]


class PodBudgetUsage(msgspec.Struct, frozen=True):
    """A PodDisruptionBudget; `missing`: how many pods it expects and nobody has made."""

    budget: PodDisruptionBudget
    state: State
    problem: str
    holders: tuple[Holder, ...]
    missing: int
    blocked: tuple[Blocked, ...]


WAITS = {
    Cause.UNHEALTHY: "it is unhealthy",
    Cause.TERMINABLE: "it is labelled terminable",
    Cause.EXPIRED: "its node claim has expired",
}
"""Why a node is to end that nobody has deleted."""


def node_budget_usages(
    observed: ClusterCache, budgets: Collection[NodeDisruptionBudget], settings: TerminationSettings, now: float
) -> tuple[NodeBudgetUsage, ...]:
    """How the budgets for nodes stand at `now`, by name."""
    nodes = sorted(observed.nodes.values(), key=lambda node: node.name)
    return tuple(
        _node_holding(observed, budget, [node for node in nodes if selects_node(budget, node)], settings, now)
        for budget in sorted(budgets, key=lambda budget: budget.name)
    )


def pod_budget_usages(
    observed: ClusterCache, settings: TerminationSettings, now: float, namespace: str = ""
) -> tuple[PodBudgetUsage, ...]:
    """How the PodDisruptionBudgets of a namespace, or of all of them, stand at `now`, by namespace and name."""
    budgets = [each for each in observed.budgets.values() if namespace in {"", each.namespace}]
    of_namespace: dict[str, list[Pod]] = {}
    for pod in sorted(observed.pods.values(), key=lambda pod: pod.key):
        if pod.phase not in {names.SUCCEEDED, names.FAILED}:
            of_namespace.setdefault(pod.namespace, []).append(pod)
    leaving = {
        node.name: why for node in observed.nodes.values() if (why := _why_it_empties(observed, node, settings, now))
    }
    in_order = sorted(budgets, key=lambda budget: budget.key)
    over = _budgets_over(in_order, of_namespace)
    return tuple(_pod_holding(budget, over, of_namespace.get(budget.namespace, ()), leaving) for budget in in_order)


# -- nodes -------------------------------------------------------------------------------------------------------------


def _node_holding(
    observed: ClusterCache,
    budget: NodeDisruptionBudget,
    nodes: Sequence[Node],
    settings: TerminationSettings,
    now: float,
) -> NodeBudgetUsage:
    state = State(STATES[allowance_of(budget)])
    blocked: list[Blocked] = []
    if state is not State.ALLOWING:
        alive = (node for node in nodes if is_available(node) and not is_admitted(budget, node, now))
        blocked = [Blocked(node.name, _why_it_is_to_end(observed, node, settings, now)) for node in alive]
    return NodeBudgetUsage(
        budget=budget,
        state=state,
        counted=count_nodes(budget, nodes, now),
        problem=invalid_reason(budget) or ("" if nodes else "the selector selects no node"),
        holders=tuple(_node_holders(budget, nodes, now)),
        blocked=_waiting_first(blocked),
    )


def _node_holders(budget: NodeDisruptionBudget, nodes: Sequence[Node], now: float) -> Iterator[Holder]:
    for node in nodes:
        if node.deletion_timestamp is not None:
            yield Holder(node.name, "is being deleted", node.deletion_timestamp)
        elif not node.ready:
            condition = next((each for each in node.conditions if each.type == names.READY), None)
            yield Holder(node.name, "is not Ready", None if condition is None else condition.last_transition)
        elif is_admitted(budget, node, now):
            at = budget.disrupted_nodes[node.name]
            yield Holder(node.name, "may end, which is not seen yet", at)


def _why_it_is_to_end(observed: ClusterCache, node: Node, settings: TerminationSettings, now: float) -> str:
    """Empty if nobody wants it to."""
    claims = observed.claims_of(node)
    ending = next((claim for claim in claims if claim.deletion_timestamp is not None), None)
    if ending is not None:
        return "its node claim is being deleted"
    if not settings.node_selector.matches(node.labels):
        return ""
    claim: NodeClaim | None = claims[0] if len(claims) == 1 else None
    due = (trigger for trigger in triggers_of((node,), claim, settings.policy) if trigger.at <= now)
    return next((WAITS[trigger.cause] for trigger in due), "")


# -- pods --------------------------------------------------------------------------------------------------------------


Over = Mapping[str, Mapping[str, PodDisruptionBudget]]
"""By pod UID, all budgets that select it, by name."""


def _budgets_over(budgets: Sequence[PodDisruptionBudget], pods: Mapping[str, Sequence[Pod]]) -> Over:
    """`pods` by namespace. Each selector meets each label map once: pods of one workload share theirs."""
    in_namespace: dict[str, list[PodDisruptionBudget]] = {}
    for budget in budgets:
        in_namespace.setdefault(budget.namespace, []).append(budget)
    found: dict[str, Mapping[str, PodDisruptionBudget]] = {}
    of_labels: dict[tuple[str, int], Mapping[str, PodDisruptionBudget]] = {}
    for namespace, those in in_namespace.items():
        for pod in pods.get(namespace, ()):
            place = (namespace, id(pod.labels))
            if place not in of_labels:
                of_labels[place] = {each.name: each for each in those if selects(each.selector, pod.labels)}
            found[pod.uid] = of_labels[place]
    return found


def _pod_holding(
    budget: PodDisruptionBudget, over: Over, pods: Sequence[Pod], leaving: dict[str, str]
) -> PodBudgetUsage:
    selected = [pod for pod in pods if budget.name in over[pod.uid]]
    failure = failure_of(budget)
    rivals = {name for each in {id(over[pod.uid]): over[pod.uid] for pod in selected}.values() for name in each}
    blocked = [
        Blocked(_called(pod), leaving.get(pod.node_name, ""))
        for pod in selected
        if pod.name not in budget.disrupted_pods and _is_blocked(pod, over[pod.uid])
    ]
    return PodBudgetUsage(
        budget=budget,
        state=_pod_state(budget, failure),
        problem=_pod_problem(selected, failure, sorted(rivals - {budget.name})),
        holders=tuple(_pod_holders(budget, selected)),
        missing=max(budget.expected_pods - len(selected), 0),
        blocked=_waiting_first(blocked),
    )


def _is_blocked(pod: Pod, over: Mapping[str, PodDisruptionBudget]) -> bool:
    """Whether the eviction API would refuse it: a pod that is not Ready as well, unless its budget lets such go."""
    return eviction_verdict(pod, tuple(over.values())).allowance not in (Allowance.UNCHARGED, Allowance.ALLOWED)


def _pod_state(budget: PodDisruptionBudget, failure: str | None) -> State:
    if budget.observed_generation < budget.generation:
        return State.UNOBSERVED
    if failure is not None:
        return State.UNCOUNTED
    return State.ALLOWING if budget.disruptions_allowed > 0 else State.SPENT


def _pod_problem(selected: Sequence[Pod], failure: str | None, rivals: Sequence[str]) -> str:
    if failure is not None:
        return failure
    if rivals:
        return f"pods of it are under {listed(rivals)} as well: the eviction API refuses such pods"
    return "" if selected else "the selector selects no pod"


def _pod_holders(budget: PodDisruptionBudget, pods: Sequence[Pod]) -> Iterator[Holder]:
    for pod in pods:
        if pod.deletion_timestamp is not None:
            yield Holder(_called(pod), "is terminating")
        elif pod.name in budget.disrupted_pods:
            yield Holder(_called(pod), "was evicted", budget.disrupted_pods[pod.name])
        elif not pod.ready:
            yield Holder(_called(pod), "is pending" if pod.phase == names.PENDING else "is not Ready")


def _why_it_empties(observed: ClusterCache, node: Node, settings: TerminationSettings, now: float) -> str:
    """Why pods are to leave a node; empty if they are not."""
    if node.deletion_timestamp is not None:
        return f"node {node.name} is being deleted"
    if is_in_maintenance(node):
        return f"node {node.name} is to be drained for maintenance"
    return _why_it_is_to_end(observed, node, settings, now)


# -- both --------------------------------------------------------------------------------------------------------------


def _called(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"


def _waiting_first(blocked: Sequence[Blocked]) -> tuple[Blocked, ...]:
    """Those that somebody wants to go before those that merely could not."""
    return tuple(sorted(blocked, key=lambda each: not each.waits))
