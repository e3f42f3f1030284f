"""`gracectl demo`: what it shows, what it prints for machines, and that it does not call a broken drain a good one."""

from __future__ import annotations

import io
import json
import logging
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from kubesim_support.patience import PATIENCE
from rich.console import Console

from gracectl.cli import demo_play
from gracectl.cli.demo_play import Order, chosen
from gracectl.cli.demo_report import (
    STEPS,
    BudgetResult,
    Leavings,
    NodeResult,
    Replacements,
    ViolationResult,
    judged,
    summary,
)
from gracectl.cli.demo_report import Result as DemoResult
from gracectl.cli.demo_single import SingleResult, WorkloadResult, judged_single, summary_single
from gracectl.cli.report import to_json
from gracectl.cli.root import root
from gracectl.cloud.provider import InstanceState
from gracectl.cloud.simulated import SimulatedProvider
from gracectl.kube.client import KubeClient
from gracectl.kube.requests import Selection
from gracectl.kube.resources import PODS

KEYS = [
    "seconds", "seed", "speed", "ok", "nodes", "evictions", "evictionsSeen", "refusals", "budgetViolations",
    "violations", "budgets", "replacements", "volumes", "instances", "touchedTwice", "blindSeconds", "failures",
]  # fmt: skip

STRICTLY = (sys.executable, "-X", "dev", "-W", "error", "-m", "gracectl")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["demo", "--speed", "20", *arguments])


def kept_log(result: Result) -> Path:
    """The file that the command names when it fails."""
    match = re.search(r"^gracectl: the controller's log is (\S+)$", result.stderr, re.M)
    assert match is not None
    return Path(match[1])


