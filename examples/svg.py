"""Plain SVG on a card of its own: it reads the same on a light page and on a dark one. Fonts are the reader's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, MARGIN = 860, 20
CARD, FRAME, INK, FAINT, GRID = "#ffffff", "#c5ccd3", "#1f2a35", "#5b6875", "#e3e7eb"
BLUE, AMBER, GREY, ALARM = "#3b77b5", "#e8a33d", "#d3d9df", "#b3261e"


class Font(NamedTuple):
    """How words look, and on which side of their place they stand."""

    color: str = INK
    size: int = 13
    weight: str = "normal"
    anchor: str = "start"


PLAIN, BOLD, SMALL = Font(), Font(weight="bold"), Font(size=12)


def opening(height: int, title: str) -> Iterator[str]:
    """The beginning of the document: its title, and the card."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13">'
    )
    yield f"<title>{escape(title)}</title>"
    card = f'x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"'
    yield f'<rect {card} fill="{CARD}" stroke="{FRAME}"/>'


def legend(y: int, *entries: tuple[str, str, int]) -> Iterator[str]:
    """What colours mean: color, words, and the width of both."""
    x = MARGIN
    for color, text, width in entries:
        yield box(x, y + 4, 14, 14, color)
        yield label(x + 21, y + 16, text, SMALL)
        x += width


def box(x: float, y: float, width: float, height: float, fill: str) -> str:
    """A bar."""
    size = f'x="{x:g}" y="{y:g}" width="{max(width, 0):g}" height="{height:g}"'
    return f'<rect {size} rx="2" fill="{fill}"/>'


def line(x: float, top: float, bottom: float, color: str, *, dash: str = "none") -> str:
    """A line from top to bottom."""
    return f'<path d="M{x:g} {top:g}V{bottom:g}" stroke="{color}" stroke-dasharray="{dash}"/>'


def label(x: float, y: float, text: str, font: Font = PLAIN) -> str:
    """One line of text; `y` is its foot."""
    style = f'fill="{font.color}" font-size="{font.size}" font-weight="{font.weight}" text-anchor="{font.anchor}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(text)}</text>'
