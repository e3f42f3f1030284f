"""What commands share that speak to a cluster: which one is meant, and a sight of it over real connections."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import click
import pytest
import yaml
from click.testing import CliRunner
from kubesim.cluster import ClusterOptions, EmbeddedCluster, NodeSpec
from kubesim.serving import listening
from kubesim_support.patience import PATIENCE
from support.clients import named, pods_seen
from support.servers import mute
from support.shell import on_terminal
from support.stage import a_pod_manifest

from gracectl.cli.format import cluster_text
from gracectl.cli.options import ClusterTarget, cluster_options, connected
from gracectl.cli.root import root
from gracectl.config import ConfigError
from gracectl.inspect.watcher import ClusterWatcher, snapshot
from gracectl.kube import connection
from gracectl.kube.auth.credentials import ClusterAddress, shown_address
from gracectl.kube.cache.reading import read_all
from gracectl.kube.errors import Unreachable
from gracectl.kube.resources import NODES
from gracectl.runtime.clock import SystemClock
from gracectl.runtime.supervise import while_running


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


def test_the_settings_are_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("eviction: {qps: 7}\n")
    assert ClusterTarget(config=file).settings().eviction.qps == 7
    assert ClusterTarget().settings() == ClusterTarget(config=None).settings()
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        ClusterTarget(config=tmp_path / "gone.yaml").settings()


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
    with anyio.fail_after(PATIENCE):
        while not condition():
            await sight.changed(0.1)


@pytest.mark.real_time
async def test_a_sight_of_a_server_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    choice = ClusterTarget(str(kubeconfig))
    async with a_cluster() as cluster, anyio.create_task_group() as group:
        async with listening(cluster, kubeconfig) as url, connected(choice) as there:
            assert there.cluster.server == url
            first_sight = await snapshot(there.client, named("n1"))
            assert [pod.name for pod in first_sight.pods.values()] == ["on-n1"]
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


@pytest.mark.real_time
async def test_an_absent_server_is_reported_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    waits: list[float] = []
    sleep = SystemClock.sleep

    async def noted(self: SystemClock, seconds: float) -> None:
        waits.append(seconds)
        await sleep(self, seconds)

    async with a_cluster() as cluster, listening(cluster, kubeconfig):
        pass
    monkeypatch.setattr(SystemClock, "sleep", noted)
    async with connected(ClusterTarget(str(kubeconfig))) as there:
        with pytest.raises(Unreachable, match="list nodes: the server cannot be reached"):
            await snapshot(there.client, named("n1"))
    assert sum(waits) < 5


@pytest.mark.real_time
async def test_a_silent_server_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "NOTICE_SECONDS", 0.05)
    said: list[str] = []
    with mute(tmp_path, "n1", deaf=True) as (_, kubeconfig):
        async with connected(ClusterTarget(str(kubeconfig)), notice=said.append) as opened:
            async with while_running(opened.client.server_version):
                with anyio.fail_after(PATIENCE):
                    while not said:
                        await opened.clock.sleep(0.01)
                with anyio.move_on_after(0.2):
                    await opened.client.server_version()
            assert said == [f"waiting for {opened.cluster.server}: no answer yet to get /version"]


@pytest.mark.real_time
async def test_nothing_is_said_of_a_server_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "NOTICE_SECONDS", 10.0)
    said: list[str] = []
    with mute(tmp_path, "n1") as (_, kubeconfig):
        async with connected(ClusterTarget(str(kubeconfig)), notice=said.append) as opened:
            assert [node.name for node in await read_all(opened.client, NODES)] == ["n1"]
    assert said == []


def kubeconfig_of(folder: Path, mute_one: Path, *, context: str, user: str = "") -> Path:
    """The kubeconfig of a server with another context, and with a user in its address."""
    config = yaml.safe_load(mute_one.read_text())
    config["contexts"][0]["name"] = config["current-context"] = context
    cluster = config["clusters"][0]["cluster"]
    cluster["server"] = cluster["server"].replace("http://", f"http://{user}")
    path = folder / "other"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.real_time
def test_a_terminal_is_told_the_cluster_first_and_machines_are_in_json(tmp_path: Path) -> None:
    with mute(tmp_path, "n1") as (_, kubeconfig):
        server = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        for command in (("uncordon", "n2"), ("status", "n2"), ("plan", "n2")):
            seen = on_terminal(*command, "--kubeconfig", str(kubeconfig))
            assert seen.code == 3
            assert seen.lines[0] == f"cluster: x ({server})"
            piped = CliRunner().invoke(root, [*command, "--kubeconfig", str(kubeconfig)])
            assert (piped.exit_code, piped.stdout) == (3, "")
        result = CliRunner().invoke(root, ["status", "-o", "json", "--kubeconfig", str(kubeconfig)])
        assert json.loads(result.stdout)["cluster"] == {"context": "x", "server": server}
        seen = on_terminal("status", "-o", "json", "--kubeconfig", str(kubeconfig))
        assert seen.text.startswith("{")


@pytest.mark.real_time
def test_a_context_cannot_control_the_terminal_and_credentials_are_not_printed(tmp_path: Path) -> None:
    with mute(tmp_path, "n1") as (_, kubeconfig):
        server = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        other = kubeconfig_of(tmp_path, kubeconfig, context="prod\x1b[2J\u202e", user="me:hunter2@")
        seen = on_terminal("status", "n2", "--kubeconfig", str(other), columns=160)
        assert seen.lines[0] == f"cluster: prod\\x1b[2J\\u202e ({server})"
        assert "hunter2" not in seen.text
        result = CliRunner().invoke(root, ["status", "-o", "json", "--kubeconfig", str(other)])
        assert json.loads(result.stdout)["cluster"] == {"context": "prod\x1b[2J\u202e", "server": server}
        assert "hunter2" not in result.output


@pytest.mark.parametrize(("url", "shown"), [
    ("https://10.0.0.1:6443", "https://10.0.0.1:6443"),
    ("https://me:pass@word@host:6443/path?token=x", "https://host:6443/path"),
    ("https://token@host/a@b#secret", "https://host/a@b"),
    ("me:secret@host", "host"),
])  # fmt: skip
def test_an_address_is_shown_without_credentials(url: str, shown: str) -> None:
    assert shown_address(url) == shown


def test_a_pod_has_no_context() -> None:
    assert cluster_text(ClusterAddress(None, "https://10.96.0.1:443")) == (
        "cluster: https://10.96.0.1:443 (service account of this pod)"
    )
