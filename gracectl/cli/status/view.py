"""How nodes that are under way are shown while somebody watches: a live table on a terminal, lines where there is none,
JSON lines for machines.

A view is given scene after scene and decides what of it is worth telling.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from rich.console import Console

from gracectl.cli.console import Screen
from gracectl.cli.output import say
from gracectl.cli.status import messages as words
from gracectl.cli.status.follow import Scene
from gracectl.cli.status.report import as_line, report
from gracectl.cli.status.table import table
from gracectl.inspect.status import NodeStatus
from gracectl.model.times import format_time

NEWS_EVERY_SECONDS = 10.0
"""A node whose pods leave, but whose step stays the same, is worth a line this often."""


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
        return LiveView(console, verbose=verbose, drops_empty=drops_empty)
    return PlainView(console)


class LiveView:
    """A table that stands still and changes. `drops_empty`: see `view_for`."""

    def __init__(self, console: Console, *, verbose: bool = False, drops_empty: bool = False) -> None:
        self._screen = Screen(console, "a taller terminal, fewer nodes, or -o json shows them")
        self._console = console
        self._verbose = verbose
        self._drops_empty = drops_empty

    def say(self, text: str) -> None:
        """See View."""
        self._screen.say(text)

    def showing(self) -> AbstractContextManager[None]:
        """See View."""
        return self._screen.showing()

    def show(self, scene: Scene) -> None:
        """See View."""
        is_empty = not scene.nodes and scene.interruption is None
        drawn = table(scene, self._console.width, verbose=self._verbose)
        self._screen.show(drawn, leaves_nothing=self._drops_empty and is_empty)


class PlainView:
    """One line for each change that is worth telling."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: dict[str, tuple[float, NodeStatus]] = {}  # by uid, and when
        self._gone = 0
        self._is_interrupted = False

    def say(self, text: str) -> None:
        """See View."""
        say(text)

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
        say(f"{format_time(scene.at)}  {text}")

    def _is_news(self, node: NodeStatus, at: float) -> bool:
        if node.uid not in self._told:
            return True
        told_at, told = self._told[node.uid]
        if (told.state, told.step, told.obstacles) != (node.state, node.step, node.obstacles):
            return True
        is_due = at >= told_at + NEWS_EVERY_SECONDS
        return is_due and (words.left_of(told), told.waits_for) != (words.left_of(node), node.waits_for)

    def _news(self, node: NodeStatus, at: float) -> str:
        headline, reason = words.described(node, at, verbose=False).headline, words.waits_for(node)
        return headline if not reason or reason in headline else f"{headline}: {reason}"


class JsonView:
    """One object a line, whenever something has changed but the time. `settings`: the name of their file."""

    def __init__(self, settings: str | None) -> None:
        self._settings = settings
        self._told = ""

    def say(self, text: str) -> None:
        """See View. For people: beside the objects."""
        say(text, err=True)

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
            say(as_line(report(scene, self._settings)))
