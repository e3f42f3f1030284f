"""Volumes as far as the termination of a node waits for them."""

from __future__ import annotations

import msgspec


class VolumeAttachment(msgspec.Struct, frozen=True, gc=False):
    """A volume that is, or is to be, attached to a node."""

    name: str
    uid: str
    resource_version: str = ""
    node_name: str = ""
    volume_name: str = ""
    """The PersistentVolume; empty for an inline volume."""
    attached: bool = False
    deletion_timestamp: float | None = None

    @property
    def key(self) -> tuple[str, str]:
        """("", name)."""
        return ("", self.name)


class PersistentVolumeClaim(msgspec.Struct, frozen=True, gc=False):
    """Joins a pod's volume to the PersistentVolume that an attachment names."""

    namespace: str
    name: str
    volume_name: str = ""
    """Empty until the claim is bound."""
    uid: str = ""
    resource_version: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)."""
        return (self.namespace, self.name)
