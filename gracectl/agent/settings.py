"""Settings of the agent. Defaults are pinned by a test."""

from __future__ import annotations

import os

import msgspec

GATE = "PodPriorityBasedGracefulNodeShutdown"
"""The feature gate of KEP-2712."""

GATED = f"shutdownGracePeriodByPodPriority is ignored: featureGates.{GATE} is false"
"""Message for settings with ranges and the gate off."""

BUS_ADDRESS = "unix:path=/run/dbus/system_bus_socket"
"""Default address of the system bus, unless the environment has another (D-Bus specification)."""


class FeatureGates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Features that can be switched off, under the kubelet's names for them."""

    by_pod_priority: bool = msgspec.field(default=True, name=GATE)
    """Off: `shutdownGracePeriodByPodPriority` is ignored; the older form still applies."""


class AgentSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Address of the machine's message bus, the place of logind's drop-in, and the user of reads."""

    bus_address: str = ""
    """D-Bus address; "": that of DBUS_SYSTEM_BUS_ADDRESS, else BUS_ADDRESS."""
    logind_drop_in_directory: str = "/etc/systemd/logind.conf.d"
    """Directory of the file that raises InhibitDelayMaxSec; "": logind's configuration is never changed."""
    impersonate_node: bool = False
    """Reads impersonate the agent's own node: the Node authorizer shows its pods only (Kubernetes 1.36, KEP-5284)."""

    @property
    def address(self) -> str:
        """Effective address of the message bus."""
        return self.bus_address or os.environ.get("DBUS_SYSTEM_BUS_ADDRESS", "") or BUS_ADDRESS

    def validate(self) -> None:
        """Raise ValueError, with the field in front, for an impossible value."""
        if self.bus_address and not _is_address(self.bus_address):
            raise ValueError(f"busAddress: {self.bus_address!r} is no D-Bus address such as {BUS_ADDRESS}")
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
