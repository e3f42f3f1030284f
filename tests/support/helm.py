"""The chart as helm renders it, where `make helm` has put one; under CI there must be one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.installed import Installed

CHART = Path(__file__).parents[2] / "helm" / "gracectl"
_BESIDE = Path(sys.executable).parent / "helm"
PROGRAM = str(_BESIDE) if _BESIDE.exists() else shutil.which("helm")
HELM = pytest.mark.skipif(PROGRAM is None and "CI" not in os.environ, reason="there is no helm: make helm")


def template(*values: str, serves: tuple[str, ...] = (), namespace: str = "gracectl") -> Installed:
    """`helm template` with `--set` for each of the values; hooks and tests are part of it."""
    sets = [part for value in values for part in ("--set", value)]
    apis = [part for each in serves for part in ("--api-versions", each)]
    command = [str(PROGRAM), "template", "gracectl", str(CHART), "--namespace", namespace, "--kube-version", "1.33.0"]
    done = subprocess.run([*command, *sets, *apis], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Installed.of(done.stdout, served=serves)
