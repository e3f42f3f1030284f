"""A message bus of our own, and the real systemd-logind on it, in a mount namespace."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync
from dbus_fast import Message, MessageType
from dbus_fast.aio import MessageBus

# A message bus of our own: a real dbus-daemon on a socket in a directory of the test, which starts no services.

_CONFIGURATION = """\
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    {policy}
  </policy>
</busconfig>
"""

DBUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")


class MessageBusDaemon:
    """See the module. `policy`: further rules, as dbus-daemon spells them."""

    def __init__(self, place: Path, policy: str = "") -> None:
        self._program = shutil.which("dbus-daemon") or pytest.skip("there is no dbus-daemon on this machine")
        self._file = place / "bus.conf"
        self.socket = place / "bus"
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"unix:path={self.socket}"
        self._file.write_text(_CONFIGURATION.format(socket=self.socket, policy=policy))

    def start(self) -> None:
        """Return when it answers."""
        command = [self._program, f"--config-file={self._file}", "--nofork", "--nopidfile", "--print-address=1"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdout is not None
        if not self._process.stdout.readline().startswith(b"unix:"):
            self.stop()
            pytest.fail("dbus-daemon has not started")

    def stop(self) -> None:
        """All connections end. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdout is not None
            process.kill()
            process.wait()
            process.stdout.close()
            self.socket.unlink(missing_ok=True)


class Peer:
    """A client on the bus."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.connection: MessageBus | None = None

    async def join(self, name: str = "") -> None:
        """Connect, take what comes, and have the name."""
        self.connection = MessageBus(bus_address=self._address, negotiate_unix_fd=True)
        self.connection.add_message_handler(self._take)
        await self.connection.connect()
        if name:
            await self.connection.request_name(name)

    async def leave(self) -> None:
        """End the connection, if there still is one."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.disconnect()
            with suppress(EOFError, OSError):  # the bus may have gone before us
                await connection.wait_for_disconnect()  # type: ignore[no-untyped-call]

    def take(self, message: Message) -> Message | bool | None:
        """A message has come; an answer, or True: it is dealt with."""
        return None

    def _take(self, message: Message) -> bool:
        done = self.take(message)
        if isinstance(done, Message):
            self.send(done)
        return bool(done)

    def send(self, message: Message, then: Callable[[], None] = lambda: None) -> None:
        """Send, wait for nothing, and do `then` afterwards; on a connection that has ended, nothing is sent."""
        connection = self.connection
        if connection is None or not connection.connected:
            then()
            return
        try:
            sent = connection.send(message)
        except OSError:
            # See gracectl.agent.bus.
            assert connection._writer is not None
            assert connection._writer.fut is not None
            sent = connection._writer.fut

        def over(future: asyncio.Future[None]) -> None:
            then()
            future.cancelled() or future.exception()

        sent.add_done_callback(over)

    async def call(self, target: tuple[str, str, str], member: str, signature: str = "", *body: Any) -> Any:
        """The first value of the answer, or None."""
        assert self.connection is not None
        destination, path, interface = target
        reply = await self.connection.call(
            Message(
                destination=destination,
                path=path,
                interface=interface,
                member=member,
                signature=signature,
                body=list(body),
            )
        )
        assert reply.message_type is not MessageType.ERROR, f"{member}: {reply.error_name} {reply.body}"
        value = reply.body[0] if reply.body else None
        return getattr(value, "value", value)


# The real systemd-logind, in a mount namespace of its own, over a bus of ours and a systemd that does nothing.
#
# It sees an empty /run, an empty /dev, our directory as /etc/systemd, and a /sys that cannot be written. All that it
# does to a machine it asks systemd for, over the bus; the capability to reboot it does not have either.

_PROGRAM = "/lib/systemd/systemd-logind"
_SANDBOX = """
mount --make-rprivate /
mount --bind "$1" /etc/systemd
mount -o remount,bind,ro /sys
mount --bind "$2" /run
mkdir -p /run/systemd
mount -t tmpfs -o mode=755 tmpfs /dev
mknod -m 666 /dev/null c 1 3
exec setpriv --bounding-set=-sys_boot --inh-caps=-sys_boot "$3"
"""


class RealLogind:
    """See the module. What is in /run outlives the process, as on a machine."""

    def __init__(self, address: str, root: Path) -> None:
        refusal = why_not()
        if refusal:
            pytest.skip(refusal)
        self._address = address
        self._configuration = root / "etc/systemd"
        self._run = root / "run"
        self._run.mkdir()
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        environment = {**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": self._address, "SYSTEMD_LOG_TARGET": "console"}
        environment.pop("NOTIFY_SOCKET", None)
        self._process = _sandboxed(self._configuration, self._run, _PROGRAM, environment)

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            await run_sync(process.wait)

    async def lose_bus(self) -> None:
        pass  # it lives on, and never connects again

    async def regain_bus(self) -> None:
        await self.stop()
        await self.start()

    def reload(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)


def _sandboxed(configuration: Path, run: Path, program: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    command = ["unshare", "--mount", "sh", "-ec", _SANDBOX, "sandbox", str(configuration), str(run), program]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@cache
def why_not() -> str:
    """Why it cannot run here; "" if it can."""
    if not Path(_PROGRAM).exists():
        return f"there is no {_PROGRAM} on this machine"
    if os.geteuid() != 0:
        return "the real logind needs root, for a mount namespace"
    for tool in ("unshare", "setpriv"):
        if shutil.which(tool) is None:
            return f"the real logind needs {tool}"
    tried = subprocess.run(["unshare", "--mount", "mount", "--make-rprivate", "/"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "mount namespaces are not permitted here, which the real logind needs"
