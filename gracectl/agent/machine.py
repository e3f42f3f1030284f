"""The machine that an agent runs on: which node it is, and who says that it shuts down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from gracectl.agent.watch import ShutdownListener


class Watcher(Protocol):
    """Holds a shutdown of the machine up for a time, and tells a listener of it (see ShutdownWatch)."""

    def want(self, seconds: float, why: str) -> None:
        """A shutdown is to wait for us for so long, for this reason; may be said again at any time."""

    def release(self) -> None:
        """It need not wait (any longer)."""

    async def run(self) -> None:
        """Until cancelled."""


class Machine(msgspec.Struct, frozen=True):
    """`node`: its name in the cluster; `watcher` makes who tells the listener of shutdowns; `own_uid`: of the pod that
    we run in, "" outside of one."""

    node: str
    watcher: Callable[[ShutdownListener], Watcher]
    own_uid: str = ""
