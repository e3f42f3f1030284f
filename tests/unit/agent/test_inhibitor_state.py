"""The lock and who is told what, on virtual time."""

from __future__ import annotations

import os
from collections.abc import Iterator

import anyio
import pytest

from gracectl.agent.logind import InhibitorLock
from gracectl.agent.watch import InhibitorRequest, InhibitorState, WatchState
from gracectl.runtime.clock import LoopClock

PURPOSE = InhibitorRequest(30, "why")


class Ear:
    def __init__(self) -> None:
        self.heard: list[float | str] = []

    def shutting_down(self, delay: float) -> None:
        self.heard.append(delay)

    def cancelled(self) -> None:
        self.heard.append("cancelled")

    def state_changed(self, state: WatchState) -> None:
        """The watch reports states, not the lock."""


class Locks:
    """Makes locks, and knows which of them are open."""

    def __init__(self) -> None:
        self.made: list[tuple[InhibitorLock, int]] = []

    def __call__(self) -> InhibitorLock:
        reader, writer = os.pipe()
        os.set_inheritable(writer, True)
        lock = InhibitorLock(writer)
        self.made.append((lock, reader))
        assert not os.get_inheritable(writer)
        return lock

    @property
    def held(self) -> list[bool]:
        return [lock.is_held for lock, _ in self.made]

    def end(self) -> None:
        for lock, reader in self.made:
            lock.close()
            os.close(reader)


@pytest.fixture
def locks() -> Iterator[Locks]:
    locks = Locks()
    yield locks
    locks.end()


def a_hold(delay: float = 30.0) -> tuple[InhibitorState, Ear]:
    ear = Ear()
    hold = InhibitorState(LoopClock(), ear)
    hold.delay = delay
    return hold, ear


async def test_a_lock_is_closed_once_and_its_number_is_left_to_others() -> None:
    reader, writer = os.pipe()
    lock = InhibitorLock(writer)
    lock.close()
    others = os.dup2(reader, writer)
    lock.close()
    os.fstat(others)
    os.close(others)
    os.close(reader)


async def test_a_new_lock_takes_the_place_of_the_old_one(locks: Locks) -> None:
    hold, _ = a_hold()
    assert hold.needs_lock(PURPOSE)
    hold.take(locks(), PURPOSE)
    assert not hold.needs_lock(PURPOSE)
    assert hold.needs_lock(InhibitorRequest(30, "another"))
    hold.mark_stale()
    assert hold.needs_lock(PURPOSE)
    hold.take(locks(), PURPOSE)
    assert locks.held == [False, True]


async def test_a_lock_that_comes_after_the_release_is_let_go(locks: Locks) -> None:
    hold, _ = a_hold()
    hold.release()
    assert not hold.needs_lock(PURPOSE)
    hold.take(locks(), PURPOSE)
    assert locks.held == [False]
    assert not hold.is_locked
    hold.request()
    assert hold.needs_lock(PURPOSE)


async def test_a_shutdown_that_was_heard_of_grants_everything(locks: Locks) -> None:
    hold, ear = a_hold()
    hold.take(locks(), PURPOSE)
    await anyio.sleep(100)
    hold.prepare(True)
    hold.prepare(True)
    assert ear.heard == [30.0]
    assert not hold.needs_lock(InhibitorRequest(60, "longer"))


@pytest.mark.parametrize(("away", "left"), [(12.0, 18.0), (40.0, 0.0)])
async def test_of_a_shutdown_that_was_missed_the_time_away_is_taken_off(locks: Locks, away: float, left: float) -> None:
    hold, ear = a_hold()
    hold.take(locks(), PURPOSE)
    hold.disconnected()
    await anyio.sleep(away / 2)
    hold.disconnected()
    await anyio.sleep(away / 2)
    hold.prepare(True)
    assert ear.heard == [left]


async def test_an_absence_before_a_shutdown_loses_nothing(locks: Locks) -> None:
    hold, ear = a_hold()
    hold.take(locks(), PURPOSE)
    hold.disconnected()
    await anyio.sleep(12)
    hold.prepare(False)
    await anyio.sleep(12)
    hold.prepare(True)
    assert ear.heard == [30.0]


async def test_a_lock_that_arrives_after_the_shutdown_has_begun_is_told_what_is_left(locks: Locks) -> None:
    hold, ear = a_hold()
    hold.prepare(True)
    assert ear.heard == []
    await anyio.sleep(1)
    hold.take(locks(), PURPOSE)
    assert ear.heard == [29.0]


async def test_a_shutdown_after_a_cancelled_one_is_told_after_that(locks: Locks) -> None:
    hold, ear = a_hold()
    hold.take(locks(), PURPOSE)
    hold.prepare(True)
    hold.prepare(False)
    assert ear.heard == [30.0]
    hold.prepare(True)
    assert ear.heard == [30.0, "cancelled", 30.0]
    hold.notify_cancelled()
    assert ear.heard == [30.0, "cancelled", 30.0]


async def test_a_cancelled_shutdown_wants_a_new_lock_even_after_a_release(locks: Locks) -> None:
    hold, ear = a_hold()
    hold.take(locks(), PURPOSE)
    hold.prepare(True)
    hold.release()
    assert not hold.needs_lock(PURPOSE)
    hold.prepare(False)
    assert hold.needs_lock(PURPOSE)
    hold.take(locks(), PURPOSE)
    hold.notify_cancelled()
    hold.notify_cancelled()
    assert ear.heard == [30.0, "cancelled"]
    assert locks.held == [False, True]


async def test_the_end_of_an_unreported_shutdown_is_not_reported(locks: Locks) -> None:
    hold, ear = a_hold()
    hold.prepare(True)
    hold.prepare(False)
    hold.notify_cancelled()
    assert ear.heard == []


async def test_a_lock_released_before_the_cancellation_is_known_is_taken_again(locks: Locks) -> None:
    """A sequence that ends between logind's signal and the news of it, which waits for the new lock."""
    hold, ear = a_hold()
    hold.take(locks(), PURPOSE)
    hold.prepare(True)
    hold.prepare(False)
    hold.release()
    assert hold.needs_lock(PURPOSE)
    hold.take(locks(), PURPOSE)
    hold.notify_cancelled()
    assert hold.is_locked
    assert ear.heard == [30.0, "cancelled"]
