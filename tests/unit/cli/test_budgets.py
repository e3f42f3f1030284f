"""`gracectl budgets` over HTTP: what it says of a cluster, with which permissions, and how it looks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kubesim_support.accounts import RBAC
from rich.cells import cell_len
from rich.console import Console
from support.builders import NOW, READY, a_node, cluster
from support.disruption import NODE_BUDGETS, a_node_budget_manifest
from support.fleet import Fleet, fleet, overheard
from support.schemas import names_in

from gracectl.cli.budgets.report import BudgetUsages, budgets_table
from gracectl.cli.console import text_of
from gracectl.cli.settings import REFUSED
from gracectl.controllers.settings import TerminationSettings
from gracectl.inspect.budget_status import node_budget_usages
from gracectl.inspect.leadership import UNKNOWN_LEADERSHIP, Leadership, LeaderState
from gracectl.model import names
from gracectl.model.budget import NodeDisruptionBudget
from gracectl.model.selectors import LabelSelector

pytestmark = pytest.mark.real_time

PDBS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
PAGE = (Path(__file__).parents[3] / "docs" / "budgets.md").read_text(encoding="utf-8")
READS = (
    ("", ["nodes", "pods", "configmaps"]), ("policy", ["poddisruptionbudgets"]), ("karpenter.sh", ["nodeclaims"]),
    ("termination.karpenter.sh", ["nodedisruptionbudgets"]),
)  # fmt: skip


def rights(*groups: tuple[str, list[str]]) -> list[dict[str, Any]]:
    return [{"apiGroups": [group], "resources": resources, "verbs": ["list"]} for group, resources in groups]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two nodes of a pool whose budget lets none go, and of which one is to; a budget for pods that lets none go."""
    with fleet(tmp_path_factory.mktemp("budgets")) as started:
        for name in ("one", "two"):
            started.add(name, managed=True, pool="a")
        started.ask("POST", NODE_BUDGETS, a_node_budget_manifest("pool", {"pool": "a"}, minAvailable="100%"))
        started.ask("POST", NODE_BUDGETS, a_node_budget_manifest("a-unused", {"pool": "none"}, maxUnavailable=1))
        started.pod("web", "two", labels={"app": "web"})
        budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}}
        budget["spec"] = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
        started.ask("POST", PDBS, budget)
        started.patch("one", {"metadata": {"labels": {names.LIFECYCLE_PHASE: names.LIFECYCLE_PHASE_TERMINABLE}}})
        started.until("all is counted", lambda: _is_counted(started))
        yield started


def _is_counted(place: Fleet) -> bool:
    report = in_json(place, "-n", "default")
    return {each["state"] for each in (*report["nodeBudgets"], *report["podBudgets"])} == {"spent"}


def in_json(place: Fleet, *arguments: str, as_: Path | None = None) -> dict[str, Any]:
    result = place.run("budgets", "-o", "json", *arguments, as_=as_)
    assert result.exit_code == 0
    assert result.stderr.replace(f"gracectl: {REFUSED}\n", "") == ""
    report: dict[str, Any] = msgspec.json.decode(result.stdout)
    return report


def test_budgets_say_what_they_allow_and_what_they_block(place: Fleet) -> None:
    unused, pool = in_json(place)["nodeBudgets"]
    assert unused["problem"] == "the selector selects no node"
    figures = {"expected": 2, "available": 2, "required": 2, "allowed": 0}
    assert (
        pool.items() >= {"name": "pool", "minAvailable": "100%", "state": "spent", "problem": None, **figures}.items()
    )
    assert pool["counted"] == figures
    assert pool["blocks"] == [{"name": "one", "reason": "labeled terminable"}, {"name": "two", "reason": None}]
    (web,) = in_json(place, "-n", "default")["podBudgets"]
    assert web["blocks"] == [{"name": "default/web", "reason": None}]
    text = " ".join(place.run("budgets").stdout.split())
    assert "pool minAvailable 100% 2/2 2 0 blocks: one (labeled terminable); and 1 without a pending removal" in text
    assert "default/web minAvailable 1 1/1 1 0 blocks: default/web; no removal pending" in text
    assert "! the selector selects no node" in text


def test_only_what_blocks_and_only_one_namespace(place: Fleet) -> None:
    place.ask("PATCH", f"{NODE_BUDGETS}/pool", {"spec": {"minAvailable": 1}}, "application/merge-patch+json")
    try:
        place.until("the node has gone", lambda: place.node("one") is None)
        place.ask("PATCH", f"{NODE_BUDGETS}/pool", {"spec": {"minAvailable": 0}}, "application/merge-patch+json")
        place.until("it allows one", lambda: in_json(place)["nodeBudgets"][1]["allowed"] == 1)
        assert [each["name"] for each in in_json(place, "--blocking")["nodeBudgets"]] == ["a-unused"]
        report = in_json(place, "--blocking", "-n", "elsewhere")
        assert report["podBudgets"] == []
        assert "No PodDisruptionBudget blocks anything." in place.run("budgets", "--blocking", "-n", "elsewhere").stdout
        assert "There is no PodDisruptionBudget." in place.run("budgets", "-n", "elsewhere").stdout
    finally:
        change = {"spec": {"minAvailable": "100%"}}
        place.ask("PATCH", f"{NODE_BUDGETS}/pool", change, "application/merge-patch+json")


