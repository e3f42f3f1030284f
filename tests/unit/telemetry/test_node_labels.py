"""Optional labels of metrics: where they are from, and that no tenant can make them many or ugly."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from gracectl.telemetry.exposition import Families, family_of
from gracectl.telemetry.metrics import CATALOGUE, PODS_DRAINED, Sample
from gracectl.telemetry.node_labels import KEYS, MAXIMUM_COMBINATIONS, MAXIMUM_VALUES, OTHER, NodeLabels, value_of
from gracectl.telemetry.settings import MetricsSettings, NodeLabel

PAGE = (Path(__file__).parents[3] / "docs/metrics.md").read_text()
ALL: tuple[NodeLabel, ...] = ("nodepool", "capacity_type", "zone")
ZONE = "topology.kubernetes.io/zone"


def test_none_are_switched_on_by_default() -> None:
    assert NodeLabels().of({ZONE: "a"}) == ()
    assert NodeLabels().seen() == [()]


@pytest.mark.parametrize(("labels", "values"), [
    ({"karpenter.sh/nodepool": "gpu", "karpenter.sh/capacity-type": "spot", ZONE: "eu-1a"}, ("gpu", "spot", "eu-1a")),
    ({"eks.amazonaws.com/nodegroup": "web", "eks.amazonaws.com/capacityType": "ON_DEMAND"}, ("web", "on-demand", "")),
    ({"cloud.google.com/gke-nodepool": "p_1", "cloud.google.com/gke-provisioning": "standard"},
     ("p_1", "standard", "")),
    ({"agentpool": "old", "karpenter.sh/nodepool": "new", "zone": "no key of ours"}, ("new", "", "")),
    ({}, ("", "", "")),
])  # fmt: skip
def test_the_first_key_of_the_table_counts(labels: dict[str, str], values: tuple[str, ...]) -> None:
    assert NodeLabels(ALL).of(labels) == values


def test_the_page_has_the_same_keys_and_the_same_metrics() -> None:
    part = PAGE.partition("## By node pool, capacity type and zone")[2].partition("\n## ")[0]
    for name, keys in KEYS.items():
        (row,) = (line for line in part.splitlines() if line.startswith(f"| `{name}` |"))
        assert row.startswith(f"| `{name}` | " + ", ".join(f"`{key}`" for key in keys))
    metrics = part.partition("These labels are then on")[2].partition(":")[0]
    assert {metric.name for metric in CATALOGUE if metric.of_nodes} == set(re.findall(r"`(\w+)`", metrics))


def test_more_values_than_the_limit_are_other_and_those_before_stay() -> None:
    labels = NodeLabels(("zone",))
    for number in range(MAXIMUM_VALUES):
        assert labels.of({ZONE: f"z{number}"}) == (f"z{number}",)
    assert labels.of({ZONE: "one more"}) == (OTHER,)
    assert labels.of({ZONE: "z7"}) == ("z7",)
    assert len(labels.seen()) == MAXIMUM_VALUES + 1


def test_more_combinations_than_the_limit_are_other() -> None:
    labels = NodeLabels(("nodepool", "zone"))
    for pool, zone in product(range(50), range(50)):
        labels.of({"pool": f"p{pool}", ZONE: f"z{zone}"})
    assert len(labels.seen()) == MAXIMUM_COMBINATIONS + 1
    assert labels.of({"pool": "p49", ZONE: "z49"}) == (OTHER, OTHER)
    assert labels.of({"pool": "p0", ZONE: "z0"}) == ("p0", "z0")


def test_hostile_text_is_clipped_and_visible() -> None:
    assert value_of("zone", {ZONE: "\x1b[31m\u202ea"}) == "\\x1b[31m\\u202ea"
    assert len(value_of("zone", {ZONE: "x" * 1000})) == 63


def test_a_label_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^zone is there twice; remove one$"):
        MetricsSettings(labels=("zone", "nodepool", "zone")).validate()


def test_only_metrics_about_nodes_have_them() -> None:
    sample = Sample(PODS_DRAINED, ("evicted", 'g"pu'), 3)
    (labelled,) = family_of(PODS_DRAINED, [sample], ("nodepool",)).samples
    assert (labelled.labels, labelled.value) == ({"how": "evicted", "nodepool": 'g"pu'}, 3)
    families = Families(node_labels=("nodepool",))
    families.add([sample])
    assert [each.samples for each in families.collect()] == [[labelled]]