@pytest.mark.real_time
class TestWholeDemo:
    def test_json_is_one_object_with_stable_keys_and_there_is_no_warning(self) -> None:
        arguments = ("demo", "--speed", "20", "--pods", "20", "--seed", "3", "-o", "json")
        result = subprocess.run([*STRICTLY, *arguments], capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (0, "")
        report = json.loads(result.stdout)
        assert list(report) == KEYS
        assert (report["ok"], report["seed"], report["budgetViolations"], report["failures"]) == (True, 3, 0, [])
        assert len(report["nodes"]) == 3
        for node in report["nodes"]:
            assert list(node["steps"]) == ["cordon", "drain", "volumes", "instance", "finalizer"]
            assert 0 < sum(node["steps"].values()) <= node["seconds"] + 0.1
        assert report["evictions"] == report["evictionsSeen"] == sum(node["pods"] for node in report["nodes"])
        assert report["replacements"]["expected"] == report["replacements"]["running"] > 5
        assert report["instances"] == {"before": 3, "left": 0}
        web = next(budget for budget in report["budgets"] if budget["name"] == "shop/web")
        assert web["bound"] == "maxUnavailable: 1"
        assert web["lowest"] == web["required"] == web["pods"] - 1

    def test_the_smallest_world_is_told_in_plain_lines(self) -> None:
        handlers = logging.getLogger().handlers[:]
        result = run("--nodes", "2", "--pods", "1")
        assert (result.exit_code, result.stderr) == (0, "")
        assert "\x1b" not in result.stdout
        assert re.search(r"^20\S+Z  node-\S+: terminated after 0:\d\d$", result.stdout, re.M)
        assert "replacements   1 of 1 run on other nodes\n" in result.stdout
        assert result.stdout.endswith("no budget was violated.\n")
        assert logging.getLogger().handlers == handlers

    def test_a_controller_that_violates_budgets_is_detected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        properly, victims = KubeClient.evict, [5]

        async def evict(self: KubeClient, key: tuple[str, str], *, uid: str, **options: Any) -> None:
            if key[1].startswith("web-") and victims:
                count = victims.pop()
                async for page in self.list(PODS, namespace=key[0], selection=Selection("app=web")):
                    for pod in page.items[:count]:
                        await self.delete(PODS, pod.key, uid=pod.uid)
            await properly(self, key, uid=uid, **options)

        monkeypatch.setattr(KubeClient, "evict", evict)
        result = run("--pods", "20", "-o", "json")
        report = json.loads(result.stdout)
        assert result.exit_code == 1
        assert report["budgetViolations"] == len(report["violations"]) > 0
        assert not report["ok"]
        assert re.search(r"^gracectl: budget \S+ was violated after", result.stderr, re.M)
        kept_log(result).unlink()

    def test_it_ends_at_the_guard_time_and_says_what_failed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def state(self: SimulatedProvider, provider_id: str) -> InstanceState:
            return InstanceState.ENDING

        monkeypatch.setattr(SimulatedProvider, "state", state)
        monkeypatch.setattr(demo_play, "GUARD_SECONDS", 20.0)
        result = run("--nodes", "2", "--pods", "1", "-o", "json")
        report = json.loads(result.stdout)
        assert (result.exit_code, report["ok"]) == (1, False)
        assert report["failures"][0] == "not finished after 20 s"
        assert re.fullmatch(r"node-\S+: instance: instance sim:///\S+ is ending", report["failures"][1])
        assert report["failures"][2] == f"node {report['nodes'][0]['name']} is not gone"
        assert report["nodes"][0]["seconds"] is None
        log = kept_log(result)
        assert "node is being terminated" in log.read_text()
        log.unlink()

    def test_interrupted_it_ends_cleanly_and_leaves_no_warning(self) -> None:
        with subprocess.Popen(
            [*STRICTLY, "demo", "--pods", "20"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("Deleting"):
                    process.send_signal(signal.SIGINT)
                    break
            _, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, errors) == (130, "gracectl: interrupted\n")

    def test_it_ends_quietly_when_its_output_is_closed(self) -> None:
        pipe = subprocess.PIPE
        with subprocess.Popen([*STRICTLY, "demo", "--speed", "20"], stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stdout is not None
            process.stdout.close()
            assert process.wait(PATIENCE) == 1
            assert process.stderr is not None
            assert process.stderr.read() == ""


def test_slow_worlds_have_more_time() -> None:
    assert [Order(2, 1, 1, speed).guard for speed in (0.5, 1, 10)] == [240, 120, 120]


GOOD = DemoResult(
    seconds=3.0, seed=1, speed=1.0, ok=False, nodes=(NodeResult("node-a-bcdfg", 3.0, dict.fromkeys(STEPS, 0.1), 5),),
    evictions=5, evictions_seen=5, budgets=(BudgetResult("kube-system/dns", "minAvailable: 80%", 120, 96, 97, 0),),
    replacements=Replacements(4, 4), volumes=Leavings(1, 0), instances=Leavings(1, 0),
)  # fmt: skip


class TestVerdict:
    def test_good(self) -> None:
        result = judged(GOOD)
        assert (result.ok, result.failures) == (True, ())
        assert list(json.loads(to_json(result))) == KEYS

    @pytest.mark.parametrize(("changes", "failure"), [
        ({"nodes": (NodeResult("n1", None, {}, 0),)}, "node n1 is not gone"),
        ({"violations": (ViolationResult(1.0, "shop/web", "shop/web-1", 1, 2),)},
         "budget shop/web was violated after 1.00 s: 1 healthy, 2 required (shop/web-1)"),
        ({"replacements": Replacements(4, 3)}, "1 of 4 replacement pods do not run on another node"),
        ({"instances": Leavings(3, 1)}, "1 of 3 instances still run"),
        ({"volumes": Leavings(2, 2)}, "2 of 2 volumes are still attached"),
        ({"evictions": 4}, "5 pods left, but only 4 were evicted"),
        ({"touched_twice": ("a/b",)}, "evicted twice: a/b"),
        ({"blind_seconds": 1.5}, "the watch was cut for up to 1.50 s, so the budgets cannot be vouched for"),
    ])  # fmt: skip
    def test_whatever_is_wrong_is_said(self, changes: dict[str, Any], failure: str) -> None:
        fields = {name: getattr(GOOD, name) for name in GOOD.__struct_fields__}
        result = judged(DemoResult(**{**fields, **changes}))
        assert (result.ok, result.failures) == (False, (failure,))

    def test_the_summary_fits_into_80_columns(self) -> None:
        text = _printed(summary(judged(GOOD)), 80)
        assert "kube-system/dns  minAvailable: 80%   120        96      97  never violated" in text
        assert "…" not in text


TIGHT = {"metadata": {"namespace": "s"}, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}}}


class TestChoice:
    """Which nodes make a telling demo."""

    def test_one_with_a_slow_pod_one_with_a_volume_and_then_the_tightest(self) -> None:
        pods = [
            *(_on("n1", "web") for _ in range(3)),
            *(_on("n2", "web") for _ in range(2)),
            _on("n3", "x", slow=True),
            _on("n4", "x", volume=True),
            _on("n5", "web", volume=True),
        ]
        nodes = ["n1", "n2", "n3", "n4", "n5"]
        assert chosen(3, nodes, pods, [TIGHT]) == ("n1", "n3", "n5")
        assert chosen(1, nodes, pods, [TIGHT]) == ("n3",)

    def test_in_a_world_without_any_of_it_the_first_ones(self) -> None:
        assert chosen(2, ["b", "a", "c"], [_on("a", "x")], []) == ("a", "b")


def _on(node: str, app: str, *, slow: bool = False, volume: bool = False) -> dict[str, Any]:
    annotations = {"kubesim/stop-seconds": "8"} if slow else {}
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}] if volume else []
    metadata = {"namespace": "s", "name": "p", "labels": {"app": app}, "annotations": annotations}
    return {"metadata": metadata, "spec": {"nodeName": node, "volumes": volumes}}


