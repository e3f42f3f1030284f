"""Settings from the environment: they beat the file, are as strict as it, and say which variable is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.settings import EXAMPLES

from gracectl.config import ConfigError, Settings, load_settings, read_settings
from gracectl.config.fields import fields
from gracectl.config.loading import variable_of


def refused(environ: dict[str, str], file: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(file, environ)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def value_of(settings: Settings, path: str) -> Any:
    value = msgspec.to_builtins(settings)
    for name in path.split("."):
        value = value[name]
    return value


@pytest.mark.parametrize(
    ("path", "variable"),
    [
        ("eviction.maxInFlight", "GRACECTL__EVICTION__MAX_IN_FLIGHT"),
        ("eviction.qps", "GRACECTL__EVICTION__QPS"),
        ("shutdownGracePeriodByPodPriority", "GRACECTL__SHUTDOWN_GRACE_PERIOD_BY_POD_PRIORITY"),
        ("protection.from", "GRACECTL__PROTECTION__FROM"),
        ("admission.certificates.caFile", "GRACECTL__ADMISSION__CERTIFICATES__CA_FILE"),
        (
            "featureGates.PodPriorityBasedGracefulNodeShutdown",
            "GRACECTL__FEATURE_GATES__POD_PRIORITY_BASED_GRACEFUL_NODE_SHUTDOWN",
        ),
    ],
)
def test_a_variable_is_called_after_its_field(path: str, variable: str) -> None:
    assert variable_of(path) == variable


def test_no_two_fields_have_the_same_variable() -> None:
    assert len({variable_of(path) for path in fields()}) == len(fields())


@pytest.mark.parametrize("path", [path for path, field in fields().items() if not field.is_section])
def test_every_field_can_be_set_and_beats_the_file(tmp_path: Path, path: str) -> None:
    text, value, more = EXAMPLES[path]
    file = tmp_path / "settings.yaml"
    file.write_text(more)
    settings = load_settings(file, {variable_of(path): text, "HOME": "/"})
    assert value_of(settings, path) == value
    assert value_of(load_settings(file), path) != value


def test_kubernetes_variables_of_a_service_are_no_settings() -> None:
    environ = {"GRACECTL_SERVICE_HOST": "10.0.0.1", "GRACECTL_PORT": "tcp://10.0.0.1:443", "GRACECTL_EVICTION__QPS": ""}
    assert load_settings(None, environ) == Settings()


def test_a_list_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("nodeGroups: [{selector: {matchLabels: {a: b}}}, {selector: {matchLabels: {c: d}}}]")
    groups = load_settings(
        file, {"GRACECTL__NODE_GROUPS": "- selector: {matchLabels: {e: f}}\n  terminationGracePeriod: 5m"}
    ).node_groups
    assert [group.group().termination_grace_seconds for group in groups] == [300.0]
    assert load_settings(file, {"GRACECTL__NODE_GROUPS": "[]"}).node_groups == ()


def test_a_part_is_set_beside_what_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("admission: {listen: ':8443', service: {name: a}}\neviction: &e {qps: 1}")
    environ = {"GRACECTL__ADMISSION__SERVICE__PORT": "8443", "GRACECTL__EVICTION__BURST": "7"}
    settings = load_settings(file, environ)
    assert settings.admission.service is not None
    assert (settings.admission.service.name, settings.admission.service.port) == ("a", 8443)
    assert (settings.eviction.qps, settings.eviction.burst) == (1.0, 7)
    whole = {**environ, "GRACECTL__ADMISSION__SERVICE": "{name: b}"}
    assert load_settings(file, whole).admission.service == msgspec.structs.replace(settings.admission.service, name="b")


def test_a_part_of_what_was_not_there_makes_it() -> None:
    environ = {"GRACECTL__ADMISSION__SERVICE__NAME": "a", "GRACECTL__NODE_SELECTOR__MATCH_LABELS": "{pool: x}"}
    settings = load_settings(None, environ)
    assert settings.admission.service is not None
    assert settings.termination.managed.selector.matches({"pool": "x"})


def test_null_takes_a_value_of_the_file_away(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("protection: {maximumSeconds: 5}")
    assert load_settings(file, {"GRACECTL__PROTECTION__MAXIMUM_SECONDS": "null"}).protection.maximum_seconds is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"GRACECTL__EVICTION__MAXINFLIGHT": "3"},
            "variable GRACECTL__EVICTION__MAXINFLIGHT: there is no such setting; did you mean "
            "GRACECTL__EVICTION__MAX_IN_FLIGHT? remove or correct it (docs/settings.md lists every field)",
        ),
        (
            {"GRACECTL__eviction__qps": "3"},
            "variable GRACECTL__eviction__qps: there is no such setting; did you mean GRACECTL__EVICTION__QPS? remove "
            "or correct it (docs/settings.md lists every field)",
        ),
        (
            {"GRACECTL__": "3"},
            "variable GRACECTL__: there is no such setting; remove or correct it (docs/settings.md lists every field)",
        ),
        (
            {"GRACECTL__EVICTION": "{qps: 3}"},
            "variable GRACECTL__EVICTION: eviction is a section; set its fields one by one, such as "
            "GRACECTL__EVICTION__QPS",
        ),
        (
            {"GRACECTL__EVICTION__QPS": "-1"},
            "variable GRACECTL__EVICTION__QPS: eviction.qps: Expected `float` >= 0.0, got -1",
        ),
        (
            {"GRACECTL__EVICTION__QPS": " "},
            "variable GRACECTL__EVICTION__QPS: is empty; unset it to leave eviction.qps as it is, or write null for no "
            "value, '\"\"' for an empty text",
        ),
        (
            {"GRACECTL__NODE_GROUPS": "[{"},
            "variable GRACECTL__NODE_GROUPS: its value is not YAML: while parsing a flow node expected the node "
            "content, but found '<stream end>' in \"<unicode string>\", line 1, column 3: [{ ^",
        ),
        (
            {"GRACECTL__METRICS__LISTEN": "8081"},
            "variable GRACECTL__METRICS__LISTEN: metrics.listen: Expected `str`, got `int` (8081); put it in quotes: "
            "GRACECTL__METRICS__LISTEN='\"8081\"'",
        ),
        (
            {"GRACECTL__LEADER_ELECTION__NAME": "on"},
            "variable GRACECTL__LEADER_ELECTION__NAME: leaderElection.name: Expected `str`, got `bool` (true); put the "
            "word in quotes: GRACECTL__LEADER_ELECTION__NAME='\"on\"'",
        ),
        (
            {"GRACECTL__NODE_GROUPS": "[{selector: {matchLabels: {a: 1}}}]"},
            "variable GRACECTL__NODE_GROUPS: nodeGroups[0].selector.matchLabels[...]: Expected `str`, got `int` (1); "
            "put it in quotes",
        ),
        (
            {"GRACECTL__EVICTION__BACKOFF_MAXIMUM_SECONDS": "0.05"},
            "variable GRACECTL__EVICTION__BACKOFF_MAXIMUM_SECONDS: eviction.backoffInitialSeconds: 0.1 is more than "
            "eviction.backoffMaximumSeconds, which is 0.05",
        ),
        (
            {"GRACECTL__ADMISSION__SERVICE__PORT": "3", "GRACECTL__LOG__LEVEL": "debug"},
            "variables GRACECTL__LOG__LEVEL, GRACECTL__ADMISSION__SERVICE__PORT: admission.service: Object missing "
            "required field `name`",
        ),
    ],
)
def test_what_a_variable_says_wrongly_is_told_with_its_name(environ: dict[str, str], message: str) -> None:
    assert refused(environ) == message


def test_a_mistake_of_the_file_is_told_as_the_files(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    fine = {"GRACECTL__EVICTION__QPS": "1"}
    for text, message in (
        ("eviction: {burst: 0}", "eviction.burst: Expected `int` >= 1, got 0"),
        ("eviction: 3", "eviction: Expected `object`, got `int` (3)"),
        ("eviction:", "eviction: Expected `object`, got `null`; remove it, or give it a value"),
        ("- a", 'the document: Expected `object`, got `array` (["a"])'),
    ):
        file.write_text(text)
        assert refused(fine, file) == f"settings file {file}: {message}"
    file.write_text("eviction: {backoffInitialSeconds: 5}")
    message = refused({"GRACECTL__EVICTION__BACKOFF_MAXIMUM_SECONDS": "1"}, file)
    assert message.startswith(f"settings file {file} with variable GRACECTL__EVICTION__BACKOFF_MAXIMUM_SECONDS: ")


def test_a_mistake_of_the_file_that_a_variable_mends_is_none(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("eviction: {burst: 0}")
    assert load_settings(file, {"GRACECTL__EVICTION__BURST": "5"}).eviction.burst == 5


def test_an_anchor_of_the_file_is_no_way_into_another_section(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("metrics: &doors {listen: ':1'}\nprobes: *doors")
    settings = read_settings(file, {"GRACECTL__PROBES__LISTEN": '":2"'}).settings
    assert (settings.metrics.listen, settings.probes.listen) == (":1", ":2")
