"""docs/tutorial.md is run, from the first line to the last, with the real kubectl.

Docker, kind and a helm that installs are exchanged: the cluster is the embedded one (the page says how), which asks for
rights; what `helm install` and `helm uninstall` do, kubectl does with what the chart renders, and the hook's command is
run as the hook's account.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import orjson
import pytest
import yaml
from e2e_support.sight import ClusterWatcher, Scope
from kubesim.controllers.paths import NODES, PODS, path_of
from kubesim.server.api import JsonObject
from kubesim_support.kubectl import needs_kubectl
from kubesim_support.patience import PATIENCE
from support.chart import Release, needs_helm
from support.servers import free_ports
from support.shell import Shell, Step, circumstances, steps, terminal
from support.thorough import thorough

from benchmarks.ground.hollow import connected
from gracectl.model.names import FINALIZER
from gracectl.runtime.clock import SystemClock

pytestmark = [pytest.mark.real_time, needs_kubectl]

PAGE = Path(__file__).parents[3] / "docs" / "tutorial.md"
EVERYWHERE = ("anywhere", "embedded")
WEB = {"app": "web"}
GOES = "pretend-1"
PASSING: Final = {"Event", "PodMetrics", "NodeMetrics", "ComponentStatus"}
"""Kinds whose objects come and go by themselves, or are computed for each request."""

Instead = Callable[[Shell], Awaitable[None]]


def test_the_page_says_of_each_block_where_it_is_for() -> None:
    assert circumstances(PAGE) == {"anywhere", "embedded", "kind", "helm", "kubectl"}
    text = PAGE.read_text()
    assert text.count("```console") == text.count("<!-- step: ")


async def everything(shell: Shell) -> dict[str, Any]:
    """All objects that a cluster can list, by kind, namespace and name; of nodes what clients have added."""
    names = (await shell.run("kubectl api-resources --verbs=list -o name")).split()
    listed = orjson.loads(await shell.run(f"kubectl get {','.join(names)} -A -o json"))
    found: dict[str, Any] = {}
    for each in listed["items"]:
        metadata = each["metadata"]
        place = (each["kind"], metadata.get("namespace", ""), metadata["name"])
        if each["kind"] not in PASSING and place[:2] != ("Lease", "kube-node-lease"):
            found["/".join(place)] = _borne(each) if each["kind"] == "Node" else None
    return found


def _borne(node: JsonObject) -> Any:
    metadata = node["metadata"]
    kept = {key: metadata.get(key) for key in ("finalizers", "labels", "annotations")}
    return {**kept, "taints": node["spec"].get("taints"), "unschedulable": node["spec"].get("unschedulable")}


def instead_of_helm(folder: Path) -> Mapping[str, Instead]:
    """What is done for the page's helm commands, by their beginning."""
    release = Release()
    hooks = [each for each in release.objects() if _hook_of(each)]
    plain = [each for each in release.objects() if not _hook_of(each)]

    def written(name: str, objects: list[JsonObject]) -> Path:
        path = folder / name
        path.write_text(yaml.safe_dump_all(objects))
        return path

    async def install(shell: Shell) -> None:
        await shell.run("kubectl create namespace gracectl")
        await shell.run(f"kubectl apply --server-side -f {written('release.yaml', plain)}")

    async def uninstall(shell: Shell) -> None:
        before = [each for each in hooks if _hook_of(each) == "pre-delete"]
        (job,) = (each for each in before if each["kind"] == "Job")
        rights = written("hook.yaml", [each for each in before if each["kind"] != "Job"])
        await shell.run(f"kubectl apply -f {rights}")
        pod = job["spec"]["template"]["spec"]
        account = await account_of(shell, folder, pod["serviceAccountName"])
        (container,) = pod["containers"]
        (mount,) = container["volumeMounts"]
        config = [
            each["data"]["config.yaml"]
            for each in (*plain, *before)
            if each["kind"] == "ConfigMap" and each["metadata"]["name"] == pod["volumes"][0]["configMap"]["name"]
        ]
        (folder / "config.yaml").write_text(config[-1])
        arguments = " ".join(container["args"]).replace(mount["mountPath"], str(folder))
        await shell.run(f"gracectl {arguments} --kubeconfig {account}")
        await shell.run(f"kubectl delete -f {rights}")
        kept = "helm.sh/resource-policy"
        going = [each for each in plain if (each["metadata"].get("annotations") or {}).get(kept) != "keep"]
        await shell.run(f"kubectl delete -f {written('going.yaml', going)}")

    return {"helm install": install, "helm uninstall": uninstall}