def test_without_permission_on_node_budgets_it_says_so_and_shows_the_others(place: Fleet) -> None:
    reader = place.user("reader", *rights(*READS[:-1]))
    report = in_json(place, as_=reader)
    assert report["nodeBudgets"] is None
    assert "add the verb list on nodedisruptionbudgets" in report["note"]
    assert "web" in {each["name"] for each in report["podBudgets"]}
    whole = place.user("whole-reader", *rights(*READS))
    assert in_json(place, as_=whole)["note"] is None
    stranger = place.run("budgets", as_=place.user("stranger", *rights(READS[0])))
    assert stranger.exit_code == 3
    assert "list" in stranger.stderr


def test_one_namespace_or_all_of_them(place: Fleet) -> None:
    assert in_json(place, "-A")["podBudgets"] == in_json(place)["podBudgets"]
    both = place.run("budgets", "-A", "-n", "default")
    assert both.exit_code == 2
    assert "give -n or -A, not both" in both.stderr


def test_names_choose_budgets(place: Fleet) -> None:
    def chosen(*arguments: str) -> tuple[list[str], list[str]]:
        report = in_json(place, *arguments)
        return [each["name"] for each in report["nodeBudgets"]], [each["name"] for each in report["podBudgets"]]

    assert chosen("default/web") == ([], ["web"])
    assert chosen("web", "-n", "default") == ([], ["web"])
    assert chosen("pool", "default/web") == (["pool"], ["web"])
    text = place.run("budgets", "default/web").stdout
    assert "default/web" in text
    assert "NodeDisruptionBudget" not in text
    unknown = place.run("budgets", "default/wbe", "default/web")
    assert unknown.exit_code == 3
    assert unknown.stderr.endswith("gracectl: no such budget: default/wbe; did you mean default/web?\n")
    both = place.run("budgets", "default/web", "-n", "default")
    assert both.exit_code == 2
    assert "give NAMESPACE/NAME or -n or -A, not both" in both.stderr


LEADS = Leadership(LeaderState.ACTIVE, "infra/gracectl", "a", NOW)
GONE = "no controller leads, a\\x1b last renewed Lease infra/gracectl"
NO_LEADER = Leadership(LeaderState.NONE, "infra/gracectl", "a\x1b", NOW)


@pytest.mark.parametrize(("leadership", "generation", "words"), [
    (LEADS, 2, "! changed just now, not counted yet"),
    (NO_LEADER, 2, f"! not counted yet: {GONE}"),
    (UNKNOWN_LEADERSHIP, 2, "! not counted yet; is `gracectl controller` running?"),
    (LEADS, 1, "! status out of date (1 of 1 are available now)"),
    (NO_LEADER, 1, f"! status out of date (1 of 1 are available now): {GONE}"),
    (UNKNOWN_LEADERSHIP, 1, "! status out of date (1 of 1 are available now); is `gracectl controller` running?"),
])  # fmt: skip
def test_a_missing_leader_is_named_as_far_as_it_is_known(leadership: Leadership, generation: int, words: str) -> None:
    budget = NodeDisruptionBudget(
        "pool", "u", generation=generation, observed_generation=1, selector=LabelSelector({"pool": "a"}),
        min_available=0,
    )  # fmt: skip
    nodes = (a_node("n", conditions=READY, labels={"pool": "a"}),)
    node_budgets = node_budget_usages(cluster(*nodes), (budget,), TerminationSettings(), NOW)
    usages = BudgetUsages(at=NOW, nodes=node_budgets, pods=(), leadership=leadership)
    assert words in text_of(Console(width=1000), budgets_table(usages))


def test_with_permissions_in_one_namespace_its_budgets_are_shown(place: Fleet) -> None:
    narrow = place.user("narrow")
    rules = rights(("", ["pods"]), ("policy", ["poddisruptionbudgets"]))
    place.ask("POST", f"{RBAC}/namespaces/default/roles", {"metadata": {"name": "narrow"}, "rules": rules})
    binding = {
        "metadata": {"name": "narrow"},
        "roleRef": {"kind": "Role", "name": "narrow"},
        "subjects": [{"kind": "ServiceAccount", "name": "narrow", "namespace": "default"}],
    }
    place.ask("POST", f"{RBAC}/namespaces/default/rolebindings", binding)
    report = in_json(place, "-n", "default", as_=narrow)
    assert report["nodeBudgets"] is None
    assert "add the verb list on nodes" in report["note"]
    assert [each["name"] for each in report["podBudgets"]] == ["web"]
    assert place.run("budgets", as_=narrow).exit_code == 3


def test_nothing_is_written(place: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = overheard(monkeypatch)
    assert place.run("budgets").exit_code == 0
    assert {request.method for request in asked} == {"GET"}


@pytest.mark.parametrize("width", [80, 160])
def test_no_line_is_wider_than_the_terminal(place: Fleet, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = place.run("budgets").stdout.splitlines()
    assert max(map(cell_len, lines)) <= width
    assert lines[2].split() == ["NODEDISRUPTIONBUDGET", "BOUND", "AVAILABLE", "REQUIRED", "ALLOWED"]


def test_the_page_explains_every_field(place: Fleet) -> None:
    assert {field for field in names_in(in_json(place)) if f"`{field}`" not in PAGE} == set()
