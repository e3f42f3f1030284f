"""Forecast as an HTML page: the chart, and all that the terminal says in tables.

One file without scripts, fonts or links. Invariant: every word from the cluster is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gracectl import __version__
from gracectl.cli.plan.chart import Chart
from gracectl.cli.plan.svg import svg_of
from gracectl.cli.plan.text import NodeText, PlanText
from gracectl.model.foreign import visible_markup as escape

STYLE = """\
:root { color-scheme: light dark; --ink: #1f2a35; --faint: #5b6875; --ground: #f6f8fa; --card: #ffffff;
  --frame: #d5dbe1; --alarm: #b3261e; --warn: #8a5a00; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.35rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
p { margin: .3rem 0; } .faint, footer { color: var(--faint); }
figure { margin: 1rem 0; overflow-x: auto; } figure svg { width: 100%; min-width: 760px; height: auto; }
ul.warnings { list-style: none; margin: .5rem 0; padding: 0; }
ul.warnings li { border-left: 4px solid #d48c1d; padding: .15rem .7rem; margin: .3rem 0; background: var(--card); }
ul.warnings li.blocking { border-color: var(--alarm); }
ul.warnings b { color: var(--warn); } ul.warnings li.blocking b { color: var(--alarm); }
.table { overflow-x: auto; }
table { border-collapse: collapse; background: var(--card); margin: .5rem 0; width: 100%; font-size: .93em; }
th, td { text-align: left; vertical-align: top; padding: .3rem .7rem; border: 1px solid var(--frame);
  overflow-wrap: anywhere; }
th, td.time { white-space: nowrap; font-variant-numeric: tabular-nums; }
td.pod { min-width: 16em; }
tr.wave th { background: var(--ground); }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e8ed; --faint: #9aa7b4; --ground: #11161b; --card: #1a2129; --frame: #34404c; --alarm: #ff8a80;
    --warn: #f0b95a; }
  main .plan text { fill: #e3e8ed; } main .plan .faint { fill: #9aa7b4; } main .plan .alarm { fill: #ff8a80; }
  main .plan .card { fill: #1a2129; stroke: #34404c; } main .plan .grid { stroke: #2b3640; }
  main .plan .deadline, main .plan .deletion { stroke: #ff8a80; }
  main .plan .waiting { fill: #2b3640; } main .plan .waiting-mark { fill: #8d99a5; }
  main .plan .blocked { fill: #3a2f52; } main .plan .blocked-mark { stroke: #b79ce0; }
  main .plan .protected { fill: #3b77b5; } main .plan .protected-mark { stroke: #9cc3ea; }
  main .plan .removable { fill: #40331c; } main .plan .removable-mark { stroke: #e8a33d; }
}
@media print { body { background: none; } ul.warnings li, table { break-inside: avoid; } }
"""


def html_of(text: PlanText, chart: Chart) -> str:
    """An HTML document."""
    return "\n".join([*_head(text), *_body(text, chart), ""])


def _head(text: PlanText) -> Iterator[str]:
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f'<meta name="generator" content="gracectl {escape(__version__)}">'
    yield f"<title>{escape(text.title)}</title>\n<style>\n{STYLE}</style>\n</head>"


def _body(text: PlanText, chart: Chart) -> Iterator[str]:
    yield f"<body>\n<main>\n<h1>{escape(text.title)}</h1>"
    if text.note:
        yield _paragraph(text.note)
    if text.summary:
        rows = [
            (each.node, each.drained, each.deadline, str(each.pods), ", ".join(each.kinds)) for each in text.summary
        ]
        yield from _table(("node", "drained", "deadline", "pods", "warnings"), rows)
        yield f"<p>{escape(text.all_drained)}</p>"
    if any(panel.rows for panel in chart.panels):
        yield f"<figure>\n{svg_of(chart, text.title)}</figure>"
    for node in text.nodes:
        yield from _node(node)
    if text.budgets or text.other_budgets:
        yield "<h2>Budgets</h2>"
    if text.budgets:
        yield from _table(("budget", "status"), [(line.name, line.text) for line in text.budgets])
    if text.other_budgets:
        yield _paragraph(text.other_budgets, "faint")
    yield "<footer>\n<h2>What this rests on</h2>"
    yield from map(_paragraph, text.remarks)
    yield "</footer>\n</main>\n</body>\n</html>"


def _node(node: NodeText) -> Iterator[str]:
    yield f"<section>\n<h2>{escape(node.name)}: {escape(node.headline)}</h2>"
    yield from map(_paragraph, node.facts)
    if node.warnings:
        yield '<ul class="warnings">'
        for warning in node.warnings:
            kind = ' class="blocking"' if warning.kind.is_blocking else ""
            helps = f"<div>→ {escape(warning.remedy)}</div>" if warning.remedy else ""
            yield f"<li{kind}><b>{warning.kind.value}</b> {escape(warning.message)}{helps}</li>"
        yield "</ul>"
    if node.waves:
        yield '<div class="table"><table>\n<tr><th>when</th><th>pod</th><th>how</th></tr>'
        for wave in node.waves:
            if wave.title:
                yield f'<tr class="wave"><th colspan="3" scope="rowgroup">{escape(wave.title)}</th></tr>'
            for line in wave.lines:
                cells = f'<td class="pod">{escape(line.name)}</td><td>{escape(line.text)}</td>'
                yield f'<tr><td class="time">{escape(line.when)}</td>{cells}</tr>'
        yield "</table></div>"
    if node.ignored:
        yield _paragraph(node.ignored, "faint")
    yield "</section>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield '<div class="table"><table>'
    yield f"<tr>{''.join(f'<th>{escape(head)}</th>' for head in heads)}</tr>"
    for row in rows:
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
    yield "</table></div>"


def _paragraph(text: str, style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f"<p{kind}>{escape(text)}</p>"
