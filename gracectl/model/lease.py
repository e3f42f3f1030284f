"""Lease as leader election (and the detection of a live Karpenter) reads it."""

from __future__ import annotations

import msgspec


class Lease(msgspec.Struct, frozen=True, gc=False):
    """One lease. Its expiry is enforced by holders and contenders, not by the server."""

    namespace: str
    name: str
    uid: str
    resource_version: str = ""
    holder: str = ""
    """Empty when it was released."""
    duration_seconds: int = 0
    acquire_time: float | None = None
    renew_time: float | None = None
    transitions: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)."""
        return (self.namespace, self.name)
