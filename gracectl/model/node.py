"""A node as decisions see it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gracectl.model import names
from gracectl.model.meta import Condition, condition_of

__all__ = ["Condition", "Node", "Taint"]


class Taint(msgspec.Struct, frozen=True, gc=False):
    """An entry of spec.taints."""

    key: str
    value: str = ""
    effect: str = ""


class Node(msgspec.Struct, frozen=True, gc=False):
    """One node. A node that comes back under the same name has another uid and is another node."""

    name: str
    uid: str
    resource_version: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    """Only those of names.NODE_ANNOTATIONS."""
    created: float = 0.0
    deletion_timestamp: float | None = None
    """Instant at which somebody deleted it; a finalizer holds it since."""
    finalizers: tuple[str, ...] = ()
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    provider_id: str = ""
    addresses: tuple[str, ...] = ()
    """IP addresses and host names of its status, the first few; what can be neither is left out."""
    conditions: tuple[Condition, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """("", name)."""
        return ("", self.name)

    @property
    def ready(self) -> bool:
        """Whether the condition Ready is "True"; a node that never reported is not ready."""
        condition = condition_of(self.conditions, names.READY)
        return condition is not None and condition.status == names.TRUE
