"""NodeDrains of commands over HTTP: `rotate`, `drain` and `terminate` of several nodes, `drains`.

The test plays the controller of the NodeDrains: it writes their status, so that each text is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from e2e_support import manifests
from support.fleet import MERGE, PODS, RUN, Fleet, errors, played_fleet

from gracectl.cli.options import window
from gracectl.model import names
from gracectl.model.windows import Window
from gracectl.runtime.clock import SystemClock

pytestmark = pytest.mark.real_time

DRAINS = "/apis/gracectl.io/v1alpha1/nodedrains"
NAME = re.compile(r"nodedrain/((?:drain|terminate|rotate)-[0-9a-f]{6}) created")
NOW = "2026-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with played_fleet(tmp_path_factory.mktemp("drains")) as found:
        yield found


def condition(kind: str, message: str = "", status: str = "True", reason: str = "Test") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": NOW}


def written(place: Fleet, name: str, status: dict[str, Any]) -> None:
    """Write the status as a controller does."""
    place.ask("PATCH", f"{DRAINS}/{name}/status", {"status": status}, MERGE)


def scope(place: Fleet, **states: list[str]) -> dict[str, Any]:
    """Counts and scope; the nodes by name."""
    uids = {node["metadata"]["name"]: node["metadata"]["uid"] for node in place.ask("GET", "/api/v1/nodes")["items"]}
    fields = {state: [f"{each}/{uids.get(each, 'gone')}" for each in found] for state, found in states.items()}
    done = len(states.get("drained", ())) + len(states.get("terminated", ()))
    counts = {state: len(found) for state, found in states.items()}
    return {"scope": fields, "counts": {"total": sum(counts.values()), "done": done, **counts}, "observedGeneration": 1}


def spec_of(place: Fleet, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = place.ask("GET", f"{DRAINS}/{name}")["spec"]
    return spec


def created(output: str) -> str:
    """The name of the NodeDrain."""
    found = NAME.search(output)
    assert found is not None, output
    return found[1]


# -- what is requested -------------------------------------------------------------------------------------------------


def test_rotate_creates_a_node_drain_with_the_nodes_that_were_shown(place: Fleet) -> None:
    for number in range(1, 4):
        place.held(f"batch-{number}", pool="batch")
    options = ("--on-undrainable", "skip", "--timeout", "30m", "--window", "0 22 * * 1-5 8h Europe/Berlin")
    result = place.run("rotate", "-l", "pool=batch", "--at-once", "10%", "--yes", *options)
    assert (result.exit_code, errors(result.stderr)) == (0, "")
    name = created(result.stdout)
    assert result.stdout == (
        f"nodedrain/{name} created\n"
        f"to follow: gracectl drains show {name} -w\nto cancel: gracectl drains cancel {name}\n"
    )
    assert "rotate 3 nodes, 0 pods; 1 at a time" in result.stderr
    assert spec_of(place, name) == {
        "nodeNames": ["batch-1", "batch-2", "batch-3"],
        "action": "Terminate",
        "maxConcurrent": "10%",
        "waitForReplacement": True,
        "order": "ByForecast",
        "onUndrainable": "Skip",
        "onTimeout": "KeepCordoned",
        "timeout": "30m0s",
        "windows": [{"schedule": "0 22 * * 1-5", "duration": "8h", "timeZone": "Europe/Berlin"}],
        "reason": "gracectl rotate -l pool=batch",
        "ttlSecondsAfterFinished": 604800,
    }
    assert not place.is_deleted("batch-1")


def test_rotate_needs_a_confirmation_and_a_dry_run_creates_nothing(place: Fleet) -> None:
    before = len(place.ask("GET", DRAINS)["items"])
    place.held("alone")
    refused = place.run("rotate", "alone")
    assert (refused.exit_code, refused.stdout) == (2, "")
    dry = place.run("rotate", "alone", "--dry-run")
    assert (dry.exit_code, dry.stderr) == (0, "")
    assert "rotate alone, 0 pods" in dry.stdout
    assert len(place.ask("GET", DRAINS)["items"]) == before


def test_nodes_that_are_drained_one_by_one_take_the_pods_of_each_other(place: Fleet) -> None:
    for name in ("only-1", "only-2"):
        place.held(name, pool="only")
    workload = manifests.workload("Deployment", "only", RUN, replicas=1, spec={"nodeSelector": {"pool": "only"}})
    place.ask("POST", "/apis/apps/v1/namespaces/default/deployments", workload)
    pods = f"{PODS}?labelSelector=app%3Donly"
    place.until("only runs", lambda: [each for each in place.ask("GET", pods)["items"] if each["spec"].get("nodeName")])

    def says(at_once: str) -> bool:
        result = place.run("drain", "-l", "pool=only", "--at-once", at_once, "--dry-run")
        return "no other node fits" in result.stdout

    assert (says("2"), says("1")) == (True, False)


@pytest.mark.parametrize(("text", "expected"), [
    ("0 22 * * 1-5 8h", Window("0 22 * * 1-5", "8h")),
    ("30 1 * * * 2h30m Europe/Berlin", Window("30 1 * * *", "2h30m", "Europe/Berlin")),
    ("@daily 8h", Window("@daily", "8h")),
])  # fmt: skip
def test_a_window_is_five_fields_a_duration_and_a_time_zone(text: str, expected: Window) -> None:
    assert window(text) == expected


@pytest.mark.parametrize(("arguments", "message"), [
    (["--window", "22:00-06:00"], "is no window; give schedule, duration, time zone"),
    (["--window", "0 25 * * * 8h"], "schedule: '0 25 * * *' is no cron schedule: bad hour"),
    (["--at-once", "0"], "give a number from 1 on, or a percentage from 1% to 100%"),
    (["--at-once", "101%"], "give a number from 1 on, or a percentage from 1% to 100%"),
    (["--on-undrainable", "skipp"], "Did you mean 'skip'?"),
])  # fmt: skip
def test_invalid_options_are_refused_before_any_request(place: Fleet, arguments: list[str], message: str) -> None:
    result = place.run("rotate", "n1", "--yes", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in " ".join(result.stderr.split())


def test_without_permission_the_nodes_are_requested_one_by_one_but_never_rotated(place: Fleet) -> None:
    place.held("plain-1")
    place.held("plain-2")
    verbs = [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "get", "patch"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["list"]},
    ]
    asker = place.user("no-campaigns", *verbs)
    result = place.run("drain", "--no-wait", "plain-1", "plain-2", as_=asker)
    assert result.exit_code == 0
    assert "no NodeDrain is created: create nodedrains" in result.stderr
    assert "; requesting each node\n" in result.stderr
    assert sorted(result.stdout.splitlines()[:2]) == ["plain-1: drain requested", "plain-2: drain requested"]
    refused = place.run("rotate", "plain-1", "--yes", as_=asker)
    assert (refused.exit_code, refused.stdout) == (3, "")


def test_a_single_node_and_a_deadline_of_a_drain_are_requested_without_a_node_drain(place: Fleet) -> None:
    before = len(place.ask("GET", DRAINS)["items"])
    place.held("single")
    place.held("deadline-1")
    place.held("deadline-2")
    assert place.run("drain", "single", "--no-wait").exit_code == 0
    assert place.run("drain", "deadline-1", "deadline-2", "--deadline", "1h", "--yes", "--no-wait").exit_code == 0
    assert len(place.ask("GET", DRAINS)["items"]) == before
    assert names.DRAIN_DEADLINE in place.annotations("deadline-1")


# -- what is followed --------------------------------------------------------------------------------------------------


def test_a_drain_of_several_nodes_is_followed_to_its_end(place: Fleet) -> None:
    place.held("follow-1")
    place.held("follow-2")
    with place.running("drain", "follow-1", "follow-2", "--skip-stuck") as process:
        process.until("created")
        name = created(process.out)
        spec = spec_of(place, name)
        assert (spec["maxConcurrent"], spec["waitForReplacement"], spec["onUndrainable"]) == ("100%", False, "Skip")
        written(place, name, scope(place, inProgress=["follow-1"], pending=["follow-2"]))
        end = scope(place, drained=["follow-1"], skipped=["follow-2"])
        skipped = {"name": "follow-2", "uid": end["scope"]["skipped"][0].split("/")[1], "state": "Skipped"}
        nodes = [{**skipped, "message": "never drained: protected"}]
        written(place, name, {**end, "nodes": nodes, "conditions": [condition("Complete", "1 of 2 drained")]})
        code, error = process.ended()
    assert "follow-1: drained\nfollow-2: skipped: never drained: protected\n" in process.out
    assert (code, error) == (3, "gracectl: skipped: never drained: follow-2; to see why: gracectl plan follow-2\n")


def test_an_interrupted_command_leaves_the_node_drain_and_names_it(place: Fleet) -> None:
    place.held("left-1")
    place.held("left-2")
    with place.running("terminate", "left-1", "left-2", "--yes") as process:
        process.until("created")
        name = created(process.out)
        written(place, name, scope(place, pending=["left-1", "left-2"]))
        anyio.run(SystemClock().sleep, 1.0)
        process.interrupt()
        code, error = process.ended()
    assert code == 130
    assert error == (
        f"gracectl: interrupted; the controller continues; NodeDrain {name}: "
        f"to follow: gracectl drains show {name} -w; to cancel: gracectl drains cancel {name}\n"
    )
    assert place.call("GET", f"{DRAINS}/{name}")[0] == 200


def test_a_timeout_ends_only_the_wait_and_a_deletion_ends_the_command(place: Fleet) -> None:
    place.held("late-1")
    place.held("late-2")
    result = place.run("terminate", "late-1", "late-2", "--yes", "--timeout", "1")
    name = created(result.stdout)
    assert result.exit_code == 4
    assert (
        f"2 of 2 nodes are not terminated after 1s: late-1, late-2; the controller continues; NodeDrain {name}: "
        in (errors(result.stderr))
    )
    with place.running("rotate", "late-1", "late-2", "--yes", "--wait") as process:
        process.until("created")
        name = created(process.out)
        assert place.run("drains", "cancel", name, "--yes").exit_code == 0
        assert process.ended()[0] == 3
    assert f"late-1: not terminated: NodeDrain {name} was deleted\n" in process.out


# -- drains ------------------------------------------------------------------------------------------------------------


def test_the_story_of_a_node_drain(place: Fleet) -> None:
    place.ask("POST", DRAINS, {
        "apiVersion": "gracectl.io/v1alpha1", "kind": "NodeDrain",
        "metadata": {"name": "story", "annotations": {names.REQUESTED_BY: "alice"}},
        "spec": {"action": "Terminate", "nodeSelector": {"matchLabels": {"pool": "batch"}}, "maxConcurrent": "10%",
                 "reason": "image 2026-01"},
    })  # fmt: skip
    assert "story: new: terminate 10% at a time\nrequested 0:0" in place.run("drains", "show", "story").stdout
    blocker = {
        "kind": "PodDisruptionBudget",
        "namespace": "shop",
        "name": "web",
        "message": "never allows a disruption",
    }
    written(place, "story", {
        **scope(place, inProgress=["batch-1"], pending=["batch-2"], terminated=["batch-0"]),
        "conditions": [condition("Progressing", "batch-1"), condition("Blocked", "batch-1: shop/web-0: budget")],
        "nodes": [
            {"name": "batch-1", "uid": "1", "state": "Draining", "podsLeft": 2, "message": "2 pods left",
             "blockedBy": [blocker]},
            {"name": "batch-2", "uid": "2", "state": "Pending", "message": "next"},
            {"name": "batch-0", "uid": "0", "state": "Terminated"},
        ],
    })  # fmt: skip
    shown = place.run("drains", "show", "story").stdout
    assert re.sub(r"\d:\d\d ago \([^)]*\)", "<ago>", shown) == (
        "story: blocked: terminate 3 nodes, 10% at a time\n"
        "requested <ago> by alice: image 2026-01\n"
        "done: 1 of 3 nodes; 1 in progress, 1 pending\n"
        "  ! batch-1: shop/web-0: budget\n"
        "    -> see what helps: gracectl status batch-1\n"
        "\n"
        "NODE     STATE     SINCE  PODS  MESSAGE\n"
        "batch-1  draining            2  2 pods left\n"
        "    ! PodDisruptionBudget shop/web: never allows a disruption\n"
        "batch-2  pending                next\n"
        "\n"
        "to follow: gracectl drains show story -w\nto cancel: gracectl drains cancel story\n"
    )
    report = json.loads(place.run("drains", "show", "story", "-o", "json").stdout)
    assert (report["state"], report["counts"]["inProgress"], report["requestedBy"]) == ("blocked", 1, "alice")
    assert report["nodes"][0]["blockedBy"] == [{**blocker, "until": None}]
    listed = json.loads(place.run("drains", "-o", "json").stdout)
    assert [each["name"] for each in listed["drains"]].count("story") == 1
    assert "story" in place.run("drains").stdout


def test_a_node_drain_is_paused_resumed_and_canceled(place: Fleet) -> None:
    body = {"metadata": {"name": "mine"}, "spec": {"action": "Drain", "nodeNames": ["batch-1"]}}
    place.ask("POST", DRAINS, {"apiVersion": "gracectl.io/v1alpha1", "kind": "NodeDrain", **body})
    assert place.run("drains", "pause", "mine").stdout == (
        "mine: paused; nodes in progress continue; to resume: gracectl drains resume mine\n"
    )
    assert spec_of(place, "mine")["paused"] is True
    written(place, "mine", {"observedGeneration": 2})
    assert place.run("drains", "show", "mine", "-o", "json").stdout.count('"state": "paused"') == 1
    assert place.run("drains", "resume", "mine").stdout == "mine: resumed\n"
    assert place.run("drains", "cancel", "mine").exit_code == 2
    assert place.run("drains", "cancel", "mine", "--yes").exit_code == 0
    gone = place.run("drains", "show", "mien")
    assert (gone.exit_code, gone.stdout) == (3, "")
    assert gone.stderr == "gracectl: there is no NodeDrain mien; `gracectl drains` lists all NodeDrains\n"


def test_a_node_drain_is_followed_by_name(place: Fleet) -> None:
    body = {"metadata": {"name": "followed"}, "spec": {"action": "Drain", "nodeNames": ["batch-1"]}}
    place.ask("POST", DRAINS, {"apiVersion": "gracectl.io/v1alpha1", "kind": "NodeDrain", **body})
    with place.running("drains", "show", "followed", "-w") as process:
        process.until("followed: new")
        done = {**scope(place, drained=["batch-1"]), "conditions": [condition("Complete", "1 of 1 drained")]}
        written(place, "followed", done)
        assert process.ended() == (0, "")
    assert "followed: complete: 1 of 1 drained\n" in process.out
    failed = {"conditions": [condition("Failed", "batch-1 was not drained in time")]}
    written(place, "followed", failed)
    result = place.run("drains", "show", "followed", "-w")
    assert result.exit_code == 3
    assert "followed: failed: batch-1 was not drained in time\n" in result.stdout
