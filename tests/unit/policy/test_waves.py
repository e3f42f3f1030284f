"""Waves: which pods leave together, by default and by priority ranges, as the kubelet groups them (KEP-2712)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import a_pod, owned_by

from gracectl.model import names
from gracectl.model.selectors import LabelSelector
from gracectl.policy.settings import NodeGroup, PolicySettings, PriorityPeriod, ShutdownPeriods
from gracectl.policy.waves import DEFAULT_ORDER, DrainOrder, by_priority

ORACLES = Path(__file__).parent / "oracles"
KEP = [(100_000, 300.0), (10_000, 180.0), (1_000, 120.0), (0, 60.0)]
"""The KEP's first table: least priority and seconds."""


def read(name: str) -> Any:
    return msgspec.json.decode((ORACLES / name).read_bytes())


def periods(order: DrainOrder) -> list[tuple[int, float]]:
    return [(floor, wave.period) for floor, wave in zip(order.lowest_priorities, order.waves, strict=True)]


@pytest.mark.parametrize(("fields", "wave"), [
    ({}, "non-critical"),
    ({"priority": 1_999_999_999}, "non-critical"),
    ({"priority_class": "high"}, "non-critical"),
    ({"owners": owned_by("DaemonSet")}, "DaemonSets"),
    ({"priority_class": names.SYSTEM_CLUSTER_CRITICAL}, "critical"),
    ({"priority_class": names.SYSTEM_NODE_CRITICAL}, "critical"),
    ({"priority": 2_000_000_000}, "critical"),
    ({"priority": 2_000_001_000, "owners": owned_by("DaemonSet")}, "critical DaemonSets"),
])  # fmt: skip
def test_the_default_waves(fields: dict[str, Any], wave: str) -> None:
    assert DEFAULT_ORDER.waves[DEFAULT_ORDER.wave_of(a_pod(**fields))].name == wave


@pytest.mark.parametrize(("priority", "wave"), [
    (-2_147_483_648, 0), (-1, 0), (None, 0), (0, 0), (999, 0), (1_000, 1), (9_999, 1), (10_000, 2), (99_999, 2),
    (100_000, 3), (2_000_001_000, 3), (2_147_483_647, 3),
])  # fmt: skip
def test_every_boundary_of_the_first_table_of_the_kep(priority: int | None, wave: int) -> None:
    order = by_priority(KEP)
    assert order.wave_of(a_pod(priority=priority)) == wave
    assert [each.period for each in order.waves] == [60.0, 120.0, 180.0, 300.0]


def test_owner_and_class_say_nothing_where_there_are_ranges() -> None:
    order = by_priority(KEP)
    daemon = a_pod(owners=owned_by("DaemonSet"), priority=0, priority_class=names.SYSTEM_NODE_CRITICAL)
    assert order.wave_of(daemon) == 0


@pytest.mark.parametrize("case", read("shutdown-groups.json"))
def test_pods_are_grouped_as_the_kubelet_groups_them(case: dict[str, Any]) -> None:
    order = by_priority([(each["Priority"], each["ShutdownGracePeriodSeconds"]) for each in case["config"]])
    groups: list[list[str]] = [[] for _ in order.waves]
    for name, priority in case["podPriorities"].items():
        groups[order.wave_of(a_pod(name, priority=priority))].append(name)
    expected = [
        (group["priority"], group["shutdownGracePeriodSeconds"], sorted(group["pods"])) for group in case["groups"]
    ]
    grouped = [(*entry, sorted(pods)) for entry, pods in zip(periods(order), groups, strict=True)]
    assert grouped == expected


@pytest.mark.parametrize("case", read("shutdown-migration.json"))
def test_the_two_totals_mean_the_ranges_that_the_kubelet_makes_of_them(case: dict[str, Any]) -> None:
    total, critical = case["shutdownGracePeriodSeconds"], case["shutdownGracePeriodCriticalPodsSeconds"]
    given = ShutdownPeriods(
        shutdown_grace_period=f"{total}s", shutdown_grace_period_critical_pods=f"{critical}s" if critical else None
    )
    if critical > total:  # the kubelet turns the feature off without a word; a person should hear of it
        with pytest.raises(ValueError, match=r"^shutdownGracePeriodCriticalPods: .* is more than shutdownGracePeriod"):
            given.order()
        return
    order = given.order()
    assert order is not None
    if case["migrated"] is None:
        assert order == DEFAULT_ORDER
    else:
        assert periods(order) == [(each["Priority"], each["ShutdownGracePeriodSeconds"]) for each in case["migrated"]]


