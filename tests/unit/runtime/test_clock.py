"""The clocks: offsets, virtual time, and what sleeping for nothing means."""

from __future__ import annotations

import time
from email.utils import formatdate

import anyio
import pytest
from support.virtual import ShiftedClock

from gracectl.kube.transport.skew import SkewEstimate
from gracectl.runtime.clock import Clock, LoopClock, RelayedClock, SystemClock

EPOCH = 1_767_225_600.0


async def test_the_loop_clock_begins_at_its_epoch_and_moves_with_the_loop() -> None:
    clock = LoopClock()
    assert (clock.now(), clock.monotonic()) == (EPOCH, 0.0)
    await clock.sleep(300.25)
    assert (clock.now(), clock.monotonic()) == (EPOCH + 300.25, 300.25)


async def test_loop_clocks_of_one_loop_agree_whenever_they_were_made() -> None:
    early = LoopClock()
    await early.sleep(7)
    assert LoopClock().now() == early.now()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("-inf")])
async def test_sleeping_for_nothing_or_less_lets_the_others_run_and_takes_no_time(seconds: float) -> None:
    clock = LoopClock()
    ran: list[str] = []
    async with anyio.create_task_group() as group:
        group.start_soon(_note, ran)
        await clock.sleep(seconds)
        ran.append("slept")
    assert ran == ["other", "slept"]
    assert clock.monotonic() == 0.0


async def test_a_sleep_can_be_cancelled_at_its_instant() -> None:
    clock = LoopClock()
    with anyio.move_on_after(2):
        await clock.sleep(float("inf"))
    assert clock.monotonic() == 2.0


async def _note(ran: list[str]) -> None:
    ran.append("other")


class Machine:
    """What the operating system says the time is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.today, self.running = EPOCH, 40.0
        monkeypatch.setattr(time, "time", lambda: self.today)
        monkeypatch.setattr(time, "monotonic", lambda: self.running)
        self.since_boot = 1040.0  # it has slept before we came
        monkeypatch.setattr(time, "clock_gettime", lambda _: self.since_boot)

    def go(self, seconds: float) -> None:
        self.today += seconds
        self.running += seconds
        self.since_boot += seconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_the_system_clock_is_moved_by_the_last_offset_only(machine: Machine) -> None:
    clock = SystemClock()
    assert clock.now() == EPOCH
    clock.adjust(5.0, False)
    clock.adjust(-2.5, False)
    machine.go(1.0)
    assert clock.now() == EPOCH - 1.5


def test_an_offset_does_not_move_durations(machine: Machine) -> None:
    clock: Clock = (system := SystemClock())
    system.adjust(1000.0, False)
    assert clock.monotonic() == 40.0


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_setting_the_machines_clock_moves_no_deadline(machine: Machine, step: float) -> None:
    clock = SystemClock()
    machine.go(10.0)
    machine.today += step
    machine.go(10.0)
    assert clock.now() == EPOCH + 20.0


def test_the_servers_answers_show_what_the_machine_has_slept(machine: Machine) -> None:
    clock = SystemClock()
    estimate = SkewEstimate(clock.adjust)
    for second in range(30):
        machine.go(1.0)
        if second == 10:
            machine.today += 600.0  # asleep, while its monotonic clock has stood still
        missed = clock.elapsed() - clock.monotonic()
        estimate.observe(formatdate(machine.today, usegmt=True), clock.now(), 0.0, missed)
    assert clock.now() == pytest.approx(EPOCH + 630.0, abs=1.0)


@pytest.mark.parametrize(("today", "since_boot", "missed"), [
    pytest.param(0.0, 0.0, 0.0, id="awake"),
    pytest.param(600.0, 600.0, 600.0, id="suspended"),
    pytest.param(600.0, 0.0, 600.0, id="paused from outside"),
    pytest.param(-50.0, 600.0, 600.0, id="suspended, and the time of day set back"),
    pytest.param(-600.0, 0.0, 0.0, id="the time of day set back"),
])  # fmt: skip
def test_time_missed_by_the_monotonic_clock(machine: Machine, today: float, since_boot: float, missed: float) -> None:
    clock = SystemClock()
    machine.go(10.0)
    assert clock.elapsed() == pytest.approx(clock.monotonic())
    machine.today += today
    machine.since_boot += since_boot
    machine.go(10.0)
    assert clock.monotonic() == 60.0
    assert clock.elapsed() == pytest.approx(60.0 + missed)


def test_every_subscriber_is_told_of_every_jump_and_sees_the_new_time(machine: Machine) -> None:
    seen: list[float] = []
    system = SystemClock()
    shifted = ShiftedClock(system)
    system.subscribe(lambda: seen.append(system.now() - EPOCH))
    shifted.subscribe(lambda: seen.append(shifted.now() - EPOCH))
    system.adjust(5.0, False)
    shifted.offset = -30.0
    assert shifted.offset == -30.0
    assert seen == [5.0, 5.0, -25.0]


def test_a_relayed_clock_tells_of_a_jump_when_it_is_told_of_it(machine: Machine) -> None:
    jumps: list[float] = []
    system = SystemClock()
    relayed = RelayedClock(system)
    relayed.subscribe(lambda: jumps.append(relayed.now() - EPOCH))
    system.adjust(5.0, False)
    assert (relayed.now() - EPOCH, jumps) == (5.0, [])
    relayed.jumped()
    assert jumps == [5.0]
