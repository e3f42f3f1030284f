"""A node as decisions see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gracectl.model import names
from gracectl.model.meta import ClusterObject, Condition, condition_of
from gracectl.model.pod import Toleration


class Taint(msgspec.Struct, frozen=True, gc=False):
    """An entry of spec.taints."""

    key: str
    value: str = ""
    effect: str = ""


class Node(ClusterObject, frozen=True, gc=False):
    """One node. A node that returns with the same name has another UID and is another node."""

    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    """Only the keys of names.NODE_ANNOTATIONS."""
    created: float = 0.0
    deletion_timestamp: float | None = None
    """Instant of its deletion; a finalizer has kept it since then."""
    finalizers: tuple[str, ...] = ()
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    provider_id: str = ""
    addresses: tuple[str, ...] = ()
    """IP addresses and host names of its status, the first few; what can be neither is left out."""
    conditions: tuple[Condition, ...] = ()
    gates: tuple[str, ...] = ()
    """Names of its gates (annotations `gate.gracectl.io/NAME`), sorted."""

    @property
    def ready(self) -> bool:
        """Whether the condition Ready is "True"; a node that never reported is not ready."""
        condition = condition_of(self.conditions, names.READY)
        return condition is not None and condition.status == names.TRUE


DISRUPTED_TAINT: Final = Taint(key=names.DISRUPTED_TAINT_KEY, effect=names.NO_SCHEDULE)
"""Taint of the cordon; a pod that tolerates it stays until the node is terminated."""

UNSCHEDULABLE_TAINT: Final = Taint(key=names.UNSCHEDULABLE_TAINT_KEY, effect=names.NO_SCHEDULE)


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Whether any toleration matches the taint by effect, key and operator; an unknown operator matches nothing."""
    return any(_matches(toleration, taint) for toleration in tolerations)


def _matches(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"
