"""What a shutdown would do on paper: ranges and pods in lines that fit the terminal, what is warned of, and JSON."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console
from support.builders import NOW, a_node, a_pod, owned_by
from support.schemas import names_in
from support.shutdowns import KEP

from gracectl.cli.agent.command import show
from gracectl.cli.agent.rehearsal import (
    Logind,
    RehearsalInput,
    RehearsalResult,
    ShutdownWarningKind,
    rehearsal_of,
    rehearsal_warnings,
)
from gracectl.cli.agent.report import rehearsal_report, rehearsal_table
from gracectl.cli.console import text_of
from gracectl.cli.report import to_json
from gracectl.model import names
from gracectl.model.pod import Pod
from gracectl.policy.waves import by_priority

PAGE = (Path(__file__).parents[3] / "docs" / "rehearsal.md").read_text(encoding="utf-8")
SLOW = 3600
OF_ALL_RANGES = (
    a_pod("regular", grace_seconds=SLOW), a_pod("c", priority=1_000, grace_seconds=SLOW),
    a_pod("b", priority=10_000, grace_seconds=SLOW), a_pod("a", priority=100_000, grace_seconds=SLOW),
)  # fmt: skip
ALONE = (
    a_pod("etcd", namespace="kube-system", annotations={names.MIRROR_POD: "x"}),
    a_pod("job", phase="Succeeded"),
    a_pod("agent", uid="own", owners=owned_by("DaemonSet", "gracectl-agent")),
)
MIXED = (
    a_pod("web-7d4b9c6f5-2zltl"),
    a_pod("legacy-0", grace_seconds=120),
    a_pod("exporter-x2x4z", owners=owned_by("DaemonSet"), priority=10_000, grace_seconds=10),
    a_pod("coredns-autoscaler-5d78c9869d-abcde", namespace="kube-system", priority=2_000_001_000),
    a_pod("late-0", grace_seconds=600, deletion_timestamp=NOW + 590, deletion_grace_seconds=600),
    a_pod("soon-0", deletion_timestamp=NOW + 10, deletion_grace_seconds=30),
    *ALONE,
)


def going(name: str, ends: float, grace: int = 30) -> Pod:
    return a_pod(name, grace_seconds=grace, deletion_timestamp=NOW + ends, deletion_grace_seconds=grace)


def told_of(
    *pods: Pod, order: Any = KEP, deadline: float | None = None, logind: Logind | None = None
) -> RehearsalResult:
    """`deadline` in seconds from NOW."""
    at = None if deadline is None else NOW + deadline
    return rehearsal_of(RehearsalInput(a_node("worker-7"), pods, order, NOW, at, "own"), logind)


def as_table(result: RehearsalResult, width: int = 160) -> list[str]:
    return text_of(Console(width=width), rehearsal_table(result)).splitlines()


def flat(result: RehearsalResult, width: int = 160) -> str:
    """Without the breaks that the width has made."""
    return " ".join(" ".join(as_table(result, width)).split())


def warned(result: RehearsalResult) -> dict[ShutdownWarningKind, str]:
    return {each.kind: each.message for each in rehearsal_warnings(result)}


# -- a table -----------------------------------------------------------------------------------------------------------


def test_on_a_narrow_terminal_sentences_are_folded_and_names_are_not() -> None:
    logind = Logind(5.0, "logind waits only 5 s (InhibitDelayMaxSec); the agent raises it when it runs")
    lines = as_table(told_of(*MIXED, logind=logind), 80)
    assert lines[:10] == [
        "worker-7: a shutdown waits up to 660 s (11:00) for its pods, in 4 ranges",
        "  as if it began now (0:00), 1970-01-12T13:46:40Z by the server's clock; nothing",
        "  is changed",
        "  logind: inhibit delay 5 s now; a running agent raises it to 660 s if permitted",
        "  ! logind waits only 5 s (InhibitDelayMaxSec); the agent raises it when it runs",
        "  ! grace shortened: shop/legacy-0 (60 of 120 s), shop/late-0 (60 of 600 s):",
        "    priority below 1000 has 60 s; 600 s would be enough",
        "  ! DaemonSet pods are terminated as well, in the range of their priority:",
        "    shop/exporter-x2x4z",
        "",
    ]
    assert [" ".join(line.split()) for line in lines[10:21]] == [
        "POD PRIORITY GRACE DELETED TERMINATED", "priority below 1000: 60 s, from 0:00 to 1:00",
        "shop/web-7d4b9c6f5-2zltl 0 30s 0:00 0:30", "shop/legacy-0 0 60/120s 0:00 1:00",
        "shop/late-0 0 60/600s 0:00 1:00", "shop/soon-0 0 30s already 0:10",
        "priority 1000 to 9999: 120 s, skipped: no pods", "priority 10000 to 99999: 180 s, from 1:00 to 1:10",
        "shop/exporter-x2x4z 10000 10s 1:00 1:10", "priority 100000 and above: 300 s, from 1:10 to 1:40",
        "kube-system/coredns-autoscaler-5d78c9869d-abcde 2000001000 30s 1:10 1:40",
    ]  # fmt: skip
    assert lines[22:25] == [
        "  ignored: kube-system/etcd (static pod: it ends with its machine)",
        "  ignored: shop/job (finished: its phase is Succeeded)",
        "  ignored: shop/agent (the node agent itself: it ends with its machine)",
    ]
    assert lines[26] == "Finished after 1:40 at the latest, for 6 pods."


def test_on_a_wide_terminal_every_pod_has_one_line() -> None:
    lines = as_table(told_of(*MIXED), 160)
    assert lines[1] == "  as if it began now (0:00), 1970-01-12T13:46:40Z by the server's clock; nothing is changed"


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_no_line_is_wider_than_the_terminal_and_none_ends_with_spaces(width: int) -> None:
    eternal = a_pod("with-a-name-that-is-longer-than-most-of-them-and-then-some", grace_seconds=1_000_000)
    stuck = a_pod("stuck", deletion_timestamp=NOW - 10, deletion_grace_seconds=30)
    for line in as_table(told_of(*MIXED, eternal, stuck, deadline=30), width):
        assert cell_len(line) <= max(width, 111), line  # a table may be wider: names stay in one piece
        assert line == line.rstrip()


def test_a_node_without_pods_to_wait_for_is_let_go_at_once() -> None:
    lines = as_table(told_of(*ALONE))
    assert [line.partition(", ")[2] for line in lines if line.startswith("  priority")] == ["skipped: no pods"] * 4
    assert lines[-1] == "Finished immediately: there is no pod to wait for."
    assert "pod  " not in "".join(lines)
    assert not rehearsal_warnings(told_of(*ALONE))


def test_of_many_that_are_left_alone_for_the_same_reason_three_are_named() -> None:
    jobs = [a_pod(f"job-{number}", phase="Failed") for number in range(5)]
    said = "ignored: shop/job-0, shop/job-1, shop/job-2, and 2 more (finished: its phase is Failed)"
    assert said in flat(told_of(*jobs))


def test_a_node_that_is_being_terminated_cuts_its_pods_for_its_own_deadline() -> None:
    result = told_of(*OF_ALL_RANGES[:2], deadline=100.5)
    text = flat(result)
    assert "the node is being terminated; deadline: in 1:40 (1970-01-12T13:48:20Z)" in text
    assert "shop/c 1000 40/3600s 1:00 1:40" in text
    messages = [each.message for each in rehearsal_warnings(result)]
    assert messages[0].endswith("priority below 1000 has 60 s; 3600 s would be enough")
    assert messages[1].endswith("the deadline of the node is 1970-01-12T13:48:20Z")
    assert "deadline: now (1970-01-12T13:46:35Z)" in flat(told_of(deadline=-5))


def test_what_logind_would_wait_is_told_and_takes_no_time_by_itself() -> None:
    result = told_of(*MIXED, logind=Logind(5.0))
    assert result.rehearsal.available == 660
    assert "logind: inhibit delay 5 s now" in flat(result)
    assert "logind: inhibit delay unlimited" in flat(told_of(*MIXED, logind=Logind(math.inf)))
    assert "logind" not in flat(told_of(*MIXED, logind=Logind()))
    assert warned(told_of(logind=Logind(None, "there is no logind"))) == {
        ShutdownWarningKind.LOGIND: "there is no logind"
    }


def test_pods_that_outlast_the_shutdown_are_named_with_their_reason() -> None:
    last = a_pod("last", priority=2_000_000_000)
    order = by_priority([(0, 20.0), (2_000_000_000, 0.0)])
    result = told_of(going("stuck", -10), a_pod("web", grace_seconds=20), last, order=order)
    assert warned(result)[ShutdownWarningKind.NOT_TERMINATED] == (
        "not terminated before the machine goes down: shop/stuck (already terminating, grace period expired), "
        "shop/last (not deleted: no time is left for its range)"
    )
    text = flat(result)
    assert "shop/stuck 0 30s already too late" in text
    assert "priority 2000000000 and above: 0 s, skipped: no time is left" in text
    assert "shop/last 2000000000 0/30s never too late" in text
    unheeded = told_of(a_pod("web", grace_seconds=5), last, order=order)
    assert warned(unheeded)[ShutdownWarningKind.NOT_TERMINATED] == (
        "not terminated before the machine goes down: shop/last (deleted, not waited for)"
    )
    late = told_of(going("late", 9), order=by_priority([(0, 5.0)]))
    assert (
        "(already terminating, with grace until 1970-01-12T13:46:49Z)"
        in warned(late)[ShutdownWarningKind.NOT_TERMINATED]
    )


def test_a_terminating_pod_loses_what_it_was_granted_and_not_what_its_manifest_says() -> None:
    patient = a_pod("patient", deletion_timestamp=NOW + 590, deletion_grace_seconds=600)
    hasty = a_pod("hasty", deletion_timestamp=NOW + 4, deletion_grace_seconds=5)
    text = flat(told_of(patient, hasty))
    assert "! grace shortened: shop/patient (60 of 600 s): priority below 1000 has 60 s; 600 s" in text
    assert "shop/patient 0 60/600s 0:00 1:00 shop/hasty 0 5s already 0:04" in text


def test_no_warning_where_every_pod_has_the_grace_it_asks_for() -> None:
    assert not rehearsal_warnings(told_of(a_pod("web"), a_pod("at-once", grace_seconds=0), going("soon", 20)))


# -- JSON --------------------------------------------------------------------------------------------------------------


def test_the_report_has_all_that_the_table_says() -> None:
    result = told_of(*MIXED, deadline=500, logind=Logind(5.0, "too short"))
    report = msgspec.json.decode(to_json(rehearsal_report(result)))
    assert {key: value for key, value in report.items() if key not in ("warnings", "ranges", "ignored")} == {
        "cluster": {"context": None, "server": ""}, "at": "1970-01-12T13:46:40Z", "node": "worker-7",
        "requiredSeconds": 660, "availableSeconds": 660, "finishedSeconds": 100,
        "logind": {"delaySeconds": 5, "unlimited": False, "problem": "too short"},
        "deadline": {"at": "1970-01-12T13:55:00Z", "atSeconds": 500},
    }  # fmt: skip
    first, second, third, _ = report["ranges"]
    assert {key: value for key, value in first.items() if key != "pods"} == {
        "name": "priority below 1000", "minimumPriority": 0, "periodSeconds": 60, "availableSeconds": 60,
        "beginsSeconds": 0, "endsSeconds": 60,
    }  # fmt: skip
    assert (second["beginsSeconds"], second["endsSeconds"], second["pods"]) == (None, None, [])
    assert third["pods"] == [
        {
            "namespace": "shop", "name": "exporter-x2x4z", "uid": "uid-exporter-x2x4z", "priority": 10_000,
            "daemonSet": True, "terminating": False, "graceSeconds": 10, "grantedSeconds": 10, "shortened": False,
            "deletedSeconds": 60, "terminatedSeconds": 70, "inTime": True,
        },
    ]  # fmt: skip
    assert [(pod["name"], pod["shortened"], pod["terminating"], pod["deletedSeconds"]) for pod in first["pods"]] == [
        ("web-7d4b9c6f5-2zltl", False, False, 0), ("legacy-0", True, False, 0), ("late-0", True, True, 0),
        ("soon-0", False, True, None),
    ]  # fmt: skip
    assert report["ignored"][2] == {
        "namespace": "shop", "name": "agent", "uid": "own",
        "reason": "the node agent itself: it ends with its machine",
    }  # fmt: skip
    assert [(each["kind"], each["blocking"], each["objects"]) for each in report["warnings"]] == [
        ("Logind", False, []),
        ("GraceShortened", False, ["shop/legacy-0", "shop/late-0"]),
        ("DaemonSetPods", False, ["shop/exporter-x2x4z"]),
    ]


def test_what_is_not_known_is_null_and_what_has_no_end_is_said_so() -> None:
    report = rehearsal_report(told_of(going("stuck", -10), logind=Logind(math.inf)))
    assert report["logind"] == {"delaySeconds": None, "unlimited": True, "problem": None}
    (stuck,) = report["ranges"][0]["pods"]
    assert (stuck["grantedSeconds"], stuck["terminatedSeconds"], stuck["inTime"]) == (None, None, False)
    assert rehearsal_report(told_of())["logind"] is None
    assert rehearsal_report(told_of())["deadline"] is None


def test_the_page_explains_every_field() -> None:
    report = rehearsal_report(told_of(*MIXED, deadline=500, logind=Logind(5.0, "too short")))
    assert {field for field in names_in(report) if f"`{field}`" not in PAGE} == set()


def test_the_page_explains_every_warning() -> None:
    for kind in ShutdownWarningKind:
        assert f"| `{kind}` | {'yes' if kind.is_blocking else ''}".rstrip() in PAGE, kind


def test_it_is_printed_as_table_or_object(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = told_of(*MIXED)
    show(result, "table")
    assert capsys.readouterr().out.splitlines() == as_table(result, 80)
    show(result, "json")
    assert msgspec.json.decode(capsys.readouterr().out, type=dict)["node"] == "worker-7"
