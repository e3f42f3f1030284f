"""A rehearsal as a table, as wide as the terminal: names are folded where it is narrow, figures never."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gracectl.cli.agent.rehearsal import Logind, Rehearsed, grace_without, is_cut
from gracectl.cli.agent.warnings import cautions_of
from gracectl.cli.format import elapsed
from gracectl.cli.plan.messages import counted
from gracectl.cli.plan.table import GAP, INDENT, LEAST_NAME, marked
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
from gracectl.policy.explain import listed
from gracectl.policy.rehearsal import RehearsedPod, RehearsedRange

HEADS = ("pod", "priority", "grace", "told", "gone")
NEVER = "never"
TOO_LATE = "too late"

Row = tuple[Text, ...]


def table(told: Rehearsed, width: int) -> RenderableType:
    """All that is to be said, for so many columns."""
    return Group(*_parts(told, width))


def _parts(told: Rehearsed, width: int) -> Iterator[RenderableType]:
    yield Text(_title(told), "bold")
    for fact in _facts(told):
        yield Padding(Text(fact), (0, 0, 0, INDENT))
    for caution in cautions_of(told):
        yield marked(caution.message, is_grave=caution.kind.is_grave)
    yield Text()
    yield from _ranges(told, width)
    if told.rehearsal.ignored:
        yield Text()
        yield from _left_alone(told.rehearsal.ignored)
    yield Text()
    yield Text(_end(told))
    if any(each.pods for each in told.rehearsal.ranges):
        yield Text(_bound(told), "dim")


def _title(told: Rehearsed) -> str:
    number, available = len(told.rehearsal.ranges), told.rehearsal.available
    ranges = "1 range" if number == 1 else f"{number} ranges"
    short = "" if told.has_enough else f" of the {told.wanted:g} s that are wanted"
    seconds = f"{available:g} s ({elapsed(available)})"
    return f"{told.seen.node.name}: a shutdown waits up to {seconds}{short} for its pods, in {ranges}"


def _facts(told: Rehearsed) -> Iterator[str]:
    seen = told.seen
    yield f"as if it began now (0:00), {format_time(seen.now)} by the server's clock; nothing is changed"
    if told.logind is not None:
        yield from _of_logind(told.logind, told.wanted)
    if seen.deadline is not None:
        left = seen.deadline - seen.now
        when = f"in {elapsed(left)}" if left > 0 else "by now"
        yield f"the node is being terminated, and must have ended {when} ({format_time(seen.deadline)})"


def _of_logind(logind: Logind, wanted: float) -> Iterator[str]:
    if logind.delay is None:
        return
    if math.isinf(logind.delay):
        yield "logind waits for ever"
    else:
        raised = f"; an agent that runs raises that to {wanted:g} s, if it may" if logind.delay < wanted else ""
        yield f"logind waits up to {logind.delay:g} s now{raised}"


# -- ranges and their pods ---------------------------------------------------------------------------------------------


def _ranges(told: Rehearsed, width: int) -> Iterator[RenderableType]:
    ranges = told.rehearsal.ranges
    rows = [[_row(pod, told) for pod in each.pods] for each in ranges]
    whole = [tuple(Text(head, "bold") for head in HEADS), *(row for each in rows for row in each)]
    widths = _widths(whole, width)
    if len(whole) > 1:
        yield _lines(whole[:1], widths)
    for each, own in zip(ranges, rows, strict=True):
        yield Padding(_range(each), (0, 0, 0, INDENT))
        if own:
            yield _lines(own, widths)


def _range(told: RehearsedRange) -> Text:
    share = "" if told.period == told.wave.period else f" of {told.wave.period:g} s"
    name = f"{told.wave.name}: {told.period:g} s{share}, "
    if not told.pods:
        return Text(f"{name}skipped: no pods", "dim cyan")
    if told.begins is None or told.ends is None:
        return Text(f"{name}skipped: no time is left", "bold red")
    return Text(f"{name}from {elapsed(told.begins)} to {elapsed(told.ends)}", "bold cyan")


def _row(pod: RehearsedPod, told: Rehearsed) -> Row:
    is_in_time = told.is_in_time(pod)
    gone = elapsed(pod.ends) if is_in_time and pod.ends is not None else TOO_LATE
    return (
        Text("/".join(pod.pod.key)),
        Text(str(pod.pod.priority or 0)),
        _grace(pod),
        _told(pod),
        Text(gone, "" if is_in_time else "red"),
    )


def _grace(pod: RehearsedPod) -> Text:
    """What it is granted, and of how much if the shutdown takes some of it."""
    whole = grace_without(pod.pod)
    if pod.grace is not None:
        return Text(f"{pod.grace} s of {whole} s", "yellow") if is_cut(pod) else Text(f"{pod.grace} s")
    if pod.pod.deletion_timestamp is not None:
        return Text(f"{whole} s", "dim")
    return Text(f"none of {whole} s", "red")


def _told(pod: RehearsedPod) -> Text:
    if pod.at is not None:
        return Text(elapsed(pod.at))
    return Text(NEVER, "red") if pod.pod.deletion_timestamp is None else Text("already", "dim")


def _widths(rows: Sequence[Row], width: int) -> list[int]:
    """Of the columns: figures have all that they need, names what is left."""
    names, *figures = (max(len(cell.plain) for cell in column) for column in zip(*rows, strict=True))
    left = width - INDENT - sum(figures) - GAP * len(figures)
    return [max(min(names, left), LEAST_NAME), *figures]


def _lines(rows: Sequence[Row], widths: Sequence[int]) -> RenderableType:
    grid = Table.grid(padding=(0, GAP, 0, 0))
    for number, most in enumerate(widths):
        grid.add_column(width=most, overflow="fold", justify="right" if number else "left")
    for row in rows:
        grid.add_row(*row)
    return Padding(grid, (0, 0, 0, INDENT))


# -- what is said behind them ------------------------------------------------------------------------------------------


def _left_alone(passed_over: Sequence[tuple[Pod, str]]) -> Iterator[RenderableType]:
    by_reason: dict[str, list[str]] = {}
    for pod, reason in passed_over:
        by_reason.setdefault(reason, []).append("/".join(pod.key))
    for reason, pods in by_reason.items():
        yield Padding(Text(f"left alone: {listed(pods)} ({reason})", "dim"), (0, 0, 0, INDENT))


def _end(told: Rehearsed) -> str:
    pods = sum(len(each.pods) for each in told.rehearsal.ranges)
    if not pods:
        return "Over at once: there is no pod to wait for."
    return f"Over at the latest after {elapsed(told.rehearsal.over)}, for {counted(pods, 'pod')}."


def _bound(told: Rehearsed) -> str:
    """What that rests on."""
    slow = ""
    if told.rehearsal.over < told.rehearsal.available:
        slow = f" Whatever pods and servers do, the machine goes on after {elapsed(told.rehearsal.available)}."
    return (
        "This is an upper bound: each pod is taken to use all the grace that it is granted, and none to come. A range "
        f"begins when the last pod of the one before it is gone.{slow}"
    )
