"""The settings that decisions read. Defaults are pinned by a test; the composition root joins them with the others."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class ProtectionSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """From when a protection counts, and the longest that an administrator grants (None: as long as asked for)."""

    reference: Literal["creation", "start"] = msgspec.field(default="creation", name="from")
    maximum_seconds: Seconds | None = None


class DrainSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How long a drain lasts at least, so that a pod bound in the instant of the cordon is still seen."""

    minimum_seconds: Seconds = 2.0


class PolicySettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Everything that `plan` takes from the administrator."""

    drain: DrainSettings = DrainSettings()
    protection: ProtectionSettings = ProtectionSettings()
