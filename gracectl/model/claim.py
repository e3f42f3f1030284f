"""A NodeClaim as decisions see it: the promise of one instance, and how long its end may take."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gracectl.model.meta import Condition


class NodeClaim(msgspec.Struct, frozen=True, gc=False):
    """One claim; v1 and v1beta1 read alike."""

    name: str
    uid: str
    resource_version: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    """Only those of names.CLAIM_ANNOTATIONS."""
    created: float = 0.0
    deletion_timestamp: float | None = None
    finalizers: tuple[str, ...] = ()
    termination_grace_period: str | None = None
    """A Go duration as written; None means no deadline."""
    expire_after: str | None = None
    """A Go duration or "Never" as written; None means never."""
    provider_id: str = ""
    """Empty until the instance is launched."""
    node_name: str = ""
    """Empty until the node has registered."""
    conditions: tuple[Condition, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """("", name)."""
        return ("", self.name)
