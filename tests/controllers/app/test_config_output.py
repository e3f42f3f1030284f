"""The settings as they are printed: a file that loads back to the same, and says of each value where it is from."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from support.settings import EXAMPLES

from gracectl.config import LoadedSettings, Settings, load_settings, read_settings
from gracectl.config.errors import InvalidField
from gracectl.config.fields import fields
from gracectl.config.loading import settings_of, variable_of
from gracectl.config.output import as_builtins, as_yaml

ODD = ("on", "8081", "", "~", "a: b", "# no", "a #b", "{", "x\ny", "\ttab", "é", "\x07", "'", '"', "1.5", "-")

texts = st.one_of(st.sampled_from(ODD), st.text(st.characters(codec="utf-8"), max_size=20))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False),
    st.dates(),
    texts,
)
options = st.dictionaries(
    texts,
    st.recursive(
        scalars, lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(texts, below, max_size=3))
    ),
    max_size=4,
)
seconds = st.one_of(st.floats(0, 1e9), st.integers(0, 10**9))
labels = st.dictionaries(st.sampled_from(["a", "pool", "x.io/y"]), st.sampled_from(["", "on", "1", "b"]), max_size=2)
groups = st.lists(
    st.fixed_dictionaries(
        {"selector": st.fixed_dictionaries({}, optional={"matchLabels": labels})},
        optional={
            "terminationGracePeriod": st.sampled_from(["15m", "1h30m"]),
            "drain": st.fixed_dictionaries({"minimumSeconds": seconds}),
            "shutdownGracePeriod": st.just("5m"),
        },
    ),
    max_size=5,
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "nodeGroups": groups,
        "nodeSelector": st.fixed_dictionaries({}, optional={"matchLabels": labels}),
        "drain": st.fixed_dictionaries({"minimumSeconds": seconds}),
        "health": st.fixed_dictionaries(
            {"maximumUnhealthy": st.one_of(st.integers(0, 100), st.integers(0, 100).map(lambda n: f"{n}%"))},
            optional={
                "conditions": st.lists(
                    st.fixed_dictionaries(
                        {
                            "type": texts.filter(bool),
                            "status": st.sampled_from(["True", "False", "Unknown"]),
                            "tolerationSeconds": seconds,
                        }
                    ),
                    max_size=3,
                )
            },
        ),
        "provider": st.fixed_dictionaries({"name": texts, "options": options}),
        "metrics": st.fixed_dictionaries({"listen": st.sampled_from(["", ":9090", "[::1]:1", "0.0.0.0:0"])}),
        "leaderElection": st.fixed_dictionaries({"name": st.sampled_from(["on", "1", "1.5", "0x1", "1e3", "null"])}),
    },
)


def printed(settings: Settings, file: Path | None = None) -> str:
    return as_yaml(LoadedSettings(settings, file, {}, ()))


# A busy machine may take its time for either.
@examples(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents)
def test_what_is_printed_loads_back_to_the_same(document: dict[str, Any]) -> None:
    try:
        settings = settings_of(document)
    except InvalidField:
        pytest.fail("the strategy makes what does not fit")
    text = printed(settings, Path("a\nb: c.yaml"))
    assert settings_of(yaml.safe_load(text)) == settings


@pytest.mark.parametrize("path", list(EXAMPLES))
def test_each_field_is_printed_and_loads_back(tmp_path: Path, path: str) -> None:
    text, _, more = EXAMPLES[path]
    file = tmp_path / "settings.yaml"
    file.write_text(more)
    before = read_settings(file, {variable_of(path): text})
    file.write_text(as_yaml(before))
    assert load_settings(file) == before.settings
    assert as_builtins(read_settings(file)) == as_builtins(before)


def test_every_field_is_printed_even_those_with_defaults() -> None:
    whole = yaml.safe_load(printed(Settings()))
    for path, field in fields().items():
        if field.default is None and path.count(".") > 1:
            continue  # of what is not there
        value = whole
        for name in path.split("."):
            if value is None:
                break
            assert name in value
            value = value[name]


def test_where_a_value_is_from_stands_behind_it(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "eviction: {qps: 5, burst: 100, maxInFlight: 3}\nadmission: {listen: ':8443', service: {name: a}}\n"
        "nodeGroups: [{selector: {matchLabels: {a: b}}}]\nlog: {level: debug}"
    )
    environ = {
        "GRACECTL__EVICTION__MAX_IN_FLIGHT": "20",
        "GRACECTL__ADMISSION__SERVICE__PORT": "8443",
        "GRACECTL__LOG__LEVEL": "info",
        "GRACECTL__HEALTH__MAXIMUM_UNHEALTHY": "50%",
    }
    lines = as_yaml(read_settings(file, environ)).splitlines()
    assert lines[1] == f"# file: {file}"
    commented = {line.strip().partition(":")[0]: line.partition("  # ")[2] for line in lines[2:] if "#" in line}
    assert commented == {
        "qps": "file",
        "maxInFlight": "$GRACECTL__EVICTION__MAX_IN_FLIGHT",
        "listen": "file",
        "service": "file, $GRACECTL__ADMISSION__SERVICE__PORT",
        "nodeGroups": "file",
        "maximumUnhealthy": "$GRACECTL__HEALTH__MAXIMUM_UNHEALTHY",
    }
    service = '  service: {name: a, namespace: "", port: 8443}  # file, $GRACECTL__ADMISSION__SERVICE__PORT'
    assert service in lines


def test_it_reads_as_people_write_it() -> None:
    document = {
        "nodeGroups": [
            {
                "shutdownGracePeriodByPodPriority": [
                    {"priority": 0, "shutdownGracePeriodSeconds": 60},
                    {"priority": 2_000_000_000, "shutdownGracePeriodSeconds": 10},
                ],
                "selector": {"matchLabels": {"pool": "gpu"}},
            },
        ],
        "drain": {"minimumSeconds": 3.0},
        "leaderElection": {"name": "on"},
        "provider": {"options": {"since": date(2026, 1, 1), "url": "http://x"}},
    }
    text = printed(settings_of(document))
    for wanted in (
        "nodeGroups:\n"
        "  - selector: {matchLabels: {pool: gpu}}\n"
        "    shutdownGracePeriodByPodPriority:\n"
        "      - {priority: 0, shutdownGracePeriodSeconds: 60}\n"
        "      - {priority: 2000000000, shutdownGracePeriodSeconds: 10}\n"
        "\n"
        "drain:\n"
        "  minimumSeconds: 3\n",
        '  name: "on"\n',
        '  listen: ""\n',
        '  options: {since: 2026-01-01, url: "http://x"}\n',
        '    - {type: Ready, status: "False", tolerationSeconds: 900}\n',
    ):
        assert wanted in text
    assert max(map(len, text.splitlines())) <= 80
