"""The connection by itself."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from support.logind import Machine, StandInLogind, a_stand_in

from gracectl.agent.bus import BUS, AccessDenied, Bus, CallFailed, ConnectionLost, NoReply, Signal, Target
from gracectl.agent.logind import MANAGER, Logind

pytestmark = pytest.mark.real_time


@asynccontextmanager
async def connected(place: Path) -> AsyncIterator[tuple[Bus, Machine, StandInLogind]]:
    async with a_stand_in(place) as (machine, logind):
        bus = await Bus.connect(machine.bus.address, 5.0)
        async with anyio.create_task_group() as group:
            group.start_soon(bus.run)
            try:
                yield bus, machine, logind
            finally:
                bus.close()


@pytest.mark.parametrize("address", ["unix:path=/nowhere/bus", "nonsense", "unix:nonsense=1", "carrier-pigeon:x=y"])
async def test_an_address_that_leads_nowhere_is_a_lost_bus(address: str) -> None:
    with pytest.raises(ConnectionLost, match="cannot connect"):
        await Bus.connect(address, 1.0)


async def test_a_bus_that_does_not_let_us_in_is_given_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "bus"))
        silent.listen()
        with pytest.raises(ConnectionLost, match=r"no handshake within 0\.05 s"):
            await Bus.connect(f"unix:path={tmp_path / 'bus'}", 0.05)


async def test_errors_have_a_meaning(tmp_path: Path) -> None:
    async with connected(tmp_path) as (bus, _, logind):
        with pytest.raises(NoReply, match=r"Anything of missing\.at\.all: not available"):
            await bus.call(Target("missing.at.all", "/", "a.b"), "Anything")
        with pytest.raises(CallFailed) as refused:
            await bus.call(MANAGER, "Nonsense")
        assert refused.value.name == "org.freedesktop.DBus.Error.UnknownMethod"
        logind.refusals["PowerOff"] = "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"
        with pytest.raises(AccessDenied, match=r"PowerOff of .*: access denied: Permission denied"):
            await bus.call(MANAGER, "PowerOff", "b", False)


async def test_what_changes_while_it_is_read_is_not_read(tmp_path: Path) -> None:
    async with connected(tmp_path) as (bus, _, stand_in):
        logind = Logind(bus)
        await logind.subscribe()
        answers: list[bool | None] = []
        stand_in.silences.add("PreparingForShutdown")

        async def read() -> None:
            answers.append(await logind.is_preparing())

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await stand_in.until(lambda: bool(stand_in.unanswered))
            answer = stand_in.answer(stand_in.unanswered[0])
            stand_in.emit(True)
            assert not isinstance(answer, bool | None)
            stand_in.send(answer)
        assert answers == [None]
        stand_in.silences.clear()
        assert await logind.is_preparing() is True


async def test_a_lock_that_comes_in_the_instant_of_the_cancellation_is_let_go(tmp_path: Path) -> None:
    async with connected(tmp_path) as (bus, _, stand_in):
        logind = Logind(bus)
        await logind.subscribe()
        stand_in.silences.add("Inhibit")
        tasks: list[asyncio.Task[None]] = []

        async def ask() -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.append(task)
            (await logind.inhibit("another", "why")).close()

        def cancel(signal: Signal) -> None:
            # asyncio's own cancellation: with anyio's, a task that has its answer gets it first.
            tasks[-1].cancel()

        bus.on_signal(cancel)
        for number in range(1, 21):
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await stand_in.until(lambda number=number: len(stand_in.unanswered) == number)  # type: ignore[misc]
                stand_in.answer(stand_in.unanswered[-1])
                stand_in.emit(True)
                stand_in.preparing = False
        assert any(task.cancelled() for task in tasks)
        await stand_in.until(lambda: not stand_in.locks)


async def test_an_answer_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with connected(tmp_path) as (bus, _, stand_in):
        stand_in.delay = "soon"  # type: ignore[assignment]
        stand_in.spelling = "s"
        with pytest.raises(CallFailed, match="unexpected value of InhibitDelayMaxUSec"):
            await Logind(bus).delay()


async def test_nothing_is_written_to_a_reused_descriptor_of_a_closed_socket(tmp_path: Path) -> None:
    async with a_stand_in(tmp_path) as (machine, _):
        bus = await Bus.connect(machine.bus.address, 5.0)
        number = bus._connection._fd
        bus.close()
        await bus.run()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            assert number in (ours.fileno(), theirs.fileno())
            with pytest.raises(ConnectionLost, match="connection lost"):
                await bus.call(BUS, "GetId")
            assert not asyncio.get_running_loop().remove_writer(number)


async def test_a_waiting_call_fails_when_the_bus_ends(tmp_path: Path) -> None:
    async with a_stand_in(tmp_path) as (machine, logind):
        logind.silences.add("ListInhibitors")
        bus = await Bus.connect(machine.bus.address, 20.0)

        async def ask() -> None:
            await bus.call(MANAGER, "ListInhibitors")

        async def end() -> None:
            await logind.until(lambda: bool(logind.unanswered))
            await machine.lose_bus()

        async def live() -> None:
            async with anyio.create_task_group() as group:
                for part in (bus.run, ask, end):
                    group.start_soon(part)

        with pytest.raises(ExceptionGroup) as failed:
            await live()
        assert failed.group_contains(ConnectionLost, match="closed the connection")
