"""What bus and logind do to a watch: they stay away, come back, say nothing, refuse, and are forged."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import anyio
import pytest
from dbus_fast import Message, MessageType
from kubesim_support.patience import PATIENCE
from support.logind import MANAGER, QUICK, WHY, Listener, a_stand_in, has_problem, is_locked, is_well, watching
from support.message_bus import DBUS, Peer

from gracectl.agent.inhibit_delay import DropIn
from gracectl.agent.watch import ShutdownWatch, Timeouts
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.supervise import ungrouped

pytestmark = pytest.mark.real_time

DENIED = "org.freedesktop.DBus.Error.AccessDenied"
AGENT = "gracectl.agent.watch"


def complaints(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == AGENT and record.levelno == level]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_an_absent_bus_is_awaited_and_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with a_stand_in(tmp_path) as (machine, _):
        await machine.lose_bus()
        visits = 0
        enough = anyio.Event()

        async def turn_away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal visits
            visits += 1
            writer.close()
            if visits == 5:
                enough.set()

        server = await asyncio.start_unix_server(turn_away, machine.bus.socket)
        async with watching(machine) as (_, listener):
            with anyio.fail_after(PATIENCE):
                await enough.wait()
            assert not listener.state.is_locked
            assert f"message bus at {machine.bus.address}: cannot connect: " in listener.state.problem
            assert len(complaints(caplog, logging.WARNING)) == 1
            server.close()
            await server.wait_closed()
            machine.bus.socket.unlink(missing_ok=True)
            await machine.regain_bus()
            await listener.until(is_well)
        assert complaints(caplog, logging.ERROR) == []


async def test_a_shutdown_that_began_while_the_bus_was_away_is_told(tmp_path: Path) -> None:
    async with a_stand_in(tmp_path) as (machine, logind), watching(machine) as (watch, listener):
        await listener.until(is_well)
        await machine.lose_bus()
        await listener.until(has_problem)
        logind.preparing = True
        await machine.regain_bus()
        await listener.until_told("shutting down")
        assert listener.delays[0] < 5
        assert listener.state.is_locked
        await listener.until(is_well)
        assert len(logind.locks) == 1
        watch.release()
        await logind.until(lambda: not logind.locks)


async def test_a_shutdown_goes_on_beside_a_bus_that_restarts(tmp_path: Path) -> None:
    async with a_stand_in(tmp_path) as (machine, logind), watching(machine) as (watch, listener):
        await listener.until(is_well)
        await machine.power_off()
        await listener.until_told("shutting down")
        await machine.restart_bus()
        await listener.until(is_well)
        assert listener.told == ["shutting down"]
        watch.release()
        await machine.gone_on()
        await machine.restart_bus()
        machine.systemd.cancel_job()
        await listener.until_told("shutting down", "cancelled")
        await logind.until(lambda: len(logind.locks) == 1)


async def test_a_cancellation_that_was_missed_is_told(tmp_path: Path) -> None:
    async with a_stand_in(tmp_path) as (machine, logind), watching(machine) as (watch, listener):
        await listener.until(is_well)
        await machine.power_off()
        await listener.until_told("shutting down")
        watch.release()
        await machine.gone_on()
        await machine.lose_bus()
        logind.preparing = False
        await machine.regain_bus()
        await listener.until_told("shutting down", "cancelled")
        assert listener.state.is_locked
        assert len(logind.locks) == 1


async def test_a_cancellation_is_told_even_if_there_is_no_new_lock(tmp_path: Path) -> None:
    async with a_stand_in(tmp_path) as (machine, logind), watching(machine) as (watch, listener):
        await listener.until(is_well)
        await machine.power_off()
        await listener.until_told("shutting down")
        watch.release()
        await machine.gone_on()
        logind.refusals["Inhibit"] = DENIED
        problems: list[str] = []
        listener.when_cancelled = lambda: problems.append(watch.state().problem)
        machine.systemd.cancel_job()
        await listener.until_told("shutting down", "cancelled")
        assert "access denied" in problems[0]


async def test_a_shutdown_is_told_at_once_while_something_else_is_waited_for(tmp_path: Path) -> None:
    async with a_stand_in(tmp_path) as (machine, logind):
        logind.silences.add("ListInhibitors")
        async with watching(machine) as (_, listener):
            await logind.until(lambda: bool(logind.unanswered))
            await machine.power_off()
            await listener.until_told("shutting down")
            assert listener.state.is_locked


async def test_a_late_answer_is_given_up_and_its_lock_is_released(tmp_path: Path) -> None:
    async with a_stand_in(tmp_path) as (machine, logind):
        logind.silences.add("Inhibit")
        patience = Timeouts(reply=0.05, initial_pause=0.01, maximum_pause=0.02)
        async with watching(machine, timeouts=patience) as (_, listener):
            await listener.until(has_problem)
            assert listener.state.problem.endswith("no reply within 0.05 s")
            await logind.until(lambda: len(logind.unanswered) >= 3)
            logind.silences.clear()
            for message in logind.unanswered:
                logind.answer(message)
            await listener.until(is_well)
            await logind.until(lambda: len(logind.locks) == 1)


async def test_only_logind_can_say_that_the_machine_goes_down(tmp_path: Path) -> None:
    async with a_stand_in(tmp_path) as (machine, logind), watching(machine) as (watch, listener):
        await listener.until(is_well)
        liar = Peer(machine.bus.address)
        await liar.join()
        for preparing in (True, False):
            liar.send(
                Message(
                    message_type=MessageType.SIGNAL, destination=logind.clients[-1], path=MANAGER[1],
                    interface=MANAGER[2], member="PrepareForShutdown", signature="b", body=[preparing],
                ),
            )  # fmt: skip
        await liar.call(DBUS, "GetId")
        await machine.power_off()
        await listener.until_told("shutting down")
        watch.release()
        await machine.gone_on()
        assert listener.told == ["shutting down"]
        await liar.leave()


async def test_there_is_no_gap_between_two_locks(tmp_path: Path) -> None:
    async with a_stand_in(tmp_path) as (machine, logind), watching(machine) as (watch, listener):
        await listener.until(is_well)
        logind.fewest_locks = 1
        for number in range(20):
            watch.want(3, f"reason {number}")
            await logind.until(lambda number=number: f"reason {number}" in str(logind.locks))  # type: ignore[misc]
        await machine.stop_logind()
        await machine.start_logind()
        await machine.restart_bus()
        await listener.until(is_well)
        await logind.until(lambda: len(logind.locks) == 1)
        assert logind.fewest_locks == 1


async def test_a_refusal_is_reported_once_until_it_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with a_stand_in(tmp_path) as (machine, logind):
        logind.refusals["Inhibit"] = DENIED
        patience = Timeouts(look=0.01, initial_pause=0.01, maximum_pause=0.01)
        async with watching(machine, timeouts=patience) as (watch, listener):
            await logind.until(lambda: logind.asked.count("Inhibit") >= 5)
            assert len(complaints(caplog, logging.ERROR)) == 1
            logind.refusals.clear()
            watch.want(4, "another reason")
            await listener.until(is_well)
        assert len(complaints(caplog, logging.ERROR)) == 1


async def test_what_cannot_be_raised_is_not_tried_again_and_again(tmp_path: Path) -> None:
    async with a_stand_in(tmp_path) as (machine, logind):
        machine.systemd.refusal = DENIED
        patience = Timeouts(look=0.01, initial_pause=0.01, maximum_pause=0.01)
        async with watching(machine, wanted=30, timeouts=patience) as (watch, listener):
            await logind.until(lambda: logind.asked.count("ListInhibitors") >= 5)
            assert len(machine.systemd.kills) == 1
            machine.systemd.refusal = ""
            watch.want(31, WHY)
            await listener.until(lambda state: is_well(state) and state.delay == 31)
            assert len(machine.systemd.kills) == 2


async def test_a_lock_that_is_held_is_kept_while_a_shutdown_is_under_way(tmp_path: Path) -> None:
    async with a_stand_in(tmp_path) as (machine, logind), watching(machine) as (watch, listener):
        await listener.until(is_well)
        # As in the instant between the beginning of a shutdown and the signal.
        logind.refusals["Inhibit"] = "org.freedesktop.login1.OperationInProgress"
        watch.want(3, "another reason")
        await logind.until(lambda: logind.asked.count("Inhibit") == 2)
        await logind.until(lambda: logind.asked.count("ListInhibitors") == 2)
        assert is_well(listener.state)
        assert len(logind.locks) == 1


async def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with a_stand_in(tmp_path) as (machine, _):
        blocked = tmp_path / "file"
        blocked.write_text("")
        drop_in = DropIn(blocked / "logind.conf.d", machine.root)
        async with watching(machine, wanted=30, drop_in=drop_in) as (_, listener):
            await listener.until(has_problem)
            assert listener.state.is_locked
            assert listener.state.delay == 5.0
            assert listener.state.problem == (
                "logind: delays a shutdown by 5 s only, pods need 30 s; "
                f"{drop_in.path}: cannot be written (Not a directory); make it writable, or set InhibitDelayMaxSec=30 "
                "in the host's logind.conf, then run systemctl kill --signal=HUP systemd-logind.service"
            )
            await machine.stop_logind()
            await listener.until(lambda state: "not available" in state.problem)
            machine.write("90-by-hand.conf", "30")
            await machine.start_logind()
            await listener.until(is_well)
        assert len(complaints(caplog, logging.ERROR)) == 1


@pytest.mark.parametrize("what", ["logind", "the bus"])
async def test_a_delay_that_could_not_be_raised_is_tried_again_when_logind_is_back(tmp_path: Path, what: str) -> None:
    async with a_stand_in(tmp_path) as (machine, _):
        blocked = tmp_path / "file"
        blocked.write_text("")
        drop_in = DropIn(blocked / "logind.conf.d", machine.root)
        async with watching(machine, wanted=30, drop_in=drop_in) as (_, listener):
            await listener.until(has_problem)
            blocked.unlink()
            blocked.symlink_to(machine.root / "etc/systemd")
            if what == "logind":
                await machine.stop_logind()
                await machine.start_logind()
            else:
                await machine.restart_bus()
            await listener.until(lambda state: is_well(state) and state.delay == 30)


async def test_a_logind_that_takes_its_time_to_reload_is_waited_for(tmp_path: Path) -> None:
    async with a_stand_in(tmp_path) as (machine, logind):
        logind.reluctance = 4
        async with watching(machine, wanted=30) as (_, listener):
            await listener.until(lambda state: state.delay == 30)
            assert all(not state.problem for state in listener.states)


async def test_where_nothing_is_to_be_written_people_are_told_what_to_write(tmp_path: Path) -> None:
    async with a_stand_in(tmp_path) as (machine, _), watching(machine, wanted=30, may_write=False) as (_, listener):
        await listener.until(has_problem)
        assert "drop-in disabled; set InhibitDelayMaxSec=30" in listener.state.problem
        assert machine.systemd.kills == []


async def test_what_is_granted_for_ever_is_not_raised(tmp_path: Path) -> None:
    async with a_stand_in(tmp_path) as (machine, logind):
        machine.write("10-for-ever.conf", "infinity")
        logind.reload()
        async with watching(machine, wanted=300) as (_, listener):
            await listener.until(is_well)
            assert listener.state.delay == float("inf")
            logind.emit(True)
            await listener.until_told("shutting down")
            assert listener.delays == [float("inf")]


async def test_a_lowered_delay_is_raised_again(tmp_path: Path) -> None:
    async with a_stand_in(tmp_path) as (machine, logind):
        patience = Timeouts(look=0.01, initial_pause=0.01, maximum_pause=0.01)
        async with watching(machine, wanted=30, timeouts=patience) as (_, listener):
            await listener.until(lambda state: state.delay == 30)
            machine.drop_in.path.unlink()
            logind.reload()
            await listener.until(lambda state: len(machine.systemd.kills) == 2 and state.delay == 30)


async def test_a_kubelet_that_does_the_same_is_seen(tmp_path: Path) -> None:
    async with a_stand_in(tmp_path) as (machine, logind):
        held = [
            logind.inhibit("shutdown", "kubelet", "why", "block", 7),
            logind.inhibit("sleep", "kubelet", "", "delay"),
        ]
        patience = Timeouts(look=0.01, initial_pause=0.01, maximum_pause=0.01)
        async with watching(machine, timeouts=patience) as (_, listener):
            await listener.until(is_well)
            assert listener.state.kubelet is None
            held.append(logind.inhibit("sleep:shutdown", "kubelet", "why", "delay", 812))
            await listener.until(lambda state: state.kubelet == 812)
            os.close(held.pop())
            await listener.until(lambda state: state.kubelet is None)
        for descriptor in held:
            os.close(descriptor)


async def test_no_descriptor_is_left_behind(tmp_path: Path) -> None:
    before = descriptors()
    async with a_stand_in(tmp_path) as (machine, logind):
        patience = Timeouts(reply=0.05, initial_pause=0.01, maximum_pause=0.02)
        async with watching(machine, timeouts=patience) as (watch, listener):
            await listener.until(is_well)
            await logind.until(lambda: len(logind.locks) == 1)
            running = descriptors()
            for number in range(10):
                watch.want(3, f"reason {number}")
                await machine.restart_bus()
                await machine.stop_logind()
                await machine.start_logind()
                await machine.power_off()
                await listener.until_told(*["shutting down", "cancelled"] * number, "shutting down")
                if number % 2:
                    watch.release()
                    await machine.gone_on(number // 2 + 1)
                logind.silences.add("Inhibit")
                logind.emit(False)
                await listener.until_told(*["shutting down", "cancelled"] * (number + 1))
                logind.silences.clear()
                for message in logind.unanswered:
                    if logind.connection is not None:
                        logind.answer(message)
                logind.unanswered.clear()
                await listener.until(is_well)
                await logind.until(lambda: len(logind.locks) == 1)
            assert descriptors() == running
    assert descriptors() == before


async def test_a_listener_that_fails_is_not_hushed_up(tmp_path: Path) -> None:
    class Broken(Listener):
        def shutting_down(self, delay: float) -> None:
            raise ZeroDivisionError("a mistake")

    async with a_stand_in(tmp_path) as (machine, logind):
        listener = Broken()
        watch = ShutdownWatch(machine.bus.address, None, LoopClock(), listener, timeouts=QUICK)
        watch.want(3, WHY)

        async def shut_down() -> None:
            await listener.until(is_locked)
            logind.emit(True)

        async def live() -> None:
            with anyio.fail_after(PATIENCE), ungrouped():
                async with anyio.create_task_group() as group:
                    group.start_soon(watch.run)
                    group.start_soon(shut_down)

        with pytest.raises(ZeroDivisionError):
            await live()
        await logind.until(lambda: not logind.locks)
