"""Resource quantities ("100m", "1.5Gi") as numbers, and what a pod asks for. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from kubesim.server.api import Json, JsonObject

SUFFIXES: Final = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0,
    "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip
NAMES: Final = ("cpu", "memory", "ephemeral-storage")
"""Counted resources, in addition to the number of pods."""

Amounts = tuple[float, float, float]
"""In the order of NAMES: cores, bytes, bytes."""

NOTHING: Final[Amounts] = (0.0, 0.0, 0.0)
PLENTY: Final = float("inf")


def quantity(value: Json) -> float:
    """A quantity as a number; 0 for what is none."""
    return float(value) if isinstance(value, int | float) else _parsed(str(value))


@lru_cache(maxsize=4096)
def _parsed(text: str) -> float:
    digits = text.rstrip("numkKMGTPEi") if not text[-1:].isdigit() else text
    factor = SUFFIXES.get(text[len(digits) :])
    try:
        return float(digits) * factor if factor is not None else 0.0
    except ValueError:
        return 0.0


def requests_of(pod: JsonObject) -> Amounts:
    """What the scheduler reserves for a pod: its containers together, or its largest init container, and overhead."""
    spec = pod["spec"]
    total = NOTHING
    for container in spec.get("containers") or ():
        requested = (container.get("resources") or {}).get("requests")
        if requested:
            total = _plus(total, _amounts(requested))
    for container in spec.get("initContainers") or ():
        requested = (container.get("resources") or {}).get("requests")
        if requested:
            one = _amounts(requested)
            if container.get("restartPolicy") == "Always":
                total = _plus(total, one)
            else:
                total = (max(total[0], one[0]), max(total[1], one[1]), max(total[2], one[2]))
    return _plus(total, _amounts(spec["overhead"])) if spec.get("overhead") else total


def allocatable_of(node: JsonObject) -> Amounts:
    """What a node has for pods. A node that says nothing of a resource is taken to have plenty."""
    status = node.get("status") or {}
    capacity = status.get("allocatable") or status.get("capacity") or {}
    cpu, memory, storage = (quantity(capacity[name]) if name in capacity else PLENTY for name in NAMES)
    return cpu, memory, storage


def _amounts(listed: JsonObject) -> Amounts:
    return _counted(*[listed.get(name, 0.0) for name in NAMES])


@lru_cache(maxsize=4096)
def _counted(*listed: Json) -> Amounts:
    cpu, memory, storage = map(quantity, listed)
    return cpu, memory, storage


def _plus(one: Amounts, other: Amounts) -> Amounts:
    return other if one is NOTHING else (one[0] + other[0], one[1] + other[1], one[2] + other[2])
