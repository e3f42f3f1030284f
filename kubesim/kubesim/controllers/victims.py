"""Which pods of an owner that has too many go first: kube-controller-manager's `ActivePodsWithRanks`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cmp_to_key

from kubesim.controllers.objects import annotations_of, condition_of, is_ready, node_of, phase_of
from kubesim.controllers.podstatus import restarts_of
from kubesim.server.api import JsonObject
from kubesim.values import parse_time

NONE: Mapping[str, int] = {}


def victims(pods: list[JsonObject], now: float, together: Mapping[str, int] = NONE) -> list[JsonObject]:
    """Active pods of one owner in order of deletion: unbound, Pending, not Ready, cheap to delete, on a crowded node,
    Ready for a short time, restarted often, young. `together`: how many pods of the workload are on each node.

    Two times count as equal if their distances from `now` have the same power of two in nanoseconds; then the uid
    decides, so that among pods of about one age chance does.
    """

    def first(pod: JsonObject) -> tuple[object, ...]:
        node = node_of(pod)
        phase = {"Pending": 0, "Unknown": 1}.get(phase_of(pod), 2)
        return bool(node), phase, is_ready(pod), deletion_cost(pod), -together.get(node, 0)

    def compared(one: JsonObject, other: JsonObject) -> int:
        ranks = first(one), first(other)
        if ranks[0] != ranks[1]:
            return -1 if ranks[0] < ranks[1] else 1
        uids = -1 if one["metadata"]["uid"] < other["metadata"]["uid"] else 1
        order = _by_time(_ready_since(one), _ready_since(other), now)
        if order is None:
            order = restarts_of(other) - restarts_of(one)
            if order == 0:
                order = _by_time(_created(one), _created(other), now)
                return 0 if order is None else order or uids
        return order or uids

    return sorted(pods, key=cmp_to_key(compared))


def deletion_cost(pod: JsonObject) -> int:
    """What an annotation says its deletion costs, compared with others of its owner; 0 if it says nothing."""
    try:
        return int(annotations_of(pod).get("controller.kubernetes.io/pod-deletion-cost", "0"))
    except ValueError:
        return 0


def _created(pod: JsonObject) -> float:
    return parse_time(pod["metadata"]["creationTimestamp"])


def _ready_since(pod: JsonObject) -> float | None:
    since = (condition_of(pod, "Ready") or {}).get("lastTransitionTime") if is_ready(pod) else None
    return parse_time(since) if since else None


def _by_time(one: float | None, other: float | None, now: float) -> int | None:
    """The later one first, 0 if they are about equal; None if they are equal or unknown."""
    if one is None or other is None or one == other:
        return None
    return _magnitude(now - one) - _magnitude(now - other)


def _magnitude(seconds: float) -> int:
    return int(math.log2(seconds * 1e9)) if seconds > 0 else -1
