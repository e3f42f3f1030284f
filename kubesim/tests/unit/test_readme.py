"""The README's example runs as it stands there, with the plugin as pytest finds it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def run(folder: Path, text: str) -> str:
    """Run a test file as a project of its own; returns what pytest printed."""
    (folder / "test_example.py").write_text(text)
    without = [f"-pno:{plugin}" for plugin in ("cacheprovider", "xdist", "looptime_plugin", "benchmark")]
    command = [sys.executable, "-m", "pytest", "-q", *without, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"^<!-- example -->\n```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert "1 passed" in run(tmp_path, example)


HTTP = """
import json
import urllib.request

import pytest
from kubesim.cluster import EmbeddedCluster


def nodes(http):
    with urllib.request.urlopen(f"{http.url}/api/v1/nodes") as reply:
        return [node["metadata"]["name"] for node in json.load(reply)["items"]]


def test_one_node(kubesim_http):
    assert nodes(kubesim_http) == ["node-1"]
    assert kubesim_http.url in kubesim_http.kubeconfig.read_text()


@pytest.mark.kubesim(scenario="small")
def test_a_scenario(kubesim_http):
    assert len(nodes(kubesim_http)) == 3
    kubesim_http.run(EmbeddedCluster.until_ready)
"""


def test_a_cluster_over_http(tmp_path: Path) -> None:
    assert "2 passed" in run(tmp_path, HTTP)


FAILING = """
import pytest

@pytest.mark.anyio
async def test_it(kubesim_cluster):
    with pytest.raises(KeyError):
        async with kubesim_cluster(nodes=0) as cluster:
            raise KeyError("mine")

@pytest.fixture
def anyio_backend(kubesim_virtual_time):
    return kubesim_virtual_time
"""


@pytest.mark.parametrize("text", [FAILING])
def test_a_failure_inside_comes_out_as_it_was(tmp_path: Path, text: str) -> None:
    assert "1 passed" in run(tmp_path, text)
