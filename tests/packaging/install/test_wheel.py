"""What is published of each project: a wheel with its package, whole, and an sdist of which the same wheel is built."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from gracectl import __version__

ROOT = Path(__file__).parents[3]
PROJECTS = {"gracectl": ROOT, "kubesim": ROOT / "kubesim"}
SOME = {
    "gracectl": [
        "gracectl/py.typed",
        "gracectl/cli/scenarios/node-budgets.yaml",
        "gracectl/cli/ui/page/index.html",
        "gracectl/crds/karpenter.sh_nodeclaims.yaml",
    ],
    "kubesim": ["kubesim/py.typed", "kubesim/scenarios/files/small.yaml", "kubesim/types/kubernetes.json.gz"],
}
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]

each_project = pytest.mark.parametrize("name", PROJECTS)


def selected(folder: Path) -> set[str]:
    """The files of the wheel of a project, without its metadata."""
    builder = WheelBuilder(str(folder))
    data = builder.get_default_build_data()
    builder.set_build_data_defaults(data)
    with builder.config.set_build_data(data):
        return {file.distribution_path.replace(os.sep, "/") for file in builder.recurse_included_files()}


def project(name: str) -> dict[str, Any]:
    """The table `project` of its pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((PROJECTS[name] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


@each_project
def test_a_wheel_holds_its_package_whole_and_nothing_else(name: str) -> None:
    files = selected(PROJECTS[name])
    assert {file.partition("/")[0] for file in files} == {name}
    assert {f"{name}/__init__.py", *SOME[name]} <= files
    assert not [file for file in files if "/tests/" in file or "kubesim" in file.removeprefix(name)]
    listed = subprocess.run(
        ["git", "ls-files", "--", name], cwd=PROJECTS[name], capture_output=True, text=True, check=True
    )
    assert files >= {file for file in listed.stdout.splitlines() if (PROJECTS[name] / file).exists()}


@each_project
def test_of_the_sdist_the_same_wheel_is_built(name: str, tmp_path: Path) -> None:
    (archive,) = SdistBuilder(str(PROJECTS[name])).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(archive) as sdist:
        sdist.extractall(tmp_path, filter="data")
    unpacked = tmp_path / f"{name}-{__version__}"
    assert selected(unpacked) == selected(PROJECTS[name])
    assert {each.name for each in unpacked.iterdir()} <= {
        *(name, "docs", "CHANGELOG.md", "LICENSE", "NOTICE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore")
    }
    metadata = (unpacked / "PKG-INFO").read_text(encoding="utf-8")
    for line in (f"Version: {__version__}", "License-Expression: Apache-2.0", "License-File: NOTICE"):
        assert f"\n{line}\n" in metadata


@each_project
def test_every_supported_python_is_a_classifier(name: str) -> None:
    prefix = "Programming Language :: Python :: "
    table = project(name)
    assert [line.removeprefix(prefix) for line in table["classifiers"] if line.startswith(prefix)] == PYTHONS
    assert table["requires-python"] == f">={PYTHONS[0]}"
    assert "Typing :: Typed" in table["classifiers"]


def test_a_clean_installation_and_the_page_have_all_extras_of_users() -> None:
    extras = set(project("gracectl")["optional-dependencies"]) - {"bench", "dev", "docs"}
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    assert [extra for extra in sorted(extras) if f"\n| `{extra}` | " not in page] == []
    (installed,) = re.findall(r'\.whl\)\[([a-z,]+)\]"', (ROOT / "tools" / "clean-install").read_text(encoding="utf-8"))
    assert set(installed.split(",")) == extras


def test_continuous_integration_installs_the_wheels_afresh() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
    assert jobs["install"]["steps"][-1] == {"run": "tools/clean-install"}
