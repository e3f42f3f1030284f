"""What the administrator decides about metrics. Defaults are pinned by a test."""

from __future__ import annotations

import msgspec

HIGHEST_PORT = 65535


class MetricsSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`listen`: where `/metrics` is served, `host:port`; without a host on all addresses; "" is nowhere."""

    listen: str = ""

    def address(self) -> tuple[str | None, int] | None:
        """Host (None: all addresses) and port (0: any that is free); None when nothing is served.

        ValueError for what is no address. An IPv6 address is written in brackets, as in a URL.
        """
        if not self.listen:
            return None
        host, colon, port = self.listen.rpartition(":")
        is_bracketed = host.startswith("[") and host.endswith("]")
        if not colon or not port.isascii() or not port.isdigit() or (":" in host and not is_bracketed):
            raise ValueError(f"{self.listen!r} is no address such as 0.0.0.0:9090, [::1]:9090 or :9090")
        if int(port) > HIGHEST_PORT:
            raise ValueError(f"{self.listen!r} names port {port}, and the highest one is {HIGHEST_PORT}")
        return (host[1:-1] if is_bracketed else host) or None, int(port)
