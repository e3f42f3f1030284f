"""Taints and tolerations as the controllers of nodes read and make them: pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from kubesim.controllers.objects import condition_of, is_tolerated
from kubesim.server.api import JsonObject

PREFIX: Final = "node.kubernetes.io/"
NOT_READY, UNREACHABLE = f"{PREFIX}not-ready", f"{PREFIX}unreachable"
UNSCHEDULABLE = f"{PREFIX}unschedulable"
OUT_OF_SERVICE = f"{PREFIX}out-of-service"
BY_CONDITION: Final[Mapping[str, Mapping[str, str]]] = {
    "Ready": {"False": NOT_READY, "Unknown": UNREACHABLE},
    "MemoryPressure": {"True": f"{PREFIX}memory-pressure"},
    "DiskPressure": {"True": f"{PREFIX}disk-pressure"},
    "PIDPressure": {"True": f"{PREFIX}pid-pressure"},
    "NetworkUnavailable": {"True": f"{PREFIX}network-unavailable"},
}
"""Which state of a condition is which taint NoSchedule (kube-controller-manager: TaintNodesByCondition)."""

OURS: Final = frozenset(
    (UNSCHEDULABLE, *(key for states in BY_CONDITION.values() for key in states.values())),
)
EVICTING: Final = frozenset((NOT_READY, UNREACHABLE))


def taints_of(node: JsonObject, *effects: str) -> list[JsonObject]:
    """Taints of a node; with effects, only the taints that have one of them."""
    return [taint for taint in node["spec"].get("taints") or () if not effects or taint["effect"] in effects]


def wanted_taints(node: JsonObject, now: str) -> list[JsonObject]:
    """Taints that a node should have: from its conditions and cordon, plus foreign ones. A new node is not ready, but
    no pod is evicted from it. `now`: timeAdded of new taints."""
    wanted = {(key, "NoSchedule") for key in _conditions_as_keys(node)}
    if node["spec"].get("unschedulable"):
        wanted.add((UNSCHEDULABLE, "NoSchedule"))
    ready = condition_of(node, "Ready")
    if ready is None:
        wanted.add((NOT_READY, "NoSchedule"))
    elif ready["status"] in BY_CONDITION["Ready"]:
        wanted.add((BY_CONDITION["Ready"][ready["status"]], "NoExecute"))
    kept = [taint for taint in taints_of(node) if not _is_ours(taint) or (taint["key"], taint["effect"]) in wanted]
    there = {(taint["key"], taint["effect"]) for taint in kept}
    added = [{"key": key, "effect": effect, "timeAdded": now} for key, effect in sorted(wanted - there)]
    return [*kept, *added]


def tolerated_seconds(taints: list[JsonObject], tolerations: list[JsonObject]) -> float:
    """Seconds that a pod may stay under these taints: 0 if it may not, infinite without a limit
    (GetMinTolerationTime)."""
    shortest = math.inf
    for taint in taints:
        covering = [toleration for toleration in tolerations if is_tolerated(taint, [toleration])]
        if not covering:
            return 0.0
        # The first that covers a taint is the one that counts for it.
        seconds = covering[0].get("tolerationSeconds")
        if seconds is not None:
            shortest = min(shortest, max(0.0, float(seconds)))
    return shortest


def _conditions_as_keys(node: JsonObject) -> list[str]:
    found = []
    for condition in (node.get("status") or {}).get("conditions") or ():
        key = BY_CONDITION.get(condition["type"], {}).get(condition["status"])
        if key is not None:
            found.append(key)
    return found


def _is_ours(taint: JsonObject) -> bool:
    effect = taint["effect"]
    return (effect == "NoSchedule" and taint["key"] in OURS) or (effect == "NoExecute" and taint["key"] in EVICTING)
