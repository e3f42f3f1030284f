"""`gracectl status` over HTTP: what it says of nodes, controller or none; what it refuses; how it watches."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from kubesim_support.patience import PATIENCE
from support.fleet import Fleet, fleet, overheard

from gracectl.model import names
from gracectl.runtime.clock import SystemClock

pytestmark = pytest.mark.real_time

FOR_EVER = {"annotations": {names.DO_NOT_DISRUPT: "true"}}
CORDONED = {"spec": {"taints": [{"key": names.DISRUPTED_TAINT_KEY, "effect": "NoSchedule"}]}}
READS = (
    ("", ["nodes", "pods", "configmaps"]), ("policy", ["poddisruptionbudgets"]),
    ("storage.k8s.io", ["volumeattachments"]), ("karpenter.sh", ["nodeclaims"]),
)  # fmt: skip


def rights(*verbs: str) -> list[dict[str, Any]]:
    """What the command reads."""
    return [{"apiGroups": [group], "resources": resources, "verbs": list(verbs)} for group, resources in READS]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("status")) as found:
        yield found


@pytest.fixture(scope="module")
def reader(place: Fleet) -> Path:
    """Who may list what is to be read, and no more."""
    return place.user("reader", *rights("list"))


def in_json(place: Fleet, *arguments: str, as_: Path | None = None) -> dict[str, Any]:
    result = place.run("status", "-o", "json", *arguments, as_=as_)
    assert (result.exit_code, result.stderr) == (0, "")
    report: dict[str, Any] = msgspec.json.decode(result.stdout)
    return report


def ending(place: Fleet, name: str, pod: str, **metadata: Any) -> None:
    """A cordoned node that is being deleted but not drained, with a pod that is not evicted."""
    place.held(name)
    place.patch(name, CORDONED)
    place.pod(pod, name, **metadata)
    place.delete(name)


def test_a_terminating_node_says_what_blocks_it_and_for_how_long(place: Fleet, reader: Path) -> None:
    ending(place, "ends", "notebook", **FOR_EVER)
    result = place.run("status", "ends", as_=reader)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert re.fullmatch(r"1 node is terminating \(20\S+Z by the server's clock\)", lines[0])
    assert re.fullmatch(r"ends: terminating for 0:\d\d, since 20\S+Z; step drain, 1 pod left", lines[2])
    assert lines[3] == "  deadline: none; the drain takes as long as its pods need"
    assert re.fullmatch(r"  default/notebook +protected +0:\d\d +protected by do-not-disrupt", lines[8])
    assert lines[4].startswith("  ! this node never drains: default/notebook stays indefinitely (")
    assert lines[5].startswith(
        "    -> end its protection: kubectl annotate pod -n default notebook karpenter.sh/do-not-"
    )
    (node,) = in_json(place, "ends", as_=reader)["nodes"]
    (pod,) = node["pods"]
    assert (node["state"], node["step"], node["podsLeft"], pod["state"]) == ("terminating", "drain", 1, "protected")
    assert (node["never"], node["drained"]["answer"]) == (True, "never")
    assert [cause["kind"] for cause in node["drained"]["causes"]] == ["protection"]
    assert 0 <= pod["sinceSeconds"] < 60
    place.release("ends")


def test_without_names_all_that_is_under_way_is_shown(place: Fleet) -> None:
    place.held("left-alone")
    place.held("ends-2")
    place.delete("ends-2")
    place.add("kept-2", managed=True)
    place.patch("kept-2", {"metadata": {"annotations": {names.KEEP_DRAINED: "2026-01-01T00:00:00Z"}}})
    place.until("kept-2 is kept", lambda: _states(place).get("kept-2") == ("maintenance", "drained"))
    assert _states(place) == {"ends-2": ("terminating", "cordon"), "kept-2": ("maintenance", "drained")}
    text = place.run("status").stdout
    assert text.startswith("1 node is terminating, 1 is drained for maintenance (")
    place.patch("kept-2", {"spec": {"unschedulable": None}})
    place.until("kept-2 is given back", lambda: "kept-2" not in _states(place))
    assert _states(place, "-l", "kubernetes.io/hostname=ends-2") == {"ends-2": ("terminating", "cordon")}
    place.release("ends-2")


def _states(place: Fleet, *arguments: str) -> dict[str, tuple[str, str]]:
    return {node["name"]: (node["state"], node["step"]) for node in in_json(place, *arguments)["nodes"]}


def test_a_node_without_a_controller_says_so(place: Fleet) -> None:
    place.held("quiet")
    assert "quiet: no drain or termination requested" in place.run("status", "quiet").stdout
    assert _states(place, "quiet") == {"quiet": ("idle", "")}
    result = place.run("status", "-l", "kubernetes.io/hostname=quiet")
    assert result.stdout == "No node that matches the selector kubernetes.io/hostname=quiet is active.\n"


def test_it_only_reads(place: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    ending(place, "looked-at", "seen")
    place.held("other")
    asked = overheard(monkeypatch)
    assert place.run("status").exit_code == 0
    assert {request.method for request in asked} == {"GET"}
    pods = [dict(request.query)["fieldSelector"] for request in asked if request.path == "/api/v1/pods"]
    assert pods == ["spec.nodeName=looked-at"]
    monkeypatch.undo()
    place.release("looked-at")


@pytest.mark.parametrize("more", [[], ["-w"], ["-o", "json"], ["-w", "-o", "json"]])
def test_all_unknown_nodes_are_told(place: Fleet, more: list[str]) -> None:
    result = place.run("status", "nope", "zzz", *more)
    assert (result.exit_code, result.stdout) == (3, "")
    message = "gracectl: there are no nodes nope, zzz; `kubectl get nodes` lists all nodes\n"
    assert result.stderr == message


@pytest.mark.parametrize("more", [[], ["-w"]])
def test_settings_a_server_and_rights_that_are_not_there(place: Fleet, tmp_path: Path, more: list[str]) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("nodeSelektor: {}\n")
    result = place.run("status", "--config", str(settings), *more)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "nodeSelektor" in result.stderr
    config = yaml.safe_load(place.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    result = place.run("status", *more, as_=tmp_path / "kubeconfig")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "the server cannot be reached" in result.stderr
    stranger = place.user(f"stranger{len(more)}", *rights("list")[1:])
    result = place.run("status", *more, as_=stranger)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "forbidden: add the verb list on nodes" in result.stderr


def test_without_permission_to_watch_it_says_what_is_needed(place: Fleet, reader: Path) -> None:
    result = place.run("status", "-w", as_=reader)
    assert result.exit_code == 3
    assert "forbidden: add the verb watch on " in result.stderr


def test_named_nodes_are_watched_until_they_are_gone(place: Fleet) -> None:
    ending(place, "watched", "stays", **FOR_EVER)
    watcher = place.user("watcher", *rights("list", "watch"))
    with place.running("status", "-w", "watched", kubeconfig=watcher) as process:
        process.until(": protected by do-not-disrupt – default/stays")  # ", never drained" may stand before it
        place.release("watched")
        assert process.ended() == (0, "")
    lines = process.out.splitlines()
    assert "watched: terminating for" in lines[0]
    assert re.fullmatch(r"20\S+Z  watched: terminated after 0:\d\d", lines[-1])


def test_without_names_it_watches_until_it_is_interrupted(place: Fleet) -> None:
    with place.running("status", "-w") as process:
        ending(place, "comes", "stays-too", **FOR_EVER)
        process.until("comes: terminating for")
        place.release("comes")
        process.until("comes: terminated after")
        process.interrupt()
        assert process.ended() == (130, "gracectl: interrupted\n")


@pytest.mark.parametrize("columns", [80, 160])
def test_a_terminal_gets_a_table_that_changes_and_is_left_as_it_was(place: Fleet, columns: int) -> None:
    ending(place, f"seen-{columns}", f"stays-{columns}", **FOR_EVER)
    main, side = pty.openpty()
    command = [sys.executable, "-m", "gracectl", "status", "-w", "--kubeconfig", str(place.kubeconfig)]
    environment = {**os.environ, "COLUMNS": str(columns), "LINES": "24", "TERM": "xterm"}
    with subprocess.Popen(command, stdout=side, stderr=subprocess.PIPE, env=environment) as process:
        os.close(side)
        said = _read(main, "protected by do-not-disrupt")
        process.send_signal(signal.SIGINT)
        said += _read(main, "\x1b[?25h")  # the cursor is back
        assert process.wait(PATIENCE) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b"gracectl: interrupted\n"
    os.close(main)
    assert f"seen-{columns}" in said
    assert "\x1b[?25l" in said
    place.release(f"seen-{columns}")


def _read(terminal: int, words: str, seconds: float = PATIENCE) -> str:
    """What appears on a terminal, up to these words."""
    clock, said = SystemClock(), ""
    end = clock.monotonic() + seconds
    while words not in said:
        assert clock.monotonic() < end, f"never said: {words!r}; but: {said[-500:]!r}"
        if select.select([terminal], [], [], 0.1)[0]:
            said += os.read(terminal, 65536).decode()
    return said
