"""Reading the Dockerfile: its instructions, one after the other, as far as ours uses the language."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

ROOT = Path(__file__).parents[2]


class Instruction(msgspec.Struct, frozen=True):
    """One instruction: `COPY --from=build /a /b` has the flag `from`, and what is behind the flags as `rest`."""

    word: str
    flags: dict[str, str]
    rest: str

    @property
    def listed(self) -> list[str]:
        """What is written as a JSON list, which no shell gets to see. ValueError for anything else."""
        listed = json.loads(self.rest)
        if not isinstance(listed, list):
            raise ValueError(self.rest)
        return listed


def instructions(text: str) -> list[Instruction]:
    """All of a Dockerfile, without its comments."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    found = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        word, _, rest = line.partition(" ")
        flags = {}
        while match := re.match(r"--([\w-]+)=(\S+)\s+", rest):
            flags[match[1]] = match[2]
            rest = rest[match.end() :]
        found.append(Instruction(word, flags, rest))
    return found


def _stages(text: str) -> list[list[Instruction]]:
    """What stands before the first FROM, and then each stage from its FROM on."""
    split: list[list[Instruction]] = [[]]
    for instruction in instructions(text):
        if instruction.word == "FROM":
            split.append([])
        split[-1].append(instruction)
    return split


def the_only(stage: list[Instruction], word: str) -> Instruction:
    """The one instruction of that word; AssertionError if there are several or none."""
    found = [instruction for instruction in stage if instruction.word == word]
    assert len(found) == 1, (word, found)
    return found[0]


def read_yaml(path: str) -> Any:
    """A YAML file of the project."""
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


BEFORE, BUILD, BUILD_KUBESIM, FINAL, KUBESIM, DEFAULT = _stages((ROOT / "Dockerfile").read_text(encoding="utf-8"))
"""The project's Dockerfile: arguments, the stage that builds, the one that is the image, the same two with kubesim, and
the one without a target."""
