"""How nodes stand on paper: what is said of them, in lines that fit the terminal, as JSON, live and line by line."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console
from support.builders import (
    NEVER_ALLOWS,
    NOW,
    SCENES,
    a_budget,
    a_node,
    a_scene,
    claims_and_gone,
    cluster,
    crowd,
    documented,
    going,
    interrupted,
    kept,
    many,
    nothing,
    pending,
    replica,
    several,
)
from support.schemas import names_in

from gracectl.cli.console import Screen, text_of
from gracectl.cli.progress import FEW_CAUSES, FEW_REMEDIES
from gracectl.cli.report import to_json
from gracectl.cli.status import messages as words
from gracectl.cli.status.follow import StatusFrame, TerminatedNode
from gracectl.cli.status.report import status_report
from gracectl.cli.status.view import ObjectView, StatusView, status_table
from gracectl.inspect.status import NodePhase, NodeStatus, is_active
from gracectl.inspect.watcher import ConnectionLoss
from gracectl.kube.auth.credentials import ClusterAddress
from gracectl.model import names
from gracectl.model.meta import Condition
from gracectl.model.pod import UnknownPod
from gracectl.model.times import format_time
from gracectl.policy.plan import Outcome
from gracectl.telemetry.settings import TracingSettings
from gracectl.telemetry.spans import Trace

XTERM = {"TERM": "xterm"}
every_frame = pytest.mark.parametrize("frame", SCENES.values(), ids=SCENES)


def as_table(frame: StatusFrame, width: int = 160, *, verbose: bool = False, is_wide: bool = False) -> list[str]:
    return text_of(Console(width=width), status_table(frame, verbose=verbose, is_wide=is_wide)).splitlines()


def live(frame: StatusFrame, width: int = 80, height: int = 24) -> list[str]:
    """As a terminal of that size shows it while it is redrawn."""
    console = Console(width=width, height=height)
    return text_of(console, Screen(console, "").fitted(status_table(frame, is_live=True))).splitlines()


def flat(lines: list[str]) -> str:
    """Without the breaks that the width has made."""
    return " ".join(" ".join(lines).split())


# -- a table -----------------------------------------------------------------------------------------------------------


@every_frame
@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("verbose", [False, True])
def test_lines_fit_the_terminal(frame: Callable[[], StatusFrame], width: int, verbose: bool) -> None:
    for line in as_table(frame(), width, verbose=verbose):
        assert cell_len(line) <= width, line
        assert line == line.rstrip()


def test_several_nodes_have_a_line_each_and_those_that_are_held_say_more() -> None:
    lines = as_table(several())
    expected = "4 nodes are terminating, 1 is being drained for maintenance, 1 is drained for maintenance, "
    title = expected + "1 is uncordoning, 1 is idle ("
    assert lines[0].startswith(title)
    assert "left: unknown for " in lines[2]
    rows = {line.split()[0]: line.split()[1:] for line in lines[4:12]}
    assert rows["ip-10-0-1-17.eu-central-1.compute.internal"][:5] == ["drain", "1:40", "1", "0:00-10:00", "10:00"]
    assert rows["worker-2"][:5] == ["drain", "1:23:20", "3", "unknown", "-"]
    assert rows["worker-3"][:6] == ["drain", "1d", "01:00:00", "2", "3:00:00-3:01:00", "-"]
    assert rows["worker-4"][:5] == ["drained", "1:40", "0", "-", "-"]
    assert rows["worker-5"][:2] == ["uncordon", "-"]
    assert rows["worker-6"] == ["-", "-", "-"]
    assert rows["control-1"][:3] == ["none", "1:40", "-"]
    text = flat(lines)
    assert "worker-2: terminating for 1:23:20, since 1970-01-12T12:23:20Z; step drain, 3 pods left" in text
    assert "! drain not started: not cordoned; is `gracectl controller` running?" in text
    assert "worker-4: " not in text


def test_each_pod_that_is_held_says_why_and_for_how_long() -> None:
    text = flat(as_table(several(), 400))
    for said in (
        "blocked 1:40 budget shop/web allows no disruption now (2 of 3 healthy, 2 required); 1 of 2 in queue; "
        "deleted within 9:30",
        "2 of 2 in queue, after shop/web-7d4b9c6f5-2zltl on ip-10-0-1-17.eu-central-1.compute.internal",
        'protected 1:00:00 protected by do-not-disrupt "4h" until 1970-01-12T16:46:40Z, in 3:00:00',
        "shop/dns waiting 1:00:00 waiting for the non-critical pods",
        "shop/quick terminating 0:10 grace ends in 0:20",
        "shop/late terminating 0:39 grace ended 0:09 ago",
        "deadline: in 10:00 (1970-01-12T13:56:40Z), annotation karpenter.sh/nodeclaim-termination-timestamp of Node ip",
    ):
        assert said in text


def test_what_helps_stands_once_for_each_cause_and_not_where_a_warning_has_it() -> None:
    timed, ever = {"annotations": {names.DO_NOT_DISRUPT: "4h"}}, {"annotations": {names.DO_NOT_DISRUPT: "true"}}
    pods = [replica(f"t{number}", labels={"team": "pay"}, **timed) for number in range(2)]
    text = as_table(a_scene(cluster(going(), pods=tuple(pods))))
    helps = (
        "-> ask pay (label team), or end its protection: kubectl annotate pod -n shop t0 karpenter.sh/do-not-disrupt-"
    )
    assert [line.strip() for line in text if "->" in line] == [helps]
    text = as_table(a_scene(cluster(going(), pods=(replica("ever", labels={}, **ever),))))
    (line,) = [line for line in text if "->" in line]
    assert line.startswith(
        "    -> end its protection: kubectl annotate pod -n shop ever karpenter.sh/do-not-disrupt-; or "
    )


def test_pods_under_a_budget_that_allows_one_go_in_their_turn() -> None:
    pods = (replica("a"), replica("b"), replica("alone", labels={}))
    lines = as_table(a_scene(cluster(going(), pods=pods, budgets=(a_budget(),))), verbose=True)
    rows = {line.split()[0]: line.partition("  1:40  ")[2] for line in lines[7:10]}
    assert rows == {
        "shop/a": "budget shop/web allows it in turn: 1 of 2 in queue",
        "shop/b": "waits for its turn under budget shop/web, which allows 1 now; 2 of 2 in queue, after shop/a",
        "shop/alone": "eviction requested",
    }


def test_a_pod_that_cannot_be_decoded_says_so_and_is_a_cause() -> None:
    unknown = UnknownPod("shop", "unknown", "u", "7", "n1", error="no `int`")
    frame = a_scene(cluster(going(), pods=(unknown,)))
    why = "cannot decide: unknown pod, its object cannot be decoded (no `int`)"
    assert f"shop/unknown waiting 1:40 {why}" in flat(as_table(frame))
    assert "cannot be decoded: shop/unknown on n1, unknown what becomes of shop/unknown" in flat(live(frame))
    assert why in to_json(status_report(frame), indent=0)


def test_of_many_that_the_same_holds_a_few_are_named_and_the_others_counted() -> None:
    lines = as_table(crowd())
    assert [line.split()[0] for line in lines if "  blocked  " in line] == ["shop/web-01", "shop/web-02", "shop/web-04"]
    assert lines[-1] == "  and 57 more: 37 blocked, 20 leaving (-v lists them)"
    every = as_table(crowd(), verbose=True)
    assert sum("  blocked  " in line for line in every) == 40
    assert sum("  leaving  " in line for line in every) == 20
    assert "more:" not in flat(every)


@pytest.mark.parametrize(("value", "longest", "is_told"), [
    ("true", None, True), ("1 day", None, True), ("4h", None, False), ("true", 3600.0, False), ("1 day", 0.0, False),
])  # fmt: skip
def test_a_missing_maximum_of_protection_is_mentioned(value: str, longest: float | None, is_told: bool) -> None:
    pod = replica(annotations={names.DO_NOT_DISRUPT: value})
    frame = a_scene(cluster(going(), pods=(pod,)), longest_protection=longest)
    assert (f"! {words.UNLIMITED}" in flat(as_table(frame))) == is_told
    assert msgspec.json.decode(to_json(status_report(frame), indent=0))["longestProtectionSeconds"] == longest


def test_of_many_nodes_it_is_told_what_blocks_them_all_in_all() -> None:
    *lines, _, unlimited = as_table(many())
    assert unlimited == f"! {words.UNLIMITED}"
    causes = [
        f"  ! budget shop/api-{n}, which never allows a disruption: 6 pods on 6 nodes, never" for n in range(FEW_CAUSES)
    ]
    patch = """--type merge -p '{"spec":{"maxUnavailable":1}}'"""
    helps = [
        f"    -> run more pods, or widen it: kubectl patch pdb -n shop api-{n} {patch}" for n in range(FEW_REMEDIES)
    ]
    assert lines[1].startswith("left: ")
    assert lines[3 : 11 + FEW_REMEDIES] == [
        *(line for pair in zip(causes, helps, strict=False) for line in pair),
        *causes[FEW_REMEDIES:],
        f"  … and {21 - FEW_CAUSES} more causes: gracectl status -o json",
        "  -v, or the name of a node, shows more",
    ]
    rows = {line.split()[0]: line.split() for line in lines[13 + FEW_REMEDIES :]}
    assert len(rows) == 40
    assert rows["worker-39"][:6] == ["worker-39", "drain", "1:39", "3", "never", "-"]
    assert "drain not started" in " ".join(rows["worker-07"])
    every = flat(as_table(many(), verbose=True))
    assert every.count(" blocked ") == 120
    reported = msgspec.json.decode(to_json(status_report(many()), indent=0))["progress"]["causes"]
    assert [(cause["pods"], cause["nodes"]) for cause in reported] == [(6, 6)] * 20 + [(5, 5)]


def test_nothing_is_under_way() -> None:
    (line,) = as_table(SCENES["nothing"]())
    assert line == "No node is terminating or drained (1970-01-12T13:46:40Z by the server's clock)"


def test_claims_by_themselves_and_nodes_that_have_gone_are_told() -> None:
    lines = as_table(claims_and_gone())
    assert lines[-2:] == [
        "NodeClaim pending-7: terminating for 0:50, deadline 1970-01-12T14:00:50Z, no node: provider aws: no quota",
        "worker-9: terminated, worker-1: terminated after 5:03",
    ]


def test_that_it_may_be_old_is_said_first() -> None:
    assert as_table(interrupted())[0] == (
        "! connection lost, retrying; this status is 1:15 old: watch pods: the server cannot "
        "be reached (Connection refused)"
    )
    unseen = StatusFrame(at=NOW, nodes=(), connection_loss=ConnectionLoss(None, "no route"), is_complete=False)
    assert as_table(unseen) == ["! not connected yet, retrying: no route", "Reading the cluster"]


@pytest.mark.parametrize(("node", "expected"), [
    (going(annotations={names.TERMINATION_TIMESTAMP: format_time(NOW - 5)}), "deadline: passed 0:05 ago (1970-"),
    (going(), "deadline: none; the drain takes as long as its pods need"),
    (kept(conditions=(Condition(names.DRAINED, "True", "Maintenance", "all pods are gone"),)),
     "n1: drained for maintenance for 1:40, since 1970-01-12T13:45:00Z; all pods are gone"),
    (kept(unschedulable=False), "n1: uncordoning; step uncordon: removal of the marks of its cordon"),
    (going(conditions=(Condition(names.DRAINED, "True"),), finalizers=("a.io/x",)),
     "step finalizer: other finalizers: a.io/x"),
    (pending(), "n1: pending termination for 1:40, since 1970-01-12T13:45:00Z; Pace: waits for its turn"),
])  # fmt: skip
def test_what_is_said_of_a_node(node: Any, expected: str) -> None:
    assert expected in flat(as_table(a_scene(cluster(node))))


def test_a_node_that_is_due_and_waits_is_under_way_until_it_is_deleted() -> None:
    assert is_active(pending())
    frame = a_scene(cluster(pending(), going("n2", conditions=pending().conditions)))
    assert words.title(frame).startswith("1 node is terminating, 1 is pending termination (")
    (node, other) = msgspec.json.decode(to_json(status_report(frame), indent=0))["nodes"]
    assert (node["state"], node["step"], node["sinceSeconds"]) == ("pending", "pending", 100.0)
    assert node["waitsFor"] == "Pace: waits for its turn"
    assert (node["deadline"], node["pods"], other["state"]) == (None, [], "terminating")


# -- JSON --------------------------------------------------------------------------------------------------------------


@every_frame
def test_json_says_what_the_table_says(frame: Callable[[], StatusFrame]) -> None:
    report = msgspec.json.decode(to_json(status_report(frame(), "s.yaml"), indent=0))
    assert (report["at"], report["settings"]) == ("1970-01-12T13:46:40Z", "s.yaml")
    table_text = flat(as_table(frame(), 1000, verbose=True))
    for node in report["nodes"]:
        assert node["podsLeft"] == len(node["pods"])
        for pod in node["pods"]:
            assert f"{pod['namespace']}/{pod['name']} {pod['state']} " in table_text
            assert pod["message"] in table_text
        for warning in node["warnings"]:
            assert warning["message"] in table_text


def test_a_node_names_the_node_drain_that_has_begun_with_it() -> None:
    node = a_node("a", annotations={names.NODE_DRAIN: "rotate-1/uid"})
    status = NodeStatus(node=node, state=NodePhase.MAINTENANCE, since=NOW - 60, step="drain")
    assert words.status_line(status, NOW).startswith("being drained for maintenance by NodeDrain rotate-1 for 1:00")
    report = msgspec.json.decode(to_json(status_report(StatusFrame(at=NOW, nodes=(status,))), indent=0))
    assert report["nodes"][0]["nodeDrain"] == "rotate-1"


def test_fields_of_json() -> None:
    report = msgspec.json.decode(to_json(status_report(several()), indent=0))
    (node,) = [node for node in report["nodes"] if node["name"].startswith("ip-")]
    (pod,) = node.pop("pods")
    assert node == {
        "name": "ip-10-0-1-17.eu-central-1.compute.internal", "uid": "uid-ip-10-0-1-17.eu-central-1.compute.internal",
        "state": "terminating", "since": "1970-01-12T13:45:00Z", "sinceSeconds": 100.0, "owner": None,
        "nodeDrain": None, "step": "drain",
        "done": False, "waitsFor": node["waitsFor"], "pending": None, "trace": None, "podsLeft": 1,
        "drained": {
            "answer": "range", "earliest": "1970-01-12T13:46:40Z", "latest": "1970-01-12T13:56:40Z", "expected": None,
            "earliestSeconds": 0.0, "latestSeconds": 600.0, "expectedSeconds": None, "certain": False, "missing": [],
            "causes": [],
        },
        "never": False,
        "deadline": {
            "at": "1970-01-12T13:56:40Z", "inSeconds": 600.0, "source": "annotation",
            "holder": "Node ip-10-0-1-17.eu-central-1.compute.internal", "gracePeriodSeconds": None,
        },
        "warnings": [], "firstCutAt": "1970-01-12T13:56:10Z",
    }  # fmt: skip
    assert {
        key: pod[key]
        for key in ("state", "sinceSeconds", "deleteAt", "budgets", "queuePosition", "protection", "until")
    } == {
        "state": "blocked",
        "sinceSeconds": 100.0,
        "deleteAt": "1970-01-12T13:56:10Z",
        "budgets": ["shop/web"],
        "queuePosition": {"number": 1, "of": 2, "after": None, "undecided": False},
        "protection": None,
        "until": None,
    }
    report = msgspec.json.decode(to_json(status_report(claims_and_gone()), indent=0))
    assert report["terminated"][0] == {"name": "worker-1", "uid": "u1", "afterSeconds": 303.0}
    assert (report["claims"][0]["name"], report["claims"][0]["deadline"]["inSeconds"]) == ("pending-7", 850.0)
    report = msgspec.json.decode(to_json(status_report(interrupted()), indent=0))
    assert report["connectionLoss"]["since"] == "1970-01-12T13:45:25Z"


def test_a_trace_is_named_with_the_address_of_it_if_there_is_a_viewer() -> None:
    trace = Trace.of("u", NOW)
    node = msgspec.structs.replace(going(), annotations={names.TRACEPARENT: trace.traceparent(is_sampled=True)})
    alone, both = a_scene(cluster(node)), a_scene(cluster(node, going("n2")))
    assert trace.hex not in flat(as_table(alone))
    assert f"trace {trace.hex}" in flat(as_table(alone, is_wide=True))
    assert "TRACE" in flat(as_table(both, 1000, is_wide=True))
    (node_report,) = msgspec.json.decode(to_json(status_report(alone), indent=0))["nodes"]
    assert node_report["trace"] == {"id": trace.hex, "url": None}
    viewed = msgspec.structs.replace(both, tracing=TracingSettings("https://jaeger.example.com/trace/{trace_id}"))
    address = f"https://jaeger.example.com/trace/{trace.hex}"
    assert address in flat(as_table(viewed, 1000, is_wide=True))
    node_report, other = msgspec.json.decode(to_json(status_report(viewed), indent=0))["nodes"]
    assert (node_report["trace"]["url"], other["trace"]) == (address, None)


@pytest.mark.parametrize("url", ["jaeger/{trace_id}", "https://jaeger.example.com/trace/"])
def test_an_address_that_leads_to_no_trace_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="trace_id"):
        TracingSettings(url).validate()


# -- while it happens --------------------------------------------------------------------------------------------------


def of_n1(seconds: float, *pods: str, **more: Any) -> StatusFrame:
    """n1 so many seconds later, with these pods of a budget that is spent."""
    replicas = tuple(replica(name) for name in pods)
    seen = cluster(going(), pods=replicas, budgets=(a_budget(**NEVER_ALLOWS),))
    return a_scene(seen, at=NOW + seconds, **more)


def test_lines_tell_what_is_new_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    view = StatusView(Console())

    def lines(frame: StatusFrame) -> list[str]:
        view.show(frame)
        return [line.partition("  ")[2] for line in capsys.readouterr().out.splitlines()]

    budget = "budget shop/web allows no disruption now (3 of 3 healthy, 3 required)"
    first = (
        f"n1: terminating for 1:40, since 1970-01-12T13:45:00Z; step drain, 2 pods left, never drained: "
        f"{budget} – shop/a and 1 more"
    )
    with view.showing():
        assert lines(of_n1(0, "a", "b")) == [first]
        assert lines(of_n1(1, "a", "b")) == []
        assert lines(of_n1(2, "a")) == []  # that may wait
        (later,) = lines(of_n1(10, "a"))
        assert later.endswith(f"1 pod left, never drained: {budget} – shop/a")
        assert lines(of_n1(30, "a")) == []
        lost = ConnectionLoss(NOW + 25, "refused")
        assert lines(of_n1(31, "a", connection_loss=lost)) == [
            "connection lost, retrying; this status is 0:06 old: refused"
        ]
        assert lines(of_n1(32, "a", connection_loss=lost)) == []
        assert lines(of_n1(33, "a")) == ["connected again"]
        gone = (TerminatedNode("n1", "uid-n1", 140.0),)
        assert lines(StatusFrame(at=NOW + 40, nodes=(), terminated=gone)) == ["n1: terminated after 2:20"]
        assert lines(StatusFrame(at=NOW + 41, nodes=(), terminated=gone)) == []


def test_machines_get_an_object_a_line_when_more_than_the_time_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    view = ObjectView("s.yaml")
    for frame in (StatusFrame(at=NOW, nodes=(), is_complete=False), of_n1(0, "a"), of_n1(1, "a"), of_n1(2)):
        view.show(frame)
    reports = [msgspec.json.decode(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["at"], each["nodes"][0]["podsLeft"]) for each in reports] == [
        ("1970-01-12T13:46:40Z", 1),
        ("1970-01-12T13:46:42Z", 0),
    ]


def test_a_terminal_gets_a_table_that_changes() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, height=12, legacy_windows=False, _environ=XTERM)
    view = StatusView(console, verbose=True)
    with view.showing():
        view.show(msgspec.structs.replace(crowd(), cluster=ClusterAddress("prod", "https://10.0.0.1:6443")))
    assert "cluster: prod (https://10.0.0.1:6443)" in file.getvalue()
    assert "1 node is terminating" in file.getvalue()
    assert re.search(r"pods .* 0 of 60 ", file.getvalue())
    assert re.search(r"… and \d+ more lines: gracectl status", file.getvalue())


@pytest.mark.parametrize(
    ("drops", "frame", "stays"), [(True, nothing, False), (False, nothing, True), (True, crowd, True)]
)
def test_an_empty_table_is_removed_on_request(drops: bool, frame: Callable[[], StatusFrame], stays: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, height=40, legacy_windows=False, _environ=XTERM)
    view = StatusView(console, drops_empty=drops)
    with view.showing():
        view.show(frame())
    last_words = file.getvalue().rpartition("(1970-")[2]
    assert ("\x1b[1A\x1b[2K" not in last_words) is stays


def test_gone_ones_are_told_the_last_first_and_many_counted() -> None:
    gone = [TerminatedNode(f"n{number}", "u", 60.0) for number in range(5)]
    assert words.all_terminated_text(gone).startswith("n4: terminated after 1:00, n3: terminated after 1:00, n2")
    assert words.all_terminated_text(gone).endswith(", and 2 more")


# -- its page ----------------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[3] / "docs" / "status.md").read_text(encoding="utf-8")


def test_the_page_has_the_example_word_for_word() -> None:
    shown = "\n".join(as_table(documented(), 108)).replace("1970-", "2026-")
    assert f"```text\n{shown}\n```" in PAGE


def test_the_page_explains_every_field_and_every_word() -> None:
    explained = set(re.findall(r"`(\w+)`", PAGE))
    frames = (documented(), claims_and_gone(), interrupted(), many(), several())
    assert names_in([status_report(frame) for frame in frames]) - explained == set()
    assert {words.POD_STATES.get(each, each.value) for each in Outcome} - explained == {"ignored"}
    assert {state.value for state in NodePhase} <= explained
