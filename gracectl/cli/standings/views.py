"""How nodes that are under way are shown while somebody watches: a live table on a terminal, lines where there is none,
JSON lines for machines.

A view is given scene after scene and decides what of it is worth telling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from gracectl.cli.paper import text_of
from gracectl.cli.standings import words
from gracectl.cli.standings.follow import Scene
from gracectl.cli.standings.report import as_line, report
from gracectl.cli.standings.table import table
from gracectl.model.times import format_time
from gracectl.termination.standing import NodeStanding

NEWS_EVERY_SECONDS = 10.0
"""A node whose pods leave, but whose step stays the same, is worth a line this often."""

Drawn = Callable[[Scene, int], RenderableType]


class View(Protocol):
    """Shows scenes while they happen."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def showing(self) -> AbstractContextManager[None]:
        """The show is on inside."""

    def show(self, scene: Scene) -> None:
        """The scene as it is now."""


def view_for(console: Console, *, verbose: bool = False, drops_empty: bool = False) -> View:
    """The one that fits what the console prints to. `verbose`: each pod for itself. `drops_empty`: a table without
    nodes, if it is the last one, is taken away: all there was to say has been said."""
    if console.is_terminal:
        return LiveView(console, lambda scene, width: table(scene, width, verbose=verbose), drops_empty=drops_empty)
    return PlainView(console)


class LiveView:
    """A table that stands still and changes, as large as the terminal; what does not fit is counted."""

    def __init__(self, console: Console, draw: Drawn, *, drops_empty: bool = False) -> None:
        self._console = console
        self._draw = draw
        self._drops_empty = drops_empty
        self._live: Live | None = None

    def say(self, text: str) -> None:
        """See View."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def showing(self) -> Iterator[None]:
        """See View."""
        with Live(console=self._console, auto_refresh=False, vertical_overflow="crop") as self._live:
            yield

    def show(self, scene: Scene) -> None:
        """See View."""
        if self._live is not None:
            self._live.transient = self._drops_empty and not scene.nodes and scene.interruption is None
            self._live.update(self._fitted(scene), refresh=True)

    def _fitted(self, scene: Scene) -> RenderableType:
        """Lines without spaces behind them, and an empty one for the cursor: the `^C` that a terminal shows where
        somebody presses it must not break a line, or the picture would be one line lower than it is thought to be."""
        drawn = self._console.render_lines(self._draw(scene, self._console.width), pad=False)
        lines = [Text.assemble(*((part.text, part.style or "") for part in line)) for line in drawn]
        height = max(self._console.height - 2, 2)
        if len(lines) > height:
            more = f"… and {len(lines) - height + 1} more lines: a taller terminal, fewer nodes, or -o json shows them"
            lines = [*lines[: height - 1], Text(more, "dim", no_wrap=True, overflow="ellipsis")]
        for line in lines:
            line.rstrip()
        return Group(*lines, Text())


class PlainView:
    """One line for each change that is worth telling."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: dict[str, tuple[float, NodeStanding]] = {}  # by uid, and when
        self._gone = 0
        self._is_interrupted = False

    def say(self, text: str) -> None:
        """See View."""
        click.echo(text)

    def showing(self) -> AbstractContextManager[None]:
        """See View."""
        return nullcontext()

    def show(self, scene: Scene) -> None:
        """See View."""
        if scene.interruption is not None and not self._is_interrupted:
            self._tell(scene, words.of_interruption(scene.interruption, scene.at))
        elif scene.interruption is None and self._is_interrupted:
            self._tell(scene, "the connection is back")
        self._is_interrupted = scene.interruption is not None
        for node in scene.nodes:
            if self._is_news(node, scene.at):
                self._told[node.uid] = (scene.at, node)
                self._tell(scene, f"{node.name}: {self._news(node, scene.at)}")
        for gone in scene.gone[self._gone :]:
            self._tell(scene, words.of_gone(gone))
        self._gone = len(scene.gone)

    def _tell(self, scene: Scene, text: str) -> None:
        click.echo(f"{format_time(scene.at)}  {text}")

    def _is_news(self, node: NodeStanding, at: float) -> bool:
        if node.uid not in self._told:
            return True
        told_at, told = self._told[node.uid]
        if (told.state, told.step, told.obstacles) != (node.state, node.step, node.obstacles):
            return True
        is_due = at >= told_at + NEWS_EVERY_SECONDS
        return is_due and (words.left_of(told), told.waits_for) != (words.left_of(node), node.waits_for)

    def _news(self, node: NodeStanding, at: float) -> str:
        headline, reason = words.described(node, at, verbose=False).headline, words.waits_for(node)
        return headline if not reason or reason in headline else f"{headline}: {reason}"


class JsonView:
    """One object a line, whenever something has changed but the time. `settings`: the name of their file."""

    def __init__(self, settings: str | None) -> None:
        self._settings = settings
        self._told = ""

    def say(self, text: str) -> None:
        """See View. For people: beside the objects."""
        click.echo(text, err=True)

    def showing(self) -> AbstractContextManager[None]:
        """See View."""
        return nullcontext()

    def show(self, scene: Scene) -> None:
        """See View. Of what has not been seen, nothing is said."""
        if not scene.is_complete:
            return
        timeless = repr((scene.nodes, scene.claims, scene.gone, scene.interruption))
        if timeless != self._told:
            self._told = timeless
            click.echo(as_line(report(scene, self._settings)))


def printed(console: Console, scene: Scene, *, verbose: bool) -> str:
    """A scene as text, for who looks once."""
    return text_of(console, table(scene, console.width, verbose=verbose))
