"""`gracectl simulate`: the embedded cluster left running, for kubectl, for a controller, or for somebody else's."""

from __future__ import annotations

import tempfile
from pathlib import Path

import anyio
import click

from gracectl.cli.embedded import served
from gracectl.cli.failures import run_async, told_to_people
from gracectl.runtime.signals import set_on_signal
from gracectl.sim.scenario import World, demo_world


@click.command()
@click.option("--nodes", type=click.IntRange(min=2), default=8, show_default=True, help="How many nodes.")
@click.option("--pods", type=click.IntRange(min=1), default=120, show_default=True, help="How many ordinary pods.")
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed makes the same world.")
@click.option("--speed", type=click.FloatRange(min=0.01), default=1.0, show_default=True, help="2 is twice as fast.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1; default: a free one.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), metavar="FILE", help="Where to write the kubeconfig.")
def simulate(nodes: int, pods: int, seed: int, speed: float, port: int, kubeconfig: Path | None) -> None:
    """Run the embedded cluster until SIGTERM or Ctrl-C; prints the kubeconfig with which kubectl reaches it."""
    world = demo_world(nodes=nodes, pods=pods, seed=seed)
    path = kubeconfig or Path(tempfile.mkdtemp(prefix="gracectl-")) / "kubeconfig"
    with told_to_people():
        run_async(lambda: _run(world, speed, seed, port, path))


async def _run(world: World, speed: float, seed: int, port: int, path: Path) -> None:
    stop = anyio.Event()
    async with served(path, speed=speed, seed=seed, port=port) as (cluster, url), anyio.create_task_group() as group:
        group.start_soon(set_on_signal, stop)
        await world.build(cluster)
        click.echo(_greeting(world, url, path))
        await stop.wait()
        group.cancel_scope.cancel()


def _greeting(world: World, url: str, path: Path) -> str:
    return (
        f"A cluster of {len(world.nodes)} nodes and {world.all_pods} pods runs at {url} until Ctrl-C.\n"
        f"kubeconfig: {path}\n\n"
        f"  kubectl --kubeconfig {path} get nodes\n"
        f"  gracectl controller --kubeconfig {path}\n"
        f"  kubectl --kubeconfig {path} delete node {world.nodes[0].name} --wait=false"
    )
