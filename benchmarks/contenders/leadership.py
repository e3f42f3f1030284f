"""When the Lease of the controllers becomes free, as a watch shows it: released, or not renewed for its duration."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskStatus

from gracectl.config import Settings
from gracectl.kube.cache import Cache
from gracectl.kube.cache.reflector import Reflector, ReflectorSettings
from gracectl.kube.client import KubeClient
from gracectl.kube.requests import named
from gracectl.kube.resources import LEASES
from gracectl.model.meta import Lease
from gracectl.runtime.clock import Clock

NAME = Settings().leader_election.name


class Leadership:
    """`free_since`: the monotonic instant at which the Lease has last become free, None if it never has."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._renewed = 0.0
        self._released = anyio.Event()
        self.free_since: float | None = None

    async def until_released(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Wait until the Lease is released after this call."""
        self._released = anyio.Event()
        task_status.started()
        await self._released.wait()

    def saw(self, old: Lease | None, new: Lease | None) -> None:
        """See Cache.subscribe."""
        now = self._clock.monotonic()
        if new is None:
            return
        if old is not None and old.holder and not new.holder:
            self.free_since = now
            self._released.set()
        elif old is not None and old.holder and old.holder != new.holder:
            self.free_since = self._renewed + old.duration_seconds
        self._renewed = now


@asynccontextmanager
async def leadership(client: KubeClient, clock: Clock, namespace: str) -> AsyncIterator[Leadership]:
    """What a watch of the Lease in this namespace shows while the block runs."""
    seen, leases = Leadership(clock), Cache[Lease]("leases")
    leases.subscribe(seen.saw)
    settings = ReflectorSettings(namespace=namespace, selection=named(NAME))
    async with anyio.create_task_group() as group:
        group.start_soon(Reflector(client, LEASES, leases, clock, settings=settings).run)
        await leases.wait_live()
        yield seen
        group.cancel_scope.cancel()
