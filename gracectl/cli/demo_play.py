"""Run of the demo: an embedded cluster, the controller on it over HTTP, three deleted nodes, and a verifier.

The controller is the same as in `gracectl controller`, with a kubeconfig. The result is the verifier's, from its own
watch over HTTP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import msgspec
from kubesim.controllers.behaviour import PREFIX
from kubesim.controllers.client import ApiClient, OverHttp, ask
from kubesim.controllers.cloud import PREFIX as INSTANCES
from kubesim.controllers.objects import annotations_of, labels_of, node_of
from kubesim.controllers.paths import ATTACHMENTS, BUDGETS, NODES, PODS, path_of
from kubesim.scenarios.demo import demo_plan
from kubesim.server.api import JsonObject
from kubesim.verifier.verifier import Departure, NodeRecord, Verifier

from gracectl.app.controller import Controller
from gracectl.cli.config import provider_of
from gracectl.cli.demo_report import (
    STEPS,
    BudgetResult,
    Leavings,
    NodeResult,
    Replacements,
    Result,
    ViolationResult,
    judged,
)
from gracectl.cli.embedded import served
from gracectl.cli.options import ClusterTarget, connected
from gracectl.cli.settings import EffectiveSettings
from gracectl.cli.status.follow import StatusFrame, StatusScope, follow
from gracectl.cli.status.view import View
from gracectl.cli.telemetry import traced
from gracectl.cli.ui.server import ServedBoard, ServingOptions, board_served
from gracectl.cloud.provider import ProviderSettings
from gracectl.config import Settings
from gracectl.config.settings import PlanSettings
from gracectl.kube.connection import Connection, closed_despite_cancellation
from gracectl.model import names
from gracectl.model.meta import natural_key
from gracectl.model.node import Node
from gracectl.model.selectors import read_selector, selects
from gracectl.runtime.clock import Clock, SystemClock
from gracectl.telemetry.spans import SpanSink

DELETED = 3
GUARD_SECONDS = 120.0
LOOK_AGAIN_SECONDS = 0.05
OPEN_SECONDS = 30.0
"""Maximum wait for the page of --ui."""
REPLACEMENT_SECONDS = 2.0
"""Maximum time until a replacement is Ready, at speed 1."""


Finished = Callable[[Result], Awaitable[None]]


class Order(msgspec.Struct, frozen=True):
    """Options of the command line."""

    nodes: int
    pods: int
    seed: int
    speed: float
    trace_file: Path | None = None
    ui: bool = False

    @property
    def guard(self) -> float:
        """Seconds after which the demo ends in any case."""
        return GUARD_SECONDS / min(self.speed, 1.0)


async def perform(order: Order, folder: Path, view: View, finished: Finished | None = None) -> Result:
    """Run the demo; failures are part of the result. Raises ApiError, ComponentFailed if it cannot run.

    `folder`: for the kubeconfig. `finished` is called with the result while everything still runs; the run ends when it
    returns.
    """
    async with traced(order.trace_file) as spans:
        return await _perform(order, folder, view, spans, finished)


async def _perform(order: Order, folder: Path, view: View, spans: SpanSink | None, finished: Finished | None) -> Result:
    deadline = anyio.current_time() + order.guard
    plan = demo_plan(nodes=order.nodes, pods=order.pods, seed=order.seed)
    view.echo(f"Starting an embedded cluster of {order.nodes} nodes and {plan.all_pods} pods …")
    kubeconfig = folder / "kubeconfig"
    async with served(kubeconfig, speed=order.speed, seed=order.seed) as (cluster, url):
        with anyio.CancelScope(deadline=deadline) as building:
            await plan.build(cluster)
        if building.cancelled_caught:
            empty = Result(seconds=0.0, seed=order.seed, speed=order.speed, ok=False)
            return judged(empty, f"the embedded cluster was not ready after {order.guard:.0f} s")
        async with controlled(kubeconfig, url, order, view, spans) as (controller, stage, api):
            # The verifier has its own clock, which the controller does not adjust.
            play = _Play(order, controller, api, SystemClock(), stage)
            if not order.ui:
                return await play.run(deadline, finished)
            options = ServingOptions(bind="127.0.0.1:0")
            async with board_served(stage.connection, EffectiveSettings(stage.settings, "demo"), options) as board:
                waited = await _until_opened(board, view)
                return await play.run(deadline + waited, finished)


@asynccontextmanager
async def controlled(
    kubeconfig: Path, url: str, order: Order, view: View, spans: SpanSink | None
) -> AsyncIterator[tuple[Controller, Stage, OverHttp]]:
    """A controller of an embedded cluster, checked and not running yet, the display of its nodes, and its server.

    `url`: of its instance provider. Raises ApiError.
    """
    settings = Settings(
        provider=ProviderSettings("simulated", {"endpoint": url}), plan=PlanSettings(REPLACEMENT_SECONDS / order.speed)
    )
    async with (
        connected(ClusterTarget(str(kubeconfig))) as there,
        closed_despite_cancellation(aiohttp.ClientSession()) as session,
    ):
        controller = Controller(settings, there.transport, there.clock, provider_of(settings), spans=spans)
        await controller.check()
        yield controller, Stage(view, there, settings), OverHttp(session, there.cluster.server)


async def _until_opened(board: ServedBoard, view: View) -> float:
    """Seconds until the page was open, at most OPEN_SECONDS."""
    view.echo(f"The board is at {board.url}; the nodes are deleted when it is open, or after {OPEN_SECONDS:.0f} s.")
    began = anyio.current_time()
    with anyio.move_on_after(OPEN_SECONDS):
        await board.server.followed.wait()
    return anyio.current_time() - began


class Stage(msgspec.Struct, frozen=True):
    """Display of the nodes, as in `status -w`."""

    view: View
    connection: Connection
    settings: Settings

    async def follow(self, nodes: Mapping[str, str]) -> None:
        """Show these nodes (uids by name) until they are gone."""

        def show(frame: StatusFrame) -> bool:
            self.view.show(frame)
            return set(nodes.values()) <= {each.uid for each in frame.terminated}

        def selects(node: Node) -> bool:
            return nodes.get(node.name) == node.uid

        await follow(self.connection, self.settings, StatusScope(selects), show, expected=nodes)


class _Play:
    """One run of the demo."""

    def __init__(self, order: Order, controller: Controller, api: ApiClient, clock: Clock, stage: Stage) -> None:
        self._order = order
        self._controller = controller
        self._api = api
        self._clock = clock
        self._stage = stage
        self._view = stage.view
        self._verifier = Verifier(api, clock)
        self._targets: dict[str, NodeRecord] = {}  # by name, as they were before their deletion
        self._began = 0.0
        self._seconds = 0.0
        self._volumes_before = 0

    async def run(self, deadline: float, finished: Finished | None) -> Result:
        stop = anyio.Event()
        async with anyio.create_task_group() as audience:
            await audience.start(self._verifier.run)
            async with anyio.create_task_group() as stage:
                stage.start_soon(self._controller.run, stop)
                with anyio.CancelScope(deadline=deadline) as playing:
                    await self._prepare()
                    await self._show_the_end_of_nodes()
                result = await self._result(is_over_time=playing.cancelled_caught)
                if finished is not None:
                    await finished(result)
                stop.set()
            audience.cancel_scope.cancel()
        return result

    async def _prepare(self) -> None:
        """Wait until every node has the finalizer, and choose the nodes to delete."""
        await self._verifier.until(lambda: all(names.FINALIZER in node.finalizers for node in self._verifier.nodes()))
        pods, budgets = await self._items(PODS), await self._items(BUDGETS)
        nodes = {node.name: node for node in self._verifier.nodes()}
        count = min(DELETED, len(nodes) - 1)
        self._targets = {name: nodes[name] for name in chosen(count, sorted(nodes, key=natural_key), pods, budgets)}
        self._volumes_before = await self._volumes()
        self._view.echo("The controller watches it over HTTP, and every node has its finalizer.")
        self._view.echo(f"Deleting {', '.join(self._targets)} …")

    async def _show_the_end_of_nodes(self) -> None:
        uids = {name: node.uid for name, node in self._targets.items()}
        with self._view.showing():
            async with anyio.create_task_group() as group:
                group.start_soon(self._stage.follow, uids)
                await self._end_nodes()

    async def _end_nodes(self) -> None:
        self._began = self._clock.now()
        for name in self._targets:
            await ask(self._api, "DELETE", path_of(NODES, name=name))
        await self._verifier.until(self._is_over)
        self._seconds = self._clock.now() - self._began
        # The controller's own watch shows the end a moment earlier or later than the verifier's.
        while not self._ended_uids() <= {progress.uid for progress in self._controller.finished()}:
            await self._clock.sleep(LOOK_AGAIN_SECONDS)

    def _is_over(self) -> bool:
        if len(self._ended_uids()) < len(self._targets):
            return False
        expected = [pod for pod in self._evictions() if pod.is_replaceable]
        return all(self._runs_elsewhere(pod) for pod in expected)

    def _ended_uids(self) -> set[str]:
        uids = {node.uid for node in self._targets.values()}
        return {node.uid for node in self._verifier.nodes() if node.uid in uids and node.gone_at is not None}

    def _evictions(self) -> list[Departure]:
        findings = self._verifier.findings()
        return [pod for name in self._targets for pod in findings.evictions(name)]

    def _runs_elsewhere(self, pod: Departure) -> bool:
        heir = pod.replacement
        return heir is not None and heir.is_running and heir.node not in self._targets

    # -- result --------------------------------------------------------------------------------------------------------

    async def _result(self, *, is_over_time: bool) -> Result:
        findings, client = self._verifier.findings(), self._controller.statistics().client
        expected = [pod for pod in self._evictions() if pod.is_replaceable]
        seconds = self._seconds or (self._clock.now() - self._began if self._began else 0.0)
        result = Result(
            seconds=round(seconds, 3),
            seed=self._order.seed,
            speed=self._order.speed,
            ok=False,
            nodes=tuple(self._node_results()),
            evictions=client.count("create", "pods/eviction", "ok"),
            evictions_seen=len(self._evictions()),
            refusals=client.count("create", "pods/eviction", "BudgetExhausted"),
            budget_violations=len(findings.violations),
            violations=tuple(
                ViolationResult(round(v.at - self._began, 3), v.budget, v.pod, v.healthy, v.required)
                for v in findings.violations
            ),
            budgets=tuple(
                BudgetResult(b.name, b.bound, b.expected, b.required, b.lowest, b.violations) for b in findings.budgets
            ),
            replacements=Replacements(len(expected), sum(map(self._runs_elsewhere, expected))),
            volumes=Leavings(self._volumes_before, await self._volumes()),
            instances=Leavings(len(self._targets), await self._instances()),
            touched_twice=findings.touched_twice,
            blind_seconds=round(findings.blind_seconds, 3),
        )
        return judged(result, *(self._over_time() if is_over_time else ()))

    def _node_results(self) -> Iterable[NodeResult]:
        findings = self._verifier.findings()
        gone_at = {node.uid: node.gone_at for node in findings.nodes}
        progress = {p.uid: p for p in (*self._controller.under_way(), *self._controller.finished())}
        for name, node in self._targets.items():
            end = gone_at[node.uid]
            spent = progress[node.uid].seconds if node.uid in progress else {}
            yield NodeResult(
                name=name,
                seconds=None if end is None else round(end - self._began, 3),
                steps=_by_step(spent),
                pods=len(findings.evictions(name)),
            )

    def _over_time(self) -> tuple[str, ...]:
        message = f"not finished after {self._order.guard:.0f} s"
        if not self._targets:
            return (f"{message}: the controller has not added its finalizer to every node",)
        waiting = (f"{p.name}: {p.step}: {p.waits_for or 'unknown'}" for p in self._controller.under_way())
        return (message, *waiting)

    async def _items(self, path: str) -> list[JsonObject]:
        _, body = await ask(self._api, "GET", path)
        items: list[JsonObject] = body["items"]
        return items

    async def _volumes(self) -> int:
        return sum(item["spec"]["nodeName"] in self._targets for item in await self._items(ATTACHMENTS))

    async def _instances(self) -> int:
        """Number of instances of the deleted nodes that the cloud has not terminated."""
        running = 0
        for node in self._targets.values():
            id_ = node.provider_id.rsplit("/", 1)[-1]
            status, body = await ask(self._api, "GET", INSTANCES + id_, allow=(404,))
            running += status != 404 and body["state"] != "terminated"
        return running


def _by_step(spent: Mapping[str, float]) -> dict[str, float]:
    """Seconds by step for the report; earlier steps count as part of the cordon."""
    seconds = dict.fromkeys(STEPS, 0.0)
    for step, spent_there in spent.items():
        seconds[step if step in STEPS else STEPS[0]] += spent_there
    return {step: round(seconds[step], 3) for step in STEPS}


def chosen(count: int, nodes: list[str], pods: list[JsonObject], budgets: list[JsonObject]) -> tuple[str, ...]:
    """Choose the most interesting nodes: with a slow pod, with a volume, and with most pods under the tightest
    budgets."""
    tight, slow, stateful = Counter[str](), Counter[str](), Counter[str]()
    selectors = [
        (budget["metadata"]["namespace"], read_selector(budget["spec"].get("selector")))
        for budget in budgets
        if budget["spec"].get("maxUnavailable") == 1
    ]
    for pod in pods:
        node, namespace = node_of(pod), pod["metadata"]["namespace"]
        tight[node] += any(namespace == its and selects(selector, labels_of(pod)) for its, selector in selectors)
        slow[node] += f"{PREFIX}stop-seconds" in annotations_of(pod)
        stateful[node] += any("persistentVolumeClaim" in volume for volume in pod["spec"].get("volumes") or ())
    picked: list[str] = []
    for wanted in (slow, stateful):
        if len(picked) < count and not any(wanted[node] for node in picked):
            picked += _best([node for node in nodes if wanted[node] and node not in picked], tight, 1)
    picked += _best([node for node in nodes if node not in picked], tight, count - len(picked))
    return tuple(sorted(picked, key=natural_key))


def _best(nodes: list[str], worth: Counter[str], count: int) -> list[str]:
    return sorted(nodes, key=lambda node: (-worth[node], natural_key(node)))[:count]
