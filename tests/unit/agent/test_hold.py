"""The lock and who is told what, on virtual time."""

from __future__ import annotations

import os
from collections.abc import Iterator

import anyio
import pytest

from gracectl.agent.hold import Hold, Purpose
from gracectl.agent.lock import Lock
from gracectl.runtime.clock import LoopClock

pytestmark = pytest.mark.anyio

PURPOSE = Purpose(30, "why")


class Ear:
    def __init__(self) -> None:
        self.heard: list[float | str] = []

    def shutting_down(self, delay: float) -> None:
        self.heard.append(delay)

    def cancelled(self) -> None:
        self.heard.append("cancelled")


class Locks:
    """Makes locks, and knows which of them are open."""

    def __init__(self) -> None:
        self.made: list[tuple[Lock, int]] = []

    def __call__(self) -> Lock:
        reader, writer = os.pipe()
        os.set_inheritable(writer, True)
        lock = Lock(writer)
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


def a_hold(delay: float = 30.0) -> tuple[Hold, Ear]:
    ear = Ear()
    hold = Hold(LoopClock(), ear)
    hold.delay = delay
    return hold, ear


async def test_a_lock_is_closed_once_and_its_number_is_left_to_others() -> None:
    reader, writer = os.pipe()
    lock = Lock(writer)
    lock.close()
    others = os.dup2(reader, writer)
    lock.close()
    os.fstat(others)
    os.close(others)
    os.close(reader)


async def test_a_new_lock_takes_the_place_of_the_old_one(locks: Locks) -> None:
    hold, _ = a_hold()
    assert hold.needs(PURPOSE)
    hold.take(locks(), PURPOSE)
    assert not hold.needs(PURPOSE)
    assert hold.needs(Purpose(30, "another"))
    hold.become_stale()
    assert hold.needs(PURPOSE)
    hold.take(locks(), PURPOSE)
    assert locks.held == [False, True]


async def test_a_lock_that_comes_after_the_release_is_let_go(locks: Locks) -> None:
    hold, _ = a_hold()
    hold.release()
    assert not hold.needs(PURPOSE)
    hold.take(locks(), PURPOSE)
    assert locks.held == [False]
    assert not hold.is_locked
    hold.want()
    assert hold.needs(PURPOSE)


async def test_a_shutdown_that_was_heard_of_grants_everything(locks: Locks) -> None:
    hold, ear = a_hold()
    hold.take(locks(), PURPOSE)
    await anyio.sleep(100)
    hold.prepare(True)
    hold.prepare(True)
    assert ear.heard == [30.0]
    assert not hold.needs(Purpose(60, "longer"))


@pytest.mark.parametrize(("away", "left"), [(12.0, 18.0), (40.0, 0.0)])
async def test_of_a_shutdown_that_was_missed_the_time_away_is_taken_off(locks: Locks, away: float, left: float) -> None:
    hold, ear = a_hold()
    hold.take(locks(), PURPOSE)
    hold.become_deaf()
    await anyio.sleep(away / 2)
    hold.become_deaf()
    await anyio.sleep(away / 2)
    hold.prepare(True)
    assert ear.heard == [left]


async def test_who_was_away_before_a_shutdown_began_loses_nothing(locks: Locks) -> None:
    hold, ear = a_hold()
    hold.take(locks(), PURPOSE)
    hold.become_deaf()
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
    hold.settle_up()
    assert ear.heard == [30.0, "cancelled", 30.0]


async def test_a_cancelled_shutdown_wants_a_new_lock_even_after_a_release(locks: Locks) -> None:
    hold, ear = a_hold()
    hold.take(locks(), PURPOSE)
    hold.prepare(True)
    hold.release()
    assert not hold.needs(PURPOSE)
    hold.prepare(False)
    assert hold.needs(PURPOSE)
    hold.take(locks(), PURPOSE)
    hold.settle_up()
    hold.settle_up()
    assert ear.heard == [30.0, "cancelled"]
    assert locks.held == [False, True]


async def test_nobody_is_told_of_the_end_of_what_he_was_not_told_of(locks: Locks) -> None:
    hold, ear = a_hold()
    hold.prepare(True)
    hold.prepare(False)
    hold.settle_up()
    assert ear.heard == []


async def test_who_lets_go_before_he_hears_that_it_is_called_off_has_a_lock_again(locks: Locks) -> None:
    """A sequence that ends between logind's signal and the news of it, which waits for the new lock."""
    hold, ear = a_hold()
    hold.take(locks(), PURPOSE)
    hold.prepare(True)
    hold.prepare(False)
    hold.release()
    assert hold.needs(PURPOSE)
    hold.take(locks(), PURPOSE)
    hold.settle_up()
    assert hold.is_locked
    assert ear.heard == [30.0, "cancelled"]
