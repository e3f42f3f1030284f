"""`python benchmarks/run.py`: measure, and hold what is found against the budgets of the design.

    make bench                                      the embedded cluster, in a process of its own
    .venv/bin/python benchmarks/run.py --kubeconfig ~/.kube/config storm

On a foreign cluster it makes its own namespaces and nodes, whose names all begin with `bench-`, and takes them away.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # Called by its path: the folder above is where `benchmarks` and `gracectl` are.
    sys.path[0] = str(Path(__file__).parent.parent)

import anyio
import click
import msgspec
from rich.console import Console

from benchmarks.contenders.kubectl import PROGRAM
from benchmarks.contenders.peers import WITHOUT_KUBECTL
from benchmarks.ground.ground import Ground, KarpenterFiles, Pace, opened
from benchmarks.ground.waiting import Stalled
from benchmarks.parts import admission, board, command, drain, server, start, wheel
from benchmarks.report import Machine, Outcome, save, saved, show
from benchmarks.scenarios import (
    campaign,
    deadlines,
    faults,
    interruption,
    mixed,
    pdb_chain,
    restart,
    scale,
    single,
    storm,
    tracing,
)
from benchmarks.trial import PUBLISHED_ROUNDS, ROUNDS
from gracectl.cli.failures import FAILED, interruptible, reporting_errors

Scenario = Callable[[Ground], Awaitable[Outcome]]
Part = Callable[[], Awaitable[Outcome]]

SCENARIOS: dict[str, Scenario] = {
    "pdb-chain": pdb_chain.run,
    "storm": storm.run,
    "mixed": mixed.run,
    "deadlines": deadlines.run,
    "scale": scale.run,
    "restart": restart.run,
    "single": single.run,
    "faults": faults.run,
    "interruption": interruption.run,
    "tracing": tracing.run,
    "campaign": campaign.run,
}
IN_ROUNDS: dict[str, Callable[..., Awaitable[Outcome]]] = {
    "pdb-chain": pdb_chain.run,
    "storm": storm.run,
    "mixed": mixed.run,
    "single": single.run,
    "faults": faults.run,
}
"""Scenarios that run in interleaved rounds; the medians are shown."""
BUSY = 1.5
"""Load for each processor above which nothing is published."""
USUAL = tuple(name for name in SCENARIOS if name not in ("interruption", "tracing", "campaign"))
"""Those that are run when none is named."""
PARTS: dict[str, Part] = {
    "admission": admission.run,
    "board": board.run,
    "command": command.run,
    "drain-huge": drain.run,
    "scale-largest": scale.run_largest,
    "server": server.run,
    "server-huge": partial(server.run, server.HUGE),
    "start-huge": start.run,
    "start-largest": partial(start.run, scenario="largest"),
    "wheel": wheel.run,
}
"""Of the program and of the embedded cluster alone; only by name."""


class Sizes(click.ParamType[tuple[int, ...]]):
    """Numbers of nodes, separated by commas, from few to many."""

    name = "N,N,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The numbers. Fails with the remedy."""
        if isinstance(value, tuple):
            return value
        sizes = tuple(int(each) if each.isdecimal() else 0 for each in value.split(","))
        if min(sizes) < scale.FEWEST or sorted(set(sizes)) != list(sizes):
            self.fail(f"{value}: give numbers from {scale.FEWEST} on, each larger than the last: 100,500,1000")
        return sizes


class Cluster(msgspec.Struct, frozen=True):
    """Where it is measured, and beside what, as the options say."""

    kubeconfig: Path | None
    kwok: bool
    karpenter: Path | None
    definitions: tuple[Path, ...]

    def check(self, names: tuple[str, ...]) -> None:
        """Raise UsageError for options that do not go together."""
        if self.kubeconfig and (alone := [name for name in names if name in PARTS]):
            raise click.UsageError(f"{', '.join(alone)}: measured on the embedded cluster only; leave out --kubeconfig")
        if self.kwok and self.kubeconfig is None:
            raise click.UsageError("--kwok: the embedded cluster has none; name the cluster that has with --kubeconfig")
        if (self.karpenter is None) != (not self.definitions):
            raise click.UsageError("--karpenter and --karpenter-crds: name both, the binary and the folders")
        if self.karpenter and self.kubeconfig is None:
            raise click.UsageError("--karpenter: it needs a real API server; name a cluster with --kubeconfig")

    def opened(self) -> AbstractAsyncContextManager[Ground]:
        """The cluster for one scenario."""
        files = KarpenterFiles(self.karpenter, self.definitions) if self.karpenter else None
        return opened(self.kubeconfig, kwok=self.kwok, karpenter=files)