ONE = (PriorityPeriod(0, 60),)


@pytest.mark.parametrize(("given", "message"), [
    (
            ShutdownPeriods(shutdown_grace_period="5m", shutdown_grace_period_by_pod_priority=ONE),
            "shutdownGracePeriodByPodPriority: conflicts with shutdownGracePeriod, which sets the same in another "
            "form; keep one of the two",
        ),
    (ShutdownPeriods(shutdown_grace_period_critical_pods="5m"),
     "shutdownGracePeriodCriticalPods: 5m is more than shutdownGracePeriod (not given), of which it is a part"),
    (ShutdownPeriods(shutdown_grace_period="5 m"), "shutdownGracePeriod: '5 m' is no duration"),
    (ShutdownPeriods(shutdown_grace_period="-5m"), "shutdownGracePeriod: -5m is not 0 or at least 1s"),
    (ShutdownPeriods(shutdown_grace_period="500ms"), "shutdownGracePeriod: 500ms is not 0 or at least 1s"),
    (ShutdownPeriods(shutdown_grace_period_by_pod_priority=(*ONE, PriorityPeriod(0, 5))),
     "shutdownGracePeriodByPodPriority: priority 0 is given twice"),
])  # fmt: skip
def test_what_does_not_fit_is_a_configuration_error(given: ShutdownPeriods, message: str) -> None:
    with pytest.raises(ValueError, match="shutdown") as caught:
        given.order()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("given", "order"), [
    (ShutdownPeriods(), None),
    (ShutdownPeriods(shutdown_grace_period_by_pod_priority=()), DEFAULT_ORDER),
    (ShutdownPeriods(shutdown_grace_period="0s"), DEFAULT_ORDER),
    (ShutdownPeriods(shutdown_grace_period="0s", shutdown_grace_period_by_pod_priority=ONE), by_priority([(0, 60)])),
    (ShutdownPeriods(shutdown_grace_period="1m"), by_priority([(0, 60), (2_000_000_000, 0)])),
])  # fmt: skip
def test_neither_form_means_the_default_waves(given: ShutdownPeriods, order: DrainOrder | None) -> None:
    assert given.order() == order


def test_the_first_group_that_matches_says_which_waves_a_node_has() -> None:
    ranges, totals = by_priority(KEP), by_priority([(0, 1.0)])
    settings = PolicySettings(
        order=ranges,
        node_groups=(
            NodeGroup(LabelSelector({"pool": "plain"}), order=DEFAULT_ORDER),
            NodeGroup(LabelSelector({"pool": "inherits"})),
            NodeGroup(LabelSelector({"kind": "short"}), order=totals),
        ),
    )
    assert settings.order_of({"pool": "plain", "kind": "short"}) == DEFAULT_ORDER
    assert settings.order_of({"pool": "inherits"}) == ranges
    assert settings.order_of({"kind": "short"}) == totals
    assert settings.order_of({}) == ranges


def test_a_range_has_a_name_for_people() -> None:
    assert [wave.name for wave in by_priority([*KEP, (9_999, 1.0)]).waves] == [
        "priority below 1000", "priority 1000 to 9998", "priority 9999", "priority 10000 to 99999",
        "priority 100000 and above",
    ]  # fmt: skip
    assert by_priority([(0, 60.0)]).waves[0].pods == "the pods of any priority"


@given(
    lowest=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=6, unique=True),
    priority=st.none() | st.integers(-(2**31), 2**31 - 1),
)
def test_a_pod_is_in_the_highest_range_at_or_below_its_priority(lowest: list[int], priority: int | None) -> None:
    order = by_priority([(each, 1.0) for each in lowest])
    below = [each for each in lowest if each <= (priority or 0)]
    assert order.lowest_priorities[order.wave_of(a_pod(priority=priority))] == max(below, default=min(lowest))
    assert all(a < b for a, b in pairwise(order.lowest_priorities))


def test_ranges_without_any_time_are_not_timed() -> None:
    assert not by_priority([(0, 0.0), (1000, 0.0)]).is_timed
    assert by_priority([(0, 0.0), (1000, 1.0)]).is_timed
