"""`nodeGroups` of the settings file: the deadline and the drain of nodes without a claim that says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from gracectl.config import ConfigError, load_settings
from gracectl.policy.settings import DrainSettings, PolicySettings
from gracectl.policy.waves import DEFAULT_ORDER, DrainOrder, by_priority

GROUPS = """
drain: {minimumSeconds: 5}
shutdownGracePeriod: 3m
shutdownGracePeriodCriticalPods: 1m
nodeGroups:
  - selector: {matchLabels: {pool: batch}}
    terminationGracePeriod: 1h30m
  - selector: {matchLabels: {pool: web}}
    drain: {minimumSeconds: 0}
    shutdownGracePeriodByPodPriority: []
  - selector: {matchLabels: {pool: db}}
    shutdownGracePeriodByPodPriority:
      - {priority: 1000, shutdownGracePeriodSeconds: 300}
      - {priority: 0, shutdownGracePeriodSeconds: 60}
  - selector: {}
    terminationGracePeriod: 0s
"""


def policy(tmp_path: Path, text: str) -> PolicySettings:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    return load_settings(file).termination.policy


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        ({"pool": "batch"}, by_priority([(0, 120), (2_000_000_000, 60)])),
        ({"pool": "web"}, DEFAULT_ORDER),
        ({"pool": "db"}, by_priority([(0, 60), (1000, 300)])),
        ({}, by_priority([(0, 120), (2_000_000_000, 60)])),
    ],
)
def test_a_group_has_its_own_waves_or_those_of_all(tmp_path: Path, labels: dict[str, str], order: DrainOrder) -> None:
    assert policy(tmp_path, GROUPS).order_of(labels) == order


def test_without_a_group_there_is_no_deadline(tmp_path: Path) -> None:
    settings = policy(tmp_path, "nodeGroups: [{selector: {matchLabels: {pool: batch}}, terminationGracePeriod: 1h}]")
    assert settings.group_of({"pool": "web"}) is None
    assert settings.drain_of({"pool": "web"}) == DrainSettings()


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("[{selector: {}, terminationGracePeriod: 1d}]", "nodeGroups[0].terminationGracePeriod: '1d' is no"),
        ("[{selector: {}, terminationGracePeriod: 1.5h}]", "nodeGroups[0].terminationGracePeriod: '1.5h' is no"),
        ("[{selector: {}, terminationGracePeriod: -1h}]", "nodeGroups[0].terminationGracePeriod: '-1h' is no"),
        ("[{selector: {}, terminationGracePeriod: ''}]", "nodeGroups[0].terminationGracePeriod: '' is no"),
        ("[{selector: {}, terminationGracePeriod: 15}]", "nodeGroups[0].terminationGracePeriod: Expected `str"),
        (
            "[{selector: {}, terminationGracePeriod: 99999999999h}]",
            "nodeGroups[0].terminationGracePeriod: '99999999999h' is no duration: it is longer than",
        ),
        ("[{terminationGracePeriod: 1h}]", "nodeGroups[0]: Object missing required field `selector`"),
        ("[{selector: {}}, {selector: {matchLabel: {}}}]", "nodeGroups[1].selector: Object contains unknown field"),
        (
            "[{selector: {}}, {selector: {matchExpressions: [{key: a, operator: In}]}}]",
            "nodeGroups[1].selector: operator In on label 'a' needs at least one value",
        ),
        ("{}", "nodeGroups: Expected `array`"),
        (
            "[{selector: {}, shutdownGracePeriod: 5m, shutdownGracePeriodByPodPriority: [{priority: 0, "
            "shutdownGracePeriodSeconds: 5}]}]",
            "nodeGroups[0].shutdownGracePeriodByPodPriority: conflicts with shutdownGracePeriod",
        ),
        (
            "[{selector: {}}, {selector: {}, shutdownGracePeriodCriticalPods: 5m}]",
            "nodeGroups[1].shutdownGracePeriodCriticalPods: 5m is more than shutdownGracePeriod (not given)",
        ),
        (
            "[{selector: {}, shutdownGracePeriodByPodPriority: [{priority: 2147483648, "
            "shutdownGracePeriodSeconds: 5}]}]",
            "nodeGroups[0].shutdownGracePeriodByPodPriority[0].priority: Expected `int` <= 2147483647",
        ),
        (
            "[{selector: {}, shutdownGracePeriodByPodPriority: [{priority: 1}]}]",
            "nodeGroups[0].shutdownGracePeriodByPodPriority[0]: Object missing required field "
            "`shutdownGracePeriodSeconds`",
        ),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, groups: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy(tmp_path, f"nodeGroups: {groups}")
    assert str(caught.value).startswith(f"settings file {tmp_path / 'settings.yaml'}: {message}")
