"""Whether Karpenter is installed: the API server serves its NodePools.

Karpenter does not run without their definition, so it is there before the first of its nodes. Uses discovery, which
needs no right, and nothing that a tenant can write. Invariant: once seen, Karpenter counts as installed while this
process runs: an API server that has just started serves no custom resources for a moment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import anyio
import msgspec

from gracectl.kube.cache.reading import is_served
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError
from gracectl.kube.resources import NODE_POOL_VERSIONS
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 30.0
"""Interval at which a Karpenter that is installed later is looked for."""


class Presence(msgspec.Struct):
    """Other controllers in the cluster. `has_karpenter`: whether it is installed; None: not known yet."""

    has_karpenter: bool | None = None

    @property
    def owns_claims(self) -> bool:
        """Whether claims may be Karpenter's. Without it none is, whatever its labels and nodeClassRef: others make
        claims too."""
        return self.has_karpenter is not False


class KarpenterPresence:
    """Looks for Karpenter; `appeared` is called when it was not there, and is."""

    def __init__(self, client: KubeClient, clock: Clock, presence: Presence, appeared: Callable[[], None]) -> None:
        self._client = client
        self._clock = clock
        self._presence = presence
        self._appeared = appeared

    @property
    def is_installed(self) -> bool:
        """Whether it has been seen."""
        return self._presence.has_karpenter is True

    async def look(self) -> bool:
        """Whether it is installed, or was. Raises ApiError."""
        self._presence.has_karpenter = self.is_installed or await is_served(self._client, NODE_POOL_VERSIONS)
        return self.is_installed

    async def run(self) -> None:
        """Look until cancelled."""
        while not self.is_installed:
            with suppress(ApiError):
                if await self.look():
                    logger.info("Karpenter is installed: its nodes and node claims are left to it")
                    self._appeared()
                    break
            await self._clock.sleep(POLL_SECONDS)
        await anyio.sleep_forever()
