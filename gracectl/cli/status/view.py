"""Views of the status of nodes over time: a live table on a terminal, lines without one, or JSON lines."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import msgspec
from rich.console import Console

from gracectl.cli.console import Screen
from gracectl.cli.output import command, echo
from gracectl.cli.progress import cause_text, cause_title, progress_text
from gracectl.cli.report import to_json, to_yaml
from gracectl.cli.status import messages
from gracectl.cli.status.follow import StatusFrame
from gracectl.cli.status.report import status_report
from gracectl.cli.status.table import status_table
from gracectl.inspect.progress import Progress
from gracectl.inspect.status import NodeStatus
from gracectl.model.times import format_time
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
        """Each cause once, and how much is done, if that is more than the lines about the nodes have said."""
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
        timeless = repr(([*map(_timeless, frame.nodes)], frame.claims, frame.terminated, error))
        if timeless != self._last:
            self._last = timeless
            report = status_report(frame, self._settings)
            echo(f"---\n{to_yaml(report)}" if self._output == "yaml" else to_json(report, indent=0))
