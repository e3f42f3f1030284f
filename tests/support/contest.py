"""Several controllers on one stage, each a process with a connection of its own."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel

from gracectl.app.controller import Controller
from gracectl.cloud.provider import NodeIdentity
from gracectl.kube.errors import Unreachable
from gracectl.kube.transport import Request, Response, Stream
from gracectl.kube.transport.operation import operation_of
from gracectl.runtime.clock import Clock
from support.inprocess import SENDER, InProcessTransport
from support.stage import CloudProvider, Stage
from support.virtual import Process, ShiftedClock, outside

# Several controllers on one stage, each a process with a connection of its own.
#
# A line is as bad as lines are: what was sent may be carried out although its sender has stopped waiting, stands
# still or is dead, as long as that takes no longer than WIRE seconds from then on.

WIRE = 2.5
"""Half of what lies between renew deadline and lease duration."""

ANYBODYS = ("events", "leases")
"""What every process writes, leader or not."""


class SleepyClock(ShiftedClock):
    """A clock that shows, when it is read, that the machine has slept for `missed` seconds."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.missed = 0.0

    def elapsed(self) -> float:
        return super().elapsed() + self.missed


class Wire(InProcessTransport):
    """One process's line."""

    def __init__(self, contest: Contest, name: str, seed: int) -> None:
        super().__init__(contest.stage.server, contest.stage.clock, seed=seed)
        shared = contest.stage.transport  # the observer looks there
        self.executed, self.in_work, self.listeners = shared.executed, shared.in_work, shared.listeners
        self.name = name
        self._house = contest.house
        self._travelling: set[anyio.CancelScope] = set()
        self.is_dead = False

    async def send(self, request: Request) -> Response:
        if self.is_dead:
            raise Unreachable(operation_of(request), "dead", sent=False)
        arrived = anyio.Event()
        answers: list[Response | Unreachable] = []
        way = anyio.CancelScope()

        async def travel() -> None:
            SENDER.set(self.name)
            self._travelling.add(way)
            with way:
                try:
                    answers.append(await super(Wire, self).send(request))
                except Unreachable as error:
                    answers.append(error)
            self._travelling.discard(way)
            arrived.set()

        outside(self._house.start_soon, travel)
        try:
            await arrived.wait()
        except BaseException:
            self._give_up(way)
            raise
        if self.is_dead or not answers:
            raise Unreachable(operation_of(request), "dead", sent=True)
        if isinstance(answers[0], Unreachable):
            raise answers[0]
        return answers[0]

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        SENDER.set(self.name)
        async with super().stream(request) as stream:
            yield stream

    def abandon(self) -> None:
        """Nothing waits any more for what is in flight."""
        for way in self._travelling:
            self._give_up(way)

    def _give_up(self, way: anyio.CancelScope) -> None:
        way.deadline = min(way.deadline, anyio.current_time() + WIRE)


class WatchedProvider(CloudProvider):
    """One process's way to the cloud; a dead one gets nowhere."""

    def __init__(self, candidate: Candidate, contest: Contest) -> None:
        super().__init__(contest.stage.cluster.cloud, contest.stage.clock)
        self.failures, self.said_gone = contest.stage.provider.failures, contest.stage.provider.said_gone
        self._candidate = candidate
        self._contest = contest

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        if self._candidate.wire.is_dead:
            await anyio.sleep_forever()
        self._contest.judge(self._candidate.name, f"terminate {provider_id}")
        await super().terminate(provider_id, node)


class Candidate:
    """One process with a controller."""

    def __init__(self, contest: Contest, number: int, *, seed: int) -> None:
        stage = contest.stage
        self.name = f"c{number}"
        self.process = Process()
        self.wire = Wire(contest, self.name, seed * 1000 + number)
        self.clock = SleepyClock(stage.clock)
        self.provider = contest.provider(self, contest)
        rng = random.Random(f"candidate/{seed}/{number}")
        self.controller = Controller(stage.settings, self.wire, self.clock, self.provider, rng=rng)
        if stage.reread:
            self.controller.reload_from(stage.reread)
        self.stop = anyio.Event()
        self._contest = contest

    @property
    def identity(self) -> str:
        """Its name in the Lease; "" without leader election."""
        election = self.controller.statistics().election
        return "" if election is None else election.identity

    @property
    def is_leading(self) -> bool:
        """Whether it takes itself for the leader; without leader election always."""
        election = self.controller.statistics().election
        return election is None or election.is_leading

    def kill(self) -> None:
        """SIGKILL: what it has sent may still arrive, and nothing else."""
        self.wire.is_dead = True
        self.wire.abandon()
        self.stop.set()
        self.process.thaw()

    def term(self) -> None:
        """SIGTERM."""
        self.stop.set()

    def freeze(self) -> None:
        """SIGSTOP."""
        self.process.freeze()
        self.wire.abandon()

    async def run(self) -> None:
        """Run until it stops; what it fails by is noted."""
        try:
            await self.controller.run(self.stop)
        except Exception as error:
            if not self.wire.is_dead:
                self._contest.failed(self, error)


class Contest:
    """The candidates. `broken`: processes that have failed."""

    def __init__(self, stage: Stage, house: anyio.abc.TaskGroup, seed: int) -> None:
        self.stage = stage
        self.house = house
        self.broken: list[str] = []
        self.judge: Callable[[str, str], None] = lambda process, what: None
        """Called with the name of a process and what it does to the cloud."""
        self.living: list[Candidate] = []
        self.provider: Callable[[Candidate, Contest], WatchedProvider] = WatchedProvider
        """Makes the provider of the next processes."""
        self.welcome: Callable[[Candidate], None] = lambda candidate: None
        """Called with each process before it runs."""
        self._born = 0
        self._seed = seed

    def born(self) -> Candidate:
        """One more process."""
        self._born += 1
        candidate = Candidate(self, self._born, seed=self._seed)
        self.living.append(candidate)
        self.welcome(candidate)
        candidate.process.start_soon(self.house, candidate.run)
        return candidate

    def failed(self, candidate: Candidate, error: Exception) -> None:
        """A process has ended by itself."""
        self.broken.append(f"{self.stage.clock.monotonic():.3f}: {candidate.name} failed: {error!r}")
        if candidate in self.living:
            self.living.remove(candidate)

    @property
    def holder(self) -> str:
        """Holder of the Lease, as the server has it."""
        lease: dict[str, Any] | None = self.stage.server.store.table("leases.coordination.k8s.io").get(
            "kube-system", "gracectl"
        )
        return str(lease["spec"].get("holderIdentity") or "") if lease else ""

    @property
    def leader(self) -> Candidate | None:
        """The process of that name, if it lives; without leader election the oldest."""
        return next((each for each in self.living if each.identity == self.holder), None)
