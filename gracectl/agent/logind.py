"""systemd-logind over the bus: inhibitor locks, the delay that it grants, and shutdown signals.

The interface is described at https://www.freedesktop.org/software/systemd/man/org.freedesktop.login1.html and
https://systemd.io/INHIBITOR_LOCKS.
"""

from __future__ import annotations

import math
import os
from collections import deque
from enum import Enum
from typing import Final, TypeVar

import anyio
import msgspec

from gracectl.agent.bus import BUS, Bus, CallFailed, NoReply, Reply, Signal, Target
from gracectl.runtime.notifier import Wakeup
from gracectl.runtime.supervise import ungrouped

T = TypeVar("T")

NAME: Final = "org.freedesktop.login1"
MANAGER: Final = Target(NAME, "/org/freedesktop/login1", f"{NAME}.Manager")
PROPERTIES: Final = Target(NAME, MANAGER.path, "org.freedesktop.DBus.Properties")
SYSTEMD: Final = Target("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
UNIT: Final = "systemd-logind.service"

_SIGHUP: Final = 1
_INFINITY: Final = 2**64 - 1
_PREPARE: Final = "PrepareForShutdown"
_OWNER_CHANGED: Final = "NameOwnerChanged"
_RULES: Final = (
    f"type='signal',sender='{NAME}',path='{MANAGER.path}',interface='{MANAGER.interface}',member='{_PREPARE}'",
    f"type='signal',sender='{BUS.destination}',path='{BUS.path}',interface='{BUS.interface}',"
    f"member='{_OWNER_CHANGED}',arg0='{NAME}'",
)


class ShutdownInProgress(CallFailed):
    """The machine is already shutting down: logind grants no more locks."""


class LogindSignal(Enum):
    """Signal of logind, or of the bus about it."""

    SHUTTING_DOWN = "shutdown begins"
    CANCELLED = "shutdown cancelled"
    GONE = "logind stopped"
    BACK = "logind started"


class Inhibitor(msgspec.Struct, frozen=True, array_like=True):
    """Lock as logind lists it: `what` is a list separated by colons, `mode` is block or delay."""

    what: str
    who: str
    why: str
    mode: str
    uid: int
    pid: int

    @property
    def delays_shutdown(self) -> bool:
        """Whether a shutdown waits for it."""
        return self.mode == "delay" and "shutdown" in self.what.split(":")


class Logind:
    """logind as seen over one connection."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._owner: str | None = None
        self._prepared = 0
        self._signals: deque[LogindSignal] = deque()
        self._arrived = Wakeup()

    async def subscribe(self) -> None:
        """Subscribe to signals; to be called once, and before anything is read. Raises BusError."""
        self._bus.on_signal(self._handle)
        for rule in _RULES:
            await self._bus.subscribe(rule)
        try:
            reply = await self._bus.call(BUS, "GetNameOwner", "s", NAME)
        except NoReply:
            return  # its start, by the next call or otherwise, is signalled
        if self._owner is None:
            self._owner = str(reply.body[0])

    async def next_signal(self) -> LogindSignal:
        """Next signal."""
        while not self._signals:
            await self._arrived.wait()
        return self._signals.popleft()

    async def delay(self) -> float:
        """Seconds for which a shutdown waits for locks (InhibitDelayMaxUSec); math.inf: unlimited. Raises BusError."""
        microseconds = await self._get("InhibitDelayMaxUSec", int)
        return math.inf if microseconds == _INFINITY else microseconds / 1e6

    async def is_preparing(self) -> bool | None:
        """Whether the machine is shutting down; None: that changed during the call, and a signal says so.

        Raises BusError.
        """
        before = self._prepared
        is_preparing = await self._get("PreparingForShutdown", bool)
        return is_preparing if before == self._prepared else None

    async def inhibit(self, who: str, why: str) -> InhibitorLock:
        """Take a lock that delays shutdowns. Raises ShutdownInProgress during one, and BusError."""
        try:
            reply = await self._bus.call(MANAGER, "Inhibit", "ssss", "shutdown", who, why, "delay")
        except CallFailed as error:
            if error.name == f"{NAME}.OperationInProgress":
                raise ShutdownInProgress(str(error), error.name) from error
            raise
        if len(reply.descriptors) != 1:
            for descriptor in reply.descriptors:
                InhibitorLock(descriptor).close()
            raise CallFailed(f"logind: Inhibit returned {len(reply.descriptors)} descriptors instead of one")
        return InhibitorLock(reply.descriptors[0])

    async def inhibitors(self) -> list[Inhibitor]:
        """All locks that are held. Raises BusError."""
        reply = await self._bus.call(MANAGER, "ListInhibitors")
        return _read(reply, list[Inhibitor], "ListInhibitors")

    async def reload(self) -> None:
        """Have logind read its configuration again, some time after this returns.

        logind has no method for that; systemd sends it SIGHUP. Raises BusError, of systemd.
        """
        await self._bus.call(SYSTEMD, "KillUnit", "ssi", UNIT, "main", _SIGHUP)

    async def _get(self, name: str, kind: type[T]) -> T:
        reply = await self._bus.call(PROPERTIES, "Get", "ss", MANAGER.interface, name)
        return _read(reply, kind, name)

    def _handle(self, signal: Signal) -> None:
        # Match rules are no access control: any client of the bus may send a signal directly. The sender cannot be
        # forged.
        if signal.member == _OWNER_CHANGED and signal.sender == BUS.destination and signal.signature == "sss":
            name, _, owner = signal.body
            if name == NAME:
                self._owner = owner
                self._queue(LogindSignal.BACK if owner else LogindSignal.GONE)
        elif signal.member == _PREPARE and signal.sender == self._owner and signal.signature == "b":
            self._prepared += 1
            self._queue(LogindSignal.SHUTTING_DOWN if signal.body[0] else LogindSignal.CANCELLED)

    def _queue(self, signal: LogindSignal) -> None:
        self._signals.append(signal)
        self._arrived.set()


def _read(reply: Reply, kind: type[T], what: str) -> T:
    value = reply.body[0] if reply.body else None
    try:
        return msgspec.convert(getattr(value, "value", value), kind)
    except msgspec.ValidationError as error:
        raise CallFailed(f"logind: unexpected value of {what}: {error}") from error


class InhibitorLock:
    """Inhibitor lock: a file descriptor; the lock lasts while it is open, regardless of bus and logind.

    Closed exactly once: after a second close the number may belong to another file.
    """

    def __init__(self, descriptor: int) -> None:
        # The descriptor came without close-on-exec: a child would keep holding the lock.
        os.set_inheritable(descriptor, False)
        self._descriptor: int | None = descriptor

    @property
    def is_held(self) -> bool:
        """Whether it is still open."""
        return self._descriptor is not None

    def close(self) -> None:
        """Release the lock. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


QUERY_SECONDS = 3.0
"""An interactive command waits for this."""


async def granted_delay(address: str) -> float:
    """Seconds for which logind at that bus would delay a shutdown (math.inf: unlimited). Raises BusError."""
    bus = await Bus.connect(address, QUERY_SECONDS)
    delay = 0.0
    with ungrouped():
        async with anyio.create_task_group() as group:
            group.start_soon(bus.run)
            try:
                delay = await Logind(bus).delay()
            finally:
                bus.close()
    return delay
