"""Findings of `gracectl doctor`: their JSON object, and their table; docs/doctor.md explains both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from gracectl.cli.console import Row, Table, helpful
from gracectl.cli.report import Json, JsonObject
from gracectl.kube.auth.credentials import ClusterAddress
from gracectl.model.times import format_time
from gracectl.policy.explain import counted

SHOWN: Final = 3
"""Names in a line; JSON has all."""


class CheckState(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    """Works, but not as one would expect."""
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Not checked: the right is missing, or there was no answer."""


class Finding(JsonObject, frozen=True):
    """Result of one check. `remedy` None: nothing to do; `objects`: every object that the result concerns."""

    check: str
    state: CheckState
    message: str
    remedy: str | None = None
    objects: tuple[str, ...] = ()


class Examination(msgspec.Struct, frozen=True):
    """All findings, at `at` (Unix seconds, the server's clock). `settings`: where they are from."""

    cluster: ClusterAddress
    at: float
    settings: str
    findings: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether every check was done, and none has failed."""
        return all(finding.state in (CheckState.OK, CheckState.WARNING) for finding in self.findings)


def doctor_report(found: Examination) -> Json:
    """The report of all findings. `healthy`: every check was done, and none has failed."""
    return {
        "cluster": found.cluster,
        "at": format_time(found.at),
        "settings": found.settings,
        "healthy": found.is_healthy,
        "checks": found.findings,
    }


MARKS: Final = {CheckState.OK: "✓", CheckState.WARNING: "!", CheckState.FAILED: "✗", CheckState.UNKNOWN: "?"}
PLAIN_MARKS: Final = {**MARKS, CheckState.OK: "+", CheckState.FAILED: "x"}
"""For a terminal without Unicode."""
STYLES: Final = {
    CheckState.OK: "green",
    CheckState.WARNING: "yellow",
    CheckState.FAILED: "bold red",
    CheckState.UNKNOWN: "yellow",
}
_COUNTED: Final = {
    CheckState.FAILED: "failed",
    CheckState.WARNING: "with a warning",
    CheckState.UNKNOWN: "not checked",
    CheckState.OK: "passed",
}


def doctor_table(findings: Sequence[Finding], *, is_plain: bool = False) -> RenderableType:
    """A line for each finding, with the remedy below, and the number of findings. `is_plain`: no Unicode."""
    marks = PLAIN_MARKS if is_plain else MARKS
    rows = [
        Row(
            [Text(marks[each.state], STYLES[each.state]), each.check, each.message],
            [helpful(each.remedy)] if each.remedy else (),
        )
        for each in findings
    ]
    table = Table(("", "check", "result"), rows, has_message=True)
    return Group(table, Text(), Text(summary(findings)))


def summary(findings: Sequence[Finding]) -> str:
    """`2 checks failed, 1 not checked, 9 passed`."""
    return ", ".join(_counts(findings))


def _counts(findings: Sequence[Finding]) -> Iterator[str]:
    counts = Counter(finding.state for finding in findings)
    noun = True
    for state, words in _COUNTED.items():
        if number := counts[state]:
            yield f"{counted(number, 'check')} {words}" if noun else f"{number} {words}"
            noun = False
