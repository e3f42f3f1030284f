"""`gracectl simulate`: the embedded cluster left running, for kubectl, for a controller, or for somebody else's."""

from __future__ import annotations

import tempfile
from pathlib import Path

import anyio
import click

from gracectl.cli.embedded import served, world_options
from gracectl.cli.failures import run_async, told_to_people
from gracectl.runtime.signals import set_on_signal
from gracectl.sim.scenarios.demo import World, demo_world


@click.command()
@world_options
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1; default: a free one.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write the kubeconfig; default: a folder that goes with it.",
)
def simulate(nodes: int, pods: int, seed: int, speed: float, port: int, kubeconfig: Path | None) -> None:
    """Run the embedded cluster until SIGTERM or Ctrl-C; prints the kubeconfig with which kubectl reaches it."""
    world = demo_world(nodes=nodes, pods=pods, seed=seed)
    with told_to_people(), tempfile.TemporaryDirectory(prefix="gracectl-") as folder:
        path = kubeconfig or Path(folder) / "kubeconfig"
        run_async(lambda: _run(world, speed, seed, port, path))


async def _run(world: World, speed: float, seed: int, port: int, path: Path) -> None:
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(set_on_signal, stop)
        group.start_soon(_cancel_at, stop, group.cancel_scope)
        async with served(path, speed=speed, seed=seed, port=port) as (cluster, url):
            await world.build(cluster)
            click.echo(_greeting(world, url, path))
            await anyio.sleep_forever()


async def _cancel_at(stop: anyio.Event, scope: anyio.CancelScope) -> None:
    """Nothing here is worth finishing: a world that is slow to be built ends like one that runs."""
    await stop.wait()
    scope.cancel()


def _greeting(world: World, url: str, path: Path) -> str:
    return (
        f"A cluster of {len(world.nodes)} nodes and {world.all_pods} pods runs at {url} until Ctrl-C.\n"
        f"kubeconfig: {path}\n\n"
        f"  kubectl --kubeconfig {path} get nodes\n"
        f"  gracectl controller --kubeconfig {path}\n"
        f"  kubectl --kubeconfig {path} delete node {world.nodes[0].name} --wait=false"
    )
