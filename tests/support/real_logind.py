"""The real systemd-logind, in a mount namespace of its own, over a bus of ours and a systemd that does nothing.

It sees an empty /run, an empty /dev, our directory as /etc/systemd, and a /sys that cannot be written. All that it does
to a machine it asks systemd for, over the bus; the capability to reboot it does not have either.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from functools import cache
from pathlib import Path

import pytest
from anyio.to_thread import run_sync

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
