"""The server's clock turns out to be another than was thought, in the middle of a termination."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from email.utils import formatdate

import anyio
import pytest
from support.stage import Stage, a_pod_manifest, staged
from support.stories import deletions, until, with_grace_period
from support.virtual import ShiftedClock

from gracectl.app.controller import Controller
from gracectl.kube.transport import Request, Response, Stream
from gracectl.kube.transport.skew import SkewEstimate
from gracectl.model import names
from gracectl.telemetry.metrics import CLOCK_DISPUTED

PROTECTED = {"annotations": {names.DO_NOT_DISRUPT: "true"}, "behaviour": {"stop-seconds": 1000}}


class DatedLine:
    """A line to a server whose answers bear its time, which this machine's clock learns."""

    def __init__(self, stage: Stage, ours: ShiftedClock) -> None:
        self._line = stage.transport.line()
        self._stage = stage
        self._ours = ours
        self._machine = ours.offset
        self.error = 0.0
        """Seconds that the dates are ahead of the server's clock."""
        self.skew = SkewEstimate(self._adjust)

    def _adjust(self, offset: float, is_disputed: bool) -> None:
        self._ours.adjust(self._machine + offset, is_disputed)

    async def send(self, request: Request) -> Response:
        """See Transport."""
        response = await self._line.send(request)
        self.skew.observe(formatdate(self._stage.clock.now() + self.error, usegmt=True), self._ours.now(), 0.0)
        return response

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        """See Transport."""
        return self._line.stream(request)


@asynccontextmanager
async def on_a_machine(stage: Stage, ahead: float) -> AsyncIterator[tuple[Controller, DatedLine]]:
    """A controller on a machine with a clock that is so many seconds ahead of the server's."""
    line = DatedLine(stage, ours := ShiftedClock(stage.clock, ahead))
    controller = Controller(stage.settings, line, ours, stage.provider)
    controller.process.skew = line.skew
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(controller.run, stop)
        yield controller, line
        stop.set()


async def answers(stage: Stage, line: DatedLine, seconds: int) -> None:
    """The server is asked something every second, as a leader does that renews its Lease."""
    for _ in range(seconds):
        await line.send(Request(method="GET", path="/version", timeout=5.0))
        await stage.clock.sleep(1.0)


@pytest.mark.parametrize("ahead", [3600.0, -3600.0, 3.0e8])
async def test_while_clocks_are_an_hour_apart_no_deadline_takes_a_protected_pod_and_that_is_shown(ahead: float) -> None:
    async with staged("n1", "n2", settings=with_grace_period("40s"), looks_for_karpenter=True) as stage:
        await stage.create(a_pod_manifest("web", "n1", terminationGracePeriodSeconds=10, **PROTECTED))
        await stage.create(a_pod_manifest("api", "n2", behaviour={"stop-seconds": 5}))
        async with on_a_machine(stage, ahead) as (controller, line):
            await stage.settle(controller)
            assert line.skew.statistics().disputed == pytest.approx(-ahead, abs=1.0)
            await until(stage, 0.0)
            await stage.delete_node("n1")
            await stage.delete_node("n2")
            await until(stage, 59.0)
            # What no deadline decides continues; what one takes away stays, and the reason is shown.
            assert stage.node("n2") is None
            assert stage.node("n1") is not None
            assert deletions(stage) == []
            condition = stage.condition("n1", names.DRAINED)
            assert condition is not None
            assert "is paused: clocks contradict each other" in condition["message"]
            events = {name: message for name, reason, message in await stage.events() if reason == "ClocksDisagree"}
            assert "deadlines are paused" in events["n1"]
            assert [check.name for check in controller.process.readiness() if not check.is_ok] == ["clock"]
            assert [
                sample.value for sample in controller.process.samples() if sample and sample.metric is CLOCK_DISPUTED
            ] == [1]
            await until(stage, 7200.0)
            assert deletions(stage) == []
        async with on_a_machine(stage, 0.0):  # set right, and restarted
            await until(stage, 7210.0)
        assert [(pod, grace) for pod, _, grace in deletions(stage)] == [("web", 1)]


async def test_a_dispute_is_over_when_all_answers_of_half_a_minute_have_agreed() -> None:
    async with staged("n1", settings=with_grace_period("40s")) as stage:
        await stage.create(a_pod_manifest("web", "n1", terminationGracePeriodSeconds=10, **PROTECTED))
        async with on_a_machine(stage, 0.0) as (controller, line):
            await stage.settle(controller)
            await until(stage, 0.0)
            await stage.delete_node("n1")
            line.error = -3600.0
            await answers(stage, line, 90)
            assert line.skew.statistics().disputed == pytest.approx(-3600.0, abs=1.0)
            line.error = 0.0
            await answers(stage, line, 60)
        # The ninth right answer comes 8 s after the first, and leaves no wrong one; then 30 s.
        assert deletions(stage) == [("web", 128.0, 1)]


async def test_deadlines_that_come_while_clocks_agree_are_kept_to_the_second_however_wrong_they_were_before() -> None:
    async with staged("n1", settings=with_grace_period("40s")) as stage:
        await stage.create(a_pod_manifest("web", "n1", terminationGracePeriodSeconds=10, **PROTECTED))
        async with on_a_machine(stage, 299.0) as (controller, line):
            await stage.settle(controller)
            assert line.skew.statistics().disputed is None
            await until(stage, 0.0)
            await stage.delete_node("n1")
            await until(stage, 100.0)
        pod, instant, grace = deletions(stage)[0]
        assert (pod, grace) == ("web", 10)
        assert instant == pytest.approx(30.0, abs=1.0)  # dates have whole seconds
