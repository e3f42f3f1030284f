"""Chart of a forecast as SVG, without scripts or external resources.

Each state has a pattern as well as a colour; each row and bar a title, which browsers and screen readers show.
Invariant: every word from the cluster is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator

from gracectl.cli.format import elapsed
from gracectl.cli.plan.chart import Bar, BarKind, Chart, Panel, PodRow
from gracectl.model.foreign import visible_markup as escape

WIDTH, MARGIN, GUTTER = 1080, 20, 12
ROW, BAR, TITLE, BLOCK, AXIS, GAP, DEADLINE = 22, 14, 50, 22, 26, 22, 12
LETTER = 7.2
"""Pixels that a letter takes on the average."""

MOST_LETTERS = 48
"""Of a name; a longer one is cut in its middle, as its end tells pods apart, and stands whole in its title."""

TICK_WIDTH = 75
LEAST = 2.0
"""Pixels of the shortest stretch."""

CLASSES = {
    BarKind.WAITING: "waiting",
    BarKind.BLOCKED: "blocked",
    BarKind.PROTECTED: "protected",
    BarKind.REMOVABLE: "removable",
    BarKind.GRACE: "terminating",
}

STYLE = """\
.plan { font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 12px; }
.plan text { fill: #1f2a35; }
.plan .head { font-size: 15px; font-weight: bold; }
.plan .bold { font-weight: bold; }
.plan .faint { fill: #5b6875; }
.plan .alarm { fill: #b3261e; }
.plan .card { fill: #ffffff; stroke: #c5ccd3; }
.plan .grid { stroke: #e3e7eb; }
.plan .deadline { stroke: #b3261e; stroke-width: 1.5; stroke-dasharray: 5 3; }
.plan .deletion { stroke: #b3261e; stroke-width: 2.2; fill: none; }
.plan .waiting { fill: #e6e9ec; stroke: none; } .plan .waiting-mark { fill: #8d99a5; }
.plan .blocked { fill: #e5dcf2; stroke: none; } .plan .blocked-mark { stroke: #7a5ea8; stroke-width: 1.6; }
.plan .protected { fill: #3b77b5; stroke: none; } .plan .protected-mark { stroke: #8fb7de; stroke-width: 1.2; }
.plan .removable { fill: #fbeed6; stroke: none; } .plan .removable-mark { stroke: #d48c1d; stroke-width: 2; }
.plan .terminating { fill: #e8a33d; stroke: none; } .plan .terminating-mark { fill: none; }
"""
"""On a light ground."""

PATTERNS = """\
<pattern id="p-waiting" width="6" height="6" patternUnits="userSpaceOnUse"><rect class="waiting" width="6" height="6"/>\
<circle class="waiting-mark" cx="3" cy="3" r="1"/></pattern>
<pattern id="p-blocked" width="5" height="5" patternUnits="userSpaceOnUse"><rect class="blocked" width="5" height="5"/>\
<path class="blocked-mark" d="M2.5 0V5"/></pattern>
<pattern id="p-protected" width="4" height="5" patternUnits="userSpaceOnUse">\
<rect class="protected" width="4" height="5"/><path class="protected-mark" d="M0 2.5H4"/></pattern>
<pattern id="p-removable" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">\
<rect class="removable" width="7" height="7"/><path class="removable-mark" d="M3.5 0V7"/></pattern>
<pattern id="p-terminating" width="4" height="4" patternUnits="userSpaceOnUse">\
<rect class="terminating" width="4" height="4"/></pattern>"""


def svg_of(chart: Chart, title: str) -> str:
    """An SVG document. `title`: what it shows, in a sentence."""
    sheet = _Sheet(chart)
    body = list(sheet.drawn())
    return "\n".join([*_opening(sheet.height, title, chart), *body, "</svg>", ""])


def _opening(height: float, title: str, chart: Chart) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plan" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
        f'height="{height:g}" role="img" aria-labelledby="plan-title plan-desc">'
    )
    yield f'<title id="plan-title">{escape(title)}</title>'
    yield f'<desc id="plan-desc">{escape(" ".join(_described(chart)))}</desc>'
    yield f"<style>\n{STYLE}</style>\n<defs>\n{PATTERNS}\n</defs>"
    yield f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="8"/>'


def _described(chart: Chart) -> Iterator[str]:
    """The whole chart in sentences."""
    for panel in chart.panels:
        yield f"{panel.name}: {panel.headline}."
        yield from (f"{row.name}: {row.when}, {row.text}." for row in panel.rows)


class _Sheet:
    """Where everything lies: names, times, bars."""

    def __init__(self, chart: Chart) -> None:
        rows = [row for panel in chart.panels for row in panel.rows]
        names = max([min(len(row.name), MOST_LETTERS) for row in rows], default=0) * LETTER
        times = max([len(row.when) for row in rows], default=0) * LETTER
        self._chart = chart
        self._times = MARGIN + round(names) + GUTTER
        self._left = self._times + round(times) + GUTTER
        self._right = WIDTH - MARGIN - 8
        self.height = 0.0

    def _x(self, at: float) -> float:
        return round(self._left + self._chart.axis.place(at) * (self._right - self._left), 1)

    def drawn(self) -> Iterator[str]:
        """All nodes, one below the other, and the legend."""
        y = float(MARGIN)
        for panel in self._chart.panels:
            yield from self._panel(panel, y)
            y += _height(panel) + GAP
        legend, y = self._legend(y - 6)
        yield from legend
        self.height = y

    def _panel(self, panel: Panel, y: float) -> Iterator[str]:
        yield _text(MARGIN, y + 14, panel.name, "head")
        yield _text(MARGIN, y + 32, panel.headline, "faint")
        top, bottom = y + _head(panel), y + _height(panel) - AXIS
        yield from self._scale(top - 4, bottom)
        at = top
        for block in panel.blocks:
            if block.title:
                yield _text(MARGIN, at + 15, block.title, "bold")
                at += BLOCK
            for row in block.rows:
                yield from self._row(row, at)
                at += ROW
        if panel.deadline is not None:
            x = self._x(panel.deadline)
            yield f'<path class="deadline" d="M{x:g} {top - 4:g}V{bottom:g}"><title>deadline</title></path>'
            label = f"deadline {elapsed(panel.deadline)}"
            yield _text(x, top - 8, label, "alarm", anchor="end" if x > WIDTH / 2 else "start")

    def _scale(self, top: float, bottom: float) -> Iterator[str]:
        for tick in self._chart.axis.ticks(int((self._right - self._left) / TICK_WIDTH)):
            x = self._x(tick.at)
            yield f'<path class="grid" d="M{x:g} {top:g}V{bottom:g}"/>'
            yield _text(x, bottom + 15, tick.label, "faint", anchor="middle")

    def _row(self, row: PodRow, y: float) -> Iterator[str]:
        yield f"<g><title>{escape(f'{row.name}: {row.when}, {row.text}')}</title>"
        yield _text(MARGIN, y + 15, _shortened(row.name))
        yield _text(self._times, y + 15, row.when, "faint")
        for bar in row.bars:
            yield self._bar(bar, y + (ROW - BAR) / 2)
        if row.deleted_at is not None:
            x, middle = self._x(row.deleted_at), y + ROW / 2
            cross = f"M{x - 4:g} {middle - 4:g}l8 8m0 -8l-8 8"
            title = f"deleted at {elapsed(row.deleted_at)} for the deadline, if it is still there"
            yield f'<path class="deletion" d="{cross}"><title>{title}</title></path>'
        yield "</g>"

    def _bar(self, bar: Bar, y: float) -> str:
        start = self._x(bar.start)
        end = self._right if bar.end is None else max(self._x(bar.end), start + LEAST)
        fill = f'fill="url(#p-{CLASSES[bar.kind]})"'
        title = f"<title>{escape(f'{bar.kind}: {bar.reason}')}</title>"
        if bar.end is not None:
            size = f'x="{start:g}" y="{y:g}" width="{end - start:g}" height="{BAR}"'
            return f"<rect {size} {fill}>{title}</rect>"
        arrow = f"M{start:g} {y:g}H{end:g}l7 {BAR / 2:g}l-7 {BAR / 2:g}H{start:g}z"
        return f'<path d="{arrow}" {fill}>{title}</path>'

    def _legend(self, y: float) -> tuple[list[str], float]:
        """What the patterns mean, in as many lines as it takes; and where the picture ends."""
        x, found = float(MARGIN), []
        for entry, label in self._entries():
            sample = 22 if entry else 0
            width = sample + len(label) * LETTER + GUTTER
            if x + width > WIDTH - MARGIN:
                x, y = float(MARGIN), y + ROW
            if entry:
                found.append(f'<g transform="translate({x:g} {y:g})">{entry}</g>')
            found.append(_text(x + sample, y + 15, label))
            x += width
        return found, y + ROW + MARGIN / 2

    def _entries(self) -> Iterator[tuple[str, str]]:
        for kind in self._chart.kinds:
            yield f'<rect y="4" width="16" height="{BAR}" fill="url(#p-{CLASSES[kind]})"/>', kind.value
        if self._chart.has_deletion:
            yield '<path class="deletion" d="M4 7l8 8m0 -8l-8 8"/>', "deleted for the deadline"
        if self._chart.has_deadline:
            yield '<path class="deadline" d="M8 3V19"/>', "deadline"
        if self._chart.axis.unit is not None:
            yield "", "the axis is logarithmic"


def _head(panel: Panel) -> float:
    """What the words above the bars take; those of the deadline would stand in a long headline."""
    return TITLE if panel.deadline is None else TITLE + DEADLINE


def _height(panel: Panel) -> float:
    titles = sum(bool(block.title) for block in panel.blocks)
    return _head(panel) + ROW * len(panel.rows) + BLOCK * titles + AXIS


def _shortened(name: str) -> str:
    if len(name) <= MOST_LETTERS:
        return name
    end = MOST_LETTERS * 2 // 5
    return f"{name[: MOST_LETTERS - end - 1]}…{name[-end:]}"


def _text(x: float, y: float, text: str, style: str = "", *, anchor: str = "start") -> str:
    kind = f' class="{style}"' if style else ""
    place = f'x="{x:g}" y="{y:g}"' + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    return f"<text {place}{kind}>{escape(text)}</text>"
