"""One connection to the message bus (D-Bus), with errors that people can read.

Invariants: a descriptor that arrives is either in an answer that somebody has in hand, or closed: that of an answer
which came too late, of one whose asker was cancelled, and any that nobody has asked for. dbus-fast leaves all of them
to us, which is why answers are matched here and not by its own `call`. The socket is closed when `carry` returns.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import anyio
import msgspec
from dbus_fast import Message, MessageType
from dbus_fast.aio import MessageBus
from dbus_fast.errors import DBusFastError

_DBUS: Final = "org.freedesktop.DBus"
_DENIED: Final = frozenset(
    f"{_DBUS}.Error.{name}" for name in ("AccessDenied", "AuthFailed", "InteractiveAuthorizationRequired")
)
_AWAY: Final = frozenset(
    f"{_DBUS}.Error.{name}"
    for name in ("NameHasNoOwner", "ServiceUnknown", "NoReply", "Timeout", "TimedOut", "Disconnected")
)


class BusError(Exception):
    """What was asked over the bus was not done; the text says what and why."""


class BusLost(BusError):
    """There is no connection, or it has ended."""


class Unanswered(BusError):
    """Whom we asked is not there, or has not answered in time; that may change by itself."""


class Denied(BusError):
    """The policy of the bus, or polkit, does not let us; somebody must change that."""


class Refused(BusError):
    """Any other error; `name` is D-Bus's."""

    def __init__(self, text: str, name: str = "") -> None:
        super().__init__(text)
        self.name = name


class Target(msgspec.Struct, frozen=True):
    """An interface of an object of somebody on the bus."""

    destination: str
    path: str
    interface: str


BUS: Final = Target(_DBUS, "/org/freedesktop/DBus", _DBUS)


class Signal(msgspec.Struct, frozen=True):
    """A signal as it came; `sender` is the unique name that the bus vouches for."""

    sender: str
    path: str
    interface: str
    member: str
    signature: str
    body: Sequence[Any]


class Answer(msgspec.Struct, frozen=True):
    """What a call returned; `descriptors` are the caller's now, to keep or to close."""

    body: Sequence[Any]
    descriptors: Sequence[int]


class _Call:
    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.reply: Message | None = None


class Bus:
    """A connection; made by `connect`, kept by `carry`, ended by `hang_up`."""

    def __init__(self, connection: MessageBus, address: str, patience: float) -> None:
        self._connection = connection
        self._address = address
        self._patience = patience
        self._calls: dict[int, _Call] = {}
        self._hears: Callable[[Signal], None] = lambda signal: None
        connection.add_message_handler(self._take)

    @classmethod
    async def connect(cls, address: str, patience: float) -> Bus:
        """Connect to the bus at that D-Bus address; a call waits `patience` seconds for its answer. Raises BusLost."""
        try:
            connection = MessageBus(bus_address=address, negotiate_unix_fd=True)
            bus = cls(connection, address, patience)
            with anyio.fail_after(patience):
                await connection.connect()
        except TimeoutError as error:
            raise BusLost(f"the message bus at {address} has not let us in within {patience:g} s") from error
        except (OSError, EOFError, DBusFastError) as error:
            raise BusLost(f"no connection to the message bus at {address}: {_words(error)}") from error
        return bus

    def hear(self, hears: Callable[[Signal], None]) -> None:
        """Call `hears` with every signal, in the order in which they come; it must be quick and must not raise."""
        self._hears = hears

    async def carry(self) -> None:
        """Return when the connection is closed after `hang_up`; raise BusLost when it ends in any other way.

        Cannot be cancelled, hang up instead: it is what closes the socket.
        """
        with anyio.CancelScope(shield=True):
            try:
                await self._connection.wait_for_disconnect()  # type: ignore[no-untyped-call]
            except EOFError as error:
                raise BusLost(f"the message bus at {self._address} has closed the connection") from error
            except Exception as error:  # whatever dbus-fast stumbles over, the connection is gone with it
                raise BusLost(f"the connection to the message bus at {self._address} broke: {_words(error)}") from error

    def hang_up(self) -> None:
        """End the connection. Idempotent."""
        self._connection.disconnect()

    async def call(self, target: Target, member: str, signature: str = "", *body: Any) -> Answer:
        """Call a method. Raises BusError."""
        what = f"{target.destination} was asked for {member}"
        message = Message(
            destination=target.destination,
            path=target.path,
            interface=target.interface,
            member=member,
            signature=signature,
            body=list(body),
            serial=self._connection.next_serial(),
        )
        call = self._calls[message.serial] = _Call()
        try:
            with anyio.fail_after(self._patience):
                await self._send(message)
                await call.answered.wait()
        except BaseException as error:
            if call.reply is not None:
                _close(call.reply.unix_fds)
            if isinstance(error, TimeoutError):
                raise Unanswered(f"{what}, and has not answered within {self._patience:g} s") from error
            if isinstance(error, OSError | EOFError):
                raise BusLost(f"{what}, but the connection is gone: {_words(error)}") from error
            raise
        finally:
            del self._calls[message.serial]
        assert call.reply is not None
        return _answer(call.reply, what)

    async def subscribe(self, rule: str) -> None:
        """Hear signals that match that rule from now on. Raises BusError."""
        await self.call(BUS, "AddMatch", "s", rule)

    async def _send(self, message: Message) -> None:
        # On a closed connection dbus-fast would write to whatever has its descriptor's number by now.
        if not self._connection.connected:
            raise EOFError
        try:
            sent = self._connection.send(message)
        except OSError:
            # It writes at once, and where that fails it stumbles over its own cleaning up; asyncio would lament the
            # future that nobody has.
            writer = self._connection._writer
            if writer is not None and writer.fut is not None and writer.fut.done():
                writer.fut.exception()
            raise
        await sent

    def _take(self, message: Message) -> bool:
        if message.message_type is MessageType.SIGNAL:
            _close(message.unix_fds)
            self._hears(_signal(message))
            return True
        call = self._calls.get(message.reply_serial) if message.reply_serial else None
        if call is None or call.reply is not None:
            _close(message.unix_fds)
            return False
        call.reply = message
        call.answered.set()
        return True


def _answer(reply: Message, what: str) -> Answer:
    if reply.message_type is not MessageType.ERROR:
        return Answer(reply.body, reply.unix_fds)
    _close(reply.unix_fds)
    name = reply.error_name or ""
    said = str(reply.body[0]) if reply.body else name
    if name in _DENIED:
        raise Denied(f"{what}, and does not let us: {said}")
    if name in _AWAY:
        raise Unanswered(f"{what}, but is not there: {said}")
    raise Refused(f"{what}, and answers: {said} ({name})", name)


def _signal(message: Message) -> Signal:
    return Signal(
        sender=message.sender or "",
        path=message.path or "",
        interface=message.interface or "",
        member=message.member or "",
        signature=message.signature,
        body=message.body,
    )


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _words(error: BaseException) -> str:
    """An error in words; some of the ways in which a socket ends have none of their own."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or "it was closed"
