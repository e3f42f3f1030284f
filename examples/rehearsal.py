"""What `gracectl agent --simulate-shutdown` says of a node with a bit of everything.

Run it with `make examples ARGS=rehearsal`.
The cluster is the embedded one, the answer is that of the command; only the command line
and the connection are left out, so that it is always the same instant.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

import anyio
import looptime
from kubesim.controllers.paths import PRIORITY_CLASSES
from kubesim.server.api import JsonObject
from rich.console import Console
from support.shutdowns import BY_KEP, STUBBORN
from support.stage import Stage, a_pod_manifest, a_workload, staged, the_settings

from examples.pages import put_in
from gracectl.cli.agent.rehearsal import RehearsalResult, run_rehearsal
from gracectl.cli.agent.report import rehearsal_table
from gracectl.cli.console import text_of
from gracectl.kube.client import KubeClient
from gracectl.kube.connection import Connection
from gracectl.model import names

COLUMNS = 100
NODE = "worker-7"
PAGE = Path(__file__).parents[1] / "docs" / "rehearsal.md"
PAYMENTS = "payments"


async def build(stage: Stage) -> None:
    """Pods of three ranges out of four, one that asks for more than its range has, and one that is left alone. All of
    them run until their grace is over."""
    await stage.add_nodes(NODE)
    await stage.call("POST", PRIORITY_CLASSES, {"metadata": {"name": PAYMENTS}, "value": 20_000})
    legacy = {"priorityClassName": PAYMENTS, "terminationGracePeriodSeconds": 240}
    dns = {"priorityClassName": names.SYSTEM_CLUSTER_CRITICAL}
    await stage.create(
        a_workload("Deployment", "web", 2, **STUBBORN),
        a_workload("StatefulSet", "legacy", 1, pod=legacy, **STUBBORN),
        _exporter(),
        a_workload("Deployment", "dns", 1, pod=dns, **STUBBORN),
    )
    stage.cluster.add_static_pod(NODE, a_pod_manifest("proxy"))
    await stage.until(lambda: any(pod["metadata"]["name"] == f"proxy-{NODE}" for pod in stage.pods_on(NODE)))


def _exporter() -> JsonObject:
    manifest = a_workload("DaemonSet", "exporter", 1, pod={"terminationGracePeriodSeconds": 10}, **STUBBORN)
    del manifest["spec"]["replicas"]
    return manifest


async def read_input(stage: Stage) -> RehearsalResult:
    """As the command does."""
    connection = Connection(stage.transport, stage.clock, KubeClient(stage.transport, stage.clock))
    return await run_rehearsal(connection, NODE, the_settings(**BY_KEP))


def rehearse() -> RehearsalResult:
    """Build the world and look at it, on virtual time."""

    async def run() -> RehearsalResult:
        async with staged() as stage:
            await build(stage)
            return await read_input(stage)

    result: RehearsalResult = anyio.run(run, backend_options={"loop_factory": looptime.new_event_loop})
    return result


def blocks_of(result: RehearsalResult) -> dict[str, str]:
    """What is printed, by the name under which the page has it."""
    return {"rehearsal": text_of(Console(width=COLUMNS), rehearsal_table(result))}


def main(arguments: Sequence[str] | None = None) -> None:
    """Rehearse, and print."""
    parser = argparse.ArgumentParser(prog="python -m examples.rehearsal", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write what is printed into docs/")
    chosen = parser.parse_args(arguments)
    logging.getLogger("gracectl").addHandler(logging.NullHandler())
    blocks = blocks_of(rehearse())
    print("\n\n\n".join(blocks.values()))
    if chosen.update:
        PAGE.write_text(put_in(PAGE.read_text(encoding="utf-8"), blocks), encoding="utf-8")


if __name__ == "__main__":
    main()
