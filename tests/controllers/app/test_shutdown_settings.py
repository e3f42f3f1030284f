"""What the settings file says to the agent: by which order pods leave a machine that shuts down, or that none does."""

from __future__ import annotations

from pathlib import Path

import pytest

from gracectl.agent.settings import AgentSettings
from gracectl.config import ConfigError, Settings, load_settings
from gracectl.policy.waves import DEFAULT_ORDER, by_priority

RANGES = "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 60}]\n"
TOTALS = "shutdownGracePeriod: 5m\nshutdownGracePeriodCriticalPods: 2m\n"
NO_TIME = "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 0}]\n"
GATE_OFF = "featureGates: {PodPriorityBasedGracefulNodeShutdown: false}\n"


def read(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    return load_settings(file)


@pytest.mark.parametrize("text", ["", "shutdownGracePeriodByPodPriority: []\n", "shutdownGracePeriod: 0s\n", NO_TIME])
def test_with_neither_form_no_node_has_an_order_for_a_shutdown(tmp_path: Path, text: str) -> None:
    policy = read(tmp_path, text).shutdown
    assert not policy.knows_shutdowns
    assert policy.order_of({}) == DEFAULT_ORDER or text == NO_TIME


def test_either_form_is_an_order(tmp_path: Path) -> None:
    assert read(tmp_path, RANGES).shutdown.order_of({}) == by_priority([(0, 60)])
    assert read(tmp_path, TOTALS).shutdown.order_of({}) == by_priority([(0, 180), (2_000_000_000, 120)])


@pytest.mark.parametrize("gate", ["", GATE_OFF])
def test_both_forms_are_an_error_whatever_the_gate_says(tmp_path: Path, gate: str) -> None:
    with pytest.raises(ConfigError, match="shutdownGracePeriodByPodPriority: conflicts with shutdownGracePeriod"):
        read(tmp_path, RANGES + TOTALS + gate)


def test_without_the_gate_ranges_count_for_no_shutdown_but_for_drains_as_before(tmp_path: Path) -> None:
    settings = read(tmp_path, RANGES + GATE_OFF)
    assert not settings.shutdown.knows_shutdowns
    assert settings.termination.policy.order_of({}) == by_priority([(0, 60)])


def test_without_the_gate_the_older_form_still_counts(tmp_path: Path) -> None:
    assert read(tmp_path, TOTALS + GATE_OFF).shutdown.order_of({}) == by_priority([(0, 180), (2_000_000_000, 120)])


def test_a_group_may_have_an_order_of_its_own_or_none(tmp_path: Path) -> None:
    text = (
        "nodeGroups:\n"
        "- selector: {matchLabels: {pool: db}}\n"
        "  shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 300}]\n"
        "- selector: {matchLabels: {pool: web}}\n"
        "  shutdownGracePeriod: 1m\n"
    )
    both = read(tmp_path, text).shutdown
    assert both.knows_shutdowns
    assert not both.order_of({}).lowest_priorities
    assert both.order_of({"pool": "db"}) == by_priority([(0, 300)])
    gated = read(tmp_path, text + GATE_OFF).shutdown
    assert not gated.order_of({"pool": "db"}).lowest_priorities
    assert gated.order_of({"pool": "web"}) == by_priority([(0, 60), (2_000_000_000, 0)])


@pytest.mark.parametrize(
    "address",
    [
        "unix:path=/run/dbus/system_bus_socket",
        "unix:abstract=/tmp/dbus-1,guid=07",
        "tcp:host=localhost,port=12345",
        "unix:path=/one;unix:path=/other",
    ],
)
def test_the_address_of_a_bus_is_taken_as_d_bus_writes_it(tmp_path: Path, address: str) -> None:
    assert read(tmp_path, f"agent: {{busAddress: '{address}'}}").agent.address == address


@pytest.mark.parametrize(
    "address",
    ["unix:pth=/x", "unix:path=", "unix:", "foo:path=/x", "tcp:host=a", "tcp:host=a,port=99999", "unix:path=/x;y"],
)
def test_an_address_that_no_bus_can_have_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match=r"agent\.busAddress: .* is no D-Bus address such as unix:path="):
        read(tmp_path, f"agent: {{busAddress: '{address}'}}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "agent: {busAddress: /run/dbus/system_bus_socket}",
            "agent.busAddress: '/run/dbus/system_bus_socket' is no D-Bus",
        ),
        (
            "agent: {logindDropInDirectory: etc/systemd}",
            "agent.logindDropInDirectory: 'etc/systemd' is no absolute path",
        ),
        ("featureGates: {GracefulNodeShutdown: true}", "unknown field"),
        ("featureGates: {PodPriorityBasedGracefulNodeShutdown: maybe}", "Expected `bool`, got `str`"),
    ],
)
def test_nonsense_is_refused_with_its_field(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)


def test_the_bus_is_where_the_environment_says_unless_the_settings_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DBUS_SYSTEM_BUS_ADDRESS", raising=False)
    assert AgentSettings().address == "unix:path=/run/dbus/system_bus_socket"
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/elsewhere")
    assert AgentSettings().address == "unix:path=/elsewhere"
    assert AgentSettings(bus_address="unix:path=/here").address == "unix:path=/here"
