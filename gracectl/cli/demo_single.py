"""The demo of single replicas: one is replaced first, and one is plainly evicted; requests to both are counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio
import msgspec
from kubesim.cluster import EmbeddedCluster, NodeSpec
from kubesim.controllers.behaviour import PREFIX
from kubesim.controllers.client import ask
from kubesim.controllers.objects import is_ready, is_terminating, labels_of, node_of
from kubesim.controllers.paths import DEPLOYMENTS, NODES, path_of
from kubesim.server.api import JsonObject
from kubesim.verifier.verifier import Verifier
from rich.console import Group, RenderableType
from rich.text import Text

from gracectl.cli.console import Row, Table
from gracectl.cli.demo_play import Order, Stage, controlled
from gracectl.cli.demo_traffic import Traffic
from gracectl.cli.embedded import served
from gracectl.cli.report import JsonObject as Report
from gracectl.cli.status.view import View
from gracectl.cli.telemetry import traced
from gracectl.model import names
from gracectl.runtime.clock import SystemClock

NAMESPACE: Final = "shop"
FIRST, PLAIN = "web-first", "web-plain"
NODE: Final = "worker-1"
OTHERS: Final = ("worker-2", "worker-3")
WARM_UP_SECONDS: Final = 3.0
"""From when the server of a pod listens until the pod is Ready, at speed 1."""
BEFORE_SECONDS: Final = 1.0
"""How long requests are sent before the node is deleted, and after all is over."""
LOOK_AGAIN_SECONDS: Final = 0.05


class WorkloadResult(Report, frozen=True):
    """One Deployment of a single pod. `requests`: as many as were sent; `failed` of them had no good answer.
    `seconds_down`: without a Ready endpoint. `generations`: of the Deployment, before and after."""

    name: str
    replaced_first: bool
    requests: int
    failed: int
    seconds_down: float
    generations: tuple[int, int]


class SingleResult(Report, frozen=True, kw_only=True):
    """The JSON object of `-o json`, in this order. `seconds`: from the DELETE of the node until everything was done.
    `failures`: empty exactly if `ok`."""

    seconds: float
    seed: int
    speed: float
    ok: bool
    workloads: tuple[WorkloadResult, ...] = ()
    failures: tuple[str, ...] = ()


async def perform_single(order: Order, folder: Path, view: View) -> SingleResult:
    """Run the demo; failures are part of the result. Raises ApiError, ComponentFailed if it cannot run.

    `folder`: for the kubeconfig.
    """
    kubeconfig = folder / "kubeconfig"
    deadline = anyio.current_time() + order.guard
    view.echo("Starting an embedded cluster of 3 nodes, and a server process in each of 2 pods …")
    async with traced(order.trace_file) as spans, served(kubeconfig, speed=order.speed, seed=order.seed) as world:
        cluster, url = world
        async with controlled(kubeconfig, url, order, view, spans) as (controller, nodes, api):
            clock = SystemClock()
            traffic = Traffic(cluster, clock, (FIRST, PLAIN), WARM_UP_SECONDS / order.speed)
            play = _Play(order, cluster, traffic, Verifier(api, clock))
            stop = anyio.Event()
            async with traffic.running(), anyio.create_task_group() as group:
                await group.start(play.verifier.run)
                async with anyio.create_task_group() as stage:
                    stage.start_soon(controller.run, stop)
                    with anyio.CancelScope(deadline=deadline) as playing:
                        await play.run(nodes)
                    stop.set()
                result = await play.result(is_over_time=playing.cancelled_caught)
                group.cancel_scope.cancel()
    return result


class _Play:
    """One run."""

    def __init__(self, order: Order, cluster: EmbeddedCluster, traffic: Traffic, verifier: Verifier) -> None:
        self.verifier = verifier
        self._order = order
        self._cluster = cluster
        self._traffic = traffic
        self._clock = SystemClock()
        self._before: dict[str, int] = {}
        self._began = 0.0
        self._seconds: float | None = None

    async def run(self, stage: Stage) -> None:
        """Delete the node of both pods, and wait until they serve elsewhere."""
        await self._cluster.add_node(NodeSpec(name=NODE))
        for manifest in manifests():
            await self._cluster.create(manifest)
        await self._until(lambda: all(len(each.ports) == 1 for each in self._traffic.clients.values()))
        for name in OTHERS:
            await self._cluster.add_node(NodeSpec(name=name))
        await self.verifier.until(lambda: all(names.FINALIZER in node.finalizers for node in self.verifier.nodes()))
        stage.view.echo(
            f"Clients send 50 requests a second to {FIRST}, which asks to be replaced first, and to {PLAIN}."
        )
        for clients in self._traffic.clients.values():
            clients.reset()
        self._before = await self._generations()
        await self._clock.sleep(BEFORE_SECONDS)
        uids = {node.name: node.uid for node in self.verifier.nodes() if node.name == NODE}
        stage.view.echo(f"Deleting {NODE} …")
        self._began = self._clock.monotonic()
        with stage.view.showing():
            async with anyio.create_task_group() as group:
                group.start_soon(stage.follow, uids)
                await ask(self._cluster.api, "DELETE", path_of(NODES, name=NODE))
                await self._until(self._is_over)
        self._seconds = self._clock.monotonic() - self._began
        await self._clock.sleep(BEFORE_SECONDS)

    def _is_over(self) -> bool:
        is_gone = all(node.name != NODE or node.gone_at is not None for node in self.verifier.nodes())
        return is_gone and all(self._serves_elsewhere(app) for app in self._traffic.clients)

    def _serves_elsewhere(self, app: str) -> bool:
        pods = [pod for pod in self._cluster.pods() if labels_of(pod).get("app") == app]
        return [is_ready(pod) and not is_terminating(pod) and node_of(pod) != NODE for pod in pods] == [True]

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._clock.sleep(LOOK_AGAIN_SECONDS)

    async def _generations(self) -> dict[str, int]:
        _, body = await ask(self._cluster.api, "GET", path_of(DEPLOYMENTS, NAMESPACE))
        return {item["metadata"]["name"]: item["metadata"]["generation"] for item in body["items"]}

    async def result(self, *, is_over_time: bool) -> SingleResult:
        """The figures."""
        after = await self._generations()
        workloads = tuple(
            WorkloadResult(
                name=name,
                replaced_first=name == FIRST,
                requests=each.requests,
                failed=each.failed,
                seconds_down=round(each.down_seconds, 3),
                generations=(self._before.get(name, 0), after.get(name, 0)),
            )
            for name, each in self._traffic.clients.items()
        )
        seconds = self._seconds or (self._clock.monotonic() - self._began if self._began else 0.0)
        found = SingleResult(
            seconds=round(seconds, 3), seed=self._order.seed, speed=self._order.speed, ok=False, workloads=workloads
        )
        over = (f"not finished after {self._order.guard:.0f} s",) if is_over_time else ()
        return judged_single(found, *over)


def judged_single(result: SingleResult, *failures: str) -> SingleResult:
    """Fill in `ok` and `failures`: the given ones, and those that the figures show."""
    found = [*failures]
    for each in result.workloads:
        if each.generations[0] != each.generations[1]:
            found.append(f"deployment {NAMESPACE}/{each.name} has changed")
        if each.replaced_first and each.failed:
            found.append(f"{each.failed} of {each.requests} requests to {each.name} failed")
        if each.replaced_first and each.seconds_down:
            found.append(f"{each.name} had no Ready endpoint for {each.seconds_down:.2f} s")
    return msgspec.structs.replace(result, ok=not found, failures=tuple(found))


def summary_single(result: SingleResult) -> RenderableType:
    """A table and a sentence that fit into 80 columns."""
    rows = [
        Row(
            [
                each.name,
                "replaced first" if each.replaced_first else "plain eviction",
                str(each.requests),
                Text(str(each.failed), "red" if each.failed else "green"),
                Text(f"{each.seconds_down:.1f} s", "red" if each.seconds_down else "green"),
            ]
        )
        for each in result.workloads
    ]
    numbers = ("requests", "failed", "no Ready endpoint")
    table = Table(("deployment", "how its pod left", *numbers), rows, frozenset(numbers))
    return Group(table, Text(), _closing(result))


def _closing(result: SingleResult) -> Text:
    if not result.ok:
        return Text("Not as it should be: see below.", "bold red")
    first, plain = (next(each for each in result.workloads if each.replaced_first is way) for way in (True, False))
    return Text(
        f"Replaced first, {first.name} answered all {first.requests} requests; its Deployment is unchanged.\n"
        f"Plainly evicted, {plain.name} failed {plain.failed} of {plain.requests}.",
        "bold green",
    )


def manifests() -> list[JsonObject]:
    """A namespace, both Deployments, and a budget that never allows the eviction of the first one."""
    labels = {"app": FIRST}
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": FIRST, "namespace": NAMESPACE},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
    }
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    return [namespace, _deployment(FIRST, {names.REPLACE_FIRST: "true"}), _deployment(PLAIN, {}), budget]


def _deployment(name: str, annotations: dict[str, str]) -> JsonObject:
    behaviour = {f"{PREFIX}start-seconds": "0.2", f"{PREFIX}never-ready": "true", f"{PREFIX}stop-seconds": "1"}
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": {**behaviour, **annotations}},
                "spec": {"containers": [{"name": "web", "image": "registry.invalid/web:1"}]},
            },
        },
    }
