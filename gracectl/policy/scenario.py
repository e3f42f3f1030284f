"""Input and result of a simulation: what all scenarios begin with, the assumptions of one, and what comes of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from zlib import crc32

import msgspec

from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.policy.budgets import UNCHARGED_PHASES, BudgetKey, is_evicted
from gracectl.policy.deadlines import grace_of
from gracectl.policy.eviction_queues import EvictionRate, Place, turn_of
from gracectl.policy.observations import NOTHING_OBSERVED, Observations
from gracectl.policy.plan import NodeView, Plan, PodPlan


class DrainingNode(msgspec.Struct, frozen=True):
    """Node that is drained from `since` on (Unix seconds), as the caches show it."""

    view: NodeView
    since: float
    starting: Mapping[BudgetKey, tuple[Pod, ...]] = {}
    """Pods of its budgets that should have become Ready and are not, on any node or none, as far as they are known; see
    `stalled.is_due`."""


NO_BUDGET = 0
"""Number of the queue of pods without a budget, which wait for the rate limit."""


class PodFacts(msgspec.Struct, frozen=True, gc=False):
    """What never changes about a pod. `lane`: number of its queue; `numbers`: of its budgets. `number`: its place among
    all names. `kind`, `owner`: of its controller, and its UID; empty without one. `grace`: seconds of its own.
    `charge`: what a budget's verdict depends on.
    """

    pod: Pod
    node: str
    lane: int
    numbers: tuple[int, ...]
    wave: int
    number: int
    kind: str
    owner: str
    grace: int
    charge: tuple[bool, str, int]
    is_uncharged: bool
    has_kubelet: bool


class Beginning:
    """Nodes at the instant `at` from which they are drained, with the `plans` of that instant.

    `facts`: by UID of each pod. `lanes`: number of each queue, by its budgets, in their order. `lanes_of`: the queues
    of a budget, by its number, which is its place in `budgets`. `under`: the pods that a budget selects. `removed`: the
    pods that terminate, or are evicted by the status of a budget. `first_places`: of the pods to evict now, by node.
    `since`: when the first of the drains began. `starting`: see DrainingNode.
    """

    def __init__(self, nodes: Sequence[DrainingNode], plans: Sequence[Plan], at: float, rate: EvictionRate) -> None:
        self.at = at
        self.rate = rate
        self.nodes = {each.view.node.name: each for each in nodes}
        self.plans = dict(zip(self.nodes, plans, strict=True))
        found = [each.view.budgets.get(pod.uid, ()) for each in nodes for pod in each.view.pods]
        self.budgets = {budget.key: budget for budgets in found for budget in budgets}
        self.since = min([each.since for each in nodes], default=at)
        self.starting = {key: pods for each in nodes for key, pods in each.starting.items()}
        self.lanes = {keys: lane for lane, keys in enumerate(sorted({(), *map(_keys, found)}))}
        self.lanes_of: list[set[int]] = [set() for _ in self.budgets]
        self.under: dict[BudgetKey, list[PodFacts]] = {key: [] for key in self.budgets}
        self.facts: dict[str, PodFacts] = {}
        number_of = {key: number for number, key in enumerate(self.budgets)}
        in_order = sorted((pod.key, pod.uid) for each in nodes for pod in each.view.pods)
        places = {uid: place for place, (_, uid) in enumerate(in_order)}
        for each, decision in zip(nodes, plans, strict=True):
            node = each.view.node
            for entry in decision.pods:
                pod, owner = entry.pod, entry.pod.controller
                budgets = each.view.budgets.get(pod.uid, ())
                keys = _keys(budgets)
                facts = self.facts[pod.uid] = PodFacts(
                    pod=pod,
                    node=node.name,
                    lane=self.lanes[keys],
                    numbers=tuple([number_of[key] for key in keys]),
                    wave=entry.wave,
                    number=places[pod.uid],
                    kind="" if owner is None else owner.kind,
                    owner="" if owner is None else owner.uid,
                    grace=grace_of(pod),
                    charge=(pod.ready, pod.phase, len(keys)),
                    is_uncharged=pod.phase in UNCHARGED_PHASES,
                    has_kubelet=node.ready,
                )
                for key, number in zip(keys, facts.numbers, strict=True):
                    self.lanes_of[number].add(facts.lane)
                    self.under[key].append(facts)
        self.removed = [
            self.facts[pod.uid]
            for each in nodes
            for pod in each.view.pods
            if pod.deletion_timestamp is not None
            or any(is_evicted(pod, budget) for budget in each.view.budgets.get(pod.uid, ()))
        ]
        self.first_places = {
            name: tuple([place_of(self.nodes[name], entry, self.facts) for entry in each.leaving])
            for name, each in self.plans.items()
        }


def _keys(budgets: Iterable[PodDisruptionBudget]) -> tuple[BudgetKey, ...]:
    return tuple([budget.key for budget in budgets])


def place_of(node: DrainingNode, entry: PodPlan, facts: Mapping[str, PodFacts]) -> Place:
    """The place of a pod in its queue."""
    uid = entry.pod.uid
    return (False, *turn_of(entry.deadline, node.since), facts[uid].number, uid)


class Scenario(msgspec.Struct, frozen=True):
    """Assumptions about everything except the controller.

    `uses_grace`: pods need all of their grace to terminate, otherwise none. `replacement_seconds`: from the moment in
    which a pod is replaced until its replacement is Ready. `pods_recover`: pods that are not Ready now become Ready
    immediately, otherwise never. `last_first`: of pods queued in the same instant the last goes first, as the order in
    which nodes are reconciled is not known. `detach_seconds`: from the end of the last pod with volumes of a node until
    they are detached; volumes of pods that had ended before are never detached, or immediately if this is 0. `mixture`:
    unless 0, about half of the waves, and of the budgets' replacements, take no time; another number selects another
    half. `observed`: since when pods are missing, and how long others took. `is_expected`: replacements and
    terminations take the time that others took. `stalled`: budgets of which replacements become Ready immediately, or
    never.
    """

    uses_grace: bool
    replacement_seconds: float
    pods_recover: bool
    last_first: bool = False
    detach_seconds: float = 0.0
    mixture: int = 0
    observed: Observations = NOTHING_OBSERVED
    is_expected: bool = False
    stalled: Collection[BudgetKey] = ()

    def is_quick(self, *names: object) -> bool:
        """Whether the wave or budget with these names takes no time."""
        if not self.mixture:
            return not self.uses_grace
        return bool(crc32(repr((self.mixture, *names)).encode()) & 1)

    def takes(self, key: BudgetKey) -> float:
        """Seconds until a replacement under this budget is Ready."""
        if self.never_recovers(key):
            return math.inf
        if self.is_expected and (expected := self.observed.expected_recovery(key)) is not None:
            return expected
        if self.pods_recover or (self.mixture and self.is_quick(key)):
            return self.replacement_seconds if self.pods_recover else 0.0
        return self.longest(key)

    def never_recovers(self, key: BudgetKey) -> bool:
        """Whether no replacement under this budget becomes Ready."""
        return key in self.stalled and not self.pods_recover and not (self.mixture and self.is_quick(key))

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
