"""The page on upgrades: what is renamed has its new name in this version, and the old one is nowhere any more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gracectl.cli.commands import COMMANDS
from gracectl.model.names import EventReason
from gracectl.policy.warnings import WarningKind
from gracectl.telemetry import metrics

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/upgrading.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the tables below a heading of the page, to the next one of any level."""
    _, _, rest = PAGE.partition(f"\n### {heading}\n")
    text = re.split(r"^#", rest, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert lines, heading
    return lines


def names(cell: str) -> set[str]:
    """What is marked as code in a cell."""
    return set(re.findall(r"`([^`]+)`", cell))


def metric_names() -> set[str]:
    """All of the catalogue."""
    return {value.name for value in vars(metrics).values() if isinstance(value, metrics.Metric)}


def alert_names() -> set[str]:
    """All that the chart ships."""
    rules: Any = yaml.safe_load((ROOT / "helm/gracectl/files/alerts.yaml").read_text())
    return {rule["alert"] for group in rules["groups"] for rule in group["rules"]}


@pytest.mark.parametrize(
    ("heading", "known"),
    [("Metrics", metric_names()), ("Alerts", alert_names())],
)
def test_a_renamed_metric_or_alert_has_its_new_name_only(heading: str, known: set[str]) -> None:
    pairs = [row for row in rows(heading) if len(row) == 2 and row[0] != "0.1.0"]
    assert len(pairs) >= 8
    for old, new in pairs:
        assert names(new) <= known
        assert not names(old) & known


def test_renamed_warnings_have_their_new_names_only() -> None:
    pairs = [row for row in rows("JSON") if len(row) == 2 and "`" in row[0]]
    assert len(pairs) > 8
    for old, new in pairs:
        assert names(new) <= {*WarningKind, "NotTerminated"}
        assert not names(old) & {f"{kind}" for kind in WarningKind} - {"`agent`"}


def test_a_renamed_event_has_its_new_name_only() -> None:
    (event,) = (row for row in rows("Events and conditions") if row[0] == "Event")
    assert names(event[2]) <= set(EventReason)
    assert not names(event[1]) & set(EventReason)


def test_renamed_commands_are_there() -> None:
    for row in rows("Commands"):
        for command in re.findall(r"`gracectl ([a-z]+)", row[1]):
            assert command in COMMANDS
