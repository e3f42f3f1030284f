"""`make bench-page`: put what was measured into docs/benchmarks.md, and draw its pictures.

    python -m benchmarks.page [--check]

Reads the outcomes that `benchmarks/run.py --save` has written into docs/benchmarks. Nothing on the page's tables is
written by hand; --check only says whether the page is what the files say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from benchmarks.report import Figure, Outcome, cells, rounded, saved
from benchmarks.trial import Trial

DOCS = Path(__file__).parent.parent / "docs"
PAGE, FOLDER = DOCS / "benchmarks.md", DOCS / "benchmarks"
README = DOCS.parent / "README.md"
GROUNDS = {"embedded": "embedded cluster", "kubernetes": "Kubernetes"}
"""The files, and what their columns are called."""
MICRO = "micro"
FORECASTS = "forecasts"
JUDGED = {"seeds": "simulated histories", "scenarios": "scenarios of `gracectl simulate`"}
"""Where forecasts are judged, and what the columns are called."""

PLACE = re.compile(r"(<!-- measured: ([\w-]+) -->\n).*?^(<!-- end -->)$", re.DOTALL | re.MULTILINE)

BUDGETS = (
    ("A drain under one budget, against back-to-back replacements", "pdb-chain", "drain vs the ideal"),
    (
        "The same by `gracectl drain` with nothing installed, from its first request",
        "pdb-chain",
        "gracectl drain, nothing installed, vs the ideal",
    ),
    ("Requests for evictions, per pod", "pdb-chain", "eviction requests per pod"),
    ("GETs of pods, per pod", "pdb-chain", "GETs of pods per pod"),
    ("Evictions without a budget, share of a bare loop's", "storm", "evictions, share of the bare loop's"),
    ("Lateness of preemptive deletes, 99 in 100, 10,000 armed", "deadlines", "lateness p99"),
    ("Whole process, 150,000 pods and 5,000 nodes", "scale", "memory at its peak"),
    ("CPU for a pod event, decoded and cached, 150,000 cached", MICRO, "pod event, 150,000 pods cached"),
    ("CPU per terminated pod, 5,000 nodes against 50", "scale", "CPU per terminated pod, 5,000 nodes vs 50"),
    (
        "The same, 2 % of the nodes ending at once",
        "scale",
        "CPU per terminated pod, a share at once, 5,000 nodes vs 50",
    ),
)
"""The design's table: what it says, and which figure of which scenario tells."""

OURS_ONLY = {"restart", "single"}
"""Scenarios without peers: their figures say all of it."""

Measured = Mapping[str, Mapping[str, Outcome]]
"""Outcomes by scenario, by ground."""


def read(folder: Path = FOLDER) -> dict[str, dict[str, Outcome]]:
    """What has been measured, by ground and scenario; a ground that was not measured has none."""
    kept = {ground: saved(folder / f"{ground}.json") for ground in (*GROUNDS, MICRO, FORECASTS)}
    return {ground: {outcome.scenario: outcome for outcome in outcomes} for ground, outcomes in kept.items()}


def blocks(measured: Measured) -> dict[str, str]:
    """What stands on the page, by the name of its place."""
    embedded = measured["embedded"]
    found = {"budgets": _budgets(measured)}
    for scenario in embedded:
        grounds = {ground: measured[ground][scenario] for ground in GROUNDS if scenario in measured[ground]}
        found[scenario] = _scenario(grounds)
    if measured[MICRO]:
        found[MICRO] = _scenario({MICRO: measured[MICRO][MICRO]})
    if judged := measured.get(FORECASTS):
        found[FORECASTS] = _scenario({ground: judged[ground] for ground in JUDGED if ground in judged})
    return found


def put_in(page: str, found: Mapping[str, str]) -> str:
    """The page with these blocks in its places. ClickException for a place without a block, or a block without one."""
    places = {name for _, name, _ in PLACE.findall(page)}
    if places != set(found):
        odd = ", ".join(sorted(places ^ set(found)))
        raise click.ClickException(f"the page and what was measured do not agree on: {odd}")
    return PLACE.sub(lambda place: f"{place[1]}\n{found[place[2]]}\n{place[3]}", page)


HEADLINE = re.compile(r"(?<=!\[)Bars: [^\]]*(?=\]\(docs/benchmarks/drains\.svg\))")
"""The text of the picture in the README."""


