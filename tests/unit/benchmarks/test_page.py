"""The page on benchmarks says what was measured, and nothing else."""

from __future__ import annotations

import re

import click
import pytest

from benchmarks.contenders.contender import EVICTION, Usage
from benchmarks.page import BUDGETS, HEADLINE, PAGE, README, blocks, headline, put_in, read
from benchmarks.report import Figure, Outcome
from benchmarks.trial import Trial

TRIAL = Trial(
    contender="gracectl", pods=10, nodes=2, seconds=4.0, evicted=2.0,
    usage=Usage(requests={EVICTION: 12}, refused=2, cpu=0.01, memory=95.0), most_missing={}, broken=(), left=1,
)  # fmt: skip


def an_outcome(scenario: str, *figures: Figure, trials: tuple[Trial, ...] = ()) -> Outcome:
    return Outcome(scenario=scenario, about="", figures=figures, parameters={"pods": 10}, trials=trials)


def all_budgets(value: float) -> dict[str, Outcome]:
    """Outcomes with a figure for each line of the design's table, all of this value and with a budget of 1."""
    return {
        scenario: an_outcome(scenario, *(Figure(name, value, "", 1.0) for _, of, name in BUDGETS if of == scenario))
        for scenario in {scenario for _, scenario, _ in BUDGETS}
    }


def test_the_page_is_what_the_files_say() -> None:
    page = PAGE.read_text()
    assert put_in(page, blocks(read())) == page


def test_the_readme_has_no_figure_that_the_page_does_not_show() -> None:
    readme, page = README.read_text(), PAGE.read_text()
    assert HEADLINE.findall(readme) == [headline(read())]
    # Of the headline, each figure is in a table; of the rest, what is measured, but no code.
    figures = re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?= times| to | against)", headline(read()))
    rest = re.sub(r"```.*?```|`[^`]*`", "", HEADLINE.sub("", readme), flags=re.DOTALL)
    figures += re.findall(r"(?<![\w.])\d[\d.,]*(?= ?(?:×|times|ms|µs|MiB|GiB|%))", rest)
    assert len(figures) >= 6
    assert [each for each in figures if not re.search(rf"(?<![\d.]){re.escape(each)}(?![\d.]\d)", page)] == []


def test_every_line_of_the_design_was_measured() -> None:
    measured = read()
    for _, scenario, name in BUDGETS:
        ground = "micro" if scenario == "micro" else "embedded"
        assert name in {figure.name for figure in measured[ground][scenario].figures}


@pytest.mark.parametrize(("value", "verdict"), [(1.0, "kept"), (1.01, "**missed**")])
def test_a_missed_budget_is_told(value: float, verdict: str) -> None:
    outcomes = all_budgets(value)
    micro = {"micro": outcomes.pop("micro")}
    lines = blocks({"embedded": outcomes, "kubernetes": {}, "micro": micro})["budgets"].splitlines()[2:]
    assert len(lines) == len(BUDGETS)
    assert all(line.endswith(f"{verdict} |") for line in lines)


def test_a_scenario_shows_all_grounds_and_contenders() -> None:
    embedded, real = Figure("late", 2.0, " s", 1.0), Figure("late", 0.5, " s", 1.0)
    measured = {
        "embedded": {"storm": an_outcome("storm", embedded, trials=(TRIAL,))},
        "kubernetes": {"storm": an_outcome("storm", real)},
        "micro": {},
    }
    lines = blocks(measured)["storm"].splitlines()
    assert "| late | **2 s** | 0.5 s | ≤ 1 s |" in lines
    assert "| gracectl; gives 1 pods up | 4 | 1 | 4.5 | 1.2 | 0 | 1.2 | 2 | 1 | 95 |" in lines


def test_places_and_blocks_have_to_agree() -> None:
    page = "before\n<!-- measured: storm -->\n\nold\n<!-- end -->\nafter\n"
    assert put_in(page, {"storm": "new"}) == "before\n<!-- measured: storm -->\n\nnew\n<!-- end -->\nafter\n"
    with pytest.raises(click.ClickException, match="scale"):
        put_in(page, {"storm": "new", "scale": "new"})
    with pytest.raises(click.ClickException, match="storm"):
        put_in(page, {})
