"""Identity of the cluster behind an address: UID and creation of the namespace kube-system.

A watch that resumes on another cluster may be accepted there, and shows the objects of two clusters as one. So a
reflector compares identities after each lost connection. Without the right to get the namespace, the identity is
unknown and nothing is compared. In a pod the cluster stays the same, so its service account needs no such right.
"""

from __future__ import annotations

from typing import Final

import anyio

from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, Unreachable
from gracectl.kube.resources import NAMESPACES
from gracectl.runtime.clock import Clock

CLUSTER_NAMESPACE: Final = "kube-system"

FRESH_SECONDS: Final = 1.0
"""Reflectors lose their connections together: one request serves all."""


class ClusterIdentity:
    """Identity of a cluster, shared by all reflectors of a client. It is unknown until `is_compared` is set."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        self.is_compared = False
        self._client = client
        self._clock = clock
        self._lock = anyio.Lock()
        self._known = ""
        self._read_at: float | None = None

    async def read(self) -> str:
        """UID and creation of the namespace, at most FRESH_SECONDS old; "" if unknown. Raises Unreachable."""
        if not self.is_compared:
            return ""
        async with self._lock:
            now = self._clock.monotonic()
            if self._read_at is None or now - self._read_at > FRESH_SECONDS:
                try:
                    self._known = await self._client.get(NAMESPACES, ("", CLUSTER_NAMESPACE))
                except Unreachable:
                    self._read_at = None
                    raise
                except ApiError:
                    self._known = ""
                self._read_at = self._clock.monotonic()
            return self._known

    async def read_if_reachable(self) -> str:
        """Read the identity; return "" also if the server cannot be reached."""
        try:
            return await self.read()
        except Unreachable:
            return ""
