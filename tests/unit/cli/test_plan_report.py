"""The JSON object of a forecast: its shape, which machines rely on, and what stands in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from support.builders import NOW, a_budget, a_pod, ending
from support.forecasts import REPLICA, WORLDS, a_day, never, predicted, three_replicas, under_way

from gracectl.cli.plan.report import plan_report
from gracectl.cli.report import to_json
from gracectl.cli.root import root
from gracectl.inspect.forecast import DrainForecast
from gracectl.kube.auth.credentials import ClusterAddress
from gracectl.policy.plan import Outcome
from gracectl.policy.warnings import WarningKind

CLUSTER = ClusterAddress("prod", "https://10.0.0.1:6443")
PAGE = Path(__file__).parents[3] / "docs" / "plan.md"
SPAN: dict[str, Any] = {
    "answer": "s", "earliest": "t?", "latest": "t?", "expected": "t?", "earliestSeconds": "n?", "latestSeconds": "n?",
    "expectedSeconds": "n?", "certain": "b", "missing": ["s"],
    "causes": [{"kind": "s", "message": "s", "pod": "s", "budgets": ["s"]}],
}  # fmt: skip
SHAPE: dict[str, Any] = {
    "cluster": {"context": "s?", "server": "s"}, "at": "t", "note": "s?",
    "assumptions": {"replacementSeconds": "n", "evictionQps": "n", "evictionBurst": "n", "settings": "s"},
    "drained": SPAN, "unknown": ["s"], "never": ["s"],
    "window": {"opens": "t", "closes": "t?", "atOnce": "n", "nodes": [{"name": "s", "fits": "s", "drained": SPAN}]},
    "nodes": [
        {
            "name": "s", "terminating": "b", "owner": {"name": "s", "reason": "s", "assisted": "b"}, "deletedAt": "t",
            "deadline": {"at": "t", "atSeconds": "n", "source": "s", "holder": "s", "gracePeriodSeconds": "n?"},
            "drained": SPAN,
            "warnings": [{"kind": "s", "blocking": "b", "message": "s", "objects": ["s"], "remedy": "s?"}],
            "waves": [{"name": "s", "periodSeconds": "n"}],
            "pods": [
                {
                    "namespace": "s", "name": "s", "uid": "s", "wave": "s", "outcome": "s", "reason": "s",
                    "until": "t?", "message": "s", "removalWindow": SPAN, "terminatedWindow": SPAN, "certain": "b",
                    "methods": ["s"],
                    "requests": [{"at": "t", "atSeconds": "n", "method": "s", "graceSeconds": "n"}],
                    "graceSeconds": "n", "deleteAt": "t?", "deadline": "t?", "budgets": ["s"],
                    "queuePosition": {"number": "n", "of": "n", "after": "s?", "undecided": "b"},
                    "protection": {"kind": "s", "value": "s", "until": "t?", "valid": "b", "capped": "b"},
                    "blockedBy": "s?", "remedy": "s?",
                },
            ],
        },
    ],
    "alsoDraining": ["s"],
    "budgets": [
        {
            "namespace": "s", "name": "s", "allowed": "n", "healthy": "n", "required": "n", "expected": "n",
            "failure": "s?", "queue": [{"node": "s", "pod": "s"}],
        },
    ],
}  # fmt: skip
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def reported(forecast: DrainForecast) -> dict[str, Any]:
    report: dict[str, Any] = msgspec.json.decode(to_json(plan_report(forecast, CLUSTER)))
    return report


def fits(value: Any, shape: Any, where: str = "$") -> None:
    """Assert that a value has this shape: t instant, n number, s text, b truth; `?` or an object may be null."""
    if isinstance(shape, Mapping):
        if value is not None:
            assert list(value) == list(shape), where
            for key, inner in shape.items():
                fits(value[key], inner, f"{where}.{key}")
    elif isinstance(shape, list):
        for number, each in enumerate(value):
            fits(each, shape[0], f"{where}[{number}]")
    elif not (shape.endswith("?") and value is None):
        kinds: dict[str, Any] = {"t": str, "s": str, "n": (int, float), "b": bool}
        assert isinstance(value, kinds[shape[0]]), where
        assert shape[0] != "t" or INSTANT.fullmatch(value), where


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_the_object_has_the_shape_that_is_promised(world: Callable[[], DrainForecast]) -> None:
    fits(reported(world()), SHAPE)


def fields(shape: Any) -> set[str]:
    if isinstance(shape, list):
        return fields(shape[0])
    if isinstance(shape, Mapping):
        return set(shape).union(*(fields(inner) for inner in shape.values()))
    return set()


def test_the_help_and_the_page_name_every_field() -> None:
    shown = CliRunner().invoke(root, ["plan", "--help"]).output
    assert {name for name in fields(SHAPE) if not re.search(rf"\b{name}\b", shown)} == set()
    page = PAGE.read_text(encoding="utf-8")
    assert {name for name in fields(SHAPE) if f"`{name}`" not in page} == set()
    assert {kind.value for kind in WarningKind if f"`{kind}`" not in page} == set()
    assert {outcome.value for outcome in Outcome if f"`{outcome}`" not in page} == set()


def test_of_three_replicas() -> None:
    report = reported(three_replicas())
    assert report["at"] == "1970-01-12T13:46:40Z"
    assert report["assumptions"] == {
        "replacementSeconds": 600.0, "evictionQps": 0.0, "evictionBurst": 1, "settings": "defaults",
    }  # fmt: skip
    node = report["nodes"][0]
    assert node["deadline"] == {
        "at": "1970-01-12T14:01:40Z", "atSeconds": 900.0, "source": "claim", "holder": "NodeClaim node-1",
        "gracePeriodSeconds": 900.0,
    }  # fmt: skip
    assert (node["drained"]["earliestSeconds"], node["drained"]["latestSeconds"]) == (2.0, 900.0)
    (pod,) = node["pods"]
    assert (pod["removalWindow"]["earliestSeconds"], pod["removalWindow"]["latestSeconds"], pod["certain"]) == (
        0.0, 300.0, False,
    )  # fmt: skip
    assert pod["methods"] == ["evicted", "deleted"]
    assert pod["requests"] == [
        {"at": "1970-01-12T13:51:40Z", "atSeconds": 300.0, "method": "deleted", "graceSeconds": 600}
    ]
    assert pod["queuePosition"]["undecided"]
    (budget,) = report["budgets"]
    assert [waiting["node"] for waiting in budget["queue"]] == ["node-2", "node-1", "node-3"]


def test_what_never_happens_has_its_causes() -> None:
    (node,) = reported(never())["nodes"]
    assert node["drained"]["answer"] == "never"
    kinds = {cause["pod"]: cause["kind"] for cause in node["drained"]["causes"]}
    assert kinds["shop/notebook"] == "protection"
    assert node["warnings"][0]["kind"] == "NeverDrains"
    assert node["warnings"][0]["blocking"]
    kept = {pod["name"]: (pod["removalWindow"], pod["blockedBy"]) for pod in node["pods"]}
    assert (kept["notebook"][0]["answer"], kept["notebook"][1]) == ("never", "protected by do-not-disrupt")
    assert kept["quick"][1] is None
    assert [pod["wave"] for pod in node["pods"]] == ["non-critical"] * 4 + ["critical"]


def test_of_what_is_unknown_it_is_said_what_is_not_known() -> None:
    budget = a_budget(disruptions_allowed=0, current_healthy=2)
    (node,) = reported(predicted(ending("n1", a_pod(owners=REPLICA), budgets=(budget,))))["nodes"]
    assert (node["drained"]["answer"], node["drained"]["latest"]) == ("unknown", None)
    assert node["pods"][0]["removalWindow"] == {
        "answer": "unknown", "earliest": "1970-01-12T13:46:40Z", "latest": None, "expected": None,
        "earliestSeconds": 0.0, "latestSeconds": None, "expectedSeconds": None, "certain": False,
        "missing": ["when budget shop/web recovers: 1 of 3 pods is not Ready"], "causes": [],
    }  # fmt: skip


def test_nodes_that_terminate_already_and_their_neighbours() -> None:
    report = reported(under_way())
    assert report["alsoDraining"] == ["old-2"]
    assert report["nodes"][0]["terminating"]
    assert report["nodes"][0]["deletedAt"] == "1970-01-12T13:45:40Z"


def test_ignored_pods_are_there_as_well() -> None:
    (node,) = reported(a_day())["nodes"]
    assert [pod["name"] for pod in node["pods"] if pod["outcome"] == "ignored"] == ["done", "static"]
    protection = next(pod["protection"] for pod in node["pods"] if pod["protection"])
    assert protection == {
        "kind": "do-not-disrupt", "value": "24h", "until": "1970-01-13T13:46:40Z", "valid": True, "capped": False,
    }  # fmt: skip


def test_the_settings_that_were_given_are_named() -> None:
    assert plan_report(a_day(), CLUSTER, "settings.yaml")["assumptions"]["settings"] == "settings.yaml"
    assert NOW == 1_000_000
