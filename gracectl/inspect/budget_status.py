"""Status of budgets of nodes and pods: allowed disruptions, unavailable objects, and blocked removals.

The arithmetic is that of policy, so this is what the admission and the PDB queues decide.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from gracectl.controllers.cluster.cache import BY_NAMESPACE, ClusterCache
from gracectl.controllers.settings import TerminationSettings
from gracectl.model import names
from gracectl.model.budget import NodeDisruptionBudget, PodDisruptionBudget, UnknownBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import natural_key
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.selectors import selects
from gracectl.nodebudgets.admitter import STATES
from gracectl.policy import nodebudgets
from gracectl.policy.budgets import Allowance, eviction_verdict, failure_of
from gracectl.policy.explain import listed
from gracectl.policy.maintenance import is_in_maintenance
from gracectl.policy.voluntary import Cause, triggers_of


class BudgetState(StrEnum):
    """Verdict of a budget about the next request."""

    ALLOWING = "allowing"
    SPENT = "spent"
    UNCOUNTED = "uncounted"
    """The budget's controller cannot count it: the budget allows nothing."""
    UNOBSERVED = "unobserved"
    """The status of the budget is older than its spec."""


class UnavailableObject(msgspec.Struct, frozen=True):
    """A node, or a pod as `namespace/name`, that counts as unavailable. `since`: Unix seconds, if known."""

    name: str
    reason: str
    since: float | None = None


class BlockedObject(msgspec.Struct, frozen=True):
    """A node, or a pod as `namespace/name`, that may not be removed now. `reason`: of its pending removal, or ""."""

    name: str
    reason: str = ""


class NodeBudgetUsage(msgspec.Struct, frozen=True):
    """A NodeDisruptionBudget. `counted`: current counts of the nodes, independent of its status."""

    budget: NodeDisruptionBudget
    state: BudgetState
    counted: nodebudgets.NodeCounts
    problem: str
    unavailable: tuple[UnavailableObject, ...]
    blocked: tuple[BlockedObject, ...]


class PodBudgetUsage(msgspec.Struct, frozen=True):
    """A PodDisruptionBudget. `missing`: how many of the expected pods do not exist."""

    budget: PodDisruptionBudget
    state: BudgetState
    problem: str
    unavailable: tuple[UnavailableObject, ...]
    missing: int
    blocked: tuple[BlockedObject, ...]


PENDING = {
    Cause.INTERRUPTED: "its machine will go",
    Cause.UNHEALTHY: "unhealthy",
    Cause.TERMINABLE: "labeled terminable",
    Cause.EXPIRED: "its NodeClaim has expired",
}
"""Reason of the pending termination of a node that is not deleted yet."""


def node_budget_usages(
    cluster: ClusterCache, budgets: Collection[NodeDisruptionBudget], settings: TerminationSettings, now: float
) -> tuple[NodeBudgetUsage, ...]:
    """Status of the budgets of nodes at `now`, by name."""
    nodes = sorted(cluster.nodes.values(), key=lambda node: natural_key(node.name))
    return tuple(
        _node_usage(cluster, budget, [node for node in nodes if nodebudgets.selects_node(budget, node)], settings, now)
        for budget in sorted(budgets, key=lambda budget: natural_key(budget.name))
    )


def pod_budget_usages(
    cluster: ClusterCache, settings: TerminationSettings, now: float, namespace: str = ""
) -> tuple[PodBudgetUsage, ...]:
    """Status of the PodDisruptionBudgets of one or all namespaces at `now`, by namespace and name."""
    leaving = _leaving_nodes(cluster, settings, now)
    namespaces = {namespace} if namespace else {budget.namespace for budget in cluster.budgets.values()}
    return _in_order(usage for each in namespaces for usage in _usages_in(cluster, each, leaving))


