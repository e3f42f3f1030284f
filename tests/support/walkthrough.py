"""A page whose commands are run: its console blocks in their order, each with what it is for.

A comment above a block says so: `<!-- step: WHERE -->`, or `<!-- step: WHERE, stays -->` for what is left running.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(r"<!-- step: (?P<where>[\w-]+)(?P<stays>, stays)? -->\n```console\n(?P<text>.*?)^```$", re.M | re.S)


class Step(NamedTuple):
    """Lines to be typed. `where`: anywhere, or in what circumstances; `stays`: whether they run on by themselves."""

    where: str
    stays: bool
    lines: tuple[str, ...]


def steps(page: Path, wanted: Collection[str]) -> list[Step]:
    """Those for these circumstances, in their order."""
    found = []
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        lines = tuple(line[2:] for line in block["text"].splitlines() if line.startswith("$ "))
        found.append(Step(block["where"], bool(block["stays"]), lines))
    return [step for step in found if step.where in wanted]


def circumstances(page: Path) -> set[str]:
    """All that the page names."""
    return {block["where"] for block in BLOCK.finditer(page.read_text(encoding="utf-8"))}
