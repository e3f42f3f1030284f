"""The settings that decisions read. Defaults are pinned by a test; the composition root joins them with the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from gracectl.model import names
from gracectl.model.selectors import LabelSelector

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class ProtectionSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """From when a protection counts, and the longest that an administrator grants (None: as long as asked for)."""

    reference: Literal["creation", "start"] = msgspec.field(default="creation", name="from")
    maximum_seconds: Seconds | None = None


class DrainSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How long a drain lasts at least, so that a pod bound in the instant of the cordon is still seen."""

    minimum_seconds: Seconds = 2.0


class ConditionPolicy(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A node whose condition `type` has this status is unhealthy, and may be so for `toleration_seconds`."""

    type: Annotated[str, msgspec.Meta(min_length=1)]
    status: Literal["True", "False", "Unknown"]
    toleration_seconds: Seconds


NOT_READY = (
    ConditionPolicy(names.READY, names.FALSE, 900.0),
    ConditionPolicy(names.READY, names.UNKNOWN, 900.0),
)


class HealthSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Whether and when a node is ended because it is unhealthy."""

    enabled: bool = True
    conditions: tuple[ConditionPolicy, ...] = NOT_READY
    maximum_unhealthy: Annotated[int, msgspec.Meta(ge=0)] | str = "20%"
    """With more unhealthy nodes than this, a number or a share of the managed ones, none is ended for its health."""
    force: bool = False
    """End it at once, with everything on it, instead of as budgets and protection allow."""


class NodeGroup(msgspec.Struct, frozen=True):
    """What holds for the nodes that `selector` matches. None: what holds for all."""

    selector: LabelSelector
    termination_grace_seconds: float | None = None
    """For nodes whose claim has no TGP of its own, or that have no claim; None: they have no deadline."""
    drain: DrainSettings | None = None


class PolicySettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Everything that `plan` takes from the administrator."""

    drain: DrainSettings = DrainSettings()
    protection: ProtectionSettings = ProtectionSettings()
    health: HealthSettings = HealthSettings()
    node_groups: tuple[NodeGroup, ...] = ()
    """The first one whose selector matches a node's labels is its group."""

    def group_of(self, labels: Mapping[str, str]) -> NodeGroup | None:
        """The group of a node with these labels."""
        return next((group for group in self.node_groups if group.selector.matches(labels)), None)

    def drain_of(self, labels: Mapping[str, str]) -> DrainSettings:
        """The drain settings of a node with these labels."""
        group = self.group_of(labels)
        return self.drain if group is None or group.drain is None else group.drain
