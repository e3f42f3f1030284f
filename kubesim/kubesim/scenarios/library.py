"""The scenarios that ship with gracectl, by name."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from kubesim.scenarios.parser import ScenarioError, read_text
from kubesim.scenarios.scenario import Scenario

FOLDER = files("kubesim.scenarios") / "files"
SUFFIX = ".yaml"


@cache
def names() -> tuple[str, ...]:
    """The names of all scenarios, in order."""
    return tuple(sorted(file.name.removesuffix(SUFFIX) for file in FOLDER.iterdir() if file.name.endswith(SUFFIX)))


def text_of(name: str) -> str:
    """A scenario as its file has it. Raises ScenarioError if there is none of that name."""
    if name not in names():
        raise ScenarioError(f"there is no scenario {name}; choose among {', '.join(names())}, or name a file")
    return (FOLDER / f"{name}{SUFFIX}").read_text(encoding="utf-8")


@cache
def scenario_named(name: str) -> Scenario:
    """A scenario of the library. Raises ScenarioError if there is none of that name."""
    return read_text(text_of(name), f"scenario {name}")
