"""Whether the standard's variables want traces, and what is said of those that cannot be obeyed."""

from __future__ import annotations

import re

import pytest

from gracectl.telemetry.settings import traces_enabled

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
OF_TRACES = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://collector/v1/traces"}


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        (ENDPOINT, True),
        (OF_TRACES, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
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
        (
            {
                **ENDPOINT,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            },
            True,
        ),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b, tenant=, "}, True),
        # What is not wanted need not be possible.
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, False),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "zipkin"}, False),
    ],
)
def test_when_traces_are_enabled(variables: dict[str, str], wanted: bool) -> None:
    assert traces_enabled(variables) is wanted


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {**ENDPOINT, "OTEL_TRACES_EXPORTER": "zipkin"},
            "OTEL_TRACES_EXPORTER: 'zipkin' is not supported; set otlp, or none for no traces",
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317"},
            "OTEL_EXPORTER_OTLP_ENDPOINT: 'collector:4317' is not a URL such as http://collector:4318",
        ),
        (
            {**ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "collector"},
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'collector' is not a URL such as http://collector:4318",
        ),
        (
            {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc' is not supported; set http/protobuf, which collectors accept at port "
            "4318",
        ),
        (
            {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: 'grpc' is not supported; set http/protobuf",
        ),
    ],
)
def test_what_we_cannot_do_is_refused_with_the_variable_and_a_remedy(variables: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        traces_enabled(variables)


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"])
def test_headers_that_are_none_are_refused_and_not_shown(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: not of the form name=value") as refusal:
        traces_enabled({**ENDPOINT, name: "tenant=1,Bearer s3cret"})
    assert "s3cret" not in str(refusal.value)
