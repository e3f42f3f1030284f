"""What `gracectl plan` says beforehand: of the three replicas, and of a node with a bit of everything.

Run it with `make examples ARGS=beforehand`.
The cluster is the embedded one, the answers are those of the command; only the command
line and the connection are left out, so that it is always the same instant.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio
import looptime
import msgspec
from rich.console import Console
from support.stage import Stage, a_budget_manifest, a_pod_manifest, a_workload, staged

from examples.pages import put_in
from examples.three_replicas import GRACE, NODES, build, settle
from gracectl.cli.console import text_of
from gracectl.cli.options import NodeChoice
from gracectl.cli.plan.export import plan_svg
from gracectl.cli.plan.table import plan_table
from gracectl.cli.plan.text import Detail, plan_text
from gracectl.inspect.forecast import DrainForecast, forecast_drains, is_draining
from gracectl.inspect.watcher import snapshot
from gracectl.kube.client import KubeClient
from gracectl.model import names
from gracectl.policy.eviction_queues import EvictionRate
from gracectl.policy.forecast import Assumptions

COLUMNS = 110
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "plan.md"
PICTURE = ROOT / "docs" / "pictures" / "plan.svg"


class Prediction(msgspec.Struct, frozen=True):
    """Of the three replicas, and of the node with a bit of everything."""

    replicas: DrainForecast
    everything: DrainForecast


def predict() -> Prediction:
    """Look at both worlds, on virtual time."""
    return Prediction(_seen(_replicas, NODES, GRACE), _seen(_everything, ("worker-1",), 30.0))


def _seen(world: Callable[[Stage], Awaitable[None]], asked: Sequence[str], replacement_seconds: float) -> DrainForecast:
    async def read_input() -> DrainForecast:
        async with staged() as stage:
            await world(stage)
            async with stage.controller() as controller:
                await settle(stage, controller)
                return await _predicted(stage, NodeChoice(tuple(asked)), replacement_seconds)

    told: DrainForecast = anyio.run(read_input, backend_options={"loop_factory": looptime.new_event_loop})
    return told


async def _predicted(stage: Stage, nodes: NodeChoice, replacement_seconds: float) -> DrainForecast:
    settings = stage.settings.termination
    client = KubeClient(stage.transport, stage.clock)
    cluster = await snapshot(client, lambda node: nodes.picks(node) or is_draining(node, settings))
    rate = EvictionRate(stage.settings.eviction.qps, stage.settings.eviction.burst)
    assumptions = Assumptions(replacement_seconds, rate)
    return forecast_drains(cluster, settings, nodes.among(cluster.nodes.values()), stage.clock.now(), assumptions)


async def _replicas(stage: Stage) -> None:
    await build(stage, "15m")


async def _everything(stage: Stage) -> None:
    """Pods that leave at once, one after another, when they may, last, and not at all."""
    await stage.add_nodes("worker-1")
    await stage.create(
        a_workload("Deployment", "web", 3),
        a_budget_manifest("web", maxUnavailable=1),
        a_workload("StatefulSet", "legacy", 1, pod={"terminationGracePeriodSeconds": 120}),
        a_pod_manifest("report", "worker-1", annotations={names.DO_NOT_DISRUPT: "6h"}),
        a_workload("Deployment", "dns", 1, pod={"priorityClassName": names.SYSTEM_CLUSTER_CRITICAL}),
        a_pod_manifest("agent", "worker-1", tolerations=[{"operator": "Exists"}]),
    )
    await stage.add_nodes("worker-2")


def blocks_of(forecast: Prediction) -> dict[str, str]:
    """What is printed, by the name under which the page has it."""
    console = Console(width=COLUMNS)
    return {
        "everything": text_of(console, plan_table(plan_text(forecast.everything, Detail()))),
        # All three nodes read alike.
        "replicas": text_of(console, plan_table(plan_text(forecast.replicas, Detail()))).partition("\n\nnode-2:")[0],
    }


def drawn(forecast: Prediction) -> str:
    """The node with a bit of everything as a picture."""
    return plan_svg(forecast.everything, Detail())


def main(arguments: Sequence[str] | None = None) -> None:
    """Predict, print, draw."""
    parser = argparse.ArgumentParser(prog="python -m examples.beforehand", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write what is printed and drawn into docs/")
    chosen = parser.parse_args(arguments)
    logging.getLogger("gracectl").addHandler(logging.NullHandler())
    forecast = predict()
    blocks = blocks_of(forecast)
    print("\n\n\n".join(blocks.values()))
    if chosen.update:
        PICTURE.write_text(drawn(forecast), encoding="utf-8")
        PAGE.write_text(put_in(PAGE.read_text(encoding="utf-8"), blocks), encoding="utf-8")


if __name__ == "__main__":
    main()
