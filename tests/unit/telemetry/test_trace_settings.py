"""Whether the standard's variables want traces and metrics, and what is said of those that cannot be obeyed."""

from __future__ import annotations

import re

import pytest

from gracectl.telemetry.settings import metric_export_seconds, traces_enabled

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
OF_TRACES = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://collector/v1/traces"}


@pytest.mark.parametrize(("variables", "wanted"), [
    ({}, False), (ENDPOINT, True), (OF_TRACES, True), ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
    ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "", **ENDPOINT}, True),
    ({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://collector:4318/v1/logs"}, False),
    ({**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, False),
    ({**ENDPOINT, "OTEL_SDK_DISABLED": " TRUE "}, False),
    ({**ENDPOINT, "OTEL_SDK_DISABLED": "1"}, True),  # the standard: anything but true is false
    ({**ENDPOINT, "OTEL_SDK_DISABLED": ""}, True),
    ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "otlp"}, True),
    ({**ENDPOINT, "OTEL_TRACES_EXPORTER": ""}, True),
    ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
    ({"OTEL_TRACES_EXPORTER": "otlp"}, False),
    ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
    ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": ""}, True),
    ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, True),
    ({**ENDPOINT, "OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b, tenant=, "}, True),
    # What is not wanted need not be possible.
    ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, False),
    ({**ENDPOINT, "OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "zipkin"}, False),
])  # fmt: skip
def test_when_traces_are_enabled(variables: dict[str, str], wanted: bool) -> None:
    assert traces_enabled(variables) is wanted


@pytest.mark.parametrize(("variables", "message"), [
    ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "zipkin"},
     "OTEL_TRACES_EXPORTER: 'zipkin' is not supported; set otlp, or none for no traces"),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317"},
     "OTEL_EXPORTER_OTLP_ENDPOINT: 'collector:4317' is not a URL such as http://collector:4318"),
    ({**ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "collector"},
     "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'collector' is not a URL such as http://collector:4318"),
    (
            {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc' is not supported; set http/protobuf, which collectors accept at port "
            "4318",
        ),
    ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
     "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: 'grpc' is not supported; set http/protobuf"),
])  # fmt: skip
def test_what_we_cannot_do_is_refused_with_the_variable_and_a_remedy(variables: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        traces_enabled(variables)


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"])
def test_headers_that_are_none_are_refused_and_not_shown(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: not of the form name=value") as refusal:
        traces_enabled({**ENDPOINT, name: "tenant=1,Bearer s3cret"})
    assert "s3cret" not in str(refusal.value)


OTLP = {"OTEL_METRICS_EXPORTER": "otlp"}
OF_METRICS = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4318/v1/metrics"}


@pytest.mark.parametrize(("variables", "seconds"), [
    ({}, None),
    (ENDPOINT, None),  # of traces, as ever
    (OF_TRACES, None),
    (OTLP, 60),  # the standard's own endpoint: an agent on the same host
    ({**ENDPOINT, **OTLP}, 60), (OF_METRICS, 60),
    ({**OF_METRICS, "OTEL_METRICS_EXPORTER": "none"}, None),
    ({**OF_METRICS, "OTEL_METRICS_EXPORTER": "prometheus"}, None),
    ({**ENDPOINT, "OTEL_METRICS_EXPORTER": "prometheus, otlp"}, 60),
    ({**ENDPOINT, **OTLP, "OTEL_SDK_DISABLED": "true"}, None),
    ({**ENDPOINT, **OTLP, "OTEL_METRIC_EXPORT_INTERVAL": "1500"}, 1.5),
    ({**ENDPOINT, **OTLP, "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "Cumulative"}, 60),
    # What is not wanted need not be possible.
    ({**ENDPOINT, "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc", "OTEL_METRIC_EXPORT_INTERVAL": "often"}, None),
])  # fmt: skip
def test_metrics_are_exported_only_if_that_is_asked_for(variables: dict[str, str], seconds: float | None) -> None:
    assert metric_export_seconds(variables) == seconds


@pytest.mark.parametrize(("variables", "message"), [
    (
            {"OTEL_METRICS_EXPORTER": "console"},
            "OTEL_METRICS_EXPORTER: 'console' is not supported; set otlp, or none and let a collector scrape "
            "metrics.listen",
        ),
    ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "collector"},
     "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: 'collector' is not a URL such as http://collector:4318"),
    ({**OTLP, "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"},
     "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL: 'grpc' is not supported; set http/protobuf"),
    (
            {**OTLP, "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta"},
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE: 'delta' is not supported, only cumulative; convert in "
            "the collector (cumulativetodelta)",
        ),
    (
            {**OTLP, "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": "base2_exponential_bucket_histogram"},
            "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION: 'base2_exponential_bucket_histogram' is not "
            "supported, only explicit_bucket_histogram; leave it out",
        ),
    ({**OTLP, "OTEL_METRIC_EXPORT_INTERVAL": "0"},
     "OTEL_METRIC_EXPORT_INTERVAL: '0' is not a number of milliseconds such as 60000"),
])  # fmt: skip
def test_metrics_that_cannot_be_exported_so_are_refused(variables: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        metric_export_seconds(variables)
