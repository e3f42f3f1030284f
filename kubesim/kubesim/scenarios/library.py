"""The scenarios that come with this package, by name; a program that embeds it can add folders of its own."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable

from kubesim.scenarios.parser import ScenarioError, read_text
from kubesim.scenarios.scenario import Scenario

FOLDER = files("kubesim.scenarios") / "files"
SUFFIX = ".yaml"


def names(*more: Traversable) -> tuple[str, ...]:
    """The names of all scenarios, in order; `more`: other folders of scenarios."""
    return tuple(sorted(_files(more)))


def text_of(name: str, *more: Traversable) -> str:
    """A scenario as its file has it. Raises ScenarioError if there is none of that name."""
    file = _files(more).get(name)
    if file is None:
        raise ScenarioError(f"there is no scenario {name}; choose among {', '.join(names(*more))}, or name a file")
    return file.read_text(encoding="utf-8")


def scenario_named(name: str, *more: Traversable) -> Scenario:
    """A scenario of the library. Raises ScenarioError if there is none of that name."""
    return read_text(text_of(name, *more), f"scenario {name}")


def _files(more: tuple[Traversable, ...]) -> dict[str, Traversable]:
    return {
        file.name.removesuffix(SUFFIX): file
        for folder in (FOLDER, *more)
        for file in folder.iterdir()
        if file.name.endswith(SUFFIX)
    }
