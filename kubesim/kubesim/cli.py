"""`kubesim up`: a running cluster for kubectl and controllers. Embedding programs offer it too: `up_command`."""

from __future__ import annotations

import gc
import ipaddress
import math
import secrets
import shutil
import signal
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NoReturn

import anyio
import click
import msgspec

from kubesim.clock import SystemClock
from kubesim.cluster import ClusterOptions
from kubesim.controllers.client import Refused
from kubesim.controllers.nodeclaims import NODE_CLAIM
from kubesim.scenarios import library
from kubesim.scenarios.parser import ScenarioError, read_file
from kubesim.scenarios.plan import scaled
from kubesim.scenarios.scenario import Demo, Scenario
from kubesim.scenarios.simulation import InitialState, Simulation
from kubesim.server.api import JsonObject
from kubesim.serving import LOOPBACK, CannotServe, listening, self_signed

DEFAULT = "small"
LARGE = 300
"""Nodes from which on filling a cluster takes so long that a line says so before."""
ADMINISTRATOR = "kubernetes-admin"
MISUSED, REFUSED = 2, 3
"""Exit codes: a scenario or an option that cannot be (nothing was started); a cluster that refused its own objects."""


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """What an embedding program adds to the command. `program`: what messages begin with. `definitions`:
    CustomResourceDefinitions that the cluster serves. `scenarios`: more folders of scenarios. `try_it`:
    commands to try, `{kubeconfig}` in them stands for the file."""

    name: str = "up"
    program: Callable[[], str] = lambda: "kubesim"
    scenario: str = DEFAULT
    definitions: Callable[[], Sequence[JsonObject]] = lambda: (NODE_CLAIM,)
    scenarios: tuple[Traversable, ...] = ()
    try_it: tuple[str, ...] = ()


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The scenario and its changes, as the command line has them; None: as the scenario says."""

    scenario: str
    nodes: int | None = None
    pods: int | None = None
    scale: float = 1.0
    seed: int | None = None
    speed: float | None = None
    crds: bool | None = None

    def read(self, *folders: Traversable) -> Scenario:
        """The scenario that is meant. Raises ScenarioError."""
        # A name of the library has neither.
        is_file = "/" in self.scenario or "." in self.scenario
        scenario = read_file(Path(self.scenario)) if is_file else library.scenario_named(self.scenario, *folders)
        if self.nodes is not None or self.pods is not None:
            before = scenario.demo
            if before is None:
                raise ScenarioError(f"--nodes and --pods are for the scenario demo; for {scenario.name} use --scale")
            demo = Demo(nodes=self.nodes or before.nodes, pods=self.pods or before.pods)
            scenario = msgspec.structs.replace(scenario, demo=demo)
        if self.seed is not None:
            scenario = msgspec.structs.replace(scenario, seed=self.seed)
        if self.speed is not None:
            scenario = msgspec.structs.replace(scenario, speed=self.speed)
        if self.crds is not None:
            server = msgspec.structs.replace(scenario.server, crds=self.crds)
            scenario = msgspec.structs.replace(scenario, server=server)
        return scaled(scenario, self.scale)


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How the cluster is reached. `rbac`: only with a token, and only what roles allow."""

    host: str
    port: int
    kubeconfig: Path
    tls: bool
    rbac: bool


def finite(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Refuse infinity and nan, which a range lets pass."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number to multiply with.")
    return value


POSITIVE = click.FloatRange(min=0, min_open=True)
OPTIONS = (
    click.option("--nodes", type=click.IntRange(min=2), help="How many nodes the scenario demo has.  [default: 8]"),
    click.option("--pods", type=click.IntRange(min=1), help="How many ordinary pods it has.  [default: 120]"),
    click.option(
        "--scale",
        type=POSITIVE,
        default=1.0,
        callback=finite,
        help="0.1: a tenth of the scenario's nodes and workloads.",
    ),
    click.option("--seed", type=int, help="The same seed makes the same cluster.  [default: the scenario's]"),
    click.option("--speed", type=POSITIVE, callback=finite, help="2: twice as fast.  [default: the scenario's]"),
    click.option(
        "--crds/--no-crds",
        default=None,
        help="Whether CustomResourceDefinitions are there from the first moment.  [default: as the scenario says]",
    ),
    click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port; default: a free one."),
    click.option("--bind", default=LOOPBACK, show_default=True, metavar="ADDRESS", help="The address to listen on."),
    click.option("--tls", is_flag=True, help="HTTPS, with a certificate that the kubeconfig carries."),
    click.option("--rbac", is_flag=True, help="Ask for tokens, and allow what roles allow; implies --tls."),
    click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Where to write the kubeconfig; default: a folder that goes with the cluster.",
    ),
)


