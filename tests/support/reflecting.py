"""A reflector on a scripted server: what its cache tells, and when."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from gracectl.kube import errors
from gracectl.kube.cache import Cache
from gracectl.kube.cache.identity import ClusterIdentity
from gracectl.kube.cache.reflector import Reflector, ReflectorSettings
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.client.retry import RetrySettings
from gracectl.kube.resources import LEASES
from gracectl.kube.transport.operation import Operation
from gracectl.model.meta import Lease
from gracectl.runtime.clock import LoopClock
from support.scripted import ScriptedTransport

LOST = errors.Unreachable(Operation("watch", "", "leases", "", "", ""), "reset by peer", sent=True)


class FullLength(random.Random):
    """No jitter: every pause at its full length, every watch for the longest time."""

    def random(self) -> float:
        return 0.0

    def uniform(self, a: float, b: float) -> float:
        return b

    def randint(self, a: int, b: int) -> int:
        return b


class World:
    """A scripted server, a cache that follows it, and what the cache told when."""

    def __init__(
        self,
        settings: ReflectorSettings | None = None,
        rng: random.Random | None = None,
        *,
        with_identity: bool = False,
    ) -> None:
        self.clock = LoopClock()
        self.transport = ScriptedTransport(self.clock)
        # One attempt: the reflector's own pauses are what is looked at here.
        once = ClientSettings(retry=RetrySettings(attempts=1))
        client = KubeClient(self.transport, self.clock, settings=once)
        self.cache: Cache[Lease] = Cache("leases")
        self.cache.subscribe(self._told)
        identity = ClusterIdentity(client, self.clock)
        identity.is_compared = with_identity
        self.reflector = Reflector(client, LEASES, self.cache, self.clock, settings=settings, rng=rng or FullLength())
        self.reflector.identity = identity
        self.told: list[tuple[float, str]] = []

    def _told(self, old: Lease | None, new: Lease | None) -> None:
        change = "+" if old is None else "-" if new is None else "~"
        thing = new or old
        assert thing is not None
        self.told.append((self.clock.monotonic(), f"{change}{thing.name}:{thing.uid.removeprefix('uid-')}"))

    @property
    def dedup_key(self) -> list[str]:
        return [change for _, change in self.told]

    @asynccontextmanager
    async def running(self, seconds: float) -> AsyncGenerator[None, None]:
        """Run the reflector for so many seconds, then look."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.reflector.run)
            await self.clock.sleep(seconds)
            yield
            tasks.cancel_scope.cancel()
