"""A stand-in for systemd-logind on a message bus, and a shutdown watch on it."""

from __future__ import annotations

import asyncio
import configparser
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import anyio
from dbus_fast import Message, MessageType, Variant
from kubesim_support.patience import PATIENCE

from gracectl.agent.inhibit_delay import DropIn
from gracectl.agent.watch import ShutdownWatch, Timeouts, WatchState
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.supervise import while_running
from support.message_bus import DBUS, MessageBusDaemon, Peer

# A machine with a message bus, a systemd that does nothing, and a logind: a stand-in of ours, or the real one.
#
# python-dbusmock has a logind too, but needs dbus-python and PyGObject, which have to be compiled. The stand-in answers
# as systemd 252 does; a story that runs against both shows that. What it adds are refusals and silences on demand.

LOGIN1 = "org.freedesktop.login1"
MANAGER = (LOGIN1, "/org/freedesktop/login1", f"{LOGIN1}.Manager")
SYSTEMD1 = "org.freedesktop.systemd1"
JOB = "/org/freedesktop/systemd1/job/7"


class LogindProcess(Protocol):
    """Some logind."""

    async def start(self) -> None:
        """Begin; clients of the bus are notified when it has the name."""

    async def stop(self) -> None:
        """End, as by a signal. Idempotent."""

    async def lose_bus(self) -> None:
        """The bus has ended: go on without it."""

    async def regain_bus(self) -> None:
        """The bus is there again."""

    def reload(self) -> None:
        """Read the configuration again, as for SIGHUP."""


class Systemd(Peer):
    """A systemd that only records its calls. Nothing happens to the machine."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.started: list[str] = []
        self.kills: list[tuple[str, str, int]] = []
        self.refusal = ""
        self.hang_up: Callable[[], None] = lambda: None
        self.logind_owner = ""
        self._changed = anyio.Event()

    async def begin(self) -> None:
        await self.join(SYSTEMD1)
        rule = f"type='signal',sender='{DBUS[0]}',member='NameOwnerChanged',arg0='{LOGIN1}'"
        await self.call(DBUS, "AddMatch", "s", rule)
        if await self.call(DBUS, "NameHasOwner", "s", LOGIN1):
            self.logind_owner = LOGIN1

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when it is so."""
        with anyio.fail_after(PATIENCE):
            while not condition():
                self._changed = anyio.Event()
                await self._changed.wait()

    def cancel_job(self) -> None:
        """Cancel the poweroff job, as by `systemctl cancel`."""
        interface = f"{SYSTEMD1}.Manager"
        body = [7, JOB, "poweroff.target", "canceled"]
        self.send(Message.new_signal("/org/freedesktop/systemd1", interface, "JobRemoved", "uoss", body))

    def take(self, message: Message) -> Message | bool | None:
        if message.message_type is MessageType.SIGNAL:
            if message.member == "NameOwnerChanged" and message.body[0] == LOGIN1:
                self.logind_owner = message.body[2]
                self._changed.set()
            return None
        if message.message_type is not MessageType.METHOD_CALL:
            return None
        match message.member:
            case "Subscribe":
                return Message.new_method_return(message)
            case "Get":
                return Message.new_method_return(message, "v", [Variant("s", "loaded")])
            case "StartUnit" | "StartUnitWithFlags":
                self.started.append(message.body[0])
                self._changed.set()
                return Message.new_method_return(message, "o", [JOB])
            case "KillUnit":
                return self._kill(message)
        return None

    def _kill(self, message: Message) -> Message:
        unit, target, signal = message.body
        self.kills.append((unit, target, signal))
        self._changed.set()
        if self.refusal:
            return Message.new_error(message, self.refusal, "Access denied")
        self.hang_up()
        return Message.new_method_return(message)


