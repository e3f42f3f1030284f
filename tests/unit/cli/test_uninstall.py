"""`gracectl uninstall` over HTTP, beside a controller in a process of its own: what it does, and what it prints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from support.fleet import NODES, Fleet, fleet
from support.shell import on_terminal

from gracectl.cli.root import root
from gracectl.cli.uninstall.report import (
    CordonedNodeReport,
    LeaseReport,
    OrphanedInstanceReport,
    Removal,
    UninstallReport,
)
from gracectl.model import names

pytestmark = pytest.mark.real_time

PAGE = Path(__file__).parents[3] / "docs" / "uninstall.md"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("uninstall")) as found:
        yield found


def held(place: Fleet) -> list[str]:
    nodes = place.ask("GET", NODES)["items"]
    return sorted(
        node["metadata"]["name"] for node in nodes if names.FINALIZER in node["metadata"].get("finalizers", [])
    )


def quick(place: Fleet) -> str:
    """Settings with which another uninstall, that has the Lease, is waited for only for 3 s."""
    settings = place.folder / "quick.yaml"
    times = {"leaseDurationSeconds": 3, "renewDeadlineSeconds": 2, "retryPeriodSeconds": 0.5}
    settings.write_text(json.dumps({"leaderElection": times}))
    return str(settings)


def holder(place: Fleet) -> str:
    """The holder of gracectl's Lease; "": none, or no Lease yet."""
    status, answer = place.call("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/gracectl")
    if status == 404:
        return ""
    assert status == 200, answer
    identity: str = answer["spec"].get("holderIdentity") or ""
    return identity


def test_it_ends_with_nothing_left_and_says_what_it_did(place: Fleet) -> None:
    place.add("one", managed=True)
    place.add("kept", managed=True)
    place.held("going")
    place.delete("going")
    assert place.run("drain", "kept").exit_code == 0
    before = held(place)
    predicted = place.run("uninstall", "--dry-run")
    assert predicted.exit_code == 0, predicted.output
    assert "would be removed" in predicted.stdout
    assert "Lease kube-system/gracectl would be taken over from " in predicted.stdout
    assert held(place) == before
    result = place.run("uninstall", "--yes")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1] == f"finalizer of {len(before)} nodes  removed"
    assert (
        "node going: being deleted, disappears; 0 pods not terminated; gracectl does not terminate its instance"
        in result.stdout
    )
    assert "node kept stays cordoned; to uncordon it:\n" in result.stdout
    assert "  kubectl uncordon kept\n" in result.stdout
    assert re.search(r"Lease kube-system/gracectl is held until \S+, so that no running controller", result.stdout)
    assert re.search(r"does not lead any more; waiting 1\d s for its last requests", result.stderr)
    assert held(place) == []
    assert place.node("going") is None
    again = place.run("uninstall", "--yes", "-o", "json", "--config", quick(place))
    assert again.exit_code == 0, again.output
    report = json.loads(again.stdout)
    assert (report["dryRun"], report["removals"], report["orphanedInstances"]) == (False, [], [])
    assert [each["node"] for each in report["cordonedNodes"]] == ["kept"]
    assert report["lease"]["previousHolder"].startswith("gracectl-uninstall_")
    assert held(place) == []


def test_a_terminal_is_asked_after_it_was_shown_what_would_be_removed(place: Fleet) -> None:
    place.until("the Lease is held", lambda: holder(place))
    place.held("shown")
    before, leads = held(place), holder(place)
    command = ("uninstall", "--kubeconfig", str(place.kubeconfig))
    seen = on_terminal(*command, answers=[("remove gracectl from this cluster? [y/N] ", "\n")])
    assert seen.code == 130
    assert seen.lines[0] == f"cluster: kubesim ({place.server})"
    assert "would be removed" in seen.text
    assert seen.text.endswith("gracectl: cancelled; nothing was changed\n")
    assert (held(place), holder(place)) == (before, leads)
    unasked = place.run("uninstall")
    assert (unasked.exit_code, unasked.stdout) == (2, "")
    assert "no terminal to ask for confirmation; give --yes" in " ".join(unasked.stderr.split())
    place.release("shown")


def test_interrupted_it_says_what_that_means(place: Fleet) -> None:
    place.until("the Lease is held", lambda: holder(place))
    before = holder(place)
    with place.running("uninstall", "--yes", "--config", quick(place)) as process:
        place.until("the Lease is taken over", lambda: holder(place) != before)
        process.interrupt()
        code, output = process.ended()
    assert code == 130
    assert "interrupted; what was removed stays removed, but the Lease expires soon" in output
    assert "Traceback" not in output


def test_the_help_and_the_page_name_every_field() -> None:
    output = CliRunner().invoke(root, ["uninstall", "--help"]).stdout
    page = PAGE.read_text()
    for kind in (UninstallReport, Removal, LeaseReport, OrphanedInstanceReport, CordonedNodeReport):
        for field in msgspec.structs.fields(kind):
            assert re.search(rf"\b{field.encode_name}\b", output), field.encode_name
            assert f"`{field.encode_name}" in page, field.encode_name


@pytest.mark.parametrize("text", ["90", "90s", "1m30s", "0"])
def test_a_wait_may_be_a_number_of_seconds(text: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    result = CliRunner().invoke(root, ["uninstall", "--yes", f"--wait={text}", "--kubeconfig", missing])
    assert result.exit_code == 2
    assert result.stderr.startswith("gracectl: ")
    assert missing in result.stderr


@pytest.mark.parametrize("text", ["soon", "-1"])
def test_a_wait_that_cannot_be_read(text: str) -> None:
    result = CliRunner().invoke(root, ["uninstall", "--yes", f"--wait={text}"])
    assert result.exit_code == 2
    assert "--wait" in result.stderr
