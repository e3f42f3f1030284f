"""`python -m benchmarks`: run the scenarios and hold them against the budgets of the design."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

import anyio
import click
import msgspec
from rich.console import Console

from benchmarks import pdb_chain
from benchmarks.report import Outcome, show

SCENARIOS: dict[str, Callable[[], Awaitable[Outcome]]] = {"pdb-chain": pdb_chain.run}


@click.command()
@click.argument("scenarios", nargs=-1, type=click.Choice(list(SCENARIOS)))
@click.option("-o", "output", type=click.Choice(["table", "json"]), default="table")
def main(scenarios: tuple[str, ...], output: str) -> None:
    """Run SCENARIOS (default: all). Exit code 1 when a budget is missed."""
    outcomes = anyio.run(_run, scenarios or tuple(SCENARIOS))
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(outcomes)))
    else:
        show(outcomes, Console())
    sys.exit(0 if all(outcome.is_met for outcome in outcomes) else 1)


async def _run(scenarios: tuple[str, ...]) -> list[Outcome]:
    return [await SCENARIOS[name]() for name in scenarios]


if __name__ == "__main__":
    main()
