"""Raises what logind grants, and says in words why that cannot be done.

logind is told to read its files by a signal, which it may see after the question that follows: it is asked again for
a while before its answer counts.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
from anyio.to_thread import run_sync

from gracectl.agent.bus import Denied, Refused, Unanswered
from gracectl.agent.dropin import OPTION, DropIn
from gracectl.agent.logind import UNIT, Logind
from gracectl.runtime.clock import Clock

_PAUSES: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds, between two looks at whether logind has taken the file over."""


class Raised(msgspec.Struct, frozen=True):
    """What logind grants now (seconds), and what keeps it from granting more: "" if it is enough."""

    delay: float
    obstacle: str


async def raise_delay(logind: Logind, drop_in: DropIn | None, wanted: float, clock: Clock) -> Raised:
    """Have logind grant `wanted` seconds, which it does not yet. Raises BusError if logind itself does not answer."""
    asked = math.ceil(wanted)
    by_hand = f"set {OPTION}={asked} in the host's logind.conf, and run systemctl kill --signal=HUP {UNIT}"
    if drop_in is None:
        return Raised(await logind.delay(), f"no drop-in is to be written: {by_hand}")
    try:
        await run_sync(drop_in.ensure, wanted)
    except OSError as error:
        why = error.strerror or str(error)
        return Raised(await logind.delay(), f"{drop_in.path} cannot be written ({why}): make it writable, or {by_hand}")
    try:
        await logind.reload()
    except (Denied, Refused, Unanswered) as error:
        told = f"{drop_in.path} asks for {asked} s, but logind could not be told to read it ({error})"
        return Raised(await logind.delay(), f"{told}: run systemctl kill --signal=HUP {UNIT}")
    delay = await logind.delay()
    for pause in _PAUSES:
        if delay >= wanted:
            return Raised(delay, "")
        await clock.sleep(pause)
        delay = await logind.delay()
    return Raised(delay, "" if delay >= wanted else await run_sync(_obstacle, drop_in, asked))


def _obstacle(drop_in: DropIn, asked: int) -> str:
    winner = drop_in.winner()
    if winner is not None and winner.file != drop_in.path:
        return (
            f"{winner.file} sets {OPTION}={winner.value} and is read after {drop_in.path}, which asks for {asked} s: "
            f"take it out there, or raise it, and run systemctl kill --signal=HUP {UNIT}"
        )
    return (
        f"{drop_in.path} asks for {asked} s and logind was told to read it, but has not taken it over: see on the host "
        f"whether the file is there and what wins (systemd-analyze cat-config systemd/logind.conf), or restart {UNIT}"
    )
