"""`gracectl drain` and `terminate` over HTTP beside a controller: requests, watching, outcome."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from support.fleet import NODES, Fleet, errors, fleet, overheard
from support.shell import on_terminal

from gracectl.cli.root import root
from gracectl.kube.http import HttpTransport
from gracectl.kube.transport import Request, Response
from gracectl.model import names

pytestmark = pytest.mark.real_time

PAGE = Path(__file__).parents[3] / "docs" / "drain.md"
ASKED = "deletion requested"
OTHERS = ("example.com/other",)


SCRATCH = {"volumes": [{"name": "scratch", "emptyDir": {}}]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("drain")) as found:
        yield found


def told(output: str) -> list[str]:
    """The lines that are not of the watching, whose lines begin with an instant."""
    return sorted(line for line in output.splitlines() if not re.match(r"\d{4}-\d\d-\d\dT", line))


def after(text: str) -> str:
    """Without the time that something took."""
    return re.sub(r"\b\d+:\d\d\b", "<time>", text)


# -- ending nodes ------------------------------------------------------------------------------------------------------


def test_nodes_are_deleted_and_watched_until_they_are_gone(place: Fleet) -> None:
    for name in ("gone-1", "gone-2"):
        place.add(name, managed=True)
        place.pod(f"on-{name}", name, behaviour={"stop-seconds": "3"})
    result = place.run("terminate", "--yes", "gone-1", "gone-2")
    assert (result.exit_code, errors(result.stderr)) == (0, "")
    assert [after(line) for line in told(result.stdout)] == [
        f"gone-1: {ASKED}", "gone-1: terminated after <time>", f"gone-2: {ASKED}", "gone-2: terminated after <time>",
    ]  # fmt: skip
    assert "gone-1: terminating for 0:0" in result.stdout
    assert place.node("gone-1") is None
    assert not place.pod_is_there("on-gone-1")


def test_one_that_is_being_deleted_already_is_followed(place: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    place.held("before")
    place.delete("before")
    asked = overheard(monkeypatch)
    with place.running("terminate", "--yes", "before") as process:
        process.until("before: terminating for")
        place.release("before")
        assert process.ended() == (0, "")
    assert [after(line) for line in told(process.out)] == [
        "before: already being deleted for <time>",
        "before: terminated after <time>",
    ]
    place.held("before-2")
    place.delete("before-2")
    assert place.run("terminate", "--yes", "before-2", "--timeout", "0.5").exit_code == 4
    assert [request.path for request in asked if request.method != "GET"] == []
    place.release("before-2")


def test_another_node_of_the_same_name_is_not_touched(place: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    place.held("namesake")
    send = HttpTransport.send

    async def late(self: HttpTransport, request: Request) -> Response:
        if request.method == "DELETE":
            code = (
                "import sys\nfrom pathlib import Path\nfrom support.fleet import Fleet\n"
                "place = Fleet(Path(sys.argv[1]), Path(sys.argv[2]))\n"
                "place.release('namesake')\nplace.delete('namesake')\nplace.held('namesake')\n"
            )
            # A process of its own: this one's event loop is busy with the command.
            command = [sys.executable, "-c", code, str(place.kubeconfig), str(place.folder)]
            subprocess.run(command, check=True, env={"PYTHONPATH": ":".join(sys.path)})  # noqa: ASYNC221
        return await send(self, request)

    monkeypatch.setattr(HttpTransport, "send", late)
    result = place.run("terminate", "--yes", "namesake")
    assert (result.exit_code, result.stdout) == (3, "")
    assert errors(result.stderr).endswith(  # on a busy machine it says before that it waits
        "gracectl: namesake: deleted, or replaced by another node of that name, which was not touched\n"
    )
    assert not place.is_deleted("namesake")


# -- what is checked before any request is sent ------------------------------------------------------------------------


def test_all_unknown_nodes_are_told_and_nothing_is_done(place: Fleet) -> None:
    place.held("known")
    for command in (("drain",), ("terminate", "--yes")):
        result = place.run(*command, "nope", "known", "neither")
        assert (result.exit_code, result.stdout) == (3, "")
        assert errors(result.stderr) == (
            "gracectl: there are no nodes nope, neither; `kubectl get nodes` lists all nodes\n"
        )
    assert not place.is_deleted("known")
    assert names.KEEP_DRAINED not in place.annotations("known")


def test_a_selector_that_no_node_matches_is_no_failure(place: Fleet) -> None:
    for more in ((), ("--dry-run",), ("--no-wait",)):
        result = place.run("terminate", "--yes", "-l", "pool=none", *more)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "No node matches the selector pool=none.\n")
    result = place.run("drain", "-l", "pool=none")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "No node matches the selector pool=none.\n")


def test_if_one_would_be_gone_at_once_nothing_is_asked_of_any(place: Fleet) -> None:
    place.held("good")
    place.add("bare-1")
    place.add("bare-2", finalizers=OTHERS)
    place.delete("bare-2")
    result = place.run("terminate", "--yes", "good", "bare-1", "bare-2")
    assert (result.exit_code, result.stdout) == (3, "")
    assert errors(result.stderr) == (
        "gracectl: nothing was changed: not all of these nodes can be drained:\n"
        "  - bare-1: finalizer of gracectl missing: deleted now, it would disappear without a drain; "
        "is `gracectl controller` running, and does its nodeSelector match the node?\n"
        "  - bare-2: being deleted without the finalizer of gracectl, which can no longer "
        "be added: not drained\n"
    )
    assert not place.is_deleted("good")
    assert not place.is_deleted("bare-1")
    place.release("bare-2")


@pytest.mark.parametrize(("arguments", "message"), [
    ([], "name one node or more, or choose them with -l SELECTOR"),
    (["n1", "-l", "a=b"], "give names or a selector, not both"),
    (["n1", "--timeout", "soon"], "Invalid value for '--timeout': 'soon' is no duration: a number is missing"),
    (["n1", "--timeout", "-5s"], "Invalid value for '--timeout': -5s is negative"),
    (["n1", "--timeout", "-1"], "Invalid value for '--timeout': -1 is negative"),
    (["n1", "--timeout", "nan"], "Invalid value for '--timeout': 'nan' is no duration"),
    (["n1", "--deadline", "soon"], "Invalid value for '--deadline': 'soon' is no duration: a number is missing"),
    (["n1", "--deadline", "0"], "'--deadline': 0 is less than a second; give 1s or more, or leave the option out"),
    (["n1", "--deadline", "-5m"], "'--deadline': -5m is less than a second"),
    (["n1", "--deadline", "nan"], "Invalid value for '--deadline': 'nan' is no duration"),
    (["n1", "--timeout", "5s", "--no-wait"], "--timeout and --no-wait exclude each other"),
    (["n1", "--dry-run", "--no-wait"], "--dry-run waits for nothing"),
    (["n1", "--dry-run=soon"], "Invalid value for '--dry-run': 'soon'; give none, client or server"),
])  # fmt: skip
def test_invalid_arguments_are_refused_before_any_request(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(root, ["terminate", "--yes", "--kubeconfig", "/nowhere", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in " ".join(result.stderr.split())


def test_flags_of_kubectl_drain_that_are_always_so_are_accepted() -> None:
    flags = ["--ignore-daemonsets", "--delete-emptydir-data", "--force"]
    also = ["--dry-run=none", "--disable-eviction=false", "--chunk-size=-1", "--grace-period", "-1"]
    more = ["--chunk-size=500", "--skip-wait-for-delete-timeout=30"]
    valued = ["--ignore-daemonsets=true", "--delete-emptydir-data=1", "--force"]
    result = CliRunner().invoke(root, ["drain", "worker-7", *valued, *also, *more, "--kubeconfig", "/does/not/exist"])
    notes, (failure,) = result.stderr.splitlines()[:-1], result.stderr.splitlines()[-1:]
    assert [note.split(": not needed: ")[0] for note in notes] == [f"gracectl: {flag}" for flag in flags]
    assert "/does/not/exist" in failure


@pytest.mark.parametrize("arguments", [["terminate"], ["drain", "--deadline", "1h"]])
def test_without_a_terminal_a_deletion_must_be_confirmed_by_an_option(arguments: list[str]) -> None:
    result = CliRunner().invoke(root, [*arguments, "--kubeconfig", "/nowhere", "n1"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "nothing was changed: no terminal to ask for confirmation; give --yes" in " ".join(result.stderr.split())


# -- what the server refuses -------------------------------------------------------------------------------------------


def test_without_a_right_to_a_forecast_it_says_so_and_goes_on(place: Fleet) -> None:
    place.held("unknown-pods")
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "delete"]}]
    asker = place.user("no-forecast", *rules)
    result = place.run("terminate", "--yes", "--no-wait", "unknown-pods", as_=asker)
    assert result.exit_code == 0
    assert "terminate unknown-pods; pods unknown: no forecast\n" in result.stderr
    assert "  ! no forecast: list " in result.stderr
    assert "add the verb list on " in result.stderr
    assert place.is_deleted("unknown-pods")
    place.release("unknown-pods")


# -- what would never end ----------------------------------------------------------------------------------------------


def test_a_node_that_would_never_be_drained_is_terminated_by_force_only(place: Fleet) -> None:
    place.held("endless")
    place.held("easy")
    place.pod("forever", "endless", annotations={names.DO_NOT_DISRUPT: "true"})
    for more in (("--yes",), ("--dry-run",)):
        result = place.run("terminate", *more, "endless", "easy")
        shown = result.stderr if more == ("--yes",) else result.stdout
        assert result.exit_code == 3
        assert "terminate 2 nodes, 1 pod; drained: never for 1 node (endless), 0:02 for the others\n" in shown
        assert "  ! never ends: default/forever on endless: protected by do-not-disrupt" in shown
        assert errors(result.stderr) == (
            "gracectl: nothing was changed: endless would never be drained, for the reasons above; resolve them, or "
            "give --force\n"
        )
        assert not place.is_deleted("easy")
    result = place.run("terminate", "--yes", "--force", "--no-wait", "endless", "easy")
    assert (result.exit_code, errors(result.stderr)) == (0, "")
    assert place.is_deleted("endless")
    for name in ("endless", "easy"):
        place.release(name)


def test_a_machine_that_would_keep_running_is_named_first(place: Fleet) -> None:
    place.held("costly")
    place.patch("costly", {"spec": {"providerID": "aws:///eu-central-1a/i-0123456789abcdef0"}})
    result = place.run("terminate", "costly", "--dry-run")
    assert result.exit_code == 0
    assert (
        "  ! costly: machine keeps running: provider none does not terminate aws:///eu-central-1a/i-0123456789abc"
        in (result.stdout)
    )
    assert "machine keeps running" not in place.run("drain", "costly", "--dry-run").stdout
    place.release("costly")


def test_a_drain_that_would_never_end_is_begun_as_it_can_be_undone(place: Fleet) -> None:
    place.held("blocked")
    place.pod("pinned", "blocked", annotations={names.DO_NOT_DISRUPT: "true"})
    result = place.run("drain", "blocked", "--no-wait")
    assert (result.exit_code, errors(result.stderr)) == (0, "")
    assert "drain blocked, 1 pod; never drained\n" in result.stderr
    assert names.KEEP_DRAINED in place.annotations("blocked")


def test_a_deadline_ends_a_drain_that_would_never_end(place: Fleet) -> None:
    place.add("by-noon", managed=True)
    place.pod("pinned-2", "by-noon", annotations={names.DO_NOT_DISRUPT: "true"}, terminationGracePeriodSeconds=1)
    result = place.run("drain", "by-noon", "--deadline", "3s", "--yes")
    assert (result.exit_code, errors(result.stderr)) == (0, "")
    assert "budgets and protection end at the deadline: pods that are still there are deleted, with" in result.stderr
    assert "drain by-noon, 1 pod; drained in 0:02-0:03\n" in result.stderr
    assert "by-noon: drain requested; deadline 20" in result.stdout
    assert not place.pod_is_there("pinned-2")
    place.held("by-one")
    place.pod("pinned-3", "by-one", annotations={names.DO_NOT_DISRUPT: "true"})
    rules = [rule for role in ("reader", "terminator", "drainer") for rule in roles()[f"gracectl-{role}"]]
    lacking, permitted = place.user("no-patch", *without(rules, "patch", "nodes")), place.user("all-three", *rules)
    result = place.run("terminate", "by-one", "--deadline=1h", "--yes", as_=lacking)
    assert (result.exit_code, result.stderr.endswith("(docs/drain.md):\n  - patch nodes\n")) == (3, True)
    for duration in ("1h", "2h"):
        result = place.run("terminate", "by-one", "--deadline", duration, "--yes", "--no-wait", as_=permitted)
        assert result.exit_code == 0, result.stderr
    (again,) = (line for line in result.stdout.splitlines() if line.startswith("by-one: "))
    assert again.endswith(f"; deadline {place.annotations('by-one')[names.TERMINATION_TIMESTAMP]}")
    assert names.DRAIN_DEADLINE not in place.annotations("by-one")
    place.release("by-one")


# -- on a terminal -----------------------------------------------------------------------------------------------------


def test_a_terminal_is_asked_after_it_was_shown_what_would_happen(place: Fleet) -> None:
    place.held("asked-about")
    place.pod("asked-pod", "asked-about")
    command = ("terminate", "asked-about", "--no-wait", "--kubeconfig", str(place.kubeconfig))
    question = "terminate asked-about? This cannot be undone. [y/N] "
    for answer in ("n\n", "\n", "yess\n", "\x04"):
        seen = on_terminal(*command, answers=[(question, answer)])
        assert seen.code == 130
        assert seen.lines[:2] == [
            f"cluster: kubesim ({place.server})",
            "terminate asked-about, 1 pod; drained in 0:02-0:06",
        ]
        assert seen.text.endswith("\ngracectl: cancelled; nothing was changed\n")
    seen = on_terminal(*command, answers=[(question, "\x03")])
    assert (seen.code, seen.lines[-1]) == (130, "gracectl: interrupted; nothing was requested")
    assert not place.is_deleted("asked-about")
    seen = on_terminal(*command, answers=[(question, "y\n")])
    assert (seen.code, "asked-about: deletion requested\n" in seen.text) == (0, True)
    assert place.is_deleted("asked-about")
    again = on_terminal(*command)
    assert (again.code, question in again.text) == (0, False)
    place.release("asked-about")
    place.held("asked-again")
    question = "drain asked-again? Budgets and protection end at the deadline. [y/N] "
    drain = ("drain", "asked-again", "--deadline=1h", "--no-wait", "--kubeconfig", str(place.kubeconfig))
    assert on_terminal(*drain, answers=[(question, "n\n")]).code == 130
    assert names.KEEP_DRAINED not in place.annotations("asked-again")
    seen = on_terminal(*drain, answers=[(question, "y\n")])
    assert (seen.code, "asked-again: drain requested; deadline 20" in seen.text) == (0, True)


def test_a_node_that_was_replaced_while_it_was_asked_about_is_not_touched(place: Fleet) -> None:
    place.held("changing")

    class Replacing(str):
        """What is typed; the node is another one by then."""

        def encode(self, *_: object) -> bytes:
            place.release("changing")
            place.delete("changing")
            place.held("changing")
            return b"y\n"

    command = ("terminate", "changing", "--kubeconfig", str(place.kubeconfig))
    seen = on_terminal(*command, answers=[("[y/N]", Replacing())])
    assert seen.code == 3
    assert "changing: deleted, or replaced by another node of that name, which was not touched" in " ".join(seen.lines)
    assert not place.is_deleted("changing")


def test_without_permission_to_watch_it_says_how_to_follow(place: Fleet) -> None:
    place.held("unseen")
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "delete"]}]
    result = place.run("terminate", "--yes", "unseen", as_=place.user("blind", *rules))
    assert result.exit_code == 3
    assert errors(result.stderr).startswith("gracectl: ")
    assert "forbidden: add the verb " in result.stderr
    assert (
        "interrupted; unknown whether a controller runs and continues to terminate unseen; "
        "the deletion cannot be undone; to watch: gracectl status -w unseen\n"
    ) in result.stderr
    assert place.is_deleted("unseen")
    place.release("unseen")


def roles() -> dict[str, list[Any]]:
    """The ClusterRoles of the page, by name."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
    return {role["metadata"]["name"]: role["rules"] for role in map(yaml.safe_load, blocks)}


