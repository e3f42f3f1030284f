"""The server answers late, and the watch later still: what it has done by then counts from when it did it."""

from __future__ import annotations

from kubesim.faults import Latency, LateWatch, Rule
from support.eviction import Asked, deleting


async def test_a_late_answer_does_not_make_a_pod_end_later() -> None:
    """Found by a storm: taken to end 30 s after the answer, and so beyond the deadline, it had its grace cut."""
    async with deleting() as stage:
        await stage.add(web=30)
        stage.transport.before.add(Rule(fault=LateWatch(20.0, 20.0)))
        stage.transport.behind.add(Rule(fault=Latency(4.0, 4.0), method="DELETE"))
        stage.set_pods(100)
        await stage.until(99)
        assert stage.asked == [Asked(70, "web", 30)]
