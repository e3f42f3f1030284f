"""The cluster that the stories run against: one named by an environment variable, or a simulated one.

Both are reached by a kubeconfig over HTTP only. The embedded cluster is the shipped command `gracectl simulate` in a
process of its own, and its kubelet serves every node that appears. Anywhere else nothing does that for their nodes, so
the hollow kubelet of the benchmarks runs beside, again in a process of its own: it keeps the nodes Ready
whatever the tests are busy with.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml

from e2e_support.names import LABEL

VARIABLE = "GRACECTL_E2E_KUBECONFIG"
TESTS = Path(__file__).parent.parent


class Target(msgspec.Struct, frozen=True):
    """A cluster that can be used. `run` begins every name that the stories make up."""

    kubeconfig: Path
    run: str

    @property
    def config(self) -> Any:
        """What stands in the kubeconfig."""
        return yaml.safe_load(self.kubeconfig.read_text())


@contextmanager
def chosen_target(folder: Path) -> Iterator[Target]:
    """The cluster that the environment names, with a hollow kubelet beside it, or else a simulated one."""
    run = f"e2e-{secrets.token_hex(3)}"
    given = os.environ.get(VARIABLE)
    if given:
        kubeconfig = Path(given).expanduser()
        with _service("-m", "benchmarks.ground.hollow", str(kubeconfig), LABEL, run):
            yield Target(kubeconfig, run)
    else:
        with embedded_cluster(folder, "--nodes", "2", "--pods", "1") as kubeconfig:
            yield Target(kubeconfig, run)


@contextmanager
def embedded_cluster(folder: Path, *arguments: str) -> Iterator[Path]:
    """`gracectl simulate` while the block lasts; yields its kubeconfig, written into `folder`."""
    kubeconfig = folder / "kubeconfig"
    with _service("-m", "gracectl", "simulate", "--kubeconfig", str(kubeconfig), *arguments):
        yield kubeconfig


@contextmanager
def _service(*arguments: str) -> Iterator[None]:
    """A Python process that says something on stdout as soon as it is ready, and ends by SIGTERM."""
    given = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(TESTS), str(TESTS.parent), given)))}
    command = [sys.executable, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"{' '.join(arguments)} ended with {process.wait()} before it was ready")
            yield
        finally:
            process.terminate()