def _hook_of(thing: JsonObject) -> str:
    hook: str = (thing["metadata"].get("annotations") or {}).get("helm.sh/hook", "")
    return hook


async def account_of(shell: Shell, folder: Path, name: str) -> Path:
    """A kubeconfig of an account of the release."""
    path = folder / f"{name}.kubeconfig"
    await shell.run(f"cp $KUBECONFIG {path}")
    token = f'"$(kubectl -n gracectl create token {name})"'
    await shell.run(f"kubectl --kubeconfig {path} config set-credentials kubesim --token {token}")
    return path


@asynccontextmanager
async def seen(kubeconfig: Path) -> AsyncIterator[ClusterWatcher]:
    """All nodes, and the pods of the bakery."""
    async with connected(kubeconfig) as api, anyio.create_task_group() as group:
        sight = ClusterWatcher(api, SystemClock(), Scope("Node", NODES, {}), Scope("Pod", path_of(PODS, "bakery"), {}))
        await group.start(sight.run)
        yield sight
        group.cancel_scope.cancel()


async def until_written(path: Path) -> None:
    """Wait for a file of a process that has just been started."""
    clock = SystemClock()
    with anyio.fail_after(PATIENCE):
        while not _is_written(path):
            await clock.sleep(0.1)


def _is_written(path: Path) -> bool:
    return path.exists() and bool(path.read_text())


async def follow(shell: Shell, step: Step, exchanged: Mapping[str, Instead]) -> str:
    """Run the commands of a step; returns what they print."""
    said = ""
    for line in step.lines:
        other = next((do for begin, do in exchanged.items() if line.startswith(begin)), None)
        if step.stays:
            await shell.start(shell.typed(line))
        elif other is not None:
            await other(shell)
        else:
            said += await shell.run(shell.typed(line))
    return said


@pytest.mark.parametrize("way", ["kubectl", *thorough("helm")])
async def test_the_page_drains_a_node_and_leaves_nothing_behind(way: str, tmp_path: Path) -> None:
    if way == "helm":
        needs_helm()
    admission, metrics, probes = free_ports(3)
    exchanged = instead_of_helm(tmp_path) if way == "helm" else {}
    wanted = steps(PAGE, (*EVERYWHERE, way))
    async with terminal(tmp_path, {"/tmp/": f"{tmp_path}/", ":8443": f":{admission}"}) as shell:
        # The ports of the page may be taken here.
        ports = {"ADMISSION": admission, "METRICS": metrics, "PROBES": probes}
        shell.elsewhere |= {f"GRACECTL__{part}__LISTEN": f"127.0.0.1:{port}" for part, port in ports.items()}
        cluster, export = wanted[:2]
        await follow(shell, cluster, {})
        await until_written(tmp_path / "sim.kubeconfig")
        await follow(shell, export, {})
        before = await everything(shell)
        async with seen(tmp_path / "sim.kubeconfig") as sight:
            for step in wanted[2:]:
                await _followed(shell, step, exchanged, sight)
        await _until_as_before(shell, before)


async def _followed(shell: Shell, step: Step, exchanged: Mapping[str, Instead], sight: ClusterWatcher) -> None:
    """Follow a step, and check what the page promises of it."""
    if not any("gracectl terminate " in line for line in step.lines):
        said = await follow(shell, step, exchanged)
        # "Both of these print nothing."
        assert not said or not any("grep" in line for line in step.lines), said
        return
    assert FINALIZER in sight.all("Node", type="pretend")[0]["metadata"]["finalizers"]
    moving = [pod for pod in sight.all("Pod", **WEB) if pod["spec"]["nodeName"] == GOES]
    assert moving
    since = len(sight.journal)
    said = await follow(shell, step, exchanged)
    assert sight.get("Node", GOES) is None
    assert re.search(rf"^{GOES}: drained", said, re.MULTILINE)  # the plan
    assert "Drain" in said  # Events
    assert all(pod["spec"]["nodeName"] != GOES for pod in sight.all("Pod", **WEB))
    # The budget has held all the time.
    assert sight.lowest_health(since, **WEB) == 5


async def _until_as_before(shell: Shell, before: dict[str, Any]) -> None:
    """Wait for the garbage collector and for namespaces."""
    clock, after = SystemClock(), await everything(shell)
    with anyio.move_on_after(PATIENCE):
        while after != before:
            await clock.sleep(1.5)  # each look starts kubectl twice
            after = await everything(shell)
    assert after == before
