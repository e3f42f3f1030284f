"""The provider for nodes whose machines somebody else ends, or that never end (bare metal, kind)."""

from __future__ import annotations

import msgspec

from gracectl.cloud.provider import InstanceGone, InstanceState, NodeIdentity


class NoneProvider:
    """Ends nothing: for it, there is nothing left to end."""

    name = "none"
    needs_provider_id = False

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """It has no options."""

    def __init__(self, options: Options) -> None:
        del options

    async def state(self, provider_id: str) -> InstanceState:
        """It cannot tell, so no step is ever skipped on its word."""
        return InstanceState.UNKNOWN

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        """Raises InstanceGone: done."""
        raise InstanceGone("provider none: there is nothing to end")

    async def aclose(self) -> None:
        """It holds nothing."""
