"""The status of nodes as tables and sentences, and over time: a live table, lines without a terminal, or JSON lines."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import msgspec
from rich.console import Console, Group, RenderableType
from rich.text import Text

from gracectl.cli.console import INDENT, Cut, Row, Screen, Table, helpful, indented, marked
from gracectl.cli.format import cluster_text, elapsed
from gracectl.cli.output import command, echo
from gracectl.cli.progress import cause_lines, cause_text, cause_title, progress_lines, progress_text, remaining_text
from gracectl.cli.report import to_json, to_yaml
from gracectl.cli.status import messages
from gracectl.cli.status.follow import StatusFrame
from gracectl.cli.status.report import status_report
from gracectl.inspect.draining import PodStatus
from gracectl.inspect.progress import Progress
from gracectl.inspect.status import NodePhase, NodeStatus
from gracectl.model.times import format_time
from gracectl.policy.freeze import Freeze
from gracectl.policy.warnings import WarningKind

LINE_SECONDS = 10.0
"""Between two lines about a node while pods leave and its step stays the same."""


class View(Protocol):
    """Shows frames as they come."""

    def echo(self, text: str) -> None:
        """Print a line that stays."""

    def showing(self) -> AbstractContextManager[None]:
        """The view is on inside."""

    def show(self, frame: StatusFrame) -> None:
        """Show the newest frame."""


class StatusView:
    """A table that is redrawn on a terminal; without one, a line for each change that matters.

    `verbose`: all pods. `drops_empty`: a last table without nodes is removed in the end. `is_live` False: lines, also
    on a terminal.
    """

    def __init__(
        self, console: Console, *, verbose: bool = False, drops_empty: bool = False, is_live: bool = True
    ) -> None:
        self._screen = Screen(console, command("status"), is_live=is_live)
        self._verbose = verbose
        self._drops_empty = drops_empty
        self._printed: dict[str, tuple[float, NodeStatus]] = {}  # by uid, and when
        self._terminated = 0
        self._causes: set[str] = set()
        self._progress: tuple[float, tuple[int, int]] = (-math.inf, (-1, -1))  # printed when, and nodes and pods done
        self._is_over = False
        self._is_connected = True
        self._freeze: Freeze | None = None

    def echo(self, text: str) -> None:
        """See View."""
        if self._screen.is_live:
            self._screen.echo(text)
        else:
            echo(text)

    def showing(self) -> AbstractContextManager[None]:
        """See View."""
        return self._screen.showing()

    def show(self, frame: StatusFrame) -> None:
        """See View."""
        if self._screen.is_live:
            is_empty = not frame.nodes and frame.connection_loss is None
            self._print_end(frame)
            drawn = status_table(frame, verbose=self._verbose, is_live=True)
            self._screen.show(drawn, leaves_nothing=self._drops_empty and is_empty)
        else:
            self._print_changes(frame)

    def _print_end(self, frame: StatusFrame) -> None:
        """One line that stays when the last of several nodes is done, and the table goes."""
        progress = frame.progress
        is_over = progress is not None and progress.is_over
        if self._drops_empty and progress is not None and progress.nodes > 1 and is_over and not self._is_over:
            self._screen.echo(progress_text(progress, frame.at))
        self._is_over = is_over

    def _print_changes(self, frame: StatusFrame) -> None:
        if frame.connection_loss is not None and self._is_connected:
            self._print(frame, messages.connection_loss_text(frame.connection_loss, frame.at + frame.age))
        elif frame.connection_loss is None and not self._is_connected:
            self._print(frame, "connected again")
        self._is_connected = frame.connection_loss is None
        if frame.freeze != self._freeze:
            self._print(frame, "no longer frozen" if frame.freeze is None else messages.freeze_text(frame.freeze))
        self._freeze = frame.freeze
        for node in frame.nodes:
            if self._has_changed(node, frame.at):
                self._printed[node.uid] = (frame.at, node)
                self._print(frame, f"{node.name}: {messages.status_line(node, frame.at)}")
        for terminated in frame.terminated[self._terminated :]:
            self._print(frame, messages.terminated_text(terminated))
        self._terminated = len(frame.terminated)
        if frame.progress is not None:
            self._print_progress(frame, frame.progress)

    def _print_progress(self, frame: StatusFrame, progress: Progress) -> None:
        """Print each cause once, and the progress unless the lines about the nodes show it."""
        for cause in progress.causes:
            key = cause.step if cause.example is None else cause_title(cause.example.entry, frame.at)
            if key not in self._causes and progress.nodes > 1:
                helps = cause.remedy if cause.is_never else ""
                self._print(frame, "; ".join(filter(None, (cause_text(cause, frame.at), helps))))
            self._causes.add(key)
        done = (progress.nodes_done, progress.pods_done)
        at, last = self._progress
        is_due = frame.at >= at + LINE_SECONDS or (progress.is_over and not self._is_over)
        if progress.nodes > 1 and done != last and (is_due or done[0] != last[0]):
            self._print(frame, progress_text(progress, frame.at))
            self._progress = (frame.at, done)
        self._is_over = progress.is_over

    def _print(self, frame: StatusFrame, text: str) -> None:
        echo(f"{format_time(frame.at + frame.age)}  {text}")

    def _has_changed(self, node: NodeStatus, at: float) -> bool:
        if node.uid not in self._printed:
            return True
        printed_at, last = self._printed[node.uid]
        if _lasting(last) != _lasting(node):
            return True
        is_due = at >= printed_at + LINE_SECONDS
        return is_due and (messages.pods_left(last), last.waits_for) != (messages.pods_left(node), node.waits_for)


class SilentView:
    """Shows nothing."""

    def echo(self, text: str) -> None:
        """See View."""

    def showing(self) -> AbstractContextManager[None]:
        """See View."""
        return nullcontext()

    def show(self, frame: StatusFrame) -> None:
        """See View."""


def _lasting(node: NodeStatus) -> tuple[object, ...]:
    """Changes that are printed immediately; the set of blocked pods changes whenever a pod leaves."""
    warnings = [each for each in node.warnings if each.kind is not WarningKind.NEVER_DRAINS]
    return node.state, node.step, node.pods is None, node.is_never_drained, warnings


def _timeless(node: NodeStatus) -> NodeStatus:
    """The status, whenever its forecast was made."""
    if node.forecast is None:
        return node
    return msgspec.structs.replace(node, forecast=msgspec.structs.replace(node.forecast, at=0.0))


class ObjectView:
    """One object at each change of more than the time: JSON on a line, or a YAML document.

    `settings`: where they are from.
    """

    def __init__(self, settings: str, output: str = "json") -> None:
        self._settings = settings
        self._output = output
        self._last = ""

    def echo(self, text: str) -> None:
        """See View. Prints to stderr, since stdout has the objects."""
        echo(text, err=True)

    def showing(self) -> AbstractContextManager[None]:
        """See View."""
        return nullcontext()

    def show(self, frame: StatusFrame) -> None:
        """See View. An incomplete frame is left out."""
        if not frame.is_complete:
            return
        error = frame.connection_loss and frame.connection_loss.error
        timeless = repr(([*map(_timeless, frame.nodes)], frame.claims, frame.terminated, frame.freeze, error))
        if timeless != self._last:
            self._last = timeless
            report = status_report(frame, self._settings)
            echo(f"---\n{to_yaml(report)}" if self._output == "yaml" else to_json(report, indent=0))


STYLES = {"blocked": "red", "protected": "yellow", "replacing": "yellow", "deleted": "red", "waiting": "dim"}
"""By the state of a pod."""


def status_table(
    frame: StatusFrame, *, verbose: bool = False, is_live: bool = False, is_wide: bool = False
) -> RenderableType:
    """All of a frame. `verbose`: each pod. `is_live`: it is redrawn: with progress, and as many nodes as fit.

    `is_wide`: with the traces.
    """
    is_long = len(frame.nodes) > messages.FEW_NODES
    head, foot = list(_head(frame, verbose, is_live)), list(_foot(frame, is_live))
    if len(frame.nodes) > 1:
        head.append(Text())
    if is_long and not verbose:
        summary = _summary(frame, messages.most_urgent(frame.nodes) if is_live else frame.nodes, is_wide=is_wide)
        return Cut(Group(*head), summary, Group(*foot), command("status")) if is_live else Group(*head, summary, *foot)
    if len(frame.nodes) > 1:
        head.append(_summary(frame, frame.nodes, is_wide=is_wide))
    elif is_wide:
        head += [indented(Text(f"trace {messages.trace_of(node, frame)}")) for node in frame.nodes if node.trace_id]
    for node in frame.nodes:
        if len(frame.nodes) == 1 or node.pods or node.warnings or node.pods is None or node.pending is not None:
            head += [Text(), *_node(node, frame.at, verbose)]
    return Group(*head, *foot)


def _head(frame: StatusFrame, verbose: bool, is_live: bool) -> Iterator[RenderableType]:
    """The most important lines; a terminal may have no room for all nodes."""
    if is_live:
        yield Text(cluster_text(frame.cluster))
    if frame.connection_loss is not None:
        yield Text(f"! {messages.connection_loss_text(frame.connection_loss, frame.at + frame.age)}", "bold red")
    if frame.freeze is not None:
        yield Text(f"! {messages.freeze_text(frame.freeze)}", "yellow")
    yield Text(messages.title(frame))
    text = "" if frame.progress is None else remaining_text(frame.progress, frame.at)
    if text and not is_live and len(frame.nodes) > 1:
        yield Text(text)
    if is_live and frame.progress is not None:
        yield from progress_lines(frame.progress, frame.at)
    elif not is_live and len(frame.nodes) > messages.FEW_NODES and not verbose:
        if frame.progress is not None and frame.progress.causes:
            yield Text()
            yield from cause_lines(frame.progress, frame.at)
        yield Text("  -v, or the name of a node, shows more", "dim")


def _foot(frame: StatusFrame, is_live: bool) -> Iterator[RenderableType]:
    if messages.is_unlimited(frame) and not is_live:
        yield Text(f"\n! {messages.UNLIMITED}", "yellow")
    if frame.claims or frame.terminated:
        yield Text()
    for claim in frame.claims:
        yield Text(messages.claim_text(claim, frame.at))
    if frame.terminated:
        yield Text(messages.all_terminated_text(frame.terminated), "green")


def _summary(frame: StatusFrame, nodes: Sequence[NodeStatus], *, is_wide: bool) -> Table:
    """One line a node: the rest of a reason is in the lines about the node itself."""
    rows = []
    for node in nodes:
        is_blocked = any(each.kind.is_blocking for each in node.warnings)
        step = Text(messages.step_of(node), "red" if is_blocked else "green" if node.is_done else "cyan")
        left = Text(messages.left_of(node, frame.at), "red" if node.is_never_drained else "")
        reason = Text(messages.waits_for(node), "red" if is_blocked else "", no_wrap=True, overflow="ellipsis")
        age, pods, deadline = (
            messages.age_of(node, frame.at),
            messages.pods_left(node),
            messages.deadline_in(node, frame.at),
        )
        trace = [messages.trace_of(node, frame)] if is_wide else []
        rows.append(Row([node.name, step, age, pods, left, deadline, *trace, reason]))
    headers = ("node", "step", "age", "pods", "left", "deadline", *(["trace"] if is_wide else []), "waiting for")
    numbers = frozenset({"age", "pods", "left", "deadline"})
    return Table(headers, rows, numbers, has_message=True, droppable=("deadline", "age", "waiting for"))


def _node(node: NodeStatus, at: float, verbose: bool) -> Iterator[RenderableType]:
    headline = messages.headline(node, at)
    yield Text.assemble((f"{node.name}: ", "bold"), (headline, "" if node.state is NodePhase.IDLE else "bold"))
    for fact in filter(None, (messages.deadline_text(node, at), messages.forecast_text(node, at))):
        yield indented(Text(fact))
    yield from (marked(each.message, each.remedy, is_blocking=each.kind.is_blocking) for each in node.warnings)
    shown = messages.shown_pods(node, verbose=verbose)
    if shown:
        yield Text()
        yield _pods(shown, messages.with_remedies(node, shown), at)
    if others := messages.others_text(node, shown):
        yield indented(Text(others, "dim"))


def _pods(pods: Sequence[PodStatus], with_remedies: Collection[str], at: float) -> Table:
    rows = [
        Row(
            [
                pod.entry.pod.full_name,
                Text(state := messages.pod_state(pod), STYLES.get(state, "")),
                elapsed(max(at - pod.since, 0.0)),
                messages.pod_reason(pod, at),
            ],
            [helpful(pod.remedy)] if pod.remedy and pod.entry.pod.uid in with_remedies else (),
        )
        for pod in pods
    ]
    return Table(
        ("pod", "state", "age", "reason"), rows, frozenset({"age"}), has_message=True, indent=INDENT, droppable=("age",)
    )
