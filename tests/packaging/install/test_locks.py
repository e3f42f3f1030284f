"""The lists of dependencies with hashes (`make lock`): all dependencies, each in one version, and the build backend."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
ALL = "constraints.txt"
IMAGE = "deploy/container/requirements.txt"
BACKEND = "deploy/container/build-requirements.txt"
BENCH = "benchmarks/requirements.txt"
RELEASE = "tools/requirements.txt"
AUDIT = "tools/audit/requirements.txt"


def entries(path: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Requirement and hashes of each entry of a list, by the requirement's text."""
    text = re.sub(r"^ *#.*\n", "", (ROOT / path).read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", "")
    by_name: dict[str, tuple[str, frozenset[str]]] = {}
    for line in filter(None, text.splitlines()):
        requirement, *hashes = re.split(r"\s+--hash=sha256:", line.rstrip())
        by_name[requirement] = (canonicalize_name(Requirement(requirement).name), frozenset(hashes))
    return by_name


def names(path: str) -> set[str]:
    """The packages of a list."""
    return {name for name, _ in entries(path).values()}


def project(folder: str) -> dict[str, Any]:
    """A pyproject.toml."""
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))


def wanted(folder: str, *extras: str) -> set[str]:
    """The packages that a project names, for these extras too; without kubesim, which is not published."""
    table = project(folder)["project"]
    texts = [*table["dependencies"], *(each for extra in extras for each in table["optional-dependencies"][extra])]
    return {str(canonicalize_name(Requirement(text).name)) for text in texts} - {"kubesim"}


@pytest.mark.parametrize("path", [ALL, IMAGE, BACKEND, BENCH, RELEASE, AUDIT])
def test_every_entry_is_one_version_with_hashes(path: str) -> None:
    locked = entries(path)
    assert locked
    for requirement, (_, hashes) in locked.items():
        (version,) = Requirement(requirement).specifier
        assert version.operator == "=="
        assert hashes
        assert all(re.fullmatch("[0-9a-f]{64}", each) for each in hashes)


@pytest.mark.parametrize(
    ("path", "packages"),
    [
        (ALL, wanted(".", "agent", "aws", "demo", "dev", "docs") | wanted("kubesim", "dev")),
        (IMAGE, wanted(".", "agent", "aws") | wanted("kubesim")),
        (BENCH, {"matplotlib"}),
        (RELEASE, {"pyinstaller", "uv"}),
        (AUDIT, {"deptry", "pip-audit"}),
    ],
)
def test_a_list_has_what_the_projects_name(path: str, packages: Iterable[str]) -> None:
    assert set(packages) <= names(path)


def test_what_is_in_two_lists_is_the_same_in_both() -> None:
    everything = entries(ALL)
    for path in (IMAGE, BACKEND):
        assert entries(path).items() <= everything.items()
    shared = names(BENCH) & names(ALL)
    assert {key for key, (name, _) in entries(BENCH).items() if name in shared} <= set(everything)


def test_the_backend_is_the_one_that_has_hashes() -> None:
    for folder in (".", "kubesim"):
        (backend,) = project(folder)["build-system"]["requires"]
        assert backend in entries(BACKEND)
    needed = {canonicalize_name(Requirement(text).name) for text in requires("hatchling") or () if ";" not in text}
    assert needed <= names(BACKEND)


def test_the_image_has_nothing_that_only_developers_need() -> None:
    assert not names(IMAGE) & (names(BACKEND) | wanted(".", "dev", "docs") - wanted(".", "agent", "aws"))
