"""What happens on a machine with a logind: the same stories with our stand-in and with the real one."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from support.logind import WHY, MakeLogind, StandInLogind, a_machine, has_problem, is_well, watching
from support.message_bus import RealLogind

pytestmark = pytest.mark.real_time

OURS = ("shutdown", "gracectl agent", WHY, "delay")
NO_INHIBIT = '<deny send_interface="org.freedesktop.login1.Manager" send_member="Inhibit"/>'
NO_KILL = '<deny send_interface="org.freedesktop.systemd1.Manager" send_member="KillUnit"/>'


@pytest.fixture(params=[StandInLogind, RealLogind], ids=["stand-in", "real"])
def make(request: pytest.FixtureRequest) -> MakeLogind:
    made: MakeLogind = request.param
    return made


async def test_a_lock_is_held_from_the_first_want_on_until_the_watch_ends(tmp_path: Path, make: MakeLogind) -> None:
    async with a_machine(tmp_path, make) as machine:
        async with watching(machine, wanted=None) as (watch, listener):
            await listener.until(lambda state: state.delay == 5.0)
            assert await machine.locks() == []
            watch.want(3, WHY)
            await listener.until(is_well)
            assert await machine.locks() == [OURS]
            assert listener.state.wanted == 3
        await machine.until_locks(0)
        assert not list(machine.drop_ins.iterdir())


async def test_a_shutdown_waits_until_the_lock_is_let_go(tmp_path: Path, make: MakeLogind) -> None:
    async with a_machine(tmp_path, make) as machine, watching(machine) as (watch, listener):
        await listener.until(is_well)
        before = anyio.current_time()
        await machine.power_off()
        await listener.until_told("shutting down")
        assert 5 - (anyio.current_time() - before) <= listener.delays[0] <= 5
        assert machine.systemd.started == []
        watch.release()
        watch.release()
        await machine.gone_on()
        assert machine.systemd.started == ["poweroff.target"]
        assert not listener.state.is_locked
        assert listener.told == ["shutting down"]


async def test_a_shutdown_goes_on_when_what_is_granted_is_over(tmp_path: Path, make: MakeLogind) -> None:
    async with a_machine(tmp_path, make) as machine:
        machine.write("10-short.conf", "1")
        machine.logind.reload()
        async with watching(machine, wanted=1) as (_, listener):
            await listener.until(lambda state: state.delay == 1.0 and state.is_locked)
            await machine.power_off()
            await listener.until_told("shutting down")
            await machine.gone_on()
            assert listener.state.is_locked
            machine.systemd.cancel_job()
            await listener.until_told("shutting down", "cancelled")
            await machine.until_locks(1)


async def test_after_a_cancelled_shutdown_a_new_lock_comes_before_reports(tmp_path: Path, make: MakeLogind) -> None:
    async with a_machine(tmp_path, make) as machine, watching(machine) as (watch, listener):
        locked: list[bool] = []
        listener.when_cancelled = lambda: locked.append(watch.state().is_locked)
        await listener.until(is_well)
        for times in (1, 2, 3):
            await machine.power_off()
            await listener.until_told(*["shutting down", "cancelled"] * (times - 1), "shutting down")
            watch.release()
            await machine.gone_on(times)
            machine.systemd.cancel_job()
            await listener.until_told(*["shutting down", "cancelled"] * times)
            assert locked == [True] * times
            assert await machine.locks() == [OURS]


async def test_what_is_granted_is_raised_and_never_lowered(tmp_path: Path, make: MakeLogind) -> None:
    async with a_machine(tmp_path, make) as machine, watching(machine, wanted=40.5) as (watch, listener):
        await listener.until(lambda state: state.delay == 41.0)
        assert machine.drop_in.path.read_text().endswith("\n[Login]\nInhibitDelayMaxSec=41\n")
        assert machine.systemd.kills == [("systemd-logind.service", "main", 1)]
        watch.want(10, "less")
        await listener.until(lambda state: state.wanted == 10)
        await machine.until_locks(1)
        assert (await machine.locks())[0][2] == "less"
        assert listener.state.delay == 41.0
        assert len(machine.systemd.kills) == 1
        assert listener.state.problem == ""
        watch.want(60, "more")
        await listener.until(lambda state: state.delay == 60.0)
        assert all(not state.problem for state in listener.states)


async def test_a_file_that_has_the_last_word_is_named(tmp_path: Path, make: MakeLogind) -> None:
    async with a_machine(tmp_path, make) as machine:
        file = machine.write("zzz.conf", "7")
        async with watching(machine, wanted=40) as (watch, listener):
            await listener.until(has_problem)
            assert listener.state.is_locked
            assert listener.state.delay == 7.0
            assert listener.state.problem == (
                f"logind: delays a shutdown by 7 s only, pods need 40 s; {file} overrides {machine.drop_in.path} (40 s)"
                " with InhibitDelayMaxSec=7; remove or raise it there, then run "
                "systemctl kill --signal=HUP systemd-logind.service"
            )
            file.unlink()
            watch.want(39, WHY)
            await listener.until(is_well)
            assert listener.state.delay == 40.0


async def test_the_lock_outlives_the_logind_that_gave_it(tmp_path: Path, make: MakeLogind) -> None:
    async with a_machine(tmp_path, make) as machine, watching(machine) as (watch, listener):
        await listener.until(is_well)
        for times in (1, 2, 3):
            await machine.stop_logind()
            assert listener.state.is_locked
            await machine.start_logind()
            await machine.until_locks(1)
            await machine.power_off()
            await listener.until_told(*["shutting down", "cancelled"] * (times - 1), "shutting down")
            # A logind that is started anew knows nothing of a shutdown that waited: there is none any more.
            await machine.stop_logind()
            await machine.start_logind()
            await listener.until_told(*["shutting down", "cancelled"] * times)
        assert machine.systemd.started == []
        await machine.until_locks(1)
        watch.release()
        await machine.until_locks(0)


async def test_a_lock_that_is_refused_is_said_so(tmp_path: Path, make: MakeLogind) -> None:
    async with a_machine(tmp_path, make, NO_INHIBIT) as machine, watching(machine) as (_, listener):
        await listener.until(has_problem)
        assert not listener.state.is_locked
        assert "Inhibit of org.freedesktop.login1: access denied: " in listener.state.problem
        assert "the agent must be root on the host" in listener.state.problem


async def test_a_systemd_that_does_not_let_us_reload_is_said_so(tmp_path: Path, make: MakeLogind) -> None:
    async with a_machine(tmp_path, make, NO_KILL) as machine, watching(machine, wanted=30) as (_, listener):
        await listener.until(has_problem)
        assert listener.state.is_locked
        assert listener.state.delay == 5.0
        assert "by 5 s only, pods need 30 s" in listener.state.problem
        assert f"{machine.drop_in.path} has 30 s, but logind could not be reloaded" in listener.state.problem
        assert "run systemctl kill --signal=HUP systemd-logind.service" in listener.state.problem


async def test_a_bus_that_restarts_takes_no_lock_away(tmp_path: Path, make: MakeLogind) -> None:
    async with a_machine(tmp_path, make) as machine, watching(machine) as (watch, listener):
        await listener.until(is_well)
        for _ in range(2):
            await machine.lose_bus()
            await listener.until(has_problem)
            assert listener.state.is_locked
            await machine.regain_bus()
            await listener.until(is_well)
            await machine.until_locks(1)
        await machine.power_off()
        await listener.until_told("shutting down")
        watch.release()
        await machine.gone_on()


async def test_a_shutdown_that_is_under_way_gives_no_locks_any_more(tmp_path: Path, make: MakeLogind) -> None:
    async with a_machine(tmp_path, make) as machine:
        async with watching(machine) as (watch, listener):
            await listener.until(is_well)
            await machine.power_off()
            await listener.until_told("shutting down")
            async with watching(machine) as (_, late):
                await late.until(has_problem)
                assert not late.state.is_locked
                assert "shutdown in progress" in late.state.problem
                watch.release()
                await machine.gone_on()
                machine.systemd.cancel_job()
                await late.until(is_well)
                assert late.told == []
        await machine.until_locks(0)