class StandInLogind(Peer):
    """Answers as logind does. Locks are pipes: their end alone shows that they are released."""

    def __init__(self, address: str, root: Path) -> None:
        super().__init__(address)
        self._configuration = root / "etc/systemd"
        self._timer: asyncio.TimerHandle | None = None
        self.locks: dict[int, tuple[str, str, str, str, int, int]] = {}
        self.fewest_locks = 0
        self.delay = 5_000_000
        self.spelling = "t"
        self.preparing = False
        self.refusals: dict[str, str] = {}
        self.silences: set[str] = set()
        self.reluctance = 0
        """How many reads of the granted delay come before it applies a SIGHUP."""
        self.unanswered: list[Message] = []
        self.asked: list[str] = []
        self.clients: list[str] = []
        self._changed = anyio.Event()
        self.reload()

    async def start(self) -> None:
        self.preparing = False  # of a shutdown, a logind that is started anew knows nothing
        self.reload()
        await self.regain_bus()

    async def lose_bus(self) -> None:
        await self.leave()

    async def regain_bus(self) -> None:
        await self.join()
        await self.call(DBUS, "AddMatch", "s", "type='signal',member='JobRemoved'")
        await self.call(DBUS, "RequestName", "su", LOGIN1, 0)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self.leave()

    def end(self) -> None:
        """For good: the pipes are closed too."""
        for reader in list(self.locks):
            self._drop(reader)

    def reload(self) -> None:
        self._reloads_in = self.reluctance
        if not self._reloads_in:
            self._read()

    def _read(self) -> None:
        parser = configparser.ConfigParser(strict=False)
        parser.optionxform = str  # type: ignore[assignment, method-assign]
        drop_ins = sorted(self._configuration.glob("logind.conf.d/*.conf"))
        parser.read([self._configuration / "logind.conf", *drop_ins])
        value = parser.get("Login", "InhibitDelayMaxSec", fallback="5")
        self.delay = 2**64 - 1 if value == "infinity" else int(value) * 1_000_000

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when it is so."""
        with anyio.fail_after(PATIENCE):
            while not condition():
                self._changed = anyio.Event()
                await self._changed.wait()

    def emit(self, preparing: bool) -> None:
        """PrepareForShutdown."""
        self.preparing = preparing
        self.send(Message.new_signal(MANAGER[1], MANAGER[2], "PrepareForShutdown", "b", [preparing]))

    def inhibit(self, what: str, who: str, why: str, mode: str, pid: int = 1) -> int:
        """A foreign lock: the descriptor that holds it."""
        reader, writer = os.pipe()
        self.locks[reader] = (what, who, why, mode, 0, pid)
        asyncio.get_running_loop().add_reader(reader, self._drop, reader)
        return writer

    def take(self, message: Message) -> Message | bool | None:
        if message.message_type is MessageType.SIGNAL and message.member == "JobRemoved" and self.preparing:
            self.emit(False)
        if message.message_type is not MessageType.METHOD_CALL:
            return None
        what = message.body[1] if message.member == "Get" else str(message.member)
        self.asked.append(what)
        self.clients.append(message.sender or "")
        self._changed.set()
        if what in self.silences:
            self.unanswered.append(message)
            return True
        if what in self.refusals:
            return Message.new_error(message, self.refusals[what], "Permission denied")
        return self.answer(message)

    def answer(self, message: Message) -> Message | bool | None:
        """The answer to that."""
        match message.member:
            case "Get" if message.body[1] == "PreparingForShutdown":
                return Message.new_method_return(message, "v", [Variant("b", self.preparing)])
            case "Get":
                value = Variant(self.spelling, self.delay)
                if self._reloads_in:
                    self._reloads_in -= 1
                    if not self._reloads_in:
                        self._read()
                return Message.new_method_return(message, "v", [value])
            case "ListInhibitors":
                locks = [list(lock) for lock in self.locks.values()]
                return Message.new_method_return(message, "a(ssssuu)", [locks])
            case "Inhibit":
                return self._inhibit(message)
            case "PowerOff":
                self._power_off()
                return Message.new_method_return(message)
        return None

    def _inhibit(self, message: Message) -> Message | bool:
        if self.preparing:
            text = "The operation inhibition has been requested for is already running"
            return Message.new_error(message, f"{LOGIN1}.OperationInProgress", text)
        what, who, why, mode = message.body
        writer = self.inhibit(what, who, why, mode)
        self.send(Message.new_method_return(message, "h", [0], [writer]), lambda: os.close(writer))
        return True

    def _power_off(self) -> None:
        self.emit(True)
        if self._delaying():
            self._timer = asyncio.get_running_loop().call_later(self.delay / 1e6, self._go_on)
        else:
            self._go_on()

    def _delaying(self) -> int:
        return sum("shutdown" in lock[0] and lock[3] == "delay" for lock in self.locks.values())

    def _go_on(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.send(
            Message(
                destination=SYSTEMD1,
                path="/org/freedesktop/systemd1",
                interface=f"{SYSTEMD1}.Manager",
                member="StartUnit",
                signature="ss",
                body=["poweroff.target", "replace-irreversibly"],
            )
        )

    def _drop(self, reader: int) -> None:
        asyncio.get_running_loop().remove_reader(reader)
        os.close(reader)
        del self.locks[reader]
        self.fewest_locks = min(self.fewest_locks, len(self.locks))
        self._changed.set()
        if self._timer is not None and not self._delaying():
            self._go_on()


class Machine:
    """See the module."""

    def __init__(self, bus: MessageBusDaemon, systemd: Systemd, logind: LogindProcess, root: Path) -> None:
        self.bus = bus
        self.systemd = systemd
        self.logind = logind
        self.root = root
        self.drop_ins = root / "etc/systemd/logind.conf.d"
        self.drop_in = DropIn(self.drop_ins, root)

    async def start_logind(self) -> None:
        """Return when it has its name on the bus."""
        await self.logind.start()
        await self.systemd.until(lambda: bool(self.systemd.logind_owner))

    async def stop_logind(self) -> None:
        """Return when the bus has noticed."""
        await self.logind.stop()
        await self.systemd.until(lambda: not self.systemd.logind_owner)

    async def power_off(self) -> None:
        """As `systemctl poweroff`."""
        await self.systemd.call(MANAGER, "PowerOff", "b", False)

    async def gone_on(self, times: int = 1) -> None:
        """Return when logind waits no longer, and has called systemd so many times to power the machine off."""
        await self.systemd.until(lambda: len(self.systemd.started) >= times)

    async def locks(self) -> list[tuple[str, ...]]:
        """What, who, why and mode of every lock."""
        return [tuple(lock[:4]) for lock in await self.systemd.call(MANAGER, "ListInhibitors")]

    async def granted(self) -> float:
        """Seconds, as logind says."""
        properties = (MANAGER[0], MANAGER[1], "org.freedesktop.DBus.Properties")
        microseconds: int = await self.systemd.call(properties, "Get", "ss", MANAGER[2], "InhibitDelayMaxUSec")
        return microseconds / 1e6

    async def until_locks(self, number: int) -> None:
        """Return when there are so many: logind notices some time later that one was released."""
        with anyio.fail_after(PATIENCE):
            while len(await self.locks()) != number:
                await anyio.lowlevel.checkpoint()

    def write(self, name: str, seconds: str) -> Path:
        """A foreign file in logind.conf.d."""
        self.drop_ins.mkdir(parents=True, exist_ok=True)
        file = self.drop_ins / name
        file.write_text(f"[Login]\nInhibitDelayMaxSec={seconds}\n")
        return file

    async def restart_bus(self) -> None:
        """The bus ends and comes back. systemd and the stand-in connect again; the real logind never does, and is
        started anew."""
        await self.lose_bus()
        await self.regain_bus()

    async def lose_bus(self) -> None:
        """The bus ends."""
        self.bus.stop()
        await self.systemd.leave()
        await self.logind.lose_bus()
        self.systemd.logind_owner = ""

    async def regain_bus(self) -> None:
        """The bus is there again, and logind on it."""
        self.bus.start()
        await self.systemd.begin()
        await self.logind.regain_bus()
        await self.systemd.until(lambda: bool(self.systemd.logind_owner))


MakeLogind = Callable[[str, Path], LogindProcess]


@asynccontextmanager
async def a_machine(place: Path, make: MakeLogind, policy: str = "") -> AsyncIterator[Machine]:
    """A machine on which a logind runs; `place`: an empty directory."""
    root = place / "root"
    (root / "etc/systemd/logind.conf.d").mkdir(parents=True)
    bus = MessageBusDaemon(place, policy)
    bus.start()
    try:
        systemd = Systemd(bus.address)
        await systemd.begin()
        logind = make(bus.address, root)
        systemd.hang_up = logind.reload
        machine = Machine(bus, systemd, logind, root)
        try:
            await machine.start_logind()
            yield machine
        finally:
            await logind.stop()
            await systemd.leave()
    finally:
        bus.stop()


@asynccontextmanager
async def a_stand_in(place: Path, policy: str = "") -> AsyncIterator[tuple[Machine, StandInLogind]]:
    """A machine with the stand-in for logind."""
    made: list[StandInLogind] = []

    def make(address: str, root: Path) -> LogindProcess:
        made.append(StandInLogind(address, root))
        return made[0]

    async with a_machine(place, make, policy) as machine:
        try:
            yield machine, made[0]
        finally:
            made[0].end()


# A shutdown watch that runs, and its listener.

WHY = "pods of this node end in order"
QUICK = Timeouts(initial_pause=0.01, maximum_pause=0.05)


class Listener:
    """Records its calls, as words, and the state that comes with each."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.delays: list[float] = []
        self.state = WatchState()
        self.states: list[WatchState] = []
        self.when_cancelled: Callable[[], None] = lambda: None
        self._changed = anyio.Event()

    def shutting_down(self, delay: float) -> None:
        self.delays.append(delay)
        self._tell("shutting down")

    def cancelled(self) -> None:
        self.when_cancelled()
        self._tell("cancelled")

    def state_changed(self, state: WatchState) -> None:
        self.state = state
        self.states.append(state)
        self._changed.set()

    def _tell(self, word: str) -> None:
        self.told.append(word)
        self._changed.set()

    async def until(self, condition: Callable[[WatchState], bool]) -> None:
        """Return when the state is such."""
        await self._wait(lambda: condition(self.state))

    async def until_told(self, *told: str) -> None:
        """Return when that, and nothing else, was reported."""
        await self._wait(lambda: len(self.told) >= len(told))
        assert self.told == list(told)

    async def _wait(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE):
            while not condition():
                self._changed = anyio.Event()
                await self._changed.wait()


@asynccontextmanager
async def watching(
    machine: Machine,
    *,
    wanted: float | None = 3.0,
    drop_in: DropIn | None = None,
    timeouts: Timeouts = QUICK,
    may_write: bool = True,
) -> AsyncIterator[tuple[ShutdownWatch, Listener]]:
    """A watch over that machine; with `wanted` seconds from the beginning, unless that is None."""
    listener = Listener()
    file = (drop_in or machine.drop_in) if may_write else None
    watch = ShutdownWatch(machine.bus.address, file, LoopClock(), listener, timeouts=timeouts)
    if wanted is not None:
        watch.want(wanted, WHY)
    async with while_running(watch.run):
        yield watch, listener


def is_locked(state: WatchState) -> bool:
    """Whether the machine waits for the agent."""
    return state.is_locked


def has_problem(state: WatchState) -> bool:
    """Whether something is amiss."""
    return bool(state.problem)


def is_well(state: WatchState) -> bool:
    """Whether all is as it should be."""
    return state.is_locked and not state.problem and state.delay is not None
