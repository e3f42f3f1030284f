"""`gracectl simulate`: an embedded cluster left running, for kubectl, for a controller, or for somebody else's."""

from __future__ import annotations

import gc
import ipaddress
import secrets
import shutil
import tempfile
import textwrap
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import anyio
import click
import msgspec
from kubesim.cluster import ClusterOptions
from kubesim.scenarios import library
from kubesim.scenarios.parser import read_file
from kubesim.scenarios.plan import scaled
from kubesim.scenarios.scenario import Demo, Scenario
from kubesim.scenarios.simulation import Settled, Simulation

from gracectl.cli.certificate import self_made
from gracectl.cli.crds import shipped_definitions
from gracectl.cli.embedded import LOOPBACK, WORLD_FAILURES, finite, listening
from gracectl.cli.failures import run_async, told_to_people
from gracectl.cli.output import program, say
from gracectl.config import ConfigError
from gracectl.runtime.clock import SystemClock
from gracectl.runtime.supervise import set_on_signal

DEFAULT = "demo"
SCENARIOS = files("gracectl.cli") / "scenarios"
"""Those that need the definitions of gracectl."""
LARGE = 300
"""Nodes from which on a world takes so long to fill that one says so before."""

ADMINISTRATOR = "kubernetes-admin"


class Door(msgspec.Struct, frozen=True, kw_only=True):
    """How the cluster is reached. `rbac`: only with a token, and only what roles allow."""

    host: str
    port: int
    kubeconfig: Path
    tls: bool
    rbac: bool