def up_command(embedding: Embedding) -> click.Command:
    """The command `up`, for a program that embeds it."""
    folders = embedding.scenarios

    def show_list(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
        if wanted and not context.resilient_parsing:
            say(_listing(folders))
            context.exit()

    def show_one(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
        if name is not None and not context.resilient_parsing:
            try:
                say(library.text_of(name, *folders), nl=False)
            except ScenarioError as error:
                fail(embedding, str(error), MISUSED)
            context.exit()

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        return [name for name in library.names(*folders) if name.startswith(incomplete)]

    def run(
        *, port: int, bind: str, tls: bool, rbac: bool, kubeconfig: Path | None, **choice: str | float | bool | None
    ) -> None:
        with tempfile.TemporaryDirectory(prefix="kubesim-") as folder:
            path = kubeconfig or Path(folder) / "kubeconfig"
            access = Access(host=bind, port=port, kubeconfig=path, tls=tls or rbac, rbac=rbac)
            try:
                scenario = msgspec.convert(choice, Choice).read(*folders)
                _warn(embedding, access)
                anyio.run(_run, embedding, scenario, access)
            except* (ScenarioError, CannotServe) as errors:
                fail(embedding, str(_leaf(errors)), MISUSED)
            except* Refused as errors:
                fail(embedding, str(_leaf(errors)), REFUSED)

    run.__doc__ = """Run a simulated cluster, for kubectl and for controllers.

    It answers as an API server does, and kubelets, controllers and a scheduler run around it, so that it can stand in
    for a cluster. Prints the kubeconfig with which it is reached, and runs until SIGTERM or Ctrl-C.
    """
    options = (
        click.option(
            "--scenario",
            default=embedding.scenario,
            show_default=True,
            metavar="NAME|FILE",
            shell_complete=complete,
            help="See --list.",
        ),
        click.option(
            "--list", is_flag=True, is_eager=True, expose_value=False, callback=show_list, help="List the scenarios."
        ),
        click.option(
            "--show",
            metavar="NAME",
            is_eager=True,
            expose_value=False,
            callback=show_one,
            shell_complete=complete,
            help="Print a scenario's file.",
        ),
        *OPTIONS,
    )
    command: Callable[..., Any] = run
    for option in reversed(options):  # the last one that is put on stands first in the help
        command = option(command)
    return click.command(embedding.name)(command)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("kubesim"), prog_name="kubesim", message="%(prog)s %(version)s")
def main() -> None:
    """A Kubernetes cluster in one Python process, for tests of controllers."""


main.add_command(
    up_command(Embedding(try_it=("kubectl --kubeconfig {kubeconfig} get events -A -w",))),
)


async def _run(embedding: Embedding, scenario: Scenario, access: Access) -> None:
    clock = SystemClock()
    certificate = self_signed(access.host, clock.now()) if access.tls else None
    token = secrets.token_urlsafe(24) if access.rbac else ""
    simulation = Simulation(
        clock, scenario, definitions=embedding.definitions(), adjust=_guarded(token), tell=_show_step
    )
    if len(simulation.plan.nodes) >= LARGE:
        say(f"Filling {scenario.name} with {len(simulation.plan.nodes):,} nodes …", err=True)
    async with anyio.create_task_group() as group:
        await group.start(_cancel_on_signal, group.cancel_scope)
        async with listening(
            simulation.cluster,
            access.kubeconfig,
            host=access.host,
            port=access.port,
            token=token,
            certificate=certificate,
        ) as url:
            initial = await group.start(simulation.run)
            # What is there will stay: the garbage collector need not walk over it again and again.
            gc.freeze()
            say(_greeting(embedding, simulation, initial, url, access.kubeconfig))
            await anyio.sleep_forever()


async def _cancel_on_signal(
    scope: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Nothing here is worth finishing: a cluster that is still being filled ends like one that runs."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()
            return


def _guarded(token: str) -> Callable[[ClusterOptions], ClusterOptions]:
    """Options of a cluster that knows an administrator by this token; without one, every client is one."""

    def adjust(options: ClusterOptions) -> ClusterOptions:
        return msgspec.structs.replace(options, tokens={token: ADMINISTRATOR}) if token else options

    return adjust


def _warn(embedding: Embedding, access: Access) -> None:
    if not _is_loopback(access.host):
        remedy = "" if access.rbac else "; --rbac admits only clients with the kubeconfig"
        say(
            f"{embedding.program()}: warning: every client that reaches {access.host} can change the cluster{remedy}",
            err=True,
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# -- output ------------------------------------------------------------------------------------------------------------


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text; nothing in it is obeyed by a terminal."""
    click.echo("".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text), err=err, nl=nl)


def fail(embedding: Embedding, message: str, code: int) -> NoReturn:
    """Print a message on stderr, and exit."""
    say(f"{embedding.program()}: {message}", err=True)
    raise SystemExit(code)


def _leaf(group: BaseExceptionGroup[Exception]) -> BaseException:
    first = group.exceptions[0]
    return _leaf(first) if isinstance(first, BaseExceptionGroup) else first


def _greeting(embedding: Embedding, simulation: Simulation, initial: InitialState, url: str, path: Path) -> str:
    scenario = simulation.scenario
    lines = [
        f"A cluster of {initial.nodes} nodes and {initial.pods} pods runs at {url} until Ctrl-C.",
        f"kubeconfig: {path}",
        "",
        *_wrapped(f"{scenario.name}: ", scenario.description),
    ]
    if initial.unready:
        lines += _wrapped("", f"{initial.unready} pods are not there yet, or not Ready.")
    lines += ["", f"  kubectl --kubeconfig {path} get nodes"]
    lines += [f"  {each.format(kubeconfig=path)}" for each in embedding.try_it]
    if simulation.plan.nodes:
        lines.append(f"  kubectl --kubeconfig {path} delete node {simulation.plan.nodes[0].name} --wait=false")
    return "\n".join(lines)


def _show_step(at: float, what: str) -> None:
    """A step of the timeline, as it happens."""
    say("\n".join(_wrapped(f"{at:8.1f} s  ", what)))


def _listing(folders: tuple[Traversable, ...]) -> str:
    names = library.names(*folders)
    width = max(map(len, names))
    rows = []
    for name in names:
        rows += _wrapped(f"{name:{width}}  ", library.scenario_named(name, *folders).description)
    return "\n".join(rows)


def _wrapped(head: str, text: str) -> list[str]:
    """A text behind its head, in as many lines as the terminal makes of it."""
    columns = shutil.get_terminal_size().columns
    return textwrap.wrap(text, max(columns, 40), initial_indent=head, subsequent_indent=" " * len(head))
