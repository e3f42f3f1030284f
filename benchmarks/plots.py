"""Pictures of outcomes: `make bench-page` draws them from what `benchmarks/run.py --save` has written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from benchmarks.contenders.contender import EVICTION
from benchmarks.report import Outcome, Series, rounded
from benchmarks.trial import Trial

OURS, YARDSTICK, OTHERS, BUDGET = "#0b6e4f", "#6c757d", "#c77d3a", "#b02a37"
WIDTH = 9.0
"""Inches."""

STYLE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "svg.hashsalt": "gracectl",
    "svg.fonttype": "none",
}


def draw(outcomes: Mapping[str, Outcome], folder: Path) -> list[Path]:
    """Draw what there is into `folder`; the files. Scenarios that were not run have no picture."""
    drawn = []
    for name, (scenarios, plot) in PLOTS.items():
        if all(scenario in outcomes for scenario in scenarios):
            with mpl.rc_context(STYLE):
                canvas = plot(*(outcomes[scenario] for scenario in scenarios))
                file = folder / f"{name}.svg"
                # Nothing of the day on which it is drawn: the same outcomes are the same file.
                canvas.savefig(file, metadata={"Date": None}, bbox_inches="tight")
                drawn.append(file)
    return drawn


def _drains(chain: Outcome, mixed: Outcome) -> Canvas:
    """How long each contender takes, as a multiple of the ideal."""
    canvas = _canvas(4.6)
    for axes, outcome in zip(canvas.subplots(2, 1), (chain, mixed), strict=True):
        ideal = outcome.trials[0].seconds
        _bars(axes, outcome.trials, [one.seconds / ideal for one in outcome.trials], "×")
        axes.axvline(1.0, color=YARDSTICK, linewidth=0.8, linestyle=":")
        axes.set_title(f"{outcome.scenario}: time until all pods are gone and replaced, as a multiple of the ideal")
    canvas.tight_layout()
    return canvas


def _storm(storm: Outcome) -> Canvas:
    canvas = _canvas(2.8)
    axes = canvas.subplots()
    _bars(axes, storm.trials, [one.rate for one in storm.trials], "/s")
    axes.axvline(0.9 * storm.trials[0].rate, color=BUDGET, linewidth=0.8, linestyle="--")
    axes.set_title("storm: evictions a second, no budgets (dashed: nine tenths of the bare loop)")
    canvas.tight_layout()
    return canvas


def _requests(chain: Outcome) -> Canvas:
    """What each contender asks of the server for one pod, by kind."""
    canvas = _canvas(3.2)
    axes = canvas.subplots()
    trials = [one for one in chain.trials if len(one.usage.requests) > 1]
    kinds = {"evictions": OURS, "reads of pods": OTHERS, "all others": YARDSTICK}
    lefts = [0.0] * len(trials)
    for kind, colour in kinds.items():
        widths = [_asked(one)[kind] for one in trials]
        axes.barh([one.contender for one in trials], widths, left=lefts, color=colour, label=kind, height=0.6)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    for row, total in enumerate(lefts):
        axes.text(total, row, f" {rounded(total)}", va="center")
    axes.invert_yaxis()
    axes.set_xlim(0, 1.1 * max(lefts))
    axes.legend(frameon=False, loc="upper right")
    axes.set_title("pdb-chain: requests for each pod")
    canvas.tight_layout()
    return canvas


def _asked(one: Trial) -> dict[str, float]:
    requests = one.usage.requests
    evictions, reads = requests.get(EVICTION, 0), requests.get("get pods", 0) + requests.get("list pods", 0)
    found = {"evictions": evictions, "reads of pods": reads, "all others": sum(requests.values()) - evictions - reads}
    return {kind: count / one.pods for kind, count in found.items()}


def _scale(scale: Outcome) -> Canvas:
    canvas = _canvas(3.0)
    left, right = canvas.subplots(1, 2)
    cost, of_share, memory = scale.series
    _lines(left, {"two nodes at once": cost, "a share of the nodes at once": of_share}, 1.2 * cost.points[0][1])
    left.set_title(cost.name)
    left.legend(frameon=False, loc="lower right")
    _lines(right, {memory.name: memory}, 180.0)
    right.set_title(memory.name)
    canvas.tight_layout()
    return canvas


def _deadlines(deadlines: Outcome) -> Canvas:
    canvas = _canvas(2.8)
    axes = canvas.subplots()
    milliseconds, shares = zip(*deadlines.series[0].points, strict=True)
    axes.plot(milliseconds, shares, color=OURS)
    axes.axvline(100, color=BUDGET, linewidth=0.8, linestyle="--")
    axes.axhline(99, color=YARDSTICK, linewidth=0.6, linestyle=":")
    axes.set_xlim(0, max(110.0, *milliseconds))
    axes.set_ylim(0, 101)
    axes.set_xlabel("milliseconds after the instant (dashed: the budget for 99 in 100)")
    axes.set_ylabel("% of deletes")
    axes.set_title("deadlines: lateness of preemptive deletes, 10,000 armed, a drain beside them")
    canvas.tight_layout()
    return canvas


PLOTS: Mapping[str, tuple[tuple[str, ...], Callable[..., Canvas]]] = {
    "drains": (("pdb-chain", "mixed"), _drains),
    "requests": (("pdb-chain",), _requests),
    "storm": (("storm",), _storm),
    "scale": (("scale",), _scale),
    "deadlines": (("deadlines",), _deadlines),
}
"""By the name of the file: what it is drawn from, and how."""


def _canvas(height: float) -> Canvas:
    return Canvas(figsize=(WIDTH, height))


def _lines(axes: Any, series: Mapping[str, Series], budget: float) -> None:
    """Values by the number of nodes, each with its figure: the first above its point, the second below."""
    most = max(value for each in series.values() for _, value in each.points)
    for (name, one), colour, beside in zip(series.items(), (OURS, OTHERS), (8, -15), strict=False):
        nodes, values = zip(*one.points, strict=True)
        axes.plot(nodes, values, marker="o", color=colour, label=name)
        for at, value in one.points:
            text = {"textcoords": "offset points", "xytext": (0, beside), "ha": "center", "color": colour}
            axes.annotate(rounded(value), (at, value), **text)
    axes.axhline(budget, color=BUDGET, linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.set_xticks(nodes, [f"{each:,.0f}" for each in nodes])
    axes.minorticks_off()
    axes.set_xlim(nodes[0] / 2, nodes[-1] * 2)
    axes.set_ylim(0, 1.25 * max(budget, most))
    axes.set_xlabel("nodes (thirty pods each)")


def _bars(axes: Any, trials: Sequence[Trial], values: Sequence[float], unit: str) -> None:
    """A bar for each contender, with its value behind it and what it has not done as it should."""
    colours = [_colour(one, trials) for one in trials]
    axes.barh([one.contender for one in trials], values, color=colours, height=0.6)
    for row, (one, value) in enumerate(zip(trials, values, strict=True)):
        failings = one.failings
        axes.text(value, row, f" {rounded(value)} {unit}{failings}", va="center")
    axes.invert_yaxis()
    axes.set_xlim(0, 1.45 * max(values))


def _colour(one: Trial, trials: Sequence[Trial]) -> str:
    if one.contender.startswith("gracectl"):
        return OURS
    return YARDSTICK if one is trials[0] else OTHERS
