"""A picture in a terminal that stands still and changes while something happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

LEAST_HEIGHT = 2


class Screen:
    """As large as the terminal: of what does not fit the lines are counted, with `hint` at how to see them."""

    def __init__(self, console: Console, hint: str) -> None:
        self._console = console
        self._hint = hint
        self._live: Live | None = None

    def say(self, text: str) -> None:
        """A line that stays, above the picture."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def showing(self) -> Iterator[None]:
        """The picture is on inside."""
        with Live(console=self._console, auto_refresh=False, vertical_overflow="crop") as self._live:
            yield

    def show(self, picture: RenderableType, *, leaves_nothing: bool = False) -> None:
        """In the place of the one before. `leaves_nothing`: if it is the last one, it is taken away in the end."""
        if self._live is not None:
            self._live.transient = leaves_nothing
            self._live.update(self.fitted(picture), refresh=True)

    def fitted(self, picture: RenderableType) -> RenderableType:
        """Lines without spaces behind them, and an empty one for the cursor: the `^C` that a terminal shows where
        somebody presses it must not break a line, or the picture would be one line lower than it is thought to be."""
        drawn = self._console.render_lines(picture, pad=False)
        lines = [Text.assemble(*((part.text, part.style or "") for part in line)) for line in drawn]
        height = max(self._console.height - 2, LEAST_HEIGHT)
        if len(lines) > height:
            more = f"… and {len(lines) - height + 1} more lines: {self._hint}"
            lines = [*lines[: height - 1], Text(more, "dim", no_wrap=True, overflow="ellipsis")]
        for line in lines:
            line.rstrip()
        return Group(*lines, Text())
