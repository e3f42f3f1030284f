"""Arithmetic of rolling updates: replicas of each ReplicaSet of a Deployment. Pure.

After `rolling.go` and `deployment_util.go`. Invariants: at most replicas + maxSurge pods are wanted; old sets keep
pods while fewer than replicas - maxUnavailable are available.
"""

from __future__ import annotations

import msgspec

from kubesim.server.api import JsonObject
from kubesim.values import scaled_value


class Bounds(msgspec.Struct, frozen=True):
    """`replicas` wanted, and by how many there may be more pods and fewer available ones meanwhile."""

    replicas: int
    surge: int
    unavailable: int


class SetState(msgspec.Struct, frozen=True):
    """A ReplicaSet: how many pods it wants, and how many of them are available."""

    name: str
    replicas: int
    available: int


Plan = dict[str, int]
"""How many replicas which ReplicaSet should have from now on; those that stay as they are left out."""


def bounds_of(spec: JsonObject) -> Bounds:
    """Bounds of a Deployment. Surge rounds up, unavailable rounds down; if both are 0, one may be unavailable."""
    replicas = spec.get("replicas", 1)
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return Bounds(replicas, 0, replicas)
    rolling = strategy.get("rollingUpdate") or {}
    surge = scaled_value(rolling.get("maxSurge", "25%"), replicas, round_up=True)
    unavailable = scaled_value(rolling.get("maxUnavailable", "25%"), replicas, round_up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return Bounds(replicas, surge, min(unavailable, replicas))


def next_of_new(bounds: Bounds, new_replicas: int, total: int) -> int:
    """How many replicas the newest set should want; `total`: what all sets want together now."""
    if new_replicas >= bounds.replicas:
        return bounds.replicas
    room = bounds.replicas + bounds.surge - total
    return new_replicas + max(0, min(room, bounds.replicas - new_replicas))


def shrink_old(bounds: Bounds, new: SetState, old: list[SetState]) -> Plan:
    """What may be taken from the old sets, oldest first: pods that are not available, then available ones."""
    least = bounds.replicas - bounds.unavailable
    total = new.replicas + sum(each.replicas for each in old)
    spare = total - least - (new.replicas - new.available)
    if spare <= 0:
        return {}
    wanted = {each.name: each.replicas for each in old}
    for each in old:
        taken = min(spare, max(0, each.replicas - each.available))
        wanted[each.name] -= taken
        spare -= taken
    spare = new.available + sum(min(each.available, wanted[each.name]) for each in old) - least
    for each in old:
        taken = max(0, min(spare, wanted[each.name]))
        wanted[each.name] -= taken
        spare -= taken
    return {each.name: wanted[each.name] for each in old if wanted[each.name] != each.replicas}


def scale_in_proportion(bounds: Bounds, sets: list[SetState], size_before: int) -> Plan:
    """Spread a change of `spec.replicas` during a rolling update over the sets, newest first. `size_before`: replicas +
    surge when the sets were last scaled."""
    allowed = bounds.replicas + bounds.surge if bounds.replicas else 0
    change = allowed - sum(each.replicas for each in sets)
    # In both directions the largest set takes the remainder first. Sets of equal size: the newest first.
    ordered = sorted(sets, key=lambda each: -each.replicas)
    wanted, spent = {each.name: each.replicas for each in ordered}, 0
    for each in ordered:
        share = round(each.replicas * allowed / size_before) - each.replicas if size_before else 0
        share = min(share, change - spent) if change > 0 else max(share, change - spent)
        wanted[each.name] += share if (share > 0) == (change > 0) else 0
        spent = sum(wanted.values()) - sum(found.replicas for found in ordered)
    if ordered and spent != change:
        first = ordered[0].name
        wanted[first] = max(0, wanted[first] + change - spent)
    return {each.name: wanted[each.name] for each in sets if wanted[each.name] != each.replicas}
