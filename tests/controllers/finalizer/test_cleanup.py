"""Removal of our finalizer from all nodes and claims."""

from __future__ import annotations

import math

from support.clients import a_client
from support.stage import staged

from gracectl.controllers.finalizer.cleanup import FinalizerCleanup
from gracectl.runtime.clock import RelayedClock


class EarlyClock(RelayedClock):
    """A timer expires up to a microsecond early."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(math.floor(seconds * 1e6) / 1e6)


async def test_a_timer_that_expires_early_costs_one_list() -> None:
    async with staged("n1") as stage:
        clock = EarlyClock(stage.clock)
        quiet_at = clock.monotonic() + 15.0000005
        listed = len(stage.transport.of("list", "nodes"))
        inventory = await FinalizerCleanup(a_client(stage), clock).run(lambda: quiet_at)
        assert inventory.nodes == ()
        assert len(stage.transport.of("list", "nodes")) - listed == 3