def headline(measured: Measured) -> str:
    """What the picture of the drains shows, in words, for the README."""
    chain, mixed = measured["embedded"]["pdb-chain"], measured["embedded"]["mixed"]
    alone, rounds = _times(chain, "gracectl drain"), chain.parameters["rounds"]
    return (
        f"Bars: gracectl takes {_times(chain, 'gracectl')} times as long as the ideal under one budget, "
        f"gracectl drain with nothing installed and its start {alone} times, kubectl drain {_times(chain, 'kubectl')} "
        f"times; in a mixed cluster {_times(mixed, 'gracectl')} against {_times(mixed, 'kubectl')} times; medians of "
        f"{rounds} rounds."
    )


def _times(outcome: Outcome, name: str) -> str:
    """How many times as long as the ideal the contenders of this program take."""
    drains, ideal = "gracectl drain", outcome.trials[0]
    found = [
        one.seconds / ideal.seconds
        for one in outcome.trials
        if one.contender.startswith(name) and (name == drains or not one.contender.startswith(drains))
    ]
    return " to ".join(dict.fromkeys((rounded(min(found)), rounded(max(found)))))


def _budgets(measured: Measured) -> str:
    rows = []
    for words, scenario, name in BUDGETS:
        where = {MICRO: "embedded cluster"} if scenario == MICRO else GROUNDS
        figures = [_figure(measured, ground, scenario, name) for ground in where]
        values = [_value(each) for each in figures]
        budget = next((each.budget for each in figures if each is not None), "not measured")
        verdict = "kept" if all(each is None or each.is_met for each in figures) else "**missed**"
        rows.append((words, budget, *values, *[""] * (len(GROUNDS) - len(values)), verdict))
    return _table(("what", "budget", *GROUNDS.values(), ""), rows)


def _figure(measured: Measured, ground: str, scenario: str, name: str) -> Figure | None:
    outcome = measured[ground].get(scenario)
    # A figure that is held against no budget there is one of another size.
    found = [figure for figure in outcome.figures if figure.name == name and figure.budget] if outcome else []
    return found[0] if found else None


def _scenario(grounds: Mapping[str, Outcome]) -> str:
    """Figures of all grounds beside each other, then the contenders, ground by ground."""
    names = list(dict.fromkeys(figure.name for outcome in grounds.values() for figure in outcome.figures))
    columns = {ground: {figure.name: figure for figure in outcome.figures} for ground, outcome in grounds.items()}
    rows = []
    for name in names:
        found = [column.get(name) for column in columns.values()]
        budget = next((each.budget for each in found if each is not None), "")
        if MICRO in grounds and not budget:
            continue
        rows.append((name, *(_value(each) for each in found), budget))
    parts = [_table(("", *((GROUNDS | JUDGED).get(ground, "") for ground in grounds), "budget"), rows)]
    for ground, outcome in grounds.items():
        given = ", ".join(f"{name} {value}" for name, value in outcome.parameters.items())
        if given:
            where = _capitalized((GROUNDS | JUDGED).get(ground, "this machine"))
            parts.append(f"{where}: {given}.{'' if ground in JUDGED else f' {_machine(outcome)}'}")
        if outcome.trials and outcome.scenario not in OURS_ONLY:
            parts.append(_trials(outcome.trials))
        parts += [note for note in outcome.notes if note not in parts]
    return "\n\n".join(parts)


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]


def _machine(outcome: Outcome) -> str:
    return "The load was not recorded." if outcome.machine is None else outcome.machine.in_words


def _trials(trials: Sequence[Trial]) -> str:
    heading = ("contender", "seconds", "×", "evictions/s", "evictions", "reads", "all", "429", "CPU", "MiB")
    rows = [(one.contender + one.failings, *cells(one, trials[0])) for one in trials]
    return _table(heading, rows)


def _value(figure: Figure | None) -> str:
    if figure is None:
        return ""
    value = f"{rounded(figure.value)}{figure.unit}"
    return value if figure.is_met else f"**{value}**"


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 if the page is not what the files say.")
def main(check: bool) -> None:
    """Write docs/benchmarks.md and its pictures from the outcomes in docs/benchmarks."""
    measured = read()
    text = put_in(PAGE.read_text(), blocks(measured))
    readme = HEADLINE.sub(headline(measured), README.read_text())
    if check:
        is_stale = text != PAGE.read_text() or readme != README.read_text()
        raise SystemExit(f"{PAGE.name}: not what was measured; run make bench-page" if is_stale else 0)
    # Only here: it takes an extra to draw, and none to look.
    from benchmarks.plots import draw

    PAGE.write_text(text)
    README.write_text(readme)
    for file in draw(measured["embedded"], FOLDER):
        click.echo(f"wrote {file}")


if __name__ == "__main__":
    main()