def test_the_rights_of_the_page_are_enough(place: Fleet) -> None:
    page_roles = roles()
    reader, terminator, drainer = (page_roles[f"gracectl-{name}"] for name in ("reader", "terminator", "drainer"))
    for name in ("right-1", "right-2"):
        place.add(name, managed=True)
    reads = place.user("reader", *reader)
    drains = place.user("drainer", *reader, *drainer)
    terminates = place.user("terminator", *reader, *terminator)
    assert place.run("plan", "right-1", as_=reads).exit_code == 0
    assert place.run("status", "right-1", as_=reads).exit_code == 0
    assert place.run("terminate", "--yes", "right-1", as_=reads).exit_code == 3
    assert place.run("drain", "right-1", as_=terminates).exit_code == 3
    assert place.run("drain", "right-1", as_=drains).exit_code == 0
    assert place.run("uncordon", "right-1", as_=drains).exit_code == 0
    assert place.run("terminate", "--yes", "right-1", as_=drains).exit_code == 3
    assert place.run("terminate", "--yes", "right-1", as_=terminates).exit_code == 0
    place.held("right-3")
    listing = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
    asker = place.user("asker", listing, *terminator)
    assert place.run("terminate", "--yes", "right-3", "--no-wait", as_=asker).exit_code == 0
    place.release("right-3")


