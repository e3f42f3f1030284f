"""Histories as a picture: a bar for each pod and one for its replacement, over the same axis of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from examples.history import History, Leaver, Newcomer
from examples.svg import (
    ALARM,
    AMBER,
    BLUE,
    BOLD,
    FAINT,
    GREY,
    GRID,
    INK,
    MARGIN,
    WIDTH,
    Font,
    box,
    label,
    legend,
    line,
    opening,
)
from examples.timeline import LETTERS, clock_time

LABELS = 150
LEFT, RIGHT = LABELS + MARGIN, WIDTH - MARGIN
TITLE, ROW, BAR, THIN, STRIP, AXIS, GAP, LEGEND = 50, 46, 20, 8, 24, 26, 24, 30
BEFORE = 60.0
"""Seconds before the deletion at which the axis begins."""
TICK = 300

SERVING, ENDING, STARTING = BLUE, AMBER, GREY
WORDS_FIT = 110
"""Pixels that the words in a bar take."""


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
    body += legend(
        top - GAP + 8,
        (SERVING, "runs and is Ready", 150),
        (ENDING, "was told to end, and uses its grace", 250),
        (STARTING, "starts, not Ready yet", 175),
        (ALARM, "cut off", 80),
    )
    heading = f"Three replicas on three nodes that are deleted at once: {'; '.join(title for title, _ in scenes)}"
    return "\n".join([*opening(total, heading), *body, "</svg>", ""])


class _Axis:
    """Where an instant lies."""

    def __init__(self, until: float) -> None:
        self.until = until

    def x(self, at: float) -> float:
        return round(LEFT + (at + BEFORE) * (RIGHT - LEFT) / (self.until + BEFORE), 1)


def _height(history: History) -> int:
    return TITLE + ROW * len(history.leavers) + STRIP + AXIS


def _panel(axis: _Axis, top: int, title: str, history: History, grace: int) -> Iterator[str]:
    first, bottom = top + TITLE, top + _height(history) - AXIS
    yield label(MARGIN, top + 14, title, Font(size=15, weight="bold"))
    yield from _scale(axis, first - 6, bottom)
    for number, (letter, pod) in enumerate(zip(LETTERS, history.leavers, strict=False)):
        y = first + number * ROW
        yield label(MARGIN, y + 15, f"pod {letter}, {pod.node}", BOLD)
        yield label(MARGIN, y + BAR + 12, "its replacement", Font(FAINT, 12))
        yield from _leaver(axis, y, pod, grace)
        yield from _newcomer(axis, y + BAR + 3, history.newcomers[number])
    yield from _strip(axis, bottom - STRIP, history)
    yield from _marks(axis, first - 6, bottom, history, grace)


def _scale(axis: _Axis, top: int, bottom: int) -> Iterator[str]:
    for at in range(0, int(axis.until) + 1, TICK):
        x = axis.x(at)
        yield line(x, top, bottom, GRID)
        yield label(x, bottom + 17, clock_time(at), Font(FAINT, 12, anchor="middle"))


def _leaver(axis: _Axis, y: int, pod: Leaver, grace: int) -> Iterator[str]:
    asked, ended = axis.x(pod.asked[0].at), axis.x(pod.ended)
    yield box(axis.x(-BEFORE), y, asked - axis.x(-BEFORE), BAR, SERVING)
    yield box(asked, y, ended - asked, BAR, ENDING)
    order = pod.asked[0]
    if ended - asked >= WORDS_FIT:
        yield label(asked + 7, y + 15, f"{order.how}, {order.grace} s")
    if pod.was_cut:
        yield box(ended - 2, y - 3, 4, BAR + 6, ALARM)
        had = f"cut off after {pod.had:g} s of {grace} s"
        yield label(ended + 9, y + 15, had, Font(ALARM, weight="bold"))


def _newcomer(axis: _Axis, y: int, pod: Newcomer) -> Iterator[str]:
    yield box(axis.x(pod.created), y, axis.x(pod.ready) - axis.x(pod.created), THIN, STARTING)
    yield box(axis.x(pod.ready), y, RIGHT - axis.x(pod.ready), THIN, SERVING)


def _strip(axis: _Axis, y: int, history: History) -> Iterator[str]:
    """How many are healthy, written out; what the budget forbids is in the colour of alarm."""
    yield label(MARGIN, y + 16, f"healthy (budget: {history.required})", BOLD)
    (_, at_first), *changes = history.healthy
    for (at, count), (until, _) in pairwise([(-BEFORE, at_first), *changes, (axis.until, 0)]):
        is_short = count < history.required
        yield box(axis.x(at) + 1, y + 3, axis.x(until) - axis.x(at) - 2, 17, "#f6d5d2" if is_short else "#d9e6f2")
        middle = (axis.x(at) + axis.x(until)) / 2
        yield label(middle, y + 16, str(count), Font(ALARM if is_short else INK, weight="bold", anchor="middle"))


def _marks(axis: _Axis, top: int, bottom: int, history: History, grace: int) -> Iterator[str]:
    """The instants that matter: the deletion, the last one at which a pod has all its time, the deadline."""
    marks = [(0.0, "deleted", INK)]
    if history.deadline is not None:
        if history.deadline > grace:
            marks.append((history.deadline - grace, f"deadline − {grace} s", INK))
        marks.append((history.deadline, "deadline", ALARM))
    for at, words, color in marks:
        yield line(axis.x(at), top, bottom, color, dash="5 3")
        yield label(axis.x(at), top - 5, f"{words}, {clock_time(at)}", Font(color, 12))
