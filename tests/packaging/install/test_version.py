"""The version: one, wherever it is written, and the newest section of the changelog is its own."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from gracectl import __version__

ROOT = Path(__file__).parents[3]
HEADING = re.compile(r"^## (\d+\.\d+\.\d+) - (\d{4}-\d{2}-\d{2}|unreleased)$", re.MULTILINE)
# Where commands and files name an image or an archive of ours.
NAMED = re.compile(r"gracectl(?:-kubesim)?[:-](\d+\.\d+\.\d+)\b")


def test_kubesim_is_released_together_with_gracectl() -> None:
    project = tomllib.loads((ROOT / "kubesim" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == __version__


def test_the_newest_section_of_the_changelog_is_that_of_the_version() -> None:
    sections = HEADING.findall((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert sections[0][0] == __version__
    assert sections == sorted(sections, reverse=True)


def test_pages_and_compose_name_images_of_this_version() -> None:
    pages = [ROOT / "README.md", ROOT / "docker-compose.yml", *sorted(ROOT.glob("docs/*.md"))]
    named = {(page.name, version) for page in pages for version in NAMED.findall(page.read_text(encoding="utf-8"))}
    assert {page for page, _ in named} >= {"README.md", "docker-compose.yml", "install.md"}
    assert {version for _, version in named} == {__version__}
