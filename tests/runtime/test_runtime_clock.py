"""The clocks: offsets, virtual time, and what sleeping for nothing means."""

from __future__ import annotations

import time

import anyio
import pytest

from gracectl.runtime.clock import Clock, LoopClock, SystemClock

EPOCH = 1_767_225_600.0


@pytest.mark.anyio
async def test_the_loop_clock_begins_at_its_epoch_and_moves_with_the_loop() -> None:
    clock = LoopClock()
    assert (clock.now(), clock.monotonic()) == (EPOCH, 0.0)
    await clock.sleep(300.25)
    assert (clock.now(), clock.monotonic()) == (EPOCH + 300.25, 300.25)


@pytest.mark.anyio
async def test_loop_clocks_of_one_loop_agree_whenever_they_were_made() -> None:
    early = LoopClock()
    await early.sleep(7)
    assert LoopClock().now() == early.now()


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_a_sleep_can_be_cancelled_at_its_instant() -> None:
    clock = LoopClock()
    with anyio.move_on_after(2):
        await clock.sleep(float("inf"))
    assert clock.monotonic() == 2.0


async def _note(ran: list[str]) -> None:
    ran.append("other")


def test_the_system_clock_is_moved_by_the_last_offset_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: EPOCH)
    clock = SystemClock()
    assert clock.now() == EPOCH
    clock.adjust(5.0)
    clock.adjust(-2.5)
    assert clock.now() == EPOCH - 2.5


def test_an_offset_does_not_move_durations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 40.0)
    clock: Clock = (system := SystemClock())
    system.adjust(1000.0)
    assert clock.monotonic() == 40.0
