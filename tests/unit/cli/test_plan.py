"""`gracectl plan` over HTTP: what it says of a cluster, what it refuses and with which code, and that it only reads."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result
from e2e_support.target import embedded_cluster
from kubesim_support.patience import PATIENCE
from support.fleet import Fleet, overheard

from gracectl.cli.root import root
from gracectl.model import names
from gracectl.model.times import parse_time

pytestmark = pytest.mark.real_time

SCENARIO = """\
name: predicted
description: Three nodes with a deadline, and one that never drains.
start: prebuilt
nodes:
  - {name: "worker-{n}", count: 3, labels: {pool: a}, claims: {terminationGracePeriod: 15m}}
  - {name: plain, labels: {pool: b}}
deployments:
  - name: orders
    namespace: shop
    replicas: 3
    grace: 600
    nodeSelector: {pool: a}
    budget: {maxUnavailable: 1}
    pod:
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: DoNotSchedule
          labelSelector: {matchLabels: {app: orders}}
pods:
  - name: notebook
    namespace: shop
    nodeSelector: {pool: b}
    annotations: {karpenter.sh/do-not-disrupt: "true"}
kubelet:
  behaviours:
    - behaviour: {startDelay: 100ms, readyDelay: 100ms, stopDelay: 1s}
"""
RIGHTS = [
    {"apiGroups": [""], "resources": ["nodes", "pods", "configmaps"], "verbs": ["list"]},
    {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["list"]},
    {"apiGroups": ["storage.k8s.io"], "resources": ["volumeattachments"], "verbs": ["list"]},
    {"apiGroups": ["karpenter.sh"], "resources": ["nodeclaims"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["list"]},
    {"apiGroups": ["apps"], "resources": ["replicasets", "statefulsets"], "verbs": ["list"]},
]


class Place(msgspec.Struct, frozen=True):
    """A cluster, as its administrator reaches it, as who may only list, as who may list nodes and no more,
    and as who may list what a forecast needs."""

    admin: Path
    reader: Path
    stranger: Path
    minimal: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("plan")
    scenario = folder / "predicted.yaml"
    scenario.write_text(SCENARIO)
    with embedded_cluster(folder, "--scenario", str(scenario), "--rbac") as admin:
        cluster = Fleet(admin, folder)
        for node in ("worker-1", "worker-2", "worker-3", "plain"):
            cluster.patch(node, {"metadata": {"finalizers": [names.FINALIZER]}})  # as the keeper would
        yield Place(
            admin, cluster.user("reader", *RIGHTS), cluster.user("stranger", *RIGHTS[:1]),
            cluster.user("minimal", *RIGHTS[:4]),
        )  # fmt: skip


def plan(kubeconfig: Path, *arguments: str) -> Result:
    return CliRunner().invoke(root, ["plan", "--kubeconfig", str(kubeconfig), *arguments])


def forecast(kubeconfig: Path, *arguments: str) -> dict[str, Any]:
    """The JSON object that is printed."""
    result = plan(kubeconfig, "-o", "json", *arguments)
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = msgspec.json.decode(result.stdout)
    return report


# -- what it says ------------------------------------------------------------------------------------------------------


def test_a_node_is_predicted(place: Place) -> None:
    result = plan(place.reader, "worker-1")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("What happens if worker-1 is deleted now (0:00 is 20")
    assert lines[2] == "worker-1: drained 0:02-10:00 after its deletion"
    assert lines[3].startswith("  deadline: 15:00 (")
    assert lines[3].endswith("termination grace period 15m0s of NodeClaim worker-1-claim")
    (row,) = [line for line in lines if "  shop/orders-" in line]
    assert row.endswith("  evicted, as budget shop/orders allows it now")
    assert lines[-1] == "Settings: defaults."


def test_without_a_permission_some_warnings_are_not_checked(place: Place) -> None:
    note = "not checked: missing permissions: list replicasets.apps, list services, list statefulsets.apps"
    assert forecast(place.minimal, "worker-1")["note"] == note
    assert forecast(place.reader, "worker-1")["note"] is None
    assert plan(place.minimal, "worker-1").stdout.splitlines()[0] == note


def test_it_says_which_nodes_fit_into_a_window(place: Place, tmp_path: Path) -> None:
    always = ("--window", "* * * * * 1h")
    line = plan(place.reader, "worker-1", *always).stdout.splitlines()[1]
    assert line.startswith("Window from 20")
    assert line.endswith(" on, 1 node at the same time: 1 of 1 expected to be drained in it")
    window = forecast(place.reader, "worker-1", *always)["window"]
    assert (window["closes"], window["atOnce"], window["nodes"][0]["fits"]) == (None, 1, "yes")
    # Of the settings, without the option; too short for the slowest drain, as nothing is known about the time expected.
    settings = tmp_path / "settings.yaml"
    settings.write_text("voluntary: {windows: [{schedule: '0 0 1 1 *', duration: 9m}]}")
    window = forecast(place.reader, "worker-1", "--config", str(settings))["window"]
    opens, closes = parse_time(window["opens"]), parse_time(window["closes"])
    assert (closes - opens, window["nodes"][0]["name"], window["nodes"][0]["fits"]) == (540.0, "worker-1", "unlikely")
    assert forecast(place.reader, "worker-1")["window"] is None
    refused = plan(place.reader, "worker-1", "--window", "0 25 * * * 1h")
    assert refused.exit_code == 2
    assert "schedule: '0 25 * * *' is no cron schedule: bad hour" in refused.stderr


def test_nodes_by_their_labels_are_predicted_together(place: Place) -> None:
    prediction = forecast(place.reader, "-l", "pool=a")
    assert [node["name"] for node in prediction["nodes"]] == ["worker-1", "worker-2", "worker-3"]
    (budget,) = prediction["budgets"]
    assert len(budget["queue"]) == 3
    assert {pod["queuePosition"]["of"] for node in prediction["nodes"] for pod in node["pods"]} == {3}
    assert prediction["assumptions"] == {
        "replacementSeconds": 30.0, "evictionQps": 100.0, "evictionBurst": 100, "settings": "defaults",
    }  # fmt: skip


def test_the_longest_time_of_a_replacement_is_the_settings_or_what_is_said(place: Place, tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("plan: {replacementSeconds: 90}\neviction: {qps: 7, burst: 3}\n")
    prediction = forecast(place.reader, "-l", "pool=a", "--config", str(settings))
    assert prediction["assumptions"] == {
        "replacementSeconds": 90.0, "evictionQps": 7.0, "evictionBurst": 3, "settings": f"file {settings}",
    }  # fmt: skip
    assert max(pod["removalWindow"]["latestSeconds"] for node in prediction["nodes"] for pod in node["pods"]) == 180.0
    prediction = forecast(place.reader, "-l", "pool=a", "--config", str(settings), "--replacement-seconds", "600")
    assert prediction["assumptions"]["replacementSeconds"] == 600.0
    assert max(pod["removalWindow"]["latestSeconds"] for node in prediction["nodes"] for pod in node["pods"]) == 300.0
    assert f"Settings: file {settings}." in plan(place.reader, "plain", "--config", str(settings)).stdout


def test_a_node_that_never_drains_says_so_and_is_no_failure(place: Place) -> None:
    result = plan(place.reader, "plain")
    assert result.exit_code == 0
    assert "plain: never drained" in result.stdout
    assert "this node never drains: shop/notebook stays indefinitely (protected by do-not-disrupt)" in result.stdout


def test_bars_are_drawn_for_whatever_stands_at_the_other_end(place: Place) -> None:
    plain = plan(place.reader, "-l", "pool=a", "--timeline")
    assert (plain.exit_code, "░" in plain.stdout) == (0, True)
    old = CliRunner(charset="latin-1").invoke(
        root, ["plan", "--kubeconfig", str(place.reader), "-l", "pool=a", "--timeline"]
    )
    assert old.stdout.isascii()
    assert "??? may be removed" in old.stdout


def test_a_picture_and_a_page_are_written_beside_the_answer(place: Place, tmp_path: Path) -> None:
    svg, html = tmp_path / "plan.svg", tmp_path / "plan.html"
    svg.write_text("old")
    result = plan(place.reader, "worker-1", "-o", "json", "--svg", str(svg), "--html", str(html))
    assert result.exit_code == 0
    assert result.stderr == f"Written: {svg}\nWritten: {html}\n"
    assert msgspec.json.decode(result.stdout)["nodes"][0]["name"] == "worker-1"
    words = "".join(ElementTree.parse(svg).getroot().itertext()).replace("\xa0", " ")
    assert "worker-1: drained 0:02-10:00" in words
    assert "worker-1: drained 0:02-10:00" in html.read_text(encoding="utf-8")


# -- what it refuses ---------------------------------------------------------------------------------------------------


def test_a_selector_that_no_node_matches_is_no_failure(place: Place) -> None:
    result = plan(place.reader, "-l", "pool=none")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "No node matches the selector pool=none.\n"
    assert forecast(place.reader, "-l", "pool=none")["nodes"] == []


@pytest.mark.parametrize(("arguments", "message"), [
    ([], "name one node or more, or choose them with -l SELECTOR"),
    (["n1", "-l", "a=b"], "give names or a selector, not both"),
    (["-l", "a=(b"], "Invalid value for '-l' / '--selector'"),
    (["n1", "--replacement-seconds", "-1"], "Invalid value for '--replacement-seconds'"),
    (["n1", "--replacement-seconds", "nan"], "Invalid value for '--replacement-seconds'"),
    (["n1", "-o", "xml"], "Invalid value for '-o' / '--output'"),
    (["n1", "-o", "json", "--timeline"], "--timeline and -o json exclude each other"),
])  # fmt: skip
def test_invalid_arguments_are_refused_before_any_request(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(root, ["plan", "--kubeconfig", "/nowhere", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.mark.parametrize("option", ["--svg", "--html"])
def test_a_file_that_cannot_be_written_is_told_behind_the_answer(place: Place, tmp_path: Path, option: str) -> None:
    path = tmp_path / "missing" / "file"
    result = plan(place.reader, "worker-1", option, str(path))
    assert result.exit_code == 2
    assert "worker-1: drained 0:02-" in result.stdout
    assert result.stderr == (
        f"gracectl: {path}: cannot be written: No such file or directory; choose another file for {option}\n"
    )


def test_a_missing_right_is_named(place: Place) -> None:
    result = plan(place.stranger, "worker-1")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "forbidden: add the verb list on " in result.stderr


def test_an_unreachable_server_is_reported(place: Place, tmp_path: Path) -> None:
    config = yaml.safe_load(place.reader.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    result = plan(tmp_path / "kubeconfig", "worker-1")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "the server cannot be reached" in result.stderr


def test_an_interrupt_ends_it_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def long(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gracectl.cli.plan.command.forecast_plan", long)
    result = plan(place.reader, "worker-1")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "gracectl: interrupted\n")


# -- that it only reads ------------------------------------------------------------------------------------------------


def test_nothing_is_written_and_no_other_pods_are_asked_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = overheard(monkeypatch)
    assert plan(place.admin, "worker-1", "plain").exit_code == 0
    assert {request.method for request in asked} == {"GET"}
    pods = sorted(dict(request.query)["fieldSelector"] for request in asked if request.path == "/api/v1/pods")
    assert pods == ["spec.nodeName=plain", "spec.nodeName=worker-1"]


def test_as_a_process_it_leaves_nothing_behind(place: Place) -> None:
    command = [sys.executable, "-X", "dev", "-W", "error", "-m", "gracectl", "plan", "--kubeconfig", str(place.reader)]
    done = subprocess.run([*command, "worker-1"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    complaints = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert (done.returncode, complaints) == (0, [])
    assert "worker-1: drained 0:02-10:00 after its deletion" in done.stdout


def test_requests_that_a_refusal_has_cut_leave_no_connection_behind(place: Place) -> None:
    for _ in range(8):
        assert plan(place.stranger, "worker-1").exit_code == 3
    gc.collect()  # a connection that is still open now is a failure of this test
