"""Counts of pods for the metrics: pods that block nodes in termination, and protected pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Final, get_args

import msgspec

from gracectl.controllers.cluster.cache import ClusterCache, is_finalizing
from gracectl.policy.owners import ManagedNodes
from gracectl.policy.plan import Blocker, Outcome, Plan
from gracectl.policy.protection import ProtectionDuration, ProtectionKind, protection_of
from gracectl.policy.settings import ProtectionSettings
from gracectl.runtime.slices import Sliced

STATES: Final = tuple(outcome for outcome in Outcome if outcome is not Outcome.IGNORED)
"""Outcomes of pods that block their node."""


class RemainingPods(msgspec.Struct, frozen=True):
    """Pods that block their node, by outcome and by blocker; every key is present."""

    states: Mapping[Outcome, int] = msgspec.field(default_factory=lambda: dict.fromkeys(STATES, 0))
    blocked: Mapping[Blocker, int] = msgspec.field(default_factory=lambda: dict.fromkeys(Blocker, 0))


def count_remaining(plans: Iterable[tuple[Plan, Set[str]]]) -> RemainingPods:
    """Count the pods of these plans, without the pods (by UID) that have left since."""
    entries = (entry for plan, ended in plans for entry in plan.pods if entry.pod.uid not in ended)
    found = Counter((entry.outcome, entry.blocker) for entry in entries)
    states: dict[Outcome, int] = dict.fromkeys(STATES, 0)
    blocked = dict.fromkeys(Blocker, 0)
    for (outcome, blocker), number in found.items():
        if outcome is not Outcome.IGNORED:
            states[outcome] += number
        if blocker is not None:
            blocked[blocker] += number
    return RemainingPods(states, blocked)


SLICE: Final = 500
"""Pods that are counted in one slice: a few milliseconds, also if each has another duration to be parsed."""

Group = tuple[ProtectionKind, ProtectionDuration]

GROUPS: Final[tuple[Group, ...]] = tuple(
    (kind, lasting)
    for kind in get_args(ProtectionKind)
    for lasting in get_args(ProtectionDuration)
    if (kind, lasting) != ("do-not-evict", "invalid")  # every value but "false" is valid
)


class ProtectedPodCounts(msgspec.Struct, frozen=True):
    """Protected pods by what protects them and for how long; `longest`: seconds until the last known end."""

    protected: Mapping[Group, int]
    terminating: Mapping[Group, int]
    """Protected pods on nodes that are being terminated."""
    longest: Mapping[ProtectionKind, float]


def count_protected_pods(
    cluster: ClusterCache, managed: ManagedNodes, settings: ProtectionSettings, now: float
) -> Sliced[ProtectedPodCounts]:
    """Count the protected pods on the managed nodes, as a drain would see them at `now`.

    Only the few pods that ask for protection are looked at; the cache indexes them.
    """
    protected: Counter[Group] = Counter()
    terminating: Counter[Group] = Counter()
    longest: dict[ProtectionKind, float] = dict.fromkeys(get_args(ProtectionKind), 0.0)
    by_node: dict[str, bool | None] = {}  # whether it is being terminated; None: not managed
    for number, pod in enumerate(cluster.pods_that_ask(), start=1):
        if number % SLICE == 0:
            yield
        if pod.node_name not in by_node:
            node = cluster.node(pod.node_name)
            is_managed = node is not None and cluster.manages(managed, node)
            by_node[pod.node_name] = is_finalizing(node) if node is not None and is_managed else None
        is_terminating = by_node[pod.node_name]
        if is_terminating is None or pod.deletion_timestamp is not None:
            continue
        protection = protection_of(pod, now, settings)
        if protection is None:
            continue
        group = (protection.kind, protection.lasting)
        protected[group] += 1
        terminating[group] += is_terminating
        if protection.until is not None:
            longest[protection.kind] = max(longest[protection.kind], protection.until - now)
    return ProtectedPodCounts(
        protected={group: protected[group] for group in GROUPS},
        terminating={group: terminating[group] for group in GROUPS},
        longest=longest,
    )
