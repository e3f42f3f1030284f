"""What the administrator decides about the agent. Defaults are pinned by a test."""

from __future__ import annotations

import os

import msgspec

GATE = "PodPriorityBasedGracefulNodeShutdown"
"""The feature gate, under the name that KEP-2712 has for it."""

GATED = f"shutdownGracePeriodByPodPriority counts for nothing, as featureGates.{GATE} is false"
"""For people, where ranges are given and the gate is off."""

BUS_ADDRESS = "unix:path=/run/dbus/system_bus_socket"
"""Where the message bus of a machine listens, unless its environment says otherwise (D-Bus specification)."""


class FeatureGates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Features that can be switched off, under the kubelet's names for them."""

    by_pod_priority: bool = msgspec.field(default=True, name=GATE)
    """Off: `shutdownGracePeriodByPodPriority` counts for no shutdown; the older form still does."""


class AgentSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Where the agent finds the machine's message bus, and where it may tell logind how long to wait."""

    bus_address: str = ""
    """A D-Bus address; "": that of DBUS_SYSTEM_BUS_ADDRESS, else BUS_ADDRESS."""
    logind_drop_in_directory: str = "/etc/systemd/logind.conf.d"
    """Where the file goes that raises InhibitDelayMaxSec; "": logind's configuration is never touched."""

    @property
    def address(self) -> str:
        """Where to find the message bus."""
        return self.bus_address or os.environ.get("DBUS_SYSTEM_BUS_ADDRESS", "") or BUS_ADDRESS

    def validate(self) -> None:
        """ValueError, with the field in front, for what no machine can have."""
        if self.bus_address and not _is_address(self.bus_address):
            raise ValueError(f"busAddress: {self.bus_address!r} is no D-Bus address such as {BUS_ADDRESS}")
        directory = self.logind_drop_in_directory
        if directory and not directory.startswith("/"):
            raise ValueError(
                f'logindDropInDirectory: {directory!r} is no absolute path; write "" to leave logind\'s configuration '
                "alone"
            )


def _is_address(text: str) -> bool:
    """Whether we can connect to it: one address, or several with semicolons between them."""
    return all(_is_one_address(each) for each in text.split(";"))


def _is_one_address(text: str) -> bool:
    transport, _, pairs = text.partition(":")
    values = {key: value for key, _, value in (pair.partition("=") for pair in pairs.split(","))}
    if transport == "unix":
        return bool(values.get("path") or values.get("abstract"))
    port = values.get("port", "")
    return transport == "tcp" and port.isdecimal() and 0 < int(port) < 2**16
