"""Contenders for one Lease of a simulated API server, each with its own connection: which leads when."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
from kubesim.apiserver import ApiServer
from kubesim_support.caller import LEASES, Caller

from gracectl.kube.leader.election import Election, ElectionSettings
from gracectl.runtime.clock import Clock, LoopClock
from gracectl.runtime.fence import Fence
from support.inprocess import InProcessTransport, Line

PATH = f"{LEASES}/gracectl"


async def settled() -> None:
    """Let everything happen that takes no time."""
    for _ in range(200):
        await anyio.lowlevel.checkpoint()


class Steady(random.Random):
    """No jitter."""

    def random(self) -> float:
        return 0.0


class Contender:
    """One process. `terms` are the instants between which it has led."""

    def __init__(self, hustings: Hustings, name: str, clock: Clock | None = None, **settings: Any) -> None:
        self.name = name
        self.clock = clock or hustings.clock
        self.wire = InProcessTransport(hustings.server, hustings.clock, seed=len(hustings.contenders))
        self.line: Line = self.wire.line()
        self.fence = Fence(self.clock)
        self.settings = ElectionSettings(namespace="default", name="gracectl", identity=name, **settings)
        self.election = Election(self.line, self.clock, self.fence, self.settings, rng=hustings.rng)
        self.terms: list[list[float]] = []
        self.work: Callable[[], Awaitable[None]] = anyio.sleep_forever
        self.scope = anyio.CancelScope()
        self.ended: float | None = None

    async def run(self) -> None:
        """As a process does."""
        with self.scope:
            await self.election.run(self._lead)
        self.ended = anyio.current_time()

    async def _lead(self) -> None:
        self.terms.append([anyio.current_time()])
        try:
            await self.work()
        finally:
            self.terms[-1].append(anyio.current_time())

    def stop(self) -> None:
        """As SIGTERM does."""
        self.scope.cancel()

    def kill(self) -> None:
        """As SIGKILL does: it sends nothing any more."""
        self.line.cut()
        self.scope.cancel()


class Hustings:
    """See the module. Instants are seconds since the test began."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.server = ApiServer(self.clock)
        self.admin = Caller(self.server)
        self.rng: random.Random = Steady()
        self.contenders: dict[str, Contender] = {}

    def contender(self, name: str, clock: Clock | None = None, **settings: Any) -> Contender:
        """One that does not run yet."""
        self.contenders[name] = Contender(self, name, clock, **settings)
        return self.contenders[name]

    @asynccontextmanager
    async def running(self, *contenders: Contender) -> AsyncGenerator[None, None]:
        """They run, each half a second after the one before; on leaving all are killed."""
        async with anyio.create_task_group() as group:
            for number, contender in enumerate(contenders):
                await self.clock.sleep(0.5 if number else 0.0)
                group.start_soon(contender.run)
                await settled()
            yield
            for contender in contenders:
                contender.kill()
            group.cancel_scope.cancel()

    async def lease(self) -> dict[str, Any]:
        """Its spec as the server has it."""
        spec: dict[str, Any] = (await self.admin.get(PATH))["spec"]
        return spec

    async def edit(self, **spec: Any) -> None:
        """A change by hand."""
        await self.admin.patch(PATH, {"spec": spec})

    async def until(self, instant: float) -> None:
        """Wait until then, and until whatever happens at that instant has happened."""
        await self.clock.sleep(instant - self.clock.monotonic())
        await settled()
