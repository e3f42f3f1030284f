"""Where commands have the controller's settings from: the ConfigMap of the chart, and what is said without it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from e2e_support.target import embedded_cluster
from kubesim_support.accounts import RBAC
from support.fleet import Fleet

from gracectl.cli.settings import REFUSED
from gracectl.model import names

pytestmark = pytest.mark.real_time

NAMESPACES = "/api/v1/namespaces"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/gracectl/leases"
LABELS = dict(each.split("=") for each in names.SETTINGS_SELECTOR.split(","))
POOL_A = "nodeSelector: {matchLabels: {pool: a}}\n"
PAGE = Path(__file__).parents[3] / "docs" / "drain.md"
READS: tuple[tuple[str, list[str]], ...] = (
    ("", ["nodes", "pods"]), ("policy", ["poddisruptionbudgets"]), ("storage.k8s.io", ["volumeattachments"]),
    ("karpenter.sh", ["nodeclaims"]), ("coordination.k8s.io", ["leases"]),
)  # fmt: skip
RULES = [{"apiGroups": [group], "resources": resources, "verbs": ["list"]} for group, resources in READS]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A cluster of one node, `b-1`, in which no controller runs."""
    folder = tmp_path_factory.mktemp("settings")
    with embedded_cluster(folder, "--rbac") as admin:
        fleet = Fleet(admin, folder)
        for name in ("gracectl", "first", "second"):
            fleet.ask("POST", NAMESPACES, {"metadata": {"name": name}})
        fleet.held("b-1", pool="b")
        yield fleet
        fleet.release("b-1")


@contextmanager
def config_map(place: Fleet, text: str, namespace: str = "gracectl", key: str = names.SETTINGS_KEY) -> Iterator[None]:
    """One as the chart makes it, while the block lasts."""
    path = f"{NAMESPACES}/{namespace}/configmaps"
    place.ask("POST", path, {"metadata": {"name": "gracectl", "labels": LABELS}, "data": {key: text}})
    try:
        yield
    finally:
        place.ask("DELETE", f"{path}/gracectl")


def answer(place: Fleet, *arguments: str, as_: Path | None = None) -> dict[str, Any]:
    result = place.run(*arguments, "-o", "json", as_=as_)
    assert result.exit_code == 0, result.stderr
    report: dict[str, Any] = msgspec.json.decode(result.stdout)
    return report


def warnings(place: Fleet, *arguments: str, as_: Path | None = None) -> tuple[str, set[str]]:
    """Where the settings of a plan of b-1 are from, and the kinds of its warnings."""
    result = answer(place, "plan", "b-1", *arguments, as_=as_)
    (node,) = result["nodes"]
    return result["assumptions"]["settings"], {each["kind"] for each in node["warnings"]}


def test_commands_evaluate_nodes_by_the_settings_of_the_controller(place: Fleet, tmp_path: Path) -> None:
    source, kinds = warnings(place)
    assert (source, "NotManaged" in kinds) == ("defaults", False)
    with config_map(place, POOL_A):
        source, kinds = warnings(place)
        assert (source, "NotManaged" in kinds) == ("configmap gracectl/gracectl", True)
        assert answer(place, "status", "b-1")["settings"] == "configmap gracectl/gracectl"
        assert answer(place, "budgets")["settings"] == "configmap gracectl/gracectl"
        assert "Settings: configmap gracectl/gracectl." in place.run("plan", "b-1").stdout
        file = tmp_path / "settings.yaml"
        file.write_text("{}\n")
        source, kinds = warnings(place, "--config", str(file))
        assert (source, "NotManaged" in kinds) == (f"file {file}", False)
    assert not place.is_deleted("b-1")


BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in itertools.pairwise("abcdefghijklmnopqrstuvw"))
"""Aliases of aliases: a few hundred characters, and four million values."""


