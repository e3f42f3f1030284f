"""A controller's metrics, in a form that tests can compare."""

from __future__ import annotations

from typing import Any

from gracectl.app.controller import Controller
from gracectl.runtime.histogram import Distribution

Figure = Any
"""A number or, of a histogram, how often and how much all together."""


def figures(controller: Controller, *names: str) -> dict[tuple[str, ...], Figure]:
    """By name (without its `gracectl_`) and labels, what is not 0; of these metrics, or of all."""
    found: dict[tuple[str, ...], Figure] = {}
    for sample in filter(None, controller.process.samples()):
        name = sample.metric.name.removeprefix("gracectl_")
        if names and name not in names:
            continue
        if isinstance(sample.value, Distribution):
            if sample.value.count:
                found[name, *map(str, sample.labels)] = (sample.value.count, round(sample.value.total, 3))
        elif sample.value:
            found[name, *map(str, sample.labels)] = round(sample.value, 3)
    return found


def series(controller: Controller) -> set[tuple[str, ...]]:
    """Every name with every value of its labels that is shown."""
    shown = [(sample.metric.name, *map(str, sample.labels)) for sample in filter(None, controller.process.samples())]
    assert len(shown) == len(set(shown))
    return set(shown)