@click.command()
@click.argument("names", nargs=-1, metavar="[SCENARIO]...", type=click.Choice([*SCENARIOS, *PARTS]))
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A cluster to measure on; left out: an embedded one.",
)
@click.option("--kwok", is_flag=True, help="The cluster's kwok plays the kubelets of our nodes.")
@click.option(
    "--karpenter",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Karpenter's binary with its kwok provider: measured beside, in place of the model of it.",
)
@click.option(
    "--karpenter-crds",
    "definitions",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with definitions of Karpenter's resources (pkg/apis/crds, kwok/apis/crds); may be repeated.",
)
@click.option("--nodes", "sizes", type=Sizes(), default=(), help="The sizes of scale, instead of its own.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help=f"Rounds of {', '.join(IN_ROUNDS)}, whose medians and quartiles are shown. Default: {ROUNDS}; with --save "
    f"{PUBLISHED_ROUNDS}.",
)
@click.option("-o", "output", type=click.Choice(["table", "json"]), default="table")
@click.option(
    "--save",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the outcomes there as well (JSON), next to the outcomes of other scenarios. Refused on a busy machine.",
)
@click.option(
    "--despite-load", is_flag=True, help=f"Save although the load is above {BUSY} for each processor; it is recorded."
)
def main(names: tuple[str, ...], sizes: tuple[int, ...], output: str, file: Path | None, **options: Any) -> None:
    """Run scenarios (left out: all of them), or parts by name. Exit code 1 when a budget is missed."""
    rounds = options.pop("rounds") or (PUBLISHED_ROUNDS if file else ROUNDS)
    machine, despite_load = Machine.here(), options.pop("despite_load")
    names, cluster = names or USUAL, Cluster(**options)
    cluster.check(names)
    scenarios: dict[str, Scenario] = {**SCENARIOS, "scale": partial(scale.run, sizes=sizes)}
    scenarios |= {name: partial(run, rounds=rounds) for name, run in IN_ROUNDS.items()}
    if sizes and "scale" not in names:
        raise click.UsageError("--nodes: the sizes of scale, which is not measured; name it, or leave the option out")
    if file and machine.load > BUSY and not despite_load:
        raise click.UsageError(
            f"--save: the machine is busy: load {machine.load:.1f} for each of {machine.processors} processors, "
            f"more than {BUSY}; wait until it is idle, or publish with --despite-load"
        )
    if PROGRAM is None:
        click.echo(WITHOUT_KUBECTL, err=True)
    with (
        reporting_errors({Stalled: FAILED}),
        interruptible(lambda: "interrupted; what was made for the run is taken away"),
    ):
        outcomes = anyio.run(_run, names, cluster, scenarios)
    outcomes = [msgspec.structs.replace(outcome, machine=machine) for outcome in outcomes]
    if file:
        _keep(outcomes, file)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(outcomes)))
    else:
        show(outcomes, Console())
    sys.exit(0 if all(outcome.is_met for outcome in outcomes) else 1)


def _keep(outcomes: list[Outcome], file: Path) -> None:
    """Beside those of other scenarios that it has, and in place of earlier ones of these."""
    known = {outcome.scenario: outcome for outcome in (*saved(file), *outcomes)}
    save(list(known.values()), file)


def _placed(outcome: Outcome, ground: Ground) -> Outcome:
    """With what the cluster is among its parameters, without a pace that its kubelets do not keep."""
    where = {} if ground.is_embedded else {"Kubernetes": ground.version, "kubelets": ground.kubelet}
    odd = Pace().in_words if ground.kubelet == "kwok" else {}
    kept = {name: value for name, value in outcome.parameters.items() if name not in odd}
    return msgspec.structs.replace(outcome, parameters={**where, **kept})


async def _run(names: tuple[str, ...], cluster: Cluster, scenarios: Mapping[str, Scenario]) -> list[Outcome]:
    outcomes = []
    for name in names:
        click.echo(f"{name} …", err=True)
        if name in PARTS:
            outcomes.append(await PARTS[name]())
        else:
            # A fresh cluster each, where it is ours: no scenario pays for what others have left.
            async with cluster.opened() as ground:
                outcomes.append(_placed(await scenarios[name](ground), ground))
    return outcomes


if __name__ == "__main__":
    main()
