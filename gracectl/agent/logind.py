"""systemd-logind over the bus: locks, what it grants, and that the machine goes down.

The interface is described at https://www.freedesktop.org/software/systemd/man/org.freedesktop.login1.html and
https://systemd.io/INHIBITOR_LOCKS.
"""

from __future__ import annotations

import math
from collections import deque
from enum import Enum
from typing import Final, TypeVar

import anyio
import msgspec

from gracectl.agent.bus import BUS, Answer, Bus, Refused, Signal, Target, Unanswered
from gracectl.agent.lock import Lock

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


class InProgress(Refused):
    """The machine is going down already: logind gives no locks any more."""


class Heard(Enum):
    """What comes without being asked for."""

    SHUTTING_DOWN = "the machine is about to go down"
    CANCELLED = "it is not, after all"
    GONE = "logind has ended"
    BACK = "another logind has begun"


class Holder(msgspec.Struct, frozen=True, array_like=True):
    """A lock that somebody has, as logind lists it: `what` is words with colons between them, `mode` block or delay."""

    what: str
    who: str
    why: str
    mode: str
    uid: int
    pid: int

    @property
    def delays_shutdown(self) -> bool:
        """Whether the machine waits for it when it goes down."""
        return self.mode == "delay" and "shutdown" in self.what.split(":")


class Logind:
    """logind as seen over one connection."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._owner: str | None = None
        self._prepared = 0
        self._heard: deque[Heard] = deque()
        self._something = anyio.Event()

    async def follow(self) -> None:
        """Hear signals from now on; to be called once, and before anything is read. Raises BusError."""
        self._bus.hear(self._hear)
        for rule in _RULES:
            await self._bus.subscribe(rule)
        try:
            answer = await self._bus.call(BUS, "GetNameOwner", "s", NAME)
        except Unanswered:
            return  # it will be started by what is asked of it, or by somebody; both are heard
        if self._owner is None:
            self._owner = str(answer.body[0])

    async def heard(self) -> Heard:
        """The next thing that is heard."""
        while not self._heard:
            self._something = anyio.Event()
            await self._something.wait()
        return self._heard.popleft()

    async def delay(self) -> float:
        """Seconds for which a shutdown waits for locks (InhibitDelayMaxUSec); math.inf: for ever. Raises BusError."""
        microseconds = await self._get("InhibitDelayMaxUSec", int)
        return math.inf if microseconds == _INFINITY else microseconds / 1e6

    async def is_preparing(self) -> bool | None:
        """Whether the machine is going down; None: that has changed while we asked, and has been heard.

        Raises BusError.
        """
        before = self._prepared
        is_preparing = await self._get("PreparingForShutdown", bool)
        return is_preparing if before == self._prepared else None

    async def inhibit(self, who: str, why: str) -> Lock:
        """Take a lock that delays shutdowns. Raises InProgress if one is under way, and BusError."""
        try:
            answer = await self._bus.call(MANAGER, "Inhibit", "ssss", "shutdown", who, why, "delay")
        except Refused as error:
            if error.name == f"{NAME}.OperationInProgress":
                raise InProgress(str(error), error.name) from error
            raise
        if len(answer.descriptors) != 1:
            for descriptor in answer.descriptors:
                Lock(descriptor).close()
            raise Refused(f"logind has answered Inhibit with {len(answer.descriptors)} descriptors instead of one")
        return Lock(answer.descriptors[0])

    async def holders(self) -> list[Holder]:
        """All locks that anybody has. Raises BusError."""
        answer = await self._bus.call(MANAGER, "ListInhibitors")
        return _read(answer, list[Holder], "ListInhibitors")

    async def reload(self) -> None:
        """Have logind read its configuration again, some time after this returns.

        logind has no method for that; systemd sends it SIGHUP. Raises BusError, of systemd.
        """
        await self._bus.call(SYSTEMD, "KillUnit", "ssi", UNIT, "main", _SIGHUP)

    async def _get(self, name: str, kind: type[T]) -> T:
        answer = await self._bus.call(PROPERTIES, "Get", "ss", MANAGER.interface, name)
        return _read(answer, kind, name)

    def _hear(self, signal: Signal) -> None:
        # The rules are no fence: anybody on the bus may send a signal to us alone. The sender cannot be forged.
        if signal.member == _OWNER_CHANGED and signal.sender == BUS.destination and signal.signature == "sss":
            name, _, owner = signal.body
            if name == NAME:
                self._owner = owner
                self._tell(Heard.BACK if owner else Heard.GONE)
        elif signal.member == _PREPARE and signal.sender == self._owner and signal.signature == "b":
            self._prepared += 1
            self._tell(Heard.SHUTTING_DOWN if signal.body[0] else Heard.CANCELLED)

    def _tell(self, heard: Heard) -> None:
        self._heard.append(heard)
        self._something.set()


def _read(answer: Answer, kind: type[T], what: str) -> T:
    value = answer.body[0] if answer.body else None
    try:
        return msgspec.convert(getattr(value, "value", value), kind)
    except msgspec.ValidationError as error:
        raise Refused(f"logind has answered {what} with something else than expected: {error}") from error