def _printed(renderable: Any, width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(renderable)
    return stream.getvalue()


# -- single replicas ---------------------------------------------------------------------------------------------------


@pytest.mark.real_time
def test_requests_to_a_pod_that_is_replaced_first_do_not_fail() -> None:
    arguments = ("demo", "--scenario", "single", "--speed", "4", "-o", "json")
    result = subprocess.run([*STRICTLY, *arguments], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert list(report) == ["seconds", "seed", "speed", "ok", "workloads", "failures"]
    first, plain = report["workloads"]
    assert (first["name"], first["replacedFirst"], plain["replacedFirst"]) == ("web-first", True, False)
    assert (first["failed"], first["secondsDown"]) == (0, 0.0)
    assert first["requests"] > 0
    assert first["generations"][0] == first["generations"][1]
    assert plain["failed"] > 0
    assert plain["secondsDown"] > 0


FIRST = WorkloadResult("web-first", replaced_first=True, requests=9, failed=0, seconds_down=0.0, generations=(1, 1))
PLAIN = WorkloadResult("web-plain", replaced_first=False, requests=9, failed=4, seconds_down=2.5, generations=(1, 1))
SINGLE = SingleResult(seconds=8.0, seed=1, speed=1.0, ok=False, workloads=(FIRST, PLAIN))


def test_what_a_single_replica_loses_is_shown() -> None:
    console = Console(width=80, file=io.StringIO())
    console.print(summary_single(judged_single(SINGLE)))
    assert isinstance(console.file, io.StringIO)
    assert [line.rstrip() for line in console.file.getvalue().splitlines()] == [
        "DEPLOYMENT  HOW ITS POD LEFT  REQUESTS  FAILED  NO READY ENDPOINT",
        "web-first   replaced first           9       0              0.0 s",
        "web-plain   plain eviction           9       4              2.5 s",
        "",
        "Replaced first, web-first answered all 9 requests; its Deployment is unchanged.",
        "Plainly evicted, web-plain failed 4 of 9.",
    ]


def test_a_pod_that_was_down_although_it_was_replaced_first_is_a_failure() -> None:
    bad = msgspec.structs.replace(FIRST, failed=2, seconds_down=0.25, generations=(1, 2))
    result = judged_single(msgspec.structs.replace(SINGLE, workloads=(bad, PLAIN)), "not finished after 120 s")
    assert not result.ok
    assert result.failures == (
        "not finished after 120 s",
        "deployment shop/web-first has changed",
        "2 of 9 requests to web-first failed",
        "web-first had no Ready endpoint for 0.25 s",
    )


def test_the_page_is_not_offered_with_single_replicas() -> None:
    result = CliRunner().invoke(root, ["demo", "--scenario", "single", "--ui"])
    assert result.exit_code == 2
    assert "--ui or --scenario single, not both" in result.stderr