@contextmanager
def lease(place: Fleet, namespace: str) -> Iterator[None]:
    """The Lease of a controller there, while the block lasts."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    place.ask("POST", path, {"metadata": {"name": "gracectl"}, "spec": {"holderIdentity": "a"}})
    try:
        yield
    finally:
        place.ask("DELETE", f"{path}/gracectl")


def test_a_config_map_elsewhere_counts_only_beside_a_lease(place: Fleet) -> None:
    with config_map(place, BOMB, "second"):
        for command in (["plan", "b-1"], ["status"], ["budgets"]):
            assert answer(place, *command)
        with config_map(place, POOL_A):
            assert warnings(place)[0] == "configmap gracectl/gracectl"
            with lease(place, "second"):  # the role edit may write both
                assert warnings(place)[0] == "configmap gracectl/gracectl"
        with lease(place, "second"):
            result = place.run("status")
            assert result.exit_code == 2
            assert "ConfigMap second/gracectl: is not YAML: alias (*) not allowed" in result.stderr


def test_of_several_one_has_to_be_chosen(place: Fleet) -> None:
    maps = config_map(place, POOL_A, "first"), config_map(place, "{}", "second")
    with maps[0], maps[1], lease(place, "first"), lease(place, "second"):
        for command in (["plan", "b-1"], ["status"], ["status", "-w"], ["budgets"], ["drain", "b-1"]):
            result = place.run(*command)
            assert (result.exit_code, result.stdout) == (2, "")
            assert result.stderr == (
                "gracectl: settings: 2 ConfigMaps have the labels of the chart: first/gracectl, second/gracectl; "
                "choose one with --config-map NAMESPACE/NAME, or give --config FILE\n"
            )
        assert names.KEEP_DRAINED not in place.annotations("b-1")
        source, kinds = warnings(place, "--config-map", "second/gracectl")
        assert (source, "NotManaged" in kinds) == ("configmap second/gracectl", False)


@pytest.mark.parametrize(("text", "message"), [
    ("nodeSelektor: {}\n", "Object contains unknown field `nodeSelektor`; did you mean nodeSelector?"),
    ("eviction: {qps: -1}\n", "eviction.qps: Expected `float` >= 0.0, got -1; correct it, or give other settings"),
    ("{", "is not YAML"),
    ("#" * 100_001, "config.yaml is longer than 100,000 characters"),
])  # fmt: skip
def test_invalid_settings_name_the_config_map_and_the_field(place: Fleet, text: str, message: str) -> None:
    with config_map(place, text):
        result = place.run("plan", "b-1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("gracectl: ConfigMap gracectl/gracectl: ")
    assert message in result.stderr
    assert result.stderr.endswith("--config FILE\n")


def test_without_the_right_to_read_it_the_defaults_are_assumed(place: Fleet) -> None:
    reader = place.user("reader", *RULES)
    with config_map(place, POOL_A):
        result = place.run("plan", "b-1", as_=reader)
        assert (result.exit_code, result.stderr) == (0, f"gracectl: {REFUSED}\n")
        # Nothing is known of an installation.
        assert result.stdout.startswith("What happens if b-1 is deleted now")
        assert result.stdout.endswith("\nSettings: defaults.\n")
        chosen = place.run("plan", "b-1", "--config-map", "gracectl/gracectl", as_=reader)
        assert chosen.exit_code == 3
        assert "add the verb get on configmaps" in chosen.stderr
        grant(place, "reader")
        assert warnings(place, as_=reader)[0] == "configmap gracectl/gracectl"


def grant(place: Fleet, account: str) -> None:
    """The Role of the page."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (role,) = [each for each in map(yaml.safe_load, blocks) if each["kind"] == "Role"]
    namespace = f"{RBAC}/namespaces/{role['metadata']['namespace']}"
    place.ask("POST", f"{namespace}/roles", role)
    binding = {
        "metadata": {"name": account},
        "roleRef": {"kind": "Role", "name": role["metadata"]["name"], "apiGroup": "rbac.authorization.k8s.io"},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "default"}],
    }
    place.ask("POST", f"{namespace}/rolebindings", binding)


@pytest.mark.parametrize("value", ["gracectl", "/gracectl", "gracectl/", "a/b/c", ""])
def test_what_names_no_config_map_is_refused(place: Fleet, value: str) -> None:
    result = place.run("plan", "b-1", "--config-map", value)
    assert result.exit_code == 2
    assert "is not NAMESPACE/NAME, such as gracectl/gracectl." in result.stderr


def test_a_file_and_a_config_map_exclude_each_other(place: Fleet) -> None:
    result = place.run("plan", "b-1", "--config-map", "a/b", "--config", "settings.yaml")
    assert result.exit_code == 2
    assert "give --config or --config-map, not both" in result.stderr


def test_a_plan_says_that_it_assumes_an_installation(place: Fleet) -> None:
    note = "gracectl is not installed on this cluster; the forecast assumes it, with default settings (docs/install.md)"
    assert place.run("plan", "b-1").stdout.startswith(f"{note}\n\nWhat happens if b-1 is deleted now")
    assert answer(place, "plan", "b-1")["note"] == note
    assert "no controller in this cluster: draining from here" in place.run("drain", "b-1", "--dry-run").output


@pytest.mark.parametrize(("holder", "reason"), [
    ("gracectl-0", "gracectl-0 last renewed Lease gracectl/gracectl at 2026-01-01T00:00:00Z"),
    ("", "Lease gracectl/gracectl was released at 2026-01-01T00:00:00Z"),
])  # fmt: skip
def test_a_plan_says_that_no_controller_leads(place: Fleet, holder: str, reason: str) -> None:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
    place.ask("POST", LEASES, {"metadata": {"name": "gracectl"}, "spec": spec})
    try:
        assert answer(place, "plan", "b-1")["note"] == f"no controller leads: {reason}; the forecast assumes one"
    finally:
        place.ask("DELETE", f"{LEASES}/gracectl")
