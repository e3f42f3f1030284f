"""Export of the terminal output of `plan` by rich: an SVG picture and an HTML page.

Invariants: each is one file without scripts or external resources; names and messages of a cluster are escaped.
"""

from __future__ import annotations

import re
from io import StringIO
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from gracectl.cli.console import VisibleConsole, text_of
from gracectl.cli.plan.table import plan_table
from gracectl.cli.plan.text import Detail, plan_text
from gracectl.cli.plan.timeline import timeline
from gracectl.inspect.forecast import DrainForecast

SVG_COLUMNS: Final = 120
HTML_COLUMNS: Final = 160

_FONT: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def plan_svg(forecast: DrainForecast, detail: Detail) -> str:
    """SVG document of the timeline, without rich's two fonts, which a browser would fetch from another host."""
    console = _recorded(timeline(plan_text(forecast, detail), SVG_COLUMNS), SVG_COLUMNS)
    return _FONT.sub("", console.export_svg(title="gracectl plan --timeline"), count=2)


def plan_html(forecast: DrainForecast, detail: Detail) -> str:
    """HTML document of the timeline and the whole table."""
    text = plan_text(forecast, detail)
    parts = Group(timeline(text, HTML_COLUMNS), Text(), plan_table(text))
    return _recorded(parts, HTML_COLUMNS).export_html()


def _recorded(what: RenderableType, columns: int) -> Console:
    """Console that has printed `what`, with foreign control characters escaped as on a terminal."""
    terminal = VisibleConsole(width=columns, force_terminal=True, color_system="truecolor")
    console = Console(width=columns, record=True, file=StringIO())
    console.print(Text.from_ansi(text_of(terminal, what)))
    return console
