"""The settings that decisions read. Defaults are pinned by a test; the composition root joins them with the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from gracectl.model.selectors import LabelSelector

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class ProtectionSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """From when a protection counts, and the longest that an administrator grants (None: as long as asked for)."""

    reference: Literal["creation", "start"] = msgspec.field(default="creation", name="from")
    maximum_seconds: Seconds | None = None


class DrainSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How long a drain lasts at least, so that a pod bound in the instant of the cordon is still seen."""

    minimum_seconds: Seconds = 2.0


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
    node_groups: tuple[NodeGroup, ...] = ()
    """The first one whose selector matches a node's labels is its group."""

    def group_of(self, labels: Mapping[str, str]) -> NodeGroup | None:
        """The group of a node with these labels."""
        return next((group for group in self.node_groups if group.selector.matches(labels)), None)

    def drain_of(self, labels: Mapping[str, str]) -> DrainSettings:
        """The drain settings of a node with these labels."""
        group = self.group_of(labels)
        return self.drain if group is None or group.drain is None else group.drain
