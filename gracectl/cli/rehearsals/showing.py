"""What `gracectl agent --simulate-shutdown` does: look, rehearse, show. Nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from gracectl.cli.failures import MISUSED, REFUSED
from gracectl.cli.forecasts.report import as_json
from gracectl.cli.nodes import UnknownNodes
from gracectl.cli.output import say
from gracectl.cli.paper import paper, put
from gracectl.cli.rehearsals.looking import NoOrder, look
from gracectl.cli.rehearsals.report import report
from gracectl.cli.rehearsals.table import table
from gracectl.cli.rehearsals.telling import Logind, Rehearsed, rehearsal_of
from gracectl.config import Settings
from gracectl.kube.connection import Connection

FAILURES: Final[Mapping[type[Exception], int]] = {UnknownNodes: REFUSED, NoOrder: MISUSED}
"""What a rehearsal can meet beside what every command does, for `told_to_people`."""


async def rehearsed(
    connection: Connection,
    node: str,
    settings: Settings,
    own_uid: str = "",
    *,
    logind: Logind | None = None,
    available: float | None = None,
) -> Rehearsed:
    """What a shutdown of the machine of `node` would do now. Raises ApiError, and what FAILURES has.

    `own_uid`: of the agent's own pod. `available`: the seconds that there are, if that is less than the order wants;
    `logind`: what is told of it, which by itself takes no time from anybody: a running agent has it raised.
    """
    return rehearsal_of(await look(connection, node, settings, own_uid), logind, available)


def show(told: Rehearsed, output: Literal["table", "json"]) -> None:
    """Print it, as wide as the terminal, or as one JSON object."""
    if output == "json":
        say(as_json(report(told)))
    else:
        console = paper()
        put(console, table(told, console.width))
