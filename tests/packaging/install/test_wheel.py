"""What the wheels hold, as hatchling selects files: gracectl's has no simulator, kubesim's no gracectl; no tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[3]


def selected(folder: Path) -> set[str]:
    """The files of the wheel of a project."""
    builder = WheelBuilder(str(folder))
    data = builder.get_default_build_data()
    builder.set_build_data_defaults(data)
    with builder.config.set_build_data(data):
        return {file.distribution_path.replace(os.sep, "/") for file in builder.recurse_included_files()}


@pytest.mark.parametrize(
    ("folder", "package", "some"),
    [
        (ROOT, "gracectl", ["gracectl/cli/scenarios/node-budgets.yaml", "gracectl/crds/karpenter.sh_nodeclaims.yaml"]),
        (
            ROOT / "kubesim",
            "kubesim",
            ["kubesim/scenarios/files/small.yaml", "kubesim/types/kubernetes.json.gz", "kubesim/py.typed"],
        ),
    ],
)
def test_a_wheel_holds_its_package_and_nothing_else(folder: Path, package: str, some: list[str]) -> None:
    files = selected(folder)
    assert {file.partition("/")[0] for file in files} == {package}
    assert {f"{package}/__init__.py", *some} <= files
    assert not [file for file in files if "/tests/" in file or "kubesim" in file.removeprefix(package)]
