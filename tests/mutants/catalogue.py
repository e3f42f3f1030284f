"""Catalogue of planted bugs: the files of planted/, and a bug's source as it is with the bug in it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).parents[2]
PLANTED: Final = Path(__file__).parent / "planted"


class Stale(Exception):
    """A bug whose text occurs in its file no longer, or more than once."""


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A planted bug: `old` becomes `new` in `file` (below gracectl/).

    `breaks`: what then goes wrong. `tests`: those that are expected to catch it, as pytest names them. `equivalent`:
    why no test can; such a bug is kept here, and not run.
    """

    name: str
    file: str
    breaks: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    equivalent: str = ""

    @property
    def path(self) -> Path:
        """The file that it is planted in."""
        return ROOT / "gracectl" / self.file

    @property
    def module(self) -> str:
        """Name of the module that it is planted in."""
        return ".".join(("gracectl", *Path(self.file).with_suffix("").parts)).removesuffix(".__init__")

    @property
    def package(self) -> str:
        """Package of gracectl that it is planted in."""
        return Path(self.file).parts[0]

    def source(self) -> str:
        """The file with the bug in it. Raises Stale."""
        text = self.path.read_text(encoding="utf-8")
        if (found := text.count(self.old)) != 1:
            raise Stale(f"{self.name}: its text occurs {found} times in gracectl/{self.file}, not once; adapt it")
        return text.replace(self.old, self.new)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mutant: tuple[Mutant, ...]


def load() -> tuple[Mutant, ...]:
    """All planted bugs, by package."""
    files = sorted(PLANTED.glob("*.toml"))
    return tuple(mutant for file in files for mutant in msgspec.toml.decode(file.read_bytes(), type=_File).mutant)
