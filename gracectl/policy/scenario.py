"""Input and result of a simulation: what all scenarios begin with, the assumptions of one, and what comes of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum
from zlib import crc32

import msgspec

from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.policy.budgets import UNCHARGED_PHASES, BudgetKey, is_evicted
from gracectl.policy.deadlines import grace_of
from gracectl.policy.eviction_queues import EvictionRate, QueuedPod
from gracectl.policy.observations import NOTHING_OBSERVED, Observations
from gracectl.policy.plan import NodeView, Plan, PodPlan


class DrainingNode(msgspec.Struct, frozen=True):
    """Node that is drained from `since` on (Unix seconds), as the caches show it."""

    view: NodeView
    since: float


class PodFacts(msgspec.Struct, frozen=True, gc=False):
    """What never changes about a pod. `number`: its place among all names. `kind`, `owner`: of its controller, and its
    UID; empty without one. `grace`: seconds of its own. `charge`: what a budget's verdict about it depends on.
    """

    pod: Pod
    node: str
    budgets: tuple[BudgetKey, ...]
    wave: int
    number: int
    kind: str
    owner: str
    grace: int
    charge: tuple[bool, str]
    is_uncharged: bool
    has_kubelet: bool


class Beginning:
    """Nodes at the instant `at` from which they are drained, with the `plans` of that instant.

    `facts`: by UID of each pod. `queues_of`: the sets of budgets that a budget is part of. `uids_under`: the pods that
    a budget selects. `removed`: the pods that terminate, or are evicted by the status of a budget. `first_queued`: the
    pods to evict now, by node.
    """

    def __init__(self, nodes: Sequence[DrainingNode], plans: Sequence[Plan], at: float, rate: EvictionRate) -> None:
        self.at = at
        self.rate = rate
        self.nodes = {each.view.node.name: each for each in nodes}
        self.plans = dict(zip(self.nodes, plans, strict=True))
        self.first_queued = {name: queued_pods(self.nodes[name], each) for name, each in self.plans.items()}
        self.budgets: dict[BudgetKey, PodDisruptionBudget] = {}
        self.queues_of: dict[BudgetKey, set[tuple[BudgetKey, ...]]] = defaultdict(set)
        self.uids_under: dict[BudgetKey, list[str]] = defaultdict(list)
        self.facts: dict[str, PodFacts] = {}
        self.removed: list[PodFacts] = []
        in_order = sorted((pod.key, pod.uid) for each in nodes for pod in each.view.pods)
        numbers = {uid: number for number, (_, uid) in enumerate(in_order)}
        for each, decision in zip(nodes, plans, strict=True):
            node = each.view.node
            for entry in decision.pods:
                pod, owner = entry.pod, entry.pod.controller
                budgets = each.view.budgets.get(pod.uid, ())
                facts = self.facts[pod.uid] = PodFacts(
                    pod=pod,
                    node=node.name,
                    budgets=tuple([budget.key for budget in budgets]),
                    wave=entry.wave,
                    number=numbers[pod.uid],
                    kind="" if owner is None else owner.kind,
                    owner="" if owner is None else owner.uid,
                    grace=grace_of(pod),
                    charge=(pod.ready, pod.phase),
                    is_uncharged=pod.phase in UNCHARGED_PHASES,
                    has_kubelet=node.ready,
                )
                for budget in budgets:
                    self.budgets[budget.key] = budget
                    self.queues_of[budget.key].add(facts.budgets)
                    self.uids_under[budget.key].append(pod.uid)
                if pod.deletion_timestamp is not None or any(is_evicted(pod, budget) for budget in budgets):
                    self.removed.append(facts)


def queued_pods(node: DrainingNode, decision: Plan) -> tuple[QueuedPod, ...]:
    """The pods to evict now by the plan of a node."""
    name, since = node.view.node.name, node.since
    return tuple([QueuedPod(name, since, entry) for entry in decision.leaving])


class Scenario(msgspec.Struct, frozen=True):
    """Assumptions about everything except the controller.

    `uses_grace`: pods need all of their grace to terminate, otherwise none. `replacement_seconds`: from the moment in
    which a pod is replaced until its replacement is Ready. `pods_recover`: pods that are not Ready now become Ready
    immediately, otherwise never. `last_first`: of pods queued in the same instant the last goes first, as the order in
    which nodes are reconciled is not known. `detach_seconds`: from the end of the last pod with volumes of a node until
    they are detached; volumes of pods that had ended before are never detached, or immediately if this is 0. `mixture`:
    unless 0, about half of the waves, and of the budgets' replacements, take no time; another number selects another
    half. `observed`: since when pods are missing, and how long others took. `is_expected`: replacements and
    terminations take the time that others took.
    """

    uses_grace: bool
    replacement_seconds: float
    pods_recover: bool
    last_first: bool = False
    detach_seconds: float = 0.0
    mixture: int = 0
    observed: Observations = NOTHING_OBSERVED
    is_expected: bool = False

    def is_quick(self, *names: object) -> bool:
        """Whether the wave or budget with these names takes no time."""
        if not self.mixture:
            return not self.uses_grace
        return bool(crc32(repr((self.mixture, *names)).encode()) & 1)

    def takes(self, key: BudgetKey) -> float:
        """Seconds until a replacement under this budget is Ready."""
        if self.is_expected and (expected := self.observed.expected_recovery(key)) is not None:
            return expected
        if self.pods_recover or (self.mixture and self.is_quick(key)):
            return self.replacement_seconds if self.pods_recover else 0.0
        return self.longest(key)

    def longest(self, key: BudgetKey) -> float:
        """Maximum seconds until a replacement under this budget is Ready."""
        return max(self.replacement_seconds, self.observed.longest_recovery(key))


class RemovalMethod(StrEnum):
    """How a pod is removed."""

    EVICTED = "evicted"
    DELETED = "deleted"


class PodRemoval(msgspec.Struct, frozen=True, gc=False):
    """Eviction or deletion of a pod; `grace`: seconds."""

    at: float
    method: RemovalMethod
    grace: int


class SimulationResult(msgspec.Struct, frozen=True):
    """Course of events, by pod UID. Instants are Unix seconds.

    `removals`: of each removed pod. `terminated`: when its containers have stopped; missing: not before the node ends,
    or never. `drained`: by node (missing: never). `queued_at`: when a pod joined its queue. `final_entries`: the last
    plan of pods that block their nodes indefinitely.
    """

    removals: dict[str, tuple[PodRemoval, ...]]
    terminated: dict[str, float]
    drained: dict[str, float]
    queued_at: dict[str, float]
    final_entries: dict[str, PodPlan]
