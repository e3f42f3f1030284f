"""The page about traces names what is in them, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gracectl
from gracectl.controllers.node.pipeline import STEPS
from gracectl.controllers.tracing.pods import WORDS

ROOM = Path(gracectl.__file__).parent / "controllers" / "tracing"
PAGE = (Path(gracectl.__file__).parents[1] / "docs" / "tracing.md").read_text()
NAMES = ("pods", "trace", "tracer", "nodeclaim", "../../agent/journal")
SOURCES = "".join((ROOM / f"{name}.py").read_text() for name in NAMES)
DOCUMENTED = set(re.findall(r"`((?:gracectl|k8s)\.[a-z_.]+)`", PAGE))
ELSEWHERE = {"gracectl.io"}
"""The annotation's domain."""


def written() -> set[str]:
    """As the sources spell them, in both ways that there are."""
    keywords = {name.replace("__", ".") for name in re.findall(r"\b((?:gracectl|k8s)__[a-z_]+)=", SOURCES)}
    return keywords | set(re.findall(r'"((?:gracectl|k8s)\.[a-z_.]+)"', SOURCES))


def test_every_attribute_is_on_the_page_and_none_that_is_not_there() -> None:
    assert written() - ELSEWHERE == DOCUMENTED - ELSEWHERE


@pytest.mark.parametrize(
    "words", [*WORDS.values(), "gone", "finished", "ignored", "already terminating", "terminated by another client"]
)
def test_every_way_in_which_a_pod_has_left_is_on_the_page(words: str) -> None:
    assert f"`{words}`" in PAGE
    assert f'"{words}"' in SOURCES


def test_every_step_is_on_the_page() -> None:
    tree = PAGE[PAGE.index("```text") :]
    tree = tree[: tree.index("```\n")]
    assert [step.name for step in STEPS if step.name not in tree] == []
