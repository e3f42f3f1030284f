"""Short text of a forecast for a terminal: the most important parts first, the rest counted.

Each warning appears once, with its nodes. `-o wide` prints the whole forecast instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from gracectl.cli.console import Row, Table, marked
from gracectl.cli.plan.table import budget_table, is_never, node_head, plan_table, pod_table, summary_table, title
from gracectl.cli.plan.text import PlanText
from gracectl.inspect.forecast import DrainForecast
from gracectl.policy.explain import counted, listed
from gracectl.policy.warnings import PlanWarning, WarningKind, by_importance

MOST_LINES = 40
"""Maximum lines of the output, including the line that names the cluster."""

FEW = 3
"""Maximum names in a list, and maximum warnings of one kind that does not block."""

FEW_BUDGETS = 4

LEAST_ROWS = 4
"""Rows of nodes or pods that are shown in any case."""

OF_BUDGETS = frozenset(
    (WarningKind.MULTIPLE_BUDGETS, WarningKind.BUDGET_NOT_COUNTED, WarningKind.BUDGET_ALLOWS_NOTHING)
)
"""They say again why a node is never drained."""


def joined_warnings(forecast: DrainForecast, *, is_whole: bool = False) -> tuple[PlanWarning, ...]:
    """Warnings with their nodes, each cause once; of many causes of one kind only the first, unless `is_whole`."""
    alike: dict[tuple[WarningKind, str], list[tuple[str, PlanWarning]]] = {}
    for node in forecast.nodes:
        is_caused = any(warning.cause for warning in node.warnings)
        for warning in node.warnings:
            if not (is_caused and warning.kind in OF_BUDGETS):
                alike.setdefault((warning.kind, warning.cause or warning.message), []).append((node.name, warning))
    of_kind: dict[WarningKind, list[PlanWarning]] = {}
    for (kind, cause), found in alike.items():
        of_kind.setdefault(kind, []).append(_joined(cause, found, len(found) if is_whole else FEW))
    shown: list[PlanWarning] = []
    for kind, warnings in of_kind.items():
        if is_whole or kind.is_blocking or len(warnings) <= FEW:
            shown += warnings
        else:
            first = warnings[0]
            message = f"{first.message}; and {len(warnings) - 1} more of this kind"
            shown.append(msgspec.structs.replace(first, message=message))
    return by_importance(shown)


def _joined(cause: str, found: Sequence[tuple[str, PlanWarning]], most: int) -> PlanWarning:
    """One warning for all that have the same cause."""
    nodes, first = listed(list(dict.fromkeys(name for name, _ in found)), most), found[0][1]
    message = f"{nodes}: {first.message}"
    if first.cause:
        pods = [pod for _, warning in found for pod in warning.objects]
        which = pods[0] if len(pods) == 1 else counted(len(pods), "pod")
        ends = "never ends" if first.kind is WarningKind.NEVER_DRAINS else "ends only if something changes"
        message = f"{ends}: {which} on {nodes}: {cause}"
    return msgspec.structs.replace(first, message=message)


class BriefPlan(msgspec.Struct, frozen=True):
    """A forecast in at most MOST_LINES lines, with the line that names the cluster."""

    text: PlanText
    forecast: DrainForecast

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole, most = plan_table(self.text), MOST_LINES - 1
        page = _Page(console, options)
        if page.height(whole) <= most:
            yield whole
            return
        head, foot = Group(*title(self.text), Text()), Group(*self._foot())
        room = most - page.height(head) - page.height(foot)
        yield head
        yield from self._nodes(page, room) if self.text.summary else self._node(page, room)
        yield foot

    def _nodes(self, page: _Page, room: int) -> Iterator[RenderableType]:
        """The nodes that never drain first, and the warnings, which get half of the lines, or what the nodes leave."""
        rows = sorted(self.text.summary, key=lambda node: (not is_never(node), not node.kinds))
        drained = Text(self.text.all_drained, "bold")
        room -= page.height(drained) + 1
        warnings = page.warnings(joined_warnings(self.forecast), max(room // 2, room - len(rows) - 1))
        yield from page.cut(summary_table(rows), room - page.height(warnings), "nodes")
        yield drained
        if warnings.renderables:
            yield Text()
            yield warnings

    def _node(self, page: _Page, room: int) -> Iterator[RenderableType]:
        node = self.text.nodes[0]
        head = Group(*node_head(msgspec.structs.replace(node, warnings=())))
        room -= page.height(head) + 1
        warnings = page.warnings(node.warnings, room // 2)
        yield head
        yield warnings
        if (table := pod_table(node)) is not None:
            yield Text()
            yield from page.cut(table, room - page.height(warnings), "lines")

    def _foot(self) -> Iterator[RenderableType]:
        budgets = self.text.budgets
        yield Text()
        if budgets:
            yield budget_table(budgets[:FEW_BUDGETS])
        if len(budgets) > FEW_BUDGETS:
            yield Text(f"… and {counted(len(budgets) - FEW_BUDGETS, 'more budget')}", "dim")
        if budgets:
            yield Text()
        yield Text("Nothing was changed. -o wide shows everything, -v also every pod and budget.", "dim")


class _Page(msgspec.Struct, frozen=True):
    """Fits text into a number of terminal lines."""

    console: Console
    options: ConsoleOptions

    def height(self, what: RenderableType) -> int:
        """Number of lines that it takes."""
        return len(self.console.render_lines(what, self.options, pad=False))

    def warnings(self, warnings: Sequence[PlanWarning], room: int) -> Group:
        """The first warnings that fit into `room` lines; the others are counted."""
        shown = [marked(each.message, each.remedy, is_blocking=each.kind.is_blocking) for each in warnings]
        lines = [self.height(each) for each in shown]
        while sum(lines) + (len(lines) < len(warnings)) > room and lines:
            lines.pop()
        more = len(warnings) - len(lines)
        rest = [Text(f"  … and {counted(more, 'more warning')}", "dim")] if more else []
        return Group(*shown[: len(lines)], *rest)

    def cut(self, table: Table, room: int, what: str) -> Iterator[RenderableType]:
        """The first rows that fit into `room` lines, but at least some; the others are counted."""
        rows = list(table.rows)
        while len(rows) > LEAST_ROWS and self.height(_with_rows(table, rows)) > room - (len(rows) < len(table.rows)):
            rows.pop()
        yield _with_rows(table, rows)
        if more := len(table.rows) - len(rows):
            yield Text(f"… and {more} more {what}", "dim")


def _with_rows(table: Table, rows: Sequence[Row]) -> Table:
    return msgspec.structs.replace(table, rows=rows)