class PodBudgetUsages:
    """Status of all PodDisruptionBudgets over several reads: only namespaces in which something has changed are
    counted again."""

    def __init__(self, cluster: ClusterCache, settings: TerminationSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._leaving: dict[str, str] = {}
        self._changed: set[str] = set()
        self._by_namespace: dict[str, tuple[PodBudgetUsage, ...]] = {}
        self._found: tuple[PodBudgetUsage, ...] = ()
        cluster.budgets.subscribe(self._note, replay=True)
        cluster.pods.subscribe(self._note)

    def at(self, now: float) -> tuple[PodBudgetUsage, ...]:
        """See `pod_budget_usages`; a budget of a namespace without a change is the same object as before."""
        leaving = _leaving_nodes(self._cluster, self._settings, now)
        for name in leaving.keys() | self._leaving.keys():
            if leaving.get(name) != self._leaving.get(name):
                self._changed.update(pod.namespace for pod in self._cluster.pods_on(name))
        self._leaving = leaving
        changed = [each for each in self._changed if self._by_namespace.get(each) or self._has_budgets(each)]
        self._changed.clear()
        for namespace in changed:
            if usages := _usages_in(self._cluster, namespace, leaving):
                self._by_namespace[namespace] = usages
            else:
                self._by_namespace.pop(namespace, None)
        if changed:
            self._found = _in_order(usage for usages in self._by_namespace.values() for usage in usages)
        return self._found

    def _has_budgets(self, namespace: str) -> bool:
        return bool(self._cluster.budgets.by_index(BY_NAMESPACE, namespace))

    def _note(self, old: Pod | PodDisruptionBudget | None, new: Pod | PodDisruptionBudget | None) -> None:
        thing = new or old
        assert thing is not None
        self._changed.add(thing.namespace)


def _in_order(usages: Iterable[PodBudgetUsage]) -> tuple[PodBudgetUsage, ...]:
    return tuple(sorted(usages, key=lambda usage: natural_key(usage.budget.full_name)))


def _leaving_nodes(cluster: ClusterCache, settings: TerminationSettings, now: float) -> dict[str, str]:
    """Reason why the pods of a node will be removed, by node name."""
    reasons = ((node.name, _removal_reason(cluster, node, settings, now)) for node in cluster.nodes.values())
    return {name: reason for name, reason in reasons if reason}


def _usages_in(cluster: ClusterCache, namespace: str, leaving: Mapping[str, str]) -> tuple[PodBudgetUsage, ...]:
    """Usages of the budgets of a namespace."""
    budgets = cluster.budgets.by_index(BY_NAMESPACE, namespace)
    pods = [pod for pod in cluster.pods.in_namespace(namespace) if pod.phase not in {names.SUCCEEDED, names.FAILED}]
    over = _budgets_over(budgets, pods)
    selected: dict[str, list[Pod]] = {budget.name: [] for budget in budgets}
    for pod in pods:
        for name in over[pod.uid]:
            selected[name].append(pod)
    return tuple(_pod_usage(budget, over, selected[budget.name], leaving) for budget in budgets)


# -- nodes -------------------------------------------------------------------------------------------------------------


def _node_usage(
    cluster: ClusterCache,
    budget: NodeDisruptionBudget,
    nodes: Sequence[Node],
    settings: TerminationSettings,
    now: float,
) -> NodeBudgetUsage:
    state = BudgetState(STATES[nodebudgets.allowance_of(budget)])
    blocked: list[BlockedObject] = []
    if state is not BudgetState.ALLOWING:
        alive = (
            node for node in nodes if nodebudgets.is_available(node) and not nodebudgets.is_admitted(budget, node, now)
        )
        blocked = [BlockedObject(node.name, _termination_reason(cluster, node, settings, now)) for node in alive]
    return NodeBudgetUsage(
        budget=budget,
        state=state,
        counted=nodebudgets.count_nodes(budget, nodes, now),
        problem=nodebudgets.invalid_reason(budget) or ("" if nodes else "the selector selects no node"),
        unavailable=tuple(_unavailable_nodes(budget, nodes, now)),
        blocked=_waiting_first(blocked),
    )


def _unavailable_nodes(budget: NodeDisruptionBudget, nodes: Sequence[Node], now: float) -> Iterator[UnavailableObject]:
    for node in nodes:
        if node.deletion_timestamp is not None:
            yield UnavailableObject(node.name, "being deleted", node.deletion_timestamp)
        elif not node.ready:
            condition = next((each for each in node.conditions if each.type == names.READY), None)
            yield UnavailableObject(node.name, "not Ready", None if condition is None else condition.last_transition)
        elif nodebudgets.is_admitted(budget, node, now):
            at = budget.disrupted_nodes[node.name]
            yield UnavailableObject(node.name, "admitted for deletion", at)


def _termination_reason(cluster: ClusterCache, node: Node, settings: TerminationSettings, now: float) -> str:
    """Reason of a node's pending termination; empty without one."""
    claims = cluster.claims_of(node)
    ending = next((claim for claim in claims if claim.deletion_timestamp is not None), None)
    if ending is not None:
        return "its NodeClaim is being deleted"
    if not cluster.manages(settings.managed, node):
        return ""
    claim: NodeClaim | None = claims[0] if len(claims) == 1 else None
    due = (trigger for trigger in triggers_of((node,), claim, settings.policy) if trigger.at <= now)
    return next((PENDING[trigger.cause] for trigger in due), "")


# -- pods --------------------------------------------------------------------------------------------------------------


Over = Mapping[str, Mapping[str, PodDisruptionBudget]]
"""All budgets that select a pod, by pod UID and budget name."""


def _budgets_over(budgets: Sequence[PodDisruptionBudget], pods: Sequence[Pod]) -> Over:
    """Match each selector once against each label map: pods of one workload share a map."""
    found: dict[str, Mapping[str, PodDisruptionBudget]] = {}
    of_labels: dict[int, Mapping[str, PodDisruptionBudget]] = {}
    for pod in pods:
        labels = id(pod.labels)
        if labels not in of_labels:
            of_labels[labels] = {each.name: each for each in budgets if selects(each.selector, pod.labels)}
        found[pod.uid] = of_labels[labels]
    return found


def _pod_usage(
    budget: PodDisruptionBudget, over: Over, selected: Sequence[Pod], leaving: Mapping[str, str]
) -> PodBudgetUsage:
    failure = failure_of(budget)
    blocks = _Blocks(over)
    rivals = {
        name
        for each in {id(over[pod.uid]): over[pod.uid] for pod in selected}.values()
        for name, rival in each.items()
        if not isinstance(rival, UnknownBudget)
    }
    blocked = [
        BlockedObject(pod.full_name, leaving.get(pod.node_name, ""))
        for pod in selected
        if pod.name not in budget.disrupted_pods and blocks(pod)
    ]
    return PodBudgetUsage(
        budget=budget,
        state=_pod_state(budget, failure),
        problem=_pod_problem(selected, failure, sorted(rivals - {budget.name}, key=natural_key)),
        unavailable=tuple(sorted(_unavailable_pods(budget, selected), key=lambda each: natural_key(each.name))),
        missing=max(budget.expected_pods - len(selected), 0),
        blocked=_waiting_first(sorted(blocked, key=lambda each: natural_key(each.name))),
    )


class _Blocks:
    """Whether the eviction API would refuse a pod; also one that is not Ready, unless its budget lets such go.

    Thousands of pods have the same verdict: it is computed once for equal pods.
    """

    def __init__(self, over: Over) -> None:
        self._over = over
        self._known: dict[tuple[int, bool, str, bool], bool] = {}

    def __call__(self, pod: Pod) -> bool:
        budgets = self._over[pod.uid]
        cause = (id(budgets), pod.ready, pod.phase, pod.deletion_timestamp is not None)
        if cause not in self._known:
            verdict = eviction_verdict(pod, tuple(budgets.values()))
            self._known[cause] = verdict.allowance not in (Allowance.UNCHARGED, Allowance.ALLOWED)
        return self._known[cause]


def _pod_state(budget: PodDisruptionBudget, failure: str | None) -> BudgetState:
    if failure is not None:
        return BudgetState.UNCOUNTED
    if budget.observed_generation < budget.generation:
        return BudgetState.UNOBSERVED
    return BudgetState.ALLOWING if budget.disruptions_allowed > 0 else BudgetState.SPENT


def _pod_problem(selected: Sequence[Pod], failure: str | None, rivals: Sequence[str]) -> str:
    if failure is not None:
        return f"cannot be counted: {failure}"
    if rivals:
        return f"{listed(rivals)} selects the same pods: the eviction API refuses their evictions"
    return "" if selected else "the selector selects no pod"


def _unavailable_pods(budget: PodDisruptionBudget, pods: Sequence[Pod]) -> Iterator[UnavailableObject]:
    for pod in pods:
        if pod.deletion_timestamp is not None:
            yield UnavailableObject(pod.full_name, "terminating")
        elif pod.name in budget.disrupted_pods:
            yield UnavailableObject(pod.full_name, "evicted", budget.disrupted_pods[pod.name])
        elif not pod.ready:
            yield UnavailableObject(pod.full_name, "pending" if pod.phase == names.PENDING else "not Ready")


def _removal_reason(cluster: ClusterCache, node: Node, settings: TerminationSettings, now: float) -> str:
    """Reason why the pods of a node will be removed; empty if they will not."""
    if node.deletion_timestamp is not None:
        return f"node {node.name} is being deleted"
    if is_in_maintenance(node):
        return f"maintenance of node {node.name}"
    return _termination_reason(cluster, node, settings, now)


# -- both --------------------------------------------------------------------------------------------------------------


def _waiting_first(blocked: Sequence[BlockedObject]) -> tuple[BlockedObject, ...]:
    """Objects with a pending removal come first."""
    return tuple(sorted(blocked, key=lambda each: not each.reason))
