"""The alerts and the dashboard that are shipped: whatever they name exists, and each alert can fire."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from gracectl.agent.shutdown import ShutdownOutcome
from gracectl.controllers.metrics import QUEUES, STEPS
from gracectl.eviction.metrics import DELETION_ANSWERS, EVICTION_ANSWERS
from gracectl.eviction.pod_outcomes import PodOutcome
from gracectl.kube.client.retry import outcome_of
from gracectl.policy.disruption import HoldReason
from gracectl.policy.voluntary import BY_HAND, REASONS
from gracectl.telemetry.metrics import CATALOGUE, STEP_DURATION, TERMINATION_DURATION, Metric

ROOT = Path(__file__).parents[3]
FILES = ROOT / "helm/gracectl/files"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
UNIT_TESTS = ROOT / "tests/unit/telemetry/alerts_test.yaml"
SOURCES: list[dict[str, Any]] = yaml.safe_load(
    (ROOT / "deploy/compose/grafana/provisioning/datasources/gracectl.yaml").read_text()
)["datasources"]
"""Grafana's, in docker compose."""
DASHBOARD: dict[str, Any] = json.loads((FILES / "dashboard.json").read_text())
SHOWN: list[dict[str, Any]] = DASHBOARD["panels"]
PANELS = [each for panel in SHOWN for each in (panel, *panel.get("panels", ()))]
"""Those of collapsed rows among them."""

BY_NAME = {metric.name: metric for metric in CATALOGUE}
OF_TARGETS = {"namespace", "job", "pod", "instance"}
"""Labels that Prometheus gives to whatever it scrapes in a cluster."""
PROCESS_COLLECTOR = {
    "process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds",
    "process_start_time_seconds",
}  # fmt: skip
VALUES: dict[tuple[str, str], set[str]] = {
    ("gracectl_terminations", "kind"): set(STEPS),
    ("gracectl_terminations", "step"): {step for steps in STEPS.values() for step in steps},
    ("gracectl_termination_oldest_seconds", "kind"): set(STEPS),
    ("gracectl_termination_step_duration_seconds", "kind"): set(STEPS),
    ("gracectl_termination_step_duration_seconds", "step"): {step for steps in STEPS.values() for step in steps},
    ("gracectl_termination_duration_seconds", "kind"): set(STEPS),
    ("gracectl_voluntary_terminations_pending", "hold"): {hold.value for hold in HoldReason},
    ("gracectl_blocked_pods", "reason"): {"budget", "misconfiguration", "protection", "wave"},
    ("gracectl_nodes_terminated_total", "result"): {"drained", "deadline", "released"},
    ("gracectl_nodes_terminated_total", "reason"): {BY_HAND, *REASONS.values()},
    ("gracectl_pods_drained_total", "how"): {manner.value for manner in PodOutcome},
    ("gracectl_deadline_pods", "state"): {"armed", "overdue", "failing"},
    ("gracectl_protected_pods", "until"): {"time", "forever", "invalid"},
    ("gracectl_timer_operations_total", "operation"): {"armed", "rearmed", "cancelled", "fired"},
    ("gracectl_pdb_queue_wait_seconds", "budgets"): {"none", "one", "several"},
    ("gracectl_shutdown_delay_seconds", "which"): {"granted", "wanted"},
    ("gracectl_shutdowns_total", "outcome"): {outcome.value for outcome in ShutdownOutcome},
    ("gracectl_events_total", "outcome"): {"written", "merged", "dropped", "failed"},
    ("gracectl_trace_spans_total", "outcome"): {"exported", "failed", "dropped"},
    ("gracectl_provider_calls_total", "outcome"): {"ok", "gone", "unavailable", "refused", "failed", "unanswered"},
    ("gracectl_api_requests_total", "outcome"): {
        *(answer for _, answer in (*EVICTION_ANSWERS, *DELETION_ANSWERS)),
        *("Gone", "Unauthorized", outcome_of(None)),
    },
    ("gracectl_queue_depth", "queue"): set(QUEUES),
}
"""What matchers may ask for; a matcher of anything else is to be added here, after a look at the catalogue."""

