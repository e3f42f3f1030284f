"""The server's clock turns out to be another than was thought, in the middle of a termination."""

from __future__ import annotations

import pytest
from support.deadlines import asked_to_end, controlled, deletions, until, with_grace_period
from support.stage import a_pod_manifest, staged

from gracectl.model import names
from gracectl.runtime.clock import ShiftedClock

pytestmark = pytest.mark.anyio

PROTECTED = {"annotations": {names.DO_NOT_DISRUPT: "true"}, "behaviour": {"stop-seconds": 1000}}


@pytest.mark.parametrize(
    ("before", "after", "deleted", "ended"),
    [
        (0.0, 0.0, 570.0, 600.0),
        # The machine was behind: there is less time than was thought.
        (-300.0, 0.0, 570.0, 600.0),
        (-570.0, 0.0, 570.0, 600.0),
        # It was ahead: there is more.
        (200.0, 0.0, 570.0, 600.0),
    ],
)
async def test_deadlines_follow_the_servers_clock(before: float, after: float, deleted: float, ended: float) -> None:
    async with staged("n1", settings=with_grace_period("10m")) as stage:
        await stage.create(a_pod_manifest("web", "n1", terminationGracePeriodSeconds=30, **PROTECTED))
        ours = ShiftedClock(stage.clock, before)
        async with controlled(stage, ours) as controller:
            await stage.settle(controller)
            assert controller.statistics().deleter.scheduled == 0
            await until(stage, 0.0)
            await stage.delete_node("n1")
            await until(stage, 350.123)
            ours.offset = after
            await until(stage, 700.0)
        assert deletions(stage)[0] == ("web", deleted, 30)
        assert asked_to_end(stage)[0] == ended
