"""What the administrator decides about metrics, probes and traces. Defaults are pinned by a test."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

HIGHEST_PORT = 65535


Address = tuple[str | None, int]
"""Host (None: all addresses) and port (0: any that is free)."""


class MetricsSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`listen`: where `/metrics` is served, `host:port`; without a host on all addresses; "" is nowhere."""

    listen: str = ""

    def address(self) -> Address | None:
        """Where; None when nothing is served. ValueError for what is no address."""
        return parse_address(self.listen) if self.listen else None


class ProbesSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`listen`: where `/healthz` and `/readyz` are served, as for metrics; the same address will do."""

    listen: str = ""

    def address(self) -> Address | None:
        """Where; None when nothing is served. ValueError for what is no address."""
        return parse_address(self.listen) if self.listen else None


def parse_address(listen: str) -> Address:
    """`host:port`, `:port` for all addresses; an IPv6 address is written in brackets, as in a URL.

    ValueError for anything else.
    """
    host, colon, port = listen.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isascii() or not port.isdigit() or (":" in host and not is_bracketed):
        raise ValueError(f"{listen!r} is no address such as 0.0.0.0:9090, [::1]:9090 or :9090")
    if int(port) > HIGHEST_PORT:
        raise ValueError(f"{listen!r} names port {port}, and the highest one is {HIGHEST_PORT}")
    return (host[1:-1] if is_bracketed else host) or None, int(port)


def wants_traces(environ: Mapping[str, str]) -> bool:
    """Whether the standard's variables (OTEL_*) say where traces go. ValueError for what we cannot do.

    Source: https://opentelemetry.io/docs/specs/otel/protocol/exporter/; what is empty is unset.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if exporter == "none":
        return False
    if exporter != "otlp":
        raise ValueError(f"OTEL_TRACES_EXPORTER: {exporter!r} is not supported; choose otlp, or none for no traces")
    name, endpoint = _first(environ, "ENDPOINT")
    if not endpoint:
        return False
    if not endpoint.startswith(("http://", "https://")):
        raise ValueError(f"{name}: {endpoint!r} is no URL such as http://collector:4318")
    name, protocol = _first(environ, "PROTOCOL")
    if protocol not in ("", "http/protobuf"):
        raise ValueError(
            f"{name}: {protocol!r} is not supported; choose http/protobuf, which collectors take at port 4318"
        )
    name, headers = _first(environ, "HEADERS")
    if not all(header.partition("=")[1] for header in headers.split(",") if header.strip()):
        # Not shown: it may be a password. The SDK would log it.
        raise ValueError(f"{name}: write it as name=value,other=value, and a comma or space in a value as %2C or %20")
    return True


def _first(environ: Mapping[str, str], what: str) -> tuple[str, str]:
    """The variable that counts, and what it says: the one for traces before the one for all signals."""
    for name in (f"OTEL_EXPORTER_OTLP_TRACES_{what}", f"OTEL_EXPORTER_OTLP_{what}"):
        if said := environ.get(name, "").strip():
            return name, said
    return "", ""
