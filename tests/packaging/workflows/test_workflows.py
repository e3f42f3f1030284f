"""The workflows: pinned, with few rights, and about what there is. actionlint and zizmor (`make lint`) know more."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.tools import ROOT, versions

FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
USES = re.compile(r"^\s*(?:- )?uses: (\S+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)$")


def read(path: Path) -> dict[str, Any]:
    workflow: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return workflow


def jobs() -> Iterator[tuple[Path, str, dict[str, Any]]]:
    for path in FILES:
        for name, job in read(path)["jobs"].items():
            yield path, name, job


def matrix(key: str) -> list[list[str]]:
    """The values of each matrix that has this key."""
    values = [job.get("strategy", {}).get("matrix", {}).get(key) for _, _, job in jobs()]
    return [each for each in values if each]


def test_actions_are_pinned_and_the_same_everywhere() -> None:
    pins: dict[str, set[str]] = {}
    for path in FILES:
        for line in path.read_text(encoding="utf-8").splitlines():
            if "uses:" in line:
                match = USES.match(line)
                assert match, f"{path.name}: {line.strip()}"
                pins.setdefault(match[1], set()).add(match[2])
    assert pins
    assert all(len(commits) == 1 for commits in pins.values())


def test_packages_of_a_distribution_come_from_the_archive_of_one_day() -> None:
    asked = [
        (name, step["run"])
        for _, name, job in jobs()
        for step in job["steps"]
        if re.search(r"\bapt(-get)?\b", step.get("run", ""))
    ]
    assert [name for name, _ in asked] == ["browser"]
    for name, command in asked:
        # The image is pinned by its digest, and names the day.
        assert "test \"$(grep -c '^URIs: http://snapshot'" in command, name
        assert "/snapshot\\.debian\\.org/" in command.partition("apt-get")[0], name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_has_a_right_that_its_job_does_not_name(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {}
    assert "group" in workflow["concurrency"]
    for name, job in workflow["jobs"].items():
        assert "permissions" in job, name
        assert job["timeout-minutes"] < 360, name
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_every_target_is_there() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = set()
    for path, _, job in jobs():
        rows = job.get("strategy", {}).get("matrix", {}).get("include", [])
        for command in [step.get("run", "") for step in job["steps"]] + [row.get("run", "") for row in rows]:
            for words in re.findall(r"\bmake((?: [a-z][a-z0-9-]*\b(?!=))+)", command):
                asked |= {(path.stem, word) for word in words.split()}
    assert {"lint", "test", "soak"} <= {word for _, word in asked}
    assert {(stem, word) for stem, word in asked if word not in targets} == set()


def test_every_python_and_every_kubernetes_that_is_supported_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pythons = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r"Python :: 3\.\d", each)]
    tested = matrix("python")
    assert tested
    assert all(set(pythons) <= set(each) for each in tested)
    pinned = {name.removeprefix("KIND_NODE_").replace("_", ".") for name in versions() if "KIND_NODE_" in name}
    assert [set(each) for each in matrix("kubernetes")] == [pinned, pinned]


def test_the_browser_has_the_base_of_our_image_under_it() -> None:
    base = re.search(r"^ARG PYTHON=(\S+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert base
    assert read(ROOT / ".github/workflows/ci.yml")["jobs"]["browser"]["container"] == f"python:{base[1]}"
