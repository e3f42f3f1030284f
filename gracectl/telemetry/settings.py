"""Settings of metrics, probes, traces and notifications, and the standard's variables of exporters.

Defaults are pinned by a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template
from typing import Final, Literal, get_args

import msgspec

from gracectl.model.durations import parse_seconds

HIGHEST_PORT = 65535


Address = tuple[str | None, int]
"""Host (None: all addresses) and port (0: any that is free)."""


NodeLabel = Literal["nodepool", "capacity_type", "zone"]
"""Optional label of metrics: see node_labels."""


class MetricsSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`listen`: address of `/metrics`, `host:port`; without a host on all addresses; "": not served."""

    listen: str = ""
    labels: tuple[NodeLabel, ...] = ()
    """Optional labels of the metrics about nodes."""

    def address(self) -> Address | None:
        """Address; None if not served. ValueError for an invalid address."""
        return parse_address(self.listen) if self.listen else None

    def validate(self) -> None:
        """ValueError for a label that is there twice."""
        for label in self.labels:
            if self.labels.count(label) > 1:
                raise ValueError(f"{label} is there twice; remove one")


TRACE_ID = "{trace_id}"


class TracingSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`url`: address of a trace in a viewer, with the placeholder `{trace_id}`; "": `status` prints IDs without a
    link."""

    url: str = ""

    def validate(self) -> None:
        """ValueError for a URL that is none, or does not say where the id goes."""
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"{self.url!r} is not a URL such as https://jaeger.example.com/trace/{TRACE_ID}")
        if self.url and TRACE_ID not in self.url:
            raise ValueError(f"{self.url!r} does not have {TRACE_ID} in it, where the id of the trace goes")

    def link(self, trace_id: str) -> str | None:
        """Address of this trace; None without a URL."""
        return self.url.replace(TRACE_ID, trace_id) if self.url else None


class ProbesSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`listen`: address of `/healthz` and `/readyz`, as for metrics; the same address is fine."""

    listen: str = ""

    def address(self) -> Address | None:
        """Address; None if not served. ValueError for an invalid address."""
        return parse_address(self.listen) if self.listen else None


NotificationEvent = Literal["interruption", "drain-stuck", "deadline-missed", "breaker-open", "rotation-finished"]
NOTIFICATION_EVENTS: Final[tuple[NotificationEvent, ...]] = get_args(NotificationEvent)
NOTIFICATION_FIELDS: Final = frozenset({"cluster", "event", "object", "node", "message"})


class NotificationSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`url_file`: URLs of apprise, one per line; "": none are sent."""

    url_file: str = ""
    events: tuple[NotificationEvent, ...] = NOTIFICATION_EVENTS
    interval: str = "5m"
    """Least time between two notifications of one kind, a Go duration; what comes meanwhile is sent together."""
    text: str = "$cluster: $event: $object: $message"

    @property
    def interval_seconds(self) -> float:
        """`interval` in seconds. ValueError if it cannot be read, or is not positive."""
        seconds = parse_seconds(self.interval)
        if seconds <= 0:
            raise ValueError(f"{self.interval!r} is not positive; give a duration such as 5m")
        return seconds

    def validate(self) -> None:
        """Raises ValueError, with the field in front."""
        try:
            _ = self.interval_seconds
        except ValueError as error:
            raise ValueError(f"interval: {error}") from error
        template = Template(self.text)
        known = ", ".join(f"${name}" for name in sorted(NOTIFICATION_FIELDS))
        if not template.is_valid() or not set(template.get_identifiers()) <= NOTIFICATION_FIELDS:
            raise ValueError(f"text: {self.text!r} has an unknown field; it may have {known}, and $$ for $")


def parse_address(listen: str) -> Address:
    """Parse `host:port`, or `:port` for all addresses; an IPv6 address is written in brackets, as in a URL.

    ValueError for anything else.
    """
    host, colon, port = listen.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isascii() or not port.isdigit() or (":" in host and not is_bracketed):
        raise ValueError(f"{listen!r} is not an address such as 0.0.0.0:9090, [::1]:9090 or :9090")
    if int(port) > HIGHEST_PORT:
        raise ValueError(f"{listen!r} has port {port}; the highest is {HIGHEST_PORT}")
    return (host[1:-1] if is_bracketed else host) or None, int(port)


def traces_enabled(environ: Mapping[str, str]) -> bool:
    """Whether the standard's variables (OTEL_*) have an exporter for traces. ValueError for an unsupported one.

    Source: https://opentelemetry.io/docs/specs/otel/protocol/exporter/; an empty variable is unset.
    """
    if _is_disabled(environ):
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if exporter == "none":
        return False
    if exporter != "otlp":
        raise ValueError(f"OTEL_TRACES_EXPORTER: {exporter!r} is not supported; set otlp, or none for no traces")
    if not _first(environ, "TRACES", "ENDPOINT")[1]:
        return False
    _validate_exporter(environ, "TRACES")
    return True


def metric_export_seconds(environ: Mapping[str, str]) -> float | None:
    """Interval at which the standard's variables want metrics to be exported; None if they do not. ValueError for what
    is not supported.

    An endpoint for all signals is not enough: it has long been set for traces alone, and metrics are scraped.
    """
    if _is_disabled(environ):
        return None
    wanted = [each.strip() for each in environ.get("OTEL_METRICS_EXPORTER", "").split(",") if each.strip()]
    for each in wanted:
        if each not in ("otlp", "prometheus", "none"):
            raise ValueError(
                f"OTEL_METRICS_EXPORTER: {each!r} is not supported; set otlp, or none and let a collector scrape "
                "metrics.listen"
            )
    has_endpoint = bool(environ.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "").strip())
    if not ("otlp" in wanted if wanted else has_endpoint):
        return None
    _validate_exporter(environ, "METRICS")
    for name, possible, remedy in (
        ("TEMPORALITY_PREFERENCE", "cumulative", "convert in the collector (cumulativetodelta)"),
        ("DEFAULT_HISTOGRAM_AGGREGATION", "explicit_bucket_histogram", "leave it out"),
    ):
        value = environ.get(f"OTEL_EXPORTER_OTLP_METRICS_{name}", "").strip()
        if value.lower() not in ("", possible):
            raise ValueError(
                f"OTEL_EXPORTER_OTLP_METRICS_{name}: {value!r} is not supported, only {possible}; {remedy}"
            )
    interval = environ.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip() or "60000"
    if not interval.isascii() or not interval.isdigit() or not int(interval):
        raise ValueError(f"OTEL_METRIC_EXPORT_INTERVAL: {interval!r} is not a number of milliseconds such as 60000")
    return int(interval) / 1000


def _is_disabled(environ: Mapping[str, str]) -> bool:
    return environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _validate_exporter(environ: Mapping[str, str], signal: str) -> None:
    """ValueError for an endpoint, a protocol or headers that cannot be used."""
    name, endpoint = _first(environ, signal, "ENDPOINT")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise ValueError(f"{name}: {endpoint!r} is not a URL such as http://collector:4318")
    name, protocol = _first(environ, signal, "PROTOCOL")
    if protocol not in ("", "http/protobuf"):
        raise ValueError(
            f"{name}: {protocol!r} is not supported; set http/protobuf, which collectors accept at port 4318"
        )
    name, headers = _first(environ, signal, "HEADERS")
    if not all(header.partition("=")[1] for header in headers.split(",") if header.strip()):
        # Not logged by the SDK, and not shown: it may be a password.
        raise ValueError(
            f"{name}: not of the form name=value,other=value; write a comma or space in a value as %2C or %20"
        )


def _first(environ: Mapping[str, str], signal: str, what: str) -> tuple[str, str]:
    """Effective variable and its value: the one for the signal comes before the one for all signals."""
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_{what}", f"OTEL_EXPORTER_OTLP_{what}"):
        if value := environ.get(name, "").strip():
            return name, value
    return "", ""
