"""How many pods of managed nodes are protected now, by what, and for how long: counted when somebody asks.

Only pods that ask for protection are looked at, and they are few; the cache finds them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, get_args

import msgspec

from gracectl.controllers.cluster.cache import ClusterCache, is_finalizing
from gracectl.model.selectors import LabelSelector
from gracectl.policy.protection import Kind, Lasting, protection_of
from gracectl.policy.settings import ProtectionSettings
from gracectl.runtime.slices import Sliced

SLICE: Final = 500
"""Pods that are counted in one slice: a few milliseconds, also if each has another duration to be parsed."""

Group = tuple[Kind, Lasting]

GROUPS: Final[tuple[Group, ...]] = tuple(
    (kind, lasting)
    for kind in get_args(Kind)
    for lasting in get_args(Lasting)
    if (kind, lasting) != ("do-not-evict", "invalid")  # whatever is not plainly a "no" protects
)
"""All there can be."""


class ProtectedPodCounts(msgspec.Struct, frozen=True):
    """Protected pods by what protects them and how long that lasts; `longest`: seconds until the last known end."""

    protected: Mapping[Group, int]
    terminating: Mapping[Group, int]
    """Those on nodes that are being terminated."""
    longest: Mapping[Kind, float]


def count_protected_pods(
    cluster: ClusterCache, selector: LabelSelector, settings: ProtectionSettings, now: float
) -> Sliced[ProtectedPodCounts]:
    """Count the protected pods on the nodes that `selector` matches, as a drain would see them at `now`."""
    protected: Counter[Group] = Counter()
    terminating: Counter[Group] = Counter()
    longest: dict[Kind, float] = dict.fromkeys(get_args(Kind), 0.0)
    of_node: dict[str, bool | None] = {}  # whether it is being terminated; None: it is not ours
    for number, pod in enumerate(cluster.pods_that_ask(), start=1):
        if number % SLICE == 0:
            yield
        if pod.node_name not in of_node:
            node = cluster.node(pod.node_name)
            is_ours = node is not None and selector.matches(node.labels)
            of_node[pod.node_name] = is_finalizing(node) if node is not None and is_ours else None
        is_ending = of_node[pod.node_name]
        if is_ending is None or pod.deletion_timestamp is not None:
            continue
        protection = protection_of(pod, now, settings)
        if protection is None:
            continue
        group = (protection.kind, protection.lasting)
        protected[group] += 1
        terminating[group] += is_ending
        if protection.until is not None:
            longest[protection.kind] = max(longest[protection.kind], protection.until - now)
    return ProtectedPodCounts(
        protected={group: protected[group] for group in GROUPS},
        terminating={group: terminating[group] for group in GROUPS},
        longest=longest,
    )
