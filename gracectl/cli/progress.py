"""Progress of nodes that are terminated or drained, as every command shows it: bars on a terminal, else one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from gracectl.cli.console import indented, marked
from gracectl.cli.format import age_text, elapsed, elapsed_answer, joined, total_text
from gracectl.cli.output import command
from gracectl.inspect.progress import BlockingCause, Progress
from gracectl.model.times import format_time
from gracectl.policy.answers import Answer, Never, Unknown, Window
from gracectl.policy.explain import counted, listed
from gracectl.policy.plan import Blocker, Outcome, PodPlan

FEW_CAUSES = 6
"""Causes that are shown; the others are counted."""

FEW_REMEDIES = 3
"""Causes that come with their remedies, if they never end."""

BAR = 20
"""Columns."""


def progress_text(progress: Progress, at: float) -> str:
    """`4 of 10 nodes, 42 of 60 pods; 1:20 elapsed, about 0:40 left`."""
    nodes = f"{progress.nodes_done} of {counted(progress.nodes, 'node')}"
    pods = f"{progress.pods_done} of {counted(progress.pods, 'pod')}"
    times = ", ".join(filter(None, (_elapsed(progress, at), remaining_text(progress, at))))
    return f"{nodes}, {pods}; {times}"


def progress_lines(progress: Progress, at: float) -> Iterator[RenderableType]:
    """The bars, and a line for each cause, in a third of the terminal's height."""
    yield _Bars(progress, at)
    yield _Causes(progress.causes, at)


def cause_lines(progress: Progress, at: float) -> Iterator[RenderableType]:
    """A line for each cause; of many, only some."""
    shown = progress.causes[:FEW_CAUSES]
    for number, cause in enumerate(shown):
        yield _cause_line(cause, at, with_remedy=number < FEW_REMEDIES)
    if more := len(progress.causes) - len(shown):
        yield _more_causes(more)


class _Causes(msgspec.Struct, frozen=True):
    """Causes that fit into a third of the terminal; the first ones have remedies."""

    causes: Sequence[BlockingCause]
    at: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room, shown = options.max_height // 3, 0
        for cause in self.causes[:FEW_CAUSES]:
            for with_remedy in (True, False):
                line = _cause_line(cause, self.at, with_remedy=with_remedy and shown < FEW_REMEDIES)
                height = len(console.render_lines(line, options, pad=False))
                if height <= room:
                    break
            if height > room and shown:
                break
            yield line
            room, shown = room - height, shown + 1
        if more := len(self.causes) - shown:
            yield _more_causes(more)


def _cause_line(cause: BlockingCause, at: float, *, with_remedy: bool) -> RenderableType:
    if cause.example is None:
        return indented(Text(cause_text(cause, at)))
    remedy = cause.remedy if cause.is_never and with_remedy else ""
    return marked(cause_text(cause, at), remedy, is_blocking=cause.is_never)


def _more_causes(number: int) -> RenderableType:
    causes = "cause" if number == 1 else "causes"
    return Text(f"  … and {number} more {causes}: {command('status', '-o', 'json')}", "dim")


class _Bars(msgspec.Struct, frozen=True):
    progress: Progress
    at: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        progress = self.progress
        full, empty = ("#", ".") if options.ascii_only else ("█", "░")
        width = len(str(max(progress.nodes, progress.pods)))
        lines = (
            ("nodes", progress.nodes_done, progress.nodes, _elapsed(progress, self.at)),
            ("pods", progress.pods_done, progress.pods, remaining_text(progress, self.at)),
        )
        for what, done, of, text in lines:
            filled = BAR * done // of if of else 0
            line = Text(f"{what:5}  ", no_wrap=True, overflow="ellipsis")
            line.append(full * filled, "green").append(empty * (BAR - filled), "dim")
            yield line.append(f"  {done:{width}} of {of:<{width}}  {text}".rstrip())


def _elapsed(progress: Progress, at: float) -> str:
    return f"{elapsed(max(at - progress.began, 0.0))} elapsed"


def remaining_text(progress: Progress, at: float) -> str:
    """`about 0:05-0:40 left`, `left: never for 1 node, 0:05-0:40 for 5 nodes`, with the age of an old forecast."""
    text, age = total_text(progress.total, at), age_text(progress.forecast_at, at)
    is_known = isinstance(progress.total.drained, Window) and not progress.total.never
    return f"{f'about {text} left' if is_known else f'left: {text}'}{age}" if text else ""


def left_text(answer: Answer | None, at: float) -> str:
    """`about 0:40 left`, `about 0:05-0:40 left`, `unknown` with the reason, or `never`; empty without a forecast."""
    match answer:
        case None:
            return ""
        case Unknown(missing):
            return f"unknown {listed(missing, 1)}"
        case Never():
            return elapsed_answer(answer, at)
    return f"about {elapsed_answer(answer, at)} left"


def cause_text(cause: BlockingCause, at: float) -> str:
    """`budget shop/web: 14 pods on 6 nodes, 1 at a time, about 0:40 left`."""
    if cause.example is None:
        waits_for = f": {cause.waits_for}" if cause.nodes == 1 and cause.waits_for else ""
        return f"step {cause.step}: {counted(cause.nodes, 'node')}{waits_for}"
    entry = cause.example.entry
    pods = f"{counted(cause.pods, 'pod')} on {counted(cause.nodes, 'node')}"
    if cause.pods == 1:
        pods = f"{entry.pod.full_name} on {entry.pod.node_name}"
    at_once = f"{cause.at_once} at a time" if cause.at_once and not cause.is_never else ""
    title = cause_title(entry, at)
    if cause.at_once == 0:
        title = f"{title}, which never allows a disruption"
    return f"{title}: {', '.join(filter(None, (pods, at_once, left_text(cause.left, at))))}"


def cause_title(entry: PodPlan, at: float) -> str:
    """Cause that blocks a pod, without details of the pod: `budget shop/web`, `protected until 14:05 UTC`."""
    budgets = joined(["/".join(key) for key in entry.budgets]) if entry.budgets else ""
    match entry.blocker:
        case Blocker.UNDECODABLE:
            return "cannot be decoded"
        case Blocker.VOLUME:
            return "volumes of drained pods, still attached"
        case Blocker.UNOBSERVED:
            return f"budget {budgets}, not counted yet"
        case Blocker.MISCONFIGURATION if len(entry.budgets) > 1:
            return f"two budgets, {budgets}"
        case Blocker.MISCONFIGURATION:
            return f"budget {budgets}, which cannot be counted"
        case Blocker.BUDGET:
            return f"budget {budgets}"
        case Blocker.PROTECTION if entry.protection is not None:
            if entry.protection.until is None:
                return "protected indefinitely" if entry.protection.is_valid else "protected by an invalid value"
            return f"protected until {_clock(entry.protection.until, at)}"
    return "deleted for the deadline" if entry.outcome is Outcome.DELETE else entry.reason


def _clock(instant: float, at: float) -> str:
    """`14:05 UTC`; with its date on another day."""
    date, _, clock = format_time(instant).partition("T")
    return f"{'' if format_time(at).startswith(date) else f'{date} '}{clock[:5]} UTC"
