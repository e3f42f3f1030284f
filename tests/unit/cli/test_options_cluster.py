"""What commands share that speak to a cluster: which one is meant, and a sight of it over real connections."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import click
import pytest
from click.testing import CliRunner
from kubesim.cluster import ClusterOptions, EmbeddedCluster, NodeSpec
from kubesim.serving import listening
from support.mute import mute
from support.stage import a_pod_manifest
from support.watchers import named, pods_seen

from gracectl.cli.options import ClusterTarget, cluster_options, connected
from gracectl.cli.root import root
from gracectl.config import ConfigError
from gracectl.inspect.watcher import ClusterWatcher, snapshot
from gracectl.kube import connection
from gracectl.kube.credentials import CredentialsError
from gracectl.kube.errors import Unreachable
from gracectl.kube.reading import read_all
from gracectl.kube.resources import NODES
from gracectl.runtime.clock import SystemClock

OPTIONS = """\
Options:
  --kubeconfig FILE  Kubeconfig; default: $KUBECONFIG, the pod's service
                     account, ~/.kube/config.
  --context NAME     Context of the kubeconfig; default: its current one.
  --config FILE      Settings (YAML); default: all defaults.
  -h, --help         Show this message and exit.
"""


def given(*arguments: str) -> tuple[ClusterTarget, int]:
    """What a command with an option of its own gets."""
    got: list[tuple[ClusterTarget, int]] = []

    @click.command()
    @cluster_options
    @click.argument("number", type=int)
    def command(target: ClusterTarget, number: int) -> None:
        got.append((target, number))

    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    return got[0]


def test_a_command_gets_what_was_said_beside_its_own_options() -> None:
    assert given("7") == (ClusterTarget(), 7)
    said = given("--context", "c", "7", "--config", "s.yaml", "--kubeconfig", "k")
    assert said == (ClusterTarget("k", "c", Path("s.yaml")), 7)


def test_the_controllers_help_lists_them_as_ever() -> None:
    shown = CliRunner().invoke(root, ["controller", "--help"], terminal_width=80).output
    assert OPTIONS in shown
    assert "Watch a cluster and end its deleted nodes gracefully." in shown


def test_the_settings_are_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("eviction: {qps: 7}\n")
    assert ClusterTarget(config=file).settings().eviction.qps == 7
    assert ClusterTarget().settings() == ClusterTarget(config=None).settings()
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        ClusterTarget(config=tmp_path / "gone.yaml").settings()


@pytest.mark.anyio
async def test_a_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="nowhere"):
        async with connected(ClusterTarget(str(tmp_path / "nowhere"))):
            pass


# -- over real connections ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def a_cluster() -> AsyncIterator[EmbeddedCluster]:
    """Two nodes with a running pod each; no command can reach it yet."""
    cluster = EmbeddedCluster(SystemClock(), ClusterOptions(speed=50.0))
    async with anyio.create_task_group() as group:
        await group.start(cluster.run)
        for node in ("n1", "n2"):
            await cluster.add_node(NodeSpec(name=node))
            await cluster.create(a_pod_manifest(f"on-{node}", node))
        await cluster.until_ready()
        yield cluster
        group.cancel_scope.cancel()


async def seen(sight: ClusterWatcher, condition: Callable[[], bool]) -> None:
    """Wait until something is so in the sight."""
    with anyio.fail_after(30):
        while not condition():
            await sight.changed(0.1)


@pytest.mark.anyio
@pytest.mark.real_time
async def test_a_sight_of_a_server_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    choice = ClusterTarget(str(kubeconfig))
    async with a_cluster() as cluster, anyio.create_task_group() as group:
        async with listening(cluster, kubeconfig) as url, connected(choice) as there:
            assert there.url == url
            found = await snapshot(there.client, named("n1"))
            assert [pod.name for pod in found.pods.values()] == ["on-n1"]
        async with connected(choice) as there:
            sight = ClusterWatcher(there.client, named("n1"), there.clock)
            async with listening(cluster, kubeconfig, port=int(url.rpartition(":")[2])):
                group.start_soon(sight.run)
                await sight.wait_live()
                assert pods_seen(sight, "n1", "n2") == {"n1": ["on-n1"], "n2": []}
                assert sight.connection_loss() is None
            await seen(sight, lambda: sight.connection_loss() is not None)
            await cluster.create(a_pod_manifest("late", "n1"))
            async with listening(cluster, kubeconfig, port=int(url.rpartition(":")[2])):
                await seen(sight, lambda: sight.connection_loss() is None and len(sight.cluster.pods_on("n1")) == 2)
                group.cancel_scope.cancel()


@pytest.mark.anyio
@pytest.mark.real_time
async def test_an_absent_server_is_reported_soon(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    async with a_cluster() as cluster, listening(cluster, kubeconfig):
        pass
    async with connected(ClusterTarget(str(kubeconfig))) as there:
        with anyio.fail_after(5), pytest.raises(Unreachable, match="list nodes: the server cannot be reached"):
            await snapshot(there.client, named("n1"))


def test_what_they_share_carries_no_embedded_cluster() -> None:
    program = (
        "import sys, gracectl.cli.options, gracectl.inspect.watcher\n"
        "assert not [name for name in sys.modules if name.startswith('kubesim')]\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.anyio
@pytest.mark.real_time
async def test_a_silent_server_is_named_once_while_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "NOTICE_SECONDS", 0.05)
    said: list[str] = []
    with mute(tmp_path, "n1", deaf=True) as (_, kubeconfig):
        async with connected(ClusterTarget(str(kubeconfig)), notice=said.append) as found:
            for _ in range(2):
                with anyio.move_on_after(0.2):
                    await found.client.server_version()
            assert said == [f"waiting for {found.url}: no answer yet to get /version"]


@pytest.mark.anyio
@pytest.mark.real_time
async def test_nothing_is_said_of_a_server_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "NOTICE_SECONDS", 10.0)
    said: list[str] = []
    with mute(tmp_path, "n1") as (_, kubeconfig):
        async with connected(ClusterTarget(str(kubeconfig)), notice=said.append) as found:
            assert [node.name for node in await read_all(found.client, NODES)] == ["n1"]
    assert said == []
