"""`python -m benchmarks`: run the scenarios and hold them against the budgets of the design."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import click
import msgspec
from rich.console import Console

from benchmarks import admission, deadlines, pdb_chain, server, tracing, wheel
from benchmarks.report import Outcome, show

Benchmark = Callable[[], Awaitable[Outcome]]

SCENARIOS: dict[str, Benchmark] = {
    "pdb-chain": pdb_chain.run,
    "admission": admission.run,
    "deadlines": deadlines.run,
    "server": server.run,
    "tracing": tracing.run,
    "wheel": wheel.run,
}
HUGE: dict[str, Benchmark] = {"server": partial(server.run, server.HUGE)}
"""What takes its place at full size: minutes, and a GiB of memory."""


@click.command()
@click.argument("scenarios", nargs=-1, type=click.Choice(list(SCENARIOS)))
@click.option("-o", "output", type=click.Choice(["table", "json"]), default="table")
@click.option("--huge", is_flag=True, help="Measure the server with 5,000 nodes and 150,000 pods.")
def main(scenarios: tuple[str, ...], output: str, huge: bool) -> None:
    """Run SCENARIOS (default: all). Exit code 1 when a budget is missed."""
    table = {**SCENARIOS, **HUGE} if huge else SCENARIOS
    outcomes = anyio.run(_run, [table[name] for name in scenarios or tuple(SCENARIOS)])
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(outcomes)))
    else:
        show(outcomes, Console())
    sys.exit(0 if all(outcome.is_met for outcome in outcomes) else 1)


async def _run(scenarios: list[Benchmark]) -> list[Outcome]:
    return [await scenario() for scenario in scenarios]


if __name__ == "__main__":
    main()
