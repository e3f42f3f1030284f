"""One connection to the message bus (D-Bus), with readable errors.

Invariant: a file descriptor that arrives is owned by the reply that a caller got, or closed: those of late replies, of
cancelled callers, and unexpected ones. dbus-fast closes none of them, which is why replies are matched here and not by
its own `call`. The socket is closed when `run` returns.
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
_UNAVAILABLE: Final = frozenset(
    f"{_DBUS}.Error.{name}"
    for name in ("NameHasNoOwner", "ServiceUnknown", "NoReply", "Timeout", "TimedOut", "Disconnected")
)


class BusError(Exception):
    """A call over the bus failed; the text says which and why."""


class ConnectionLost(BusError):
    """The bus cannot be reached, or has closed the connection."""


class NoReply(BusError):
    """The called service is missing, or has not replied in time; that may change."""


class AccessDenied(BusError):
    """The policy of the bus, or polkit, denies the call; an administrator must change that."""


class CallFailed(BusError):
    """Any other D-Bus error; `name` is its name."""

    def __init__(self, text: str, name: str = "") -> None:
        super().__init__(text)
        self.name = name


class Target(msgspec.Struct, frozen=True):
    """Interface of an object on the bus."""

    destination: str
    path: str
    interface: str


BUS: Final = Target(_DBUS, "/org/freedesktop/DBus", _DBUS)


class Signal(msgspec.Struct, frozen=True):
    """Signal as received; `sender` is the unique name that the bus vouches for."""

    sender: str
    path: str
    interface: str
    member: str
    signature: str
    body: Sequence[Any]


class Reply(msgspec.Struct, frozen=True):
    """Reply of a call; its `descriptors` belong to the caller, to keep or to close."""

    body: Sequence[Any]
    descriptors: Sequence[int]


class _Call:
    def __init__(self) -> None:
        self.replied = anyio.Event()
        self.reply: Message | None = None


class Bus:
    """Connection to a bus: opened by `connect`, served by `run`, closed by `close`."""

    def __init__(self, connection: MessageBus, address: str, timeout: float) -> None:
        self._connection = connection
        self._address = address
        self._timeout = timeout
        self._calls: dict[int, _Call] = {}
        self._handler: Callable[[Signal], None] = lambda signal: None
        connection.add_message_handler(self._dispatch)

    @classmethod
    async def connect(cls, address: str, reply_timeout: float) -> Bus:
        """Connect to the bus at this D-Bus address; a call waits `reply_timeout` seconds for its reply. Raises
        ConnectionLost."""
        try:
            connection = MessageBus(bus_address=address, negotiate_unix_fd=True)
            bus = cls(connection, address, reply_timeout)
            with anyio.fail_after(reply_timeout):
                await connection.connect()
        except TimeoutError as error:
            raise ConnectionLost(f"message bus at {address}: no handshake within {reply_timeout:g} s") from error
        except (OSError, EOFError, DBusFastError) as error:
            raise ConnectionLost(f"message bus at {address}: cannot connect: {_words(error)}") from error
        return bus

    def on_signal(self, handler: Callable[[Signal], None]) -> None:
        """Call `handler` with every signal, in order; it must be quick and must not raise."""
        self._handler = handler

    async def run(self) -> None:
        """Serve until `close`; raise ConnectionLost when the connection ends in any other way.

        Cannot be cancelled, use `close` instead: it closes the socket.
        """
        with anyio.CancelScope(shield=True):
            try:
                await self._connection.wait_for_disconnect()  # type: ignore[no-untyped-call]
            except EOFError as error:
                raise ConnectionLost(f"message bus at {self._address}: closed the connection") from error
            except Exception as error:  # any error of dbus-fast ends the connection
                raise ConnectionLost(f"message bus at {self._address}: connection failed: {_words(error)}") from error

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.disconnect()

    async def call(self, target: Target, member: str, signature: str = "", *body: Any) -> Reply:
        """Call a method. Raises BusError."""
        what = f"{member} of {target.destination}"
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
            with anyio.fail_after(self._timeout):
                await self._send(message)
                await call.replied.wait()
        except BaseException as error:
            if call.reply is not None:
                _close_all(call.reply.unix_fds)
            if isinstance(error, TimeoutError):
                raise NoReply(f"{what}: no reply within {self._timeout:g} s") from error
            if isinstance(error, OSError | EOFError):
                raise ConnectionLost(f"{what}: connection lost: {_words(error)}") from error
            raise
        finally:
            del self._calls[message.serial]
        assert call.reply is not None
        return _result(call.reply, what)

    async def subscribe(self, rule: str) -> None:
        """Subscribe to signals that match this rule. Raises BusError."""
        await self.call(BUS, "AddMatch", "s", rule)

    async def _send(self, message: Message) -> None:
        # On a closed connection dbus-fast would write to whichever file has its descriptor's number by now.
        if not self._connection.connected:
            raise EOFError
        try:
            sent = self._connection.send(message)
        except OSError:
            # dbus-fast writes immediately, and an error breaks its cleanup; asyncio would warn of a future
            # that is never awaited.
            writer = self._connection._writer
            if writer is not None and writer.fut is not None and writer.fut.done():
                writer.fut.exception()
            raise
        await sent

    def _dispatch(self, message: Message) -> bool:
        if message.message_type is MessageType.SIGNAL:
            _close_all(message.unix_fds)
            self._handler(_signal(message))
            return True
        call = self._calls.get(message.reply_serial) if message.reply_serial else None
        if call is None or call.reply is not None:
            _close_all(message.unix_fds)
            return False
        call.reply = message
        call.replied.set()
        return True


def _result(reply: Message, what: str) -> Reply:
    if reply.message_type is not MessageType.ERROR:
        return Reply(reply.body, reply.unix_fds)
    _close_all(reply.unix_fds)
    name = reply.error_name or ""
    text = str(reply.body[0]) if reply.body else name
    if name in _DENIED:
        raise AccessDenied(f"{what}: access denied: {text}")
    if name in _UNAVAILABLE:
        raise NoReply(f"{what}: not available: {text}")
    raise CallFailed(f"{what}: {text} ({name})", name)


def _signal(message: Message) -> Signal:
    return Signal(
        sender=message.sender or "",
        path=message.path or "",
        interface=message.interface or "",
        member=message.member or "",
        signature=message.signature,
        body=message.body,
    )


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _words(error: BaseException) -> str:
    """Text of an error; some errors of sockets have none."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or "closed"