class World(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says of the world; None: as the scenario says."""

    scenario: str
    nodes: int | None
    pods: int | None
    scale: float
    seed: int | None
    speed: float | None
    crds: bool | None


def _list(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        say(_listing())
        context.exit()


def _show(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    if name is not None and not context.resilient_parsing:
        with told_to_people(WORLD_FAILURES):
            say(library.text_of(name, SCENARIOS), nl=False)
        context.exit()


@click.command()
@click.option("--scenario", default=DEFAULT, show_default=True, metavar="NAME|FILE", help="The world; see --list.")
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="List the scenarios.")
@click.option(
    "--show", metavar="NAME", is_eager=True, expose_value=False, callback=_show, help="Print a scenario's file."
)
@click.option("--nodes", type=click.IntRange(min=2), help="How many nodes the demo has.  [default: 8]")
@click.option("--pods", type=click.IntRange(min=1), help="How many ordinary pods the demo has.  [default: 120]")
@click.option(
    "--scale",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    callback=finite,
    help="0.1: a tenth of the scenario's nodes and workloads.",
)
@click.option("--seed", type=int, help="The same seed makes the same world.  [default: the scenario's]")
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    callback=finite,
    help="2: twice as fast.  [default: the scenario's]",
)
@click.option(
    "--crds/--no-crds",
    default=None,
    help="Whether the definitions that `gracectl crds` prints are there.  [default: as the scenario says, mostly yes]",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port to listen on; default: a free one.")
@click.option("--bind", default=LOOPBACK, show_default=True, metavar="ADDRESS", help="The address to listen on.")
@click.option("--tls", is_flag=True, help="HTTPS, with a certificate that the kubeconfig carries.")
@click.option("--rbac", is_flag=True, help="Ask for tokens, and allow what roles allow; implies --tls.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write the kubeconfig; default: a folder that goes with it.",
)
def simulate(
    *, port: int, bind: str, tls: bool, rbac: bool, kubeconfig: Path | None, **world: str | float | bool | None
) -> None:
    """Run an embedded cluster, for kubectl and for controllers.

    It answers as an API server does, and around it live kubelets, controllers and a scheduler, so that it can stand in
    for a cluster. Prints the kubeconfig with which it is reached, and runs until SIGTERM or Ctrl-C. The page
    docs/simulate.md tells how scenarios are written.
    """
    with told_to_people(WORLD_FAILURES), tempfile.TemporaryDirectory(prefix="gracectl-") as folder:
        scenario = chosen(msgspec.convert(world, World))
        path = kubeconfig or Path(folder) / "kubeconfig"
        door = Door(host=bind, port=port, kubeconfig=path, tls=tls or rbac, rbac=rbac)
        _warn(door)
        run_async(lambda: _run(scenario, door))


def chosen(world: World) -> Scenario:
    """The scenario that the command line means. Raises ScenarioError; ConfigError for a size that has no meaning."""
    # A name of the library has neither.
    is_file = "/" in world.scenario or "." in world.scenario
    scenario = read_file(Path(world.scenario)) if is_file else library.scenario_named(world.scenario, SCENARIOS)
    if world.nodes is not None or world.pods is not None:
        if scenario.demo is None:
            raise ConfigError(f"--nodes and --pods are for the demo's world; for {scenario.name} use --scale")
        before = scenario.demo
        demo = Demo(nodes=world.nodes or before.nodes, pods=world.pods or before.pods)
        scenario = msgspec.structs.replace(scenario, demo=demo)
    if world.seed is not None:
        scenario = msgspec.structs.replace(scenario, seed=world.seed)
    if world.speed is not None:
        scenario = msgspec.structs.replace(scenario, speed=world.speed)
    if world.crds is not None:
        server = msgspec.structs.replace(scenario.server, crds=world.crds)
        scenario = msgspec.structs.replace(scenario, server=server)
    return scaled(scenario, world.scale)


async def _run(scenario: Scenario, door: Door) -> None:
    clock = SystemClock()
    certificate = self_made(door.host, clock) if door.tls else None
    token = secrets.token_urlsafe(24) if door.rbac else ""
    simulation = Simulation(clock, scenario, definitions=shipped_definitions(), adjust=_guarded(token), tell=_tell)
    if len(simulation.plan.nodes) >= LARGE:
        say(f"Filling {scenario.name} with {len(simulation.plan.nodes):,} nodes …", err=True)
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(set_on_signal, stop)
        group.start_soon(_cancel_at, stop, group.cancel_scope)
        async with listening(
            simulation.cluster,
            door.kubeconfig,
            host=door.host,
            port=door.port,
            token=token,
            certificate=certificate,
        ) as url:
            settled = await group.start(simulation.run)
            # What is there will stay: the garbage collector need not walk over it again and again.
            gc.freeze()
            say(_greeting(simulation, settled, url, door))
            await anyio.sleep_forever()


def _guarded(token: str) -> Callable[[ClusterOptions], ClusterOptions]:
    """Options of a cluster that knows an administrator by this token; with none, everybody is one."""

    def adjust(options: ClusterOptions) -> ClusterOptions:
        return msgspec.structs.replace(options, tokens={token: ADMINISTRATOR}) if token else options

    return adjust


async def _cancel_at(stop: anyio.Event, scope: anyio.CancelScope) -> None:
    """Nothing here is worth finishing: a world that is slow to be built ends like one that runs."""
    await stop.wait()
    scope.cancel()


def _warn(door: Door) -> None:
    if not _is_loopback(door.host):
        remedy = "" if door.rbac else "; --rbac lets in only whom the kubeconfig is for"
        say(f"{program()}: warning: everybody who reaches {door.host} can change the cluster{remedy}", err=True)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# -- what is said ------------------------------------------------------------------------------------------------------


def _greeting(simulation: Simulation, settled: Settled, url: str, door: Door) -> str:
    path, scenario = door.kubeconfig, simulation.scenario
    lines = [
        f"A cluster of {settled.nodes} nodes and {settled.pods} pods runs at {url} until Ctrl-C.",
        f"kubeconfig: {path}",
        "",
        *_wrapped(f"{scenario.name}: ", scenario.description),
    ]
    if settled.restless:
        lines += _wrapped("", f"{settled.restless} pods are not there yet, or not Ready.")
    lines += ["", f"  kubectl --kubeconfig {path} get nodes", f"  gracectl controller --kubeconfig {path}"]
    if simulation.plan.nodes:
        lines.append(f"  kubectl --kubeconfig {path} delete node {simulation.plan.nodes[0].name} --wait=false")
    return "\n".join(lines)


def _tell(at: float, what: str) -> None:
    """A step of the timeline, as it happens."""
    say("\n".join(_wrapped(f"{at:8.1f} s  ", what)))


def _listing() -> str:
    width = max(map(len, library.names(SCENARIOS)))
    rows = []
    for name in library.names(SCENARIOS):
        rows += _wrapped(f"{name:{width}}  ", library.scenario_named(name, SCENARIOS).description)
    return "\n".join(rows)


def _wrapped(head: str, text: str) -> list[str]:
    """A text behind its head, in as many lines as the terminal makes of it."""
    columns = shutil.get_terminal_size().columns
    return textwrap.wrap(text, max(columns, 40), initial_indent=head, subsequent_indent=" " * len(head))