def without(rules: list[Any], verb: str, resource: str) -> list[Any]:
    """The rules without one right."""
    remaining = [
        rule | {"verbs": [each for each in rule["verbs"] if each != verb]} if resource in rule["resources"] else rule
        for rule in rules
    ]
    return [rule for rule in remaining if rule["verbs"]]


def test_without_a_controller_rights_of_kubectl_drain_are_enough(place: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = roles()["gracectl-drainer-alone"]
    place.add("alone-1")
    place.pod("on-alone-1", "alone-1", behaviour={"stop-seconds": "1"})
    alone = place.user("alone", *rules)
    tried = place.run("drain", "alone-1", "--dry-run=server", as_=alone)
    assert tried.exit_code == 0, tried.stderr
    assert tried.stdout.endswith(
        "alone-1: drain requested (server dry run)\ndefault/on-alone-1: evicted (server dry run)\n"
    )
    assert place.pod_is_there("on-alone-1")
    assert [name for name in place.annotations("alone-1") if "gracectl" in name] == []
    asked = overheard(monkeypatch)
    result = place.run("drain", "alone-1", as_=alone)
    first = "cannot see whether a controller runs (missing permission: list leases): draining from here; "
    assert result.stderr.startswith(f"{first}interrupt and run again to resume\ncluster: ")
    assert result.exit_code == 0, result.stderr
    assert "alone-1: drained for maintenance; to undo: gracectl uncordon alone-1" in result.stdout
    assert not place.pod_is_there("on-alone-1")
    lists = [request for request in asked if request.path == "/api/v1/pods"]
    assert {dict(request.query).get("fieldSelector") for request in lists} == {"spec.nodeName=alone-1"}
    assert [request for request in asked if (request.method, request.path) == ("GET", NODES)] == []
    assert place.run("uncordon", "alone-1", as_=alone).exit_code == 0
    assert [name for name in place.annotations("alone-1") if "gracectl" in name] == []


def test_without_a_controller_and_a_right_that_is_named_and_nothing_is_changed(place: Fleet, tmp_path: Path) -> None:
    rules = roles()["gracectl-drainer-alone"]
    rules.append({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["list"]})
    settings = tmp_path / "settings.yaml"
    settings.write_text("nodeSelector: {matchLabels: {pool: none}}\n")
    place.add("alone-2")
    lacking = place.user("lacking", *without(rules, "create", "pods/eviction"))
    result = place.run("drain", "alone-2", "--config", str(settings), as_=lacking)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == (
        "gracectl: nothing was changed: missing permissions; grant them (docs/drain.md):\n  - create pods/eviction\n"
    )
    assert not [name for name in place.annotations("alone-2") if "gracectl" in name]
    silent = place.user("silent", *without(rules, "create", "events"))
    result = place.run("drain", "alone-2", "--config", str(settings), as_=silent)
    assert result.exit_code == 0, result.stderr
    assert "leads, and does not manage these nodes: draining from here; " in result.stderr
    assert result.stderr.count("no Events are written: missing permission: create events") == 1


def test_flags_that_change_how_pods_leave_are_refused_if_a_controller_drains(place: Fleet) -> None:
    place.add("flagged", managed=True)
    result = place.run("drain", "flagged", "--grace-period=5", "--pod-selector", "app=web", "--disable-eviction")
    assert result.exit_code == 2
    flags = "--grace-period, --pod-selector, --disable-eviction"
    assert f"{flags}: a controller drains these nodes, by its own rules; leave it out" in result.stderr


def test_a_strict_drain_refuses_what_kubectl_refuses(place: Fleet) -> None:
    place.add("strict", managed=True)
    place.pod("naked", "strict", spec=SCRATCH)
    for extra, environment in ((["--strict"], {}), ([], {"GRACECTL_DRAIN_STRICT": "1"})):
        arguments = ["drain", "--kubeconfig", str(place.kubeconfig), "strict", *extra]
        result = CliRunner(env=environment).invoke(root, arguments)
        assert result.exit_code == 3
        assert (
            "  - strict: default/naked with emptyDir data: needs --delete-emptydir-data; default/naked without a "
            "controller: needs --force\n"
        ) in result.stderr
        assert not place.annotations("strict").get(names.KEEP_DRAINED)
    flags = ("--strict", "--force", "--delete-emptydir-data", "--ignore-daemonsets")
    assert place.run("drain", "strict", *flags).exit_code == 0
    assert not place.pod_is_there("naked")


# -- the end of patience -----------------------------------------------------------------------------------------------


def test_when_the_time_is_over_it_says_what_is_left(place: Fleet) -> None:
    place.add("quick", managed=True)
    place.held("slow")
    result = place.run("terminate", "--yes", "quick", "slow", "--timeout", "4s")
    assert result.exit_code == 4
    assert [after(line) for line in told(result.stdout)] == [
        f"quick: {ASKED}", "quick: terminated after <time>", f"slow: {ASKED}",
    ]  # fmt: skip
    assert errors(result.stderr) == (
        "gracectl: 1 of 2 nodes is not terminated after 4s: slow (not cordoned yet); the controller "
        "continues; to watch: "
        "gracectl status -w slow\n"
    )
    assert place.is_deleted("slow")
    place.release("slow")


# -- maintenance -------------------------------------------------------------------------------------------------------


def test_a_node_is_drained_and_kept_and_whose_data_is_lost_is_said_before(place: Fleet) -> None:
    place.add("kept", managed=True)
    place.pod("cache", "kept", spec=SCRATCH)
    place.pod("plain", "kept")
    result = place.run("drain", "kept")
    assert result.exit_code == 0
    assert errors(result.stderr) == ""
    assert "\n  ! kept: default/cache has data in an emptyDir: when it leaves, the data is lost\n" in result.stderr
    assert told(result.stdout) == [
        "kept: drain requested",
        "kept: drained for maintenance; to undo: gracectl uncordon kept",
    ]
    assert not place.is_deleted("kept")
    assert not place.pod_is_there("plain")
    again = place.run("drain", "kept")
    assert (again.exit_code, errors(again.stderr)) == (0, "")
    assert [after(line) for line in told(again.stdout)] == [
        "kept: drain already requested <time> ago",
        "kept: drained for maintenance; to undo: gracectl uncordon kept",
    ]


def test_terminating_or_unmanaged_nodes_cannot_be_drained_for_maintenance(place: Fleet) -> None:
    place.held("late")
    place.delete("late")
    place.add("nobodys")
    place.held("fine")
    result = place.run("drain", "late", "nobodys", "fine")
    assert (result.exit_code, result.stdout) == (3, "")
    assert after(result.stderr) == (
        "gracectl: nothing was changed: not all of these nodes can be drained:\n"
        "  - late: already being deleted for <time>; a deletion cannot be undone\n"
        "  - nobodys: finalizer of gracectl missing: it would not be drained; is `gracectl "
        "controller` running, and does its nodeSelector match the node?\n"
    )
    assert names.KEEP_DRAINED not in place.annotations("fine")
    place.release("late")


def test_a_node_on_which_a_stuck_pod_may_run_is_not_drained(place: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gracectl.policy.evictability.STUCK_AFTER_SECONDS", 0.0)
    place.add("unclean", managed=True)
    place.pod("zombie", "unclean", behaviour={"never-stops": "true"})
    state = "default/zombie may still run: terminating, more than a minute past its grace, and the kubelet is alive"
    result = place.run("drain", "unclean")
    assert (result.exit_code, f"unclean: not drained: {state}; the controller continues" in result.stdout) == (4, True)
    result = place.run("drain", "unclean", "--timeout", "1s")
    assert (result.exit_code, f"unclean: not drained yet: {state}" in result.stdout) == (4, True)
    result = place.run("drain", "unclean", "--ignore-stuck")
    undo = "to undo: gracectl uncordon unclean"
    assert (result.exit_code, f"unclean: drained for maintenance, but {state}; {undo}" in result.stdout) == (0, True)
    assert f"{state}\n    -> see why it does not stop: kubectl describe pod -n default zombie" in result.stderr


# -- beforehand --------------------------------------------------------------------------------------------------------


def test_a_dry_run_foretells_and_changes_nothing(place: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    place.held("predicted")
    place.pod("on-predicted", "predicted", spec=SCRATCH)
    asked = overheard(monkeypatch)
    ends, plan = place.run("terminate", "predicted", "--dry-run"), place.run("plan", "predicted")
    assert (ends.exit_code, ends.stderr) == (0, "")
    preview, _, details = ends.stdout.partition("\n\nWhat happens if predicted is deleted now (")
    assert preview.splitlines() == [
        f"cluster: kubesim ({place.server})", "terminate predicted, 1 pod; drained in 0:02-0:06", "",
        "NODE       DRAINED    DEADLINE  PODS  WARNINGS", "predicted  0:02-0:06  none         1  NotRecreated", "",
        "  ! predicted: default/on-predicted has no controller: it is not recreated elsewhere",
    ]  # fmt: skip
    without_warnings = [line for line in plan.stdout.splitlines()[1:] if not line.startswith("  ! ")]
    assert details.splitlines()[1:] == without_warnings
    stays = place.run("drain", "predicted", "--dry-run")
    assert stays.exit_code == 0
    assert "drain predicted, 1 pod; drained in 0:02-0:06\n" in stays.stdout
    assert "What happens if predicted is drained for maintenance now (" in stays.stdout
    assert "default/on-predicted has data in an emptyDir: when it leaves, the data is lost" in stays.stdout
    assert "deadline" not in stays.stdout
    assert {request.method for request in asked} == {"GET"}


def test_a_dry_run_on_the_server_sends_every_request_and_stores_none(
    place: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.held("tried")
    asked = overheard(monkeypatch)
    result = place.run("terminate", "tried", "--dry-run=server", "--deadline", "1h", "--timeout", "5s")
    assert (result.exit_code, errors(result.stderr)) == (0, "")
    assert "tried: deletion requested; deadline 20" in result.stdout
    assert result.stdout.endswith("Z (server dry run)\n")
    writes = [each for each in asked if each.method != "GET" and "/apis/authorization" not in each.path]
    assert [each.method for each in writes] == ["DELETE", "PATCH"]
    assert not place.is_deleted("tried")
    assert names.TERMINATION_TIMESTAMP not in place.annotations("tried")
    place.release("tried")


def test_a_dry_run_ends_as_the_drain_would_if_it_would_be_refused(place: Fleet) -> None:
    place.add("refused")
    result = place.run("terminate", "refused", "--dry-run")
    assert result.exit_code == 3
    assert "refused  not drained" in result.stdout
    assert errors(result.stderr).startswith("gracectl: nothing was changed: not all of these nodes can be drained:\n")
    assert place.run("terminate", "nope", "--dry-run").exit_code == 3