_SELECTOR = re.compile(r"\b((?:gracectl|process)_[a-z_]+)\b(?:\s*\{([^}]*)\})?")
_MATCHER = re.compile(r'([a-z_]+)\s*(=~|!=|!~|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|on|without)\s*\(([^)]*)\)")


def metric_of(name: str) -> tuple[Metric | None, set[str]]:
    """The entry of the catalogue behind a name in an expression, and the labels that such a series has."""
    for suffix in ("_bucket", "_count", "_sum"):
        metric = BY_NAME.get(name.removesuffix(suffix))
        if name.endswith(suffix) and metric is not None and metric.type == "histogram":
            return metric, {*metric.labels, *(["le"] if suffix == "_bucket" else [])}
    metric = BY_NAME.get(name)
    # A histogram has no series of its own name.
    return (None, set()) if metric is None or metric.type == "histogram" else (metric, set(metric.labels))


def complaints(expression: str) -> Iterator[str]:
    """What in an expression does not exist."""
    known: set[str] = set(OF_TARGETS)
    for name, matchers in _SELECTOR.findall(expression):
        if name in PROCESS_COLLECTOR:
            continue
        metric, labels = metric_of(name)
        if metric is None:
            yield f"no metric {name}"
            continue
        known |= labels
        for label, _, value in _MATCHER.findall(matchers):
            if label in OF_TARGETS:
                continue
            if label not in labels:
                yield f"{name} has no label {label}"
            elif label != "le":
                allowed = VALUES.get((metric.name, label), set())
                yield from (f"{name}: no {label} {each}" for each in value.split("|") if each not in allowed)
            elif float(value) not in metric.buckets:
                yield f"{name} has no bucket {value}"
    for grouping in _GROUPING.findall(expression):
        yield from (f"no label {label}" for each in grouping.split(",") if (label := each.strip()) not in known)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_names_what_exists(rule: dict[str, Any]) -> None:
    assert list(complaints(rule["expr"])) == []
    assert "gracectl_" in rule["expr"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_what_it_means_and_what_to_do(rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"Gracectl[A-Za-z]+", rule["alert"])
    assert rule["labels"] == {"severity": rule["labels"]["severity"]}
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert re.fullmatch(r"\d+[mh]", rule["for"])
    assert set(rule["annotations"]) == {"summary", "description", "action", "runbook_url"}
    # The object, then its state.
    assert re.fullmatch(r"[^:]+: .+\.", re.sub(r"\{\{.*?\}\}", "N", rule["annotations"]["summary"]))
    for text in rule["annotations"].values():
        assert len(text) > 20
        assert "\n" not in text.strip()
        used = set(re.findall(r"\$labels\.(\w+)", text))
        groupings = {label.strip() for each in _GROUPING.findall(rule["expr"]) for label in each.split(",")}
        assert used <= groupings, "a label that the expression does not keep is shown empty"


def loose(expression: str) -> list[str]:
    """Metrics with optional labels in an expression that does not add them up, so that its result depends on whether
    these labels are switched on."""
    selectors = []
    for match in _SELECTOR.finditer(expression):
        metric, _ = metric_of(match[1])
        if metric is None or not metric.of_nodes:
            continue
        before, depth, is_added_up = expression[: match.start()], 0, False
        for place in range(len(before) - 1, -1, -1):
            depth += {")": 1, "(": -1}.get(before[place], 0)
            if depth < 0:
                depth = 0
                is_added_up |= _AGGREGATION.search(before[:place]) is not None
        if not is_added_up:
            selectors.append(match[1])
    return selectors


_AGGREGATION = re.compile(r"\b(?:sum|max|min|count|avg)\s*(?:\bby\s*\([^)]*\)\s*)?$")


def shown_expressions() -> list[str]:
    """Of alerts, panels and the page of metrics."""
    page = (ROOT / "docs/metrics.md").read_text().partition("## Evictions and budgets")[0]
    examples = [each.replace("\\|", "|") for each in re.findall(r"\| `((?:sum|histogram)[^`]+)` \|", page)]
    examples += re.findall(r"^(sum by .*?)  +#", page, re.MULTILINE)
    assert len(examples) > 5
    return [*(rule["expr"] for rule in RULES), *(expression for _, expression in expressions()), *examples]


def test_all_work_with_and_without_the_optional_labels() -> None:
    assert [found for each in shown_expressions() if (found := loose(each))] == []


def test_alerts_have_names_of_their_own_and_each_is_seen_to_fire_and_to_be_silent() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    tests: dict[str, list[dict[str, Any]]] = {
        each["name"]: each["promql_expr_test"] for each in yaml.safe_load(UNIT_TESTS.read_text())["tests"]
    }
    assert set(tests) == {f"{name} {what}" for name in names for what in ("fires", "is silent in an ordinary life")}
    for title, checks in tests.items():
        assert all(f'alertname="{title.partition(" ")[0]}"' in check["expr"] for check in checks)
        fires = [bool(check["exp_samples"]) for check in checks]
        assert fires == ([False, True] if title.endswith(" fires") else [False] * len(fires))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus' promtool is not installed")
@pytest.mark.parametrize("arguments", [("check", "rules", FILES / "alerts.yaml"), ("test", "rules", UNIT_TESTS)])
def test_prometheus_itself_says_so(arguments: tuple[str | Path, ...]) -> None:
    ended = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


# -- the dashboard -----------------------------------------------------------------------------------------------------


def expressions() -> list[tuple[str, str]]:
    """Panel and expression."""
    return [(panel["title"], target["expr"]) for panel in PANELS for target in panel.get("targets", ())]


@pytest.mark.parametrize(("panel", "expression"), expressions())
def test_a_panel_names_what_exists_and_heeds_the_variables(panel: str, expression: str) -> None:
    assert list(complaints(expression)) == []
    for name, matchers in _SELECTOR.findall(expression):
        assert 'namespace=~"$namespace",job=~"$job"' in matchers, f"{panel}: {name}"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus' promtool is not installed")
def test_prometheus_can_parse_what_panels_ask_for(tmp_path: Path) -> None:
    intervals = {"$namespace": ".*", "$job": ".*", "$__rate_interval": "5m", "$__range": "1h"}
    rules = []
    for number, (_, expression) in enumerate(expressions()):
        for variable, value in intervals.items():
            expression = expression.replace(variable, value)
        rules.append({"record": f"panel:{number}", "expr": expression})
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    ended = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_what_grafana_asks_of_a_span_exists() -> None:
    (options,) = (source["jsonData"] for source in SOURCES if source["type"] == "jaeger")
    tags = options["tracesToMetrics"]["tags"]
    page = (ROOT / "docs/tracing.md").read_text()
    assert all(f"`{name}`" in page for name in (options["spanBar"]["tag"], *(tag["key"] for tag in tags)))
    matchers = ",".join(f'{tag["value"]}="drain"' for tag in tags)
    for query in options["tracesToMetrics"]["queries"]:
        assert list(complaints(query["query"].replace("$$__tags", matchers))) == []


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {
        found.name for _, each in expressions() for name, _ in _SELECTOR.findall(each) if (found := metric_of(name)[0])
    }
    assert shown == set(BY_NAME)


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["w"] > 0
        assert place["x"] + place["w"] <= 24
    for together in (SHOWN, *(panel["panels"] for panel in SHOWN if panel["type"] == "row")):
        for one, other in combinations([panel["gridPos"] for panel in together], 2):
            beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
            assert beside or above, (one, other)


def test_ten_panels_are_the_overview_and_the_other_rows_are_collapsed() -> None:
    assert [panel["title"] for panel in SHOWN if panel["type"] != "row"] == [
        "Leaders", "Replicas", "Terminating nodes", "Nodes in maintenance", "Oldest termination", "Pods left",
        "Stalled drains", "Overdue deletions", "Terminations by step", "Pods left by state",
    ]  # fmt: skip
    rows = [panel for panel in SHOWN if panel["type"] == "row"]
    assert [row["collapsed"] for row in rows] == [False, *[True] * (len(rows) - 1)]
    assert all(row["panels"] for row in rows[1:])


def test_alerts_are_marked_in_every_panel() -> None:
    (alerts,) = (each for each in DASHBOARD["annotations"]["list"] if each["name"] == "Alerts")
    assert all(
        re.search(r'alertname=~"Gracectl\.\+"', alerts["target"]["expr"]) and rule["alert"].startswith("Gracectl")
        for rule in RULES
    )


def test_panels_come_in_rows_and_each_says_what_it_shows() -> None:
    assert [panel["title"] for panel in PANELS if panel["type"] == "row"] == [
        "Now", "Drains", "Evictions and budgets", "Node disruption budgets", "Admission", "Voluntary terminations",
        "Interruptions", "Deadlines", "Protection", "API server, watches and provider", "Queues and event loop",
        "Shutdowns of machines", "Leadership and process",
    ]  # fmt: skip
    assert PANELS[0]["type"] == "row"
    for panel in PANELS:
        if panel["type"] == "row":
            continue
        assert panel["description"].endswith(".")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert [target["refId"] for target in panel["targets"]] == [chr(65 + n) for n in range(len(panel["targets"]))]
        assert panel["type"] == "heatmap" or panel["fieldConfig"]["defaults"]["unit"]


UNITS = {
    "seconds": {"s"}, "bytes": {"bytes"}, "per second": {"cps", "ops", "reqps"},
    "number": {"short", "percentunit", "none"},
}  # fmt: skip
"""Grafana's units of each quantity."""


def quantity(expression: str) -> str:
    """Quantity that an expression yields."""
    name, _ = _SELECTOR.findall(expression)[0]
    if "> bool" in expression:
        return "number"
    if "rate(" in expression and "histogram_quantile" not in expression and "/" not in expression:
        return "number" if "_seconds" in name else "per second"  # seconds per second
    return "seconds" if "_seconds" in name else "bytes" if "_bytes" in name else "number"


def axes(panel: dict[str, Any]) -> dict[str, set[tuple[str, str]]]:
    """Unit and quantity of each target, by the side of its axis."""
    by_name: dict[str, set[tuple[str, str]]] = {}
    overrides = panel["fieldConfig"]["overrides"]
    refs = {target["refId"] for target in panel["targets"]}
    assert all(each["matcher"]["id"] == "byFrameRefID" and each["matcher"]["options"] in refs for each in overrides)
    for target in panel["targets"]:
        own = {"custom.axisPlacement": "left", "unit": panel["fieldConfig"]["defaults"]["unit"]}
        for override in overrides:
            if override["matcher"]["options"] == target["refId"]:
                own |= {each["id"]: each["value"] for each in override["properties"]}
        by_name.setdefault(own["custom.axisPlacement"], set()).add((own["unit"], quantity(target["expr"])))
    return by_name


@pytest.mark.parametrize("panel", [each for each in PANELS if "targets" in each], ids=lambda panel: panel["title"])
def test_every_axis_has_one_unit_and_it_is_that_of_what_it_shows(panel: dict[str, Any]) -> None:
    if panel["type"] == "heatmap":
        assert (panel["options"]["yAxis"]["unit"], quantity(panel["targets"][0]["expr"])) == ("s", "seconds")
        return
    for side, shown in axes(panel).items():
        ((unit, of),) = shown
        assert unit in UNITS[of], side


def test_panels_of_durations_lead_to_traces() -> None:
    linked = {f"{metric.name}_bucket" for metric in (TERMINATION_DURATION, STEP_DURATION)}
    asking = set()
    for panel in PANELS:
        for target in panel.get("targets", ()):
            buckets = {name for name, _ in _SELECTOR.findall(target["expr"])} & linked
            assert target.get("exemplar", False) == bool(buckets), panel["title"]
            asking |= buckets
    assert asking == linked


def test_a_dashboard_that_any_grafana_can_import() -> None:
    assert (DASHBOARD["uid"], DASHBOARD["title"], DASHBOARD["id"]) == ("gracectl", "gracectl", None)
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "namespace", "job"]
    assert "__inputs" not in DASHBOARD
