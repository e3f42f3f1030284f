"""Asks logind once, for whoever looks and goes: no lock, and nothing is changed."""

from __future__ import annotations

import anyio

from gracectl.agent.bus import Bus
from gracectl.agent.logind import Logind
from gracectl.runtime.supervise import ungrouped

PATIENCE_SECONDS = 3.0
"""A person waits for the answer."""


async def granted_delay(address: str) -> float:
    """Seconds for which the logind behind that bus would hold a shutdown back (math.inf: for ever). Raises BusError."""
    bus = await Bus.connect(address, PATIENCE_SECONDS)
    found = 0.0
    with ungrouped():
        async with anyio.create_task_group() as group:
            group.start_soon(bus.carry)
            try:
                found = await Logind(bus).delay()
            finally:
                bus.hang_up()
    return found
