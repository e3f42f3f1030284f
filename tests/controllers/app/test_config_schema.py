"""The JSON schema of the settings file: as strict as the types that read it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import yaml
from support.schemas import fits
from support.settings import EXAMPLES

from gracectl.config import Settings
from gracectl.config.errors import InvalidField
from gracectl.config.fields import schema
from gracectl.config.loading import LoadedSettings, settings_of
from gracectl.config.output import as_builtins

SCHEMA = schema()


def nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def test_it_is_json() -> None:
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA


def test_no_object_takes_unknown_fields_but_the_options_of_providers_and_labels() -> None:
    objects = [each for each in SCHEMA["$defs"].values() if each.get("type") == "object"]
    assert len(objects) == len(SCHEMA["$defs"]) > 20
    assert all(each["additionalProperties"] is False for each in objects)
    # What the docstrings say is said to people in their editors, too.
    assert all(each["description"] for each in objects)


def test_the_defaults_fit() -> None:
    assert fits({}, SCHEMA, SCHEMA)
    assert fits(as_builtins(LoadedSettings(Settings(), None, {}, ())), SCHEMA, SCHEMA)
    assert fits(json.loads(msgspec.json.encode(Settings())), SCHEMA, SCHEMA)


@pytest.mark.parametrize("path", list(EXAMPLES))
def test_each_field_is_known_and_has_its_default(path: str) -> None:
    text, _, _ = EXAMPLES[path]
    document = nested(path, yaml.safe_load(text))
    if path.startswith("admission.service."):
        document["admission"]["service"].setdefault("name", "a")
    assert fits(document, SCHEMA, SCHEMA)
    assert not fits(nested(f"{path}Wrong", yaml.safe_load(text)), SCHEMA, SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        "eviction: {qps: -1}",
        "eviction: {burst: 0}",
        "eviction: {maxInFlight: 2.5}",
        "eviction: {backoffInitialSeconds: 0}",
        "eviction: {qps: 1.0e+10}",
        "eviction:",
        "health: {conditions: [{type: '', status: 'True', tolerationSeconds: 1}]}",
        "health: {conditions: [{type: Ready, status: Bad, tolerationSeconds: 1}]}",
        "health: {conditions: [{type: Ready, status: 'True'}]}",
        "health: {maximumUnhealthy: -1}",
        "protection: {from: birth}",
        "shutdownGracePeriodByPodPriority: [{priority: 2147483648, shutdownGracePeriodSeconds: 1}]",
        "leaderElection: {name: My_Lease}",
        "leaderElection: {namespace: a.b}",
        "leaderElection: {leaseDurationSeconds: 0}",
        "admission: {timeoutSeconds: 31}",
        "admission: {service: {}}",
        "admission: {service: {name: a, port: 70000}}",
        "karpenter: {namespaces: []}",
        "finalizer: example.com/hold",
        "log: {level: loud}",
        "nodeSelector: {matchLabels: {a: 1}}",
        "nodeSelector: {matchLabel: {a: b}}",
        "nodeGroups: [{}]",
        "featureGates: {Unknown: true}",
        "metrics: {listen: 9090}",
    ],
)
def test_patterns_and_limits_are_those_of_the_types(text: str) -> None:
    document = yaml.safe_load(text)
    with pytest.raises(InvalidField):
        settings_of(document)
    assert not fits(document, SCHEMA, SCHEMA)
