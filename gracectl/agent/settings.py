"""Settings of the agent. Defaults are pinned by a test."""

from __future__ import annotations

import os
from typing import Literal
from urllib.parse import urlsplit

import msgspec

GATE = "PodPriorityBasedGracefulNodeShutdown"
"""The feature gate of KEP-2712."""

GATED = f"shutdownGracePeriodByPodPriority is ignored: featureGates.{GATE} is false"
"""Message for settings with ranges and the gate off."""

BUS_ADDRESS = "unix:path=/run/dbus/system_bus_socket"
"""Default address of the system bus, unless the environment has another (D-Bus specification)."""


InterruptionSource = Literal["none", "ec2", "gce", "azure"]


class FeatureGates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Features that can be switched off, under the kubelet's names for them."""

    by_pod_priority: bool = msgspec.field(default=True, name=GATE)
    """Off: `shutdownGracePeriodByPodPriority` is ignored; the older form still applies."""


class AgentSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Address of the machine's message bus, the place of logind's drop-in, the user of reads, and where notices that
    the machine will go are heard."""

    bus_address: str = ""
    """D-Bus address; "": that of DBUS_SYSTEM_BUS_ADDRESS, else BUS_ADDRESS."""
    logind_drop_in_directory: str = "/etc/systemd/logind.conf.d"
    """Directory of the file that raises InhibitDelayMaxSec; "": logind's configuration is never changed."""
    impersonate_node: bool = False
    """Reads impersonate the agent's own node: the Node authorizer shows its pods only (Kubernetes 1.36, KEP-5284)."""

    interruption_source: InterruptionSource = "none"
    """Metadata service that is asked whether the machine will go."""
    metadata_url: str = "http://169.254.169.254"
    """Address of the metadata service."""
    approve_events: bool = False
    """`azure`: approve a scheduled event when the node is drained, so that it begins early."""

    @property
    def address(self) -> str:
        """Effective address of the message bus."""
        return self.bus_address or os.environ.get("DBUS_SYSTEM_BUS_ADDRESS", "") or BUS_ADDRESS

    def validate(self) -> None:
        """Raise ValueError, with the field in front, for an impossible value."""
        if self.bus_address and not _is_address(self.bus_address):
            raise ValueError(f"busAddress: {self.bus_address!r} is no D-Bus address such as {BUS_ADDRESS}")
        url = urlsplit(self.metadata_url)
        if url.scheme != "http" or not url.hostname or url.path or url.query or url.username:
            raise ValueError(f"metadataUrl: {self.metadata_url!r} is no address such as http://169.254.169.254")
        if self.approve_events and self.interruption_source != "azure":
            raise ValueError("approveEvents: only events of Azure are approved; set interruptionSource to azure")
        directory = self.logind_drop_in_directory
        if directory and not directory.startswith("/"):
            raise ValueError(
                f'logindDropInDirectory: {directory!r} is no absolute path; write "" to leave logind\'s configuration '
                "alone"
            )


def _is_address(text: str) -> bool:
    """Whether this is one address, or several separated by semicolons."""
    return all(_is_one_address(each) for each in text.split(";"))


def _is_one_address(text: str) -> bool:
    transport, _, pairs = text.partition(":")
    values = {key: value for key, _, value in (pair.partition("=") for pair in pairs.split(","))}
    if transport == "unix":
        return bool(values.get("path") or values.get("abstract"))
    port = values.get("port", "")
    return transport == "tcp" and port.isdecimal() and 0 < int(port) < 2**16
