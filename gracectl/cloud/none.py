"""Provider for instances that are terminated by other means, or never (bare metal, kind)."""

from __future__ import annotations

import msgspec

from gracectl.cloud.provider import NONE, InstanceGone, InstanceState, NodeIdentity


class NoneProvider:
    """Terminates nothing: every instance counts as gone."""

    name = NONE
    needs_provider_id = False

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """No options."""

    def __init__(self, options: Options) -> None:
        del options

    async def state(self, provider_id: str) -> InstanceState:
        """UNKNOWN, so that no step is skipped."""
        return InstanceState.UNKNOWN

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        """Raises InstanceGone: done."""
        raise InstanceGone("provider none: nothing to terminate")

    async def aclose(self) -> None:
        """Nothing to close."""
