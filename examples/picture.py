"""Histories as a picture: a bar for each pod and one for its replacement, over the same axis of time.

Plain SVG on a card of its own, so that it reads the same on a light page and on a dark one; the fonts are the reader's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple
from xml.sax.saxutils import escape

from examples.history import History, Leaver, Newcomer
from examples.timeline import LETTERS, clock_time

WIDTH, MARGIN, LABELS = 860, 20, 150
LEFT, RIGHT = LABELS + MARGIN, WIDTH - MARGIN
TITLE, ROW, BAR, THIN, STRIP, AXIS, GAP, LEGEND = 50, 46, 20, 8, 24, 26, 24, 30
BEFORE = 60.0
"""Seconds before the deletion at which the axis begins."""
TICK = 300

CARD, FRAME, INK, FAINT, GRID = "#ffffff", "#c5ccd3", "#1f2a35", "#5b6875", "#e3e7eb"
SERVING, ENDING, STARTING, ALARM = "#3b77b5", "#e8a33d", "#d3d9df", "#b3261e"
WORDS_FIT = 110
"""Pixels that the words in a bar take."""


class Font(NamedTuple):
    """How words look, and on which side of their place they stand."""

    color: str = INK
    size: int = 13
    weight: str = "normal"
    anchor: str = "start"


PLAIN, BOLD, SMALL = Font(), Font(weight="bold"), Font(size=12)


def picture(scenes: Sequence[tuple[str, History]], grace: int) -> str:
    """An SVG document with one panel for each scene (title, history); `grace`: the seconds each pod asks for."""
    last = max(max(pod.ready for pod in history.newcomers) for _, history in scenes)
    axis = _Axis(last + BEFORE)
    heights = [_height(history) for _, history in scenes]
    total = sum(heights) + GAP * (len(scenes) - 1) + 2 * MARGIN + LEGEND
    body: list[str] = []
    top = MARGIN
    for (title, history), height in zip(scenes, heights, strict=True):
        body += _panel(axis, top, title, history, grace)
        top += height + GAP
    body += _legend(top - GAP + 8)
    return "\n".join([*_opening(total, [title for title, _ in scenes]), *body, "</svg>", ""])


class _Axis:
    """Where an instant lies."""

    def __init__(self, until: float) -> None:
        self.until = until

    def x(self, at: float) -> float:
        return round(LEFT + (at + BEFORE) * (RIGHT - LEFT) / (self.until + BEFORE), 1)


def _height(history: History) -> int:
    return TITLE + ROW * len(history.leavers) + STRIP + AXIS


def _opening(height: int, titles: Sequence[str]) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13">'
    )
    yield f"<title>Three replicas on three nodes that are deleted at once: {escape('; '.join(titles))}</title>"
    card = f'x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"'
    yield f'<rect {card} fill="{CARD}" stroke="{FRAME}"/>'


def _panel(axis: _Axis, top: int, title: str, history: History, grace: int) -> Iterator[str]:
    first, bottom = top + TITLE, top + _height(history) - AXIS
    yield _words(MARGIN, top + 14, title, Font(size=15, weight="bold"))
    yield from _scale(axis, first - 6, bottom)
    for number, (letter, pod) in enumerate(zip(LETTERS, history.leavers, strict=False)):
        y = first + number * ROW
        yield _words(MARGIN, y + 15, f"pod {letter}, {pod.node}", BOLD)
        yield _words(MARGIN, y + BAR + 12, "its replacement", Font(FAINT, 12))
        yield from _leaver(axis, y, pod, grace)
        yield from _newcomer(axis, y + BAR + 3, history.newcomers[number])
    yield from _strip(axis, bottom - STRIP, history)
    yield from _marks(axis, first - 6, bottom, history, grace)


def _scale(axis: _Axis, top: int, bottom: int) -> Iterator[str]:
    for at in range(0, int(axis.until) + 1, TICK):
        x = axis.x(at)
        yield _line(x, top, bottom, GRID)
        yield _words(x, bottom + 17, clock_time(at), Font(FAINT, 12, anchor="middle"))


def _leaver(axis: _Axis, y: int, pod: Leaver, grace: int) -> Iterator[str]:
    asked, ended = axis.x(pod.asked[0].at), axis.x(pod.ended)
    yield _box(axis.x(-BEFORE), y, asked - axis.x(-BEFORE), BAR, SERVING)
    yield _box(asked, y, ended - asked, BAR, ENDING)
    order = pod.asked[0]
    if ended - asked >= WORDS_FIT:
        yield _words(asked + 7, y + 15, f"{order.how}, {order.grace} s")
    if pod.was_cut:
        yield _box(ended - 2, y - 3, 4, BAR + 6, ALARM)
        had = f"cut off after {pod.had:g} s of {grace} s"
        yield _words(ended + 9, y + 15, had, Font(ALARM, weight="bold"))


def _newcomer(axis: _Axis, y: int, pod: Newcomer) -> Iterator[str]:
    yield _box(axis.x(pod.created), y, axis.x(pod.ready) - axis.x(pod.created), THIN, STARTING)
    yield _box(axis.x(pod.ready), y, RIGHT - axis.x(pod.ready), THIN, SERVING)


def _strip(axis: _Axis, y: int, history: History) -> Iterator[str]:
    """How many are healthy, written out; what the budget forbids is in the colour of alarm."""
    yield _words(MARGIN, y + 16, f"healthy (budget: {history.required})", BOLD)
    (_, at_first), *changes = history.healthy
    for (at, count), (until, _) in pairwise([(-BEFORE, at_first), *changes, (axis.until, 0)]):
        is_short = count < history.required
        yield _box(axis.x(at) + 1, y + 3, axis.x(until) - axis.x(at) - 2, 17, "#f6d5d2" if is_short else "#d9e6f2")
        middle = (axis.x(at) + axis.x(until)) / 2
        yield _words(middle, y + 16, str(count), Font(ALARM if is_short else INK, weight="bold", anchor="middle"))


def _marks(axis: _Axis, top: int, bottom: int, history: History, grace: int) -> Iterator[str]:
    """The instants that matter: the deletion, the last one at which a pod has all its time, the deadline."""
    marks = [(0.0, "deleted", INK)]
    if history.deadline is not None:
        if history.deadline > grace:
            marks.append((history.deadline - grace, f"deadline − {grace} s", INK))
        marks.append((history.deadline, "deadline", ALARM))
    for at, words, color in marks:
        yield _line(axis.x(at), top, bottom, color, dash="5 3")
        yield _words(axis.x(at), top - 5, f"{words}, {clock_time(at)}", Font(color, 12))


def _legend(y: int) -> Iterator[str]:
    x = MARGIN
    for color, words, width in (
        (SERVING, "runs and is Ready", 150),
        (ENDING, "was told to end, and uses its grace", 250),
        (STARTING, "starts, not Ready yet", 175),
        (ALARM, "cut off", 80),
    ):
        yield _box(x, y + 4, 14, 14, color)
        yield _words(x + 21, y + 16, words, SMALL)
        x += width


def _box(x: float, y: float, width: float, height: float, fill: str) -> str:
    size = f'x="{x:g}" y="{y:g}" width="{max(width, 0):g}" height="{height:g}"'
    return f'<rect {size} rx="2" fill="{fill}"/>'


def _line(x: float, top: float, bottom: float, color: str, *, dash: str = "none") -> str:
    return f'<path d="M{x:g} {top:g}V{bottom:g}" stroke="{color}" stroke-dasharray="{dash}"/>'


def _words(x: float, y: float, text: str, font: Font = PLAIN) -> str:
    style = f'fill="{font.color}" font-size="{font.size}" font-weight="{font.weight}" text-anchor="{font.anchor}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(text)}</text>'
