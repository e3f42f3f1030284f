"""An agent on a machine whose logind the test plays, on virtual time on the simulated cluster."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import orjson
from kubesim.controllers.paths import PRIORITY_CLASSES

from gracectl.agent.watch import Machine, ShutdownListener, WatchState
from gracectl.app.agent import NodeAgent
from gracectl.config import Settings
from gracectl.runtime.clock import Clock
from gracectl.telemetry.spans import SpanSink
from support.stage import Stage, a_pod_manifest, the_settings

KEP: dict[str, Any] = {
    "shutdownGracePeriodByPodPriority": [
        {"priority": 100_000, "shutdownGracePeriodSeconds": 300},
        {"priority": 10_000, "shutdownGracePeriodSeconds": 180},
        {"priority": 1_000, "shutdownGracePeriodSeconds": 120},
        {"priority": 0, "shutdownGracePeriodSeconds": 60},
    ]
}


STUBBORN: dict[str, Any] = {"behaviour": {"stop-seconds": 100_000}}
"""A pod that runs until its grace is over."""


class PlayedLogind:
    """Grants locks of up to `most` seconds; the test says when the machine shuts down. Instants are monotonic."""

    def __init__(self, clock: Clock, most: float = 3600.0) -> None:
        self.most = most
        self.wanted: list[tuple[float, str]] = []
        self.is_held = False
        self.released_at: float | None = None
        self._clock = clock
        self._listener: ShutdownListener | None = None
        self.is_going_down = False

    def for_(self, listener: ShutdownListener) -> PlayedLogind:
        """As Machine wants it."""
        self._listener = listener
        return self

    def want(self, seconds: float, why: str) -> None:
        """See Watcher."""
        if (seconds, why) not in self.wanted[-1:]:
            self.wanted.append((seconds, why))
            self.say()

    def release(self) -> None:
        """See Watcher."""
        if self.is_held:
            self.is_held = False
            self.released_at = self._clock.monotonic()

    async def run(self) -> None:
        """See Watcher."""
        await anyio.sleep_forever()

    def say(self, **more: Any) -> None:
        """How it stands; a lock is granted unless the machine is going down."""
        if self.is_going_down or self._listener is None:
            return
        self.is_held = True
        wanted = self.wanted[-1][0]
        self._listener.state_changed(WatchState(is_locked=True, delay=min(wanted, self.most), wanted=wanted, **more))

    def shut_down(self) -> float:
        """PrepareForShutdown(true); returns the instant."""
        assert self._listener is not None
        self.is_going_down = True
        self.released_at = None
        self._listener.shutting_down(min(self.wanted[-1][0], self.most))
        return self._clock.monotonic()

    def call_off(self) -> None:
        """PrepareForShutdown(false): the lock is taken again first."""
        assert self._listener is not None
        self.is_going_down = False
        self.say()
        self._listener.cancelled()


class Played:
    """An agent that runs, and its logind."""

    def __init__(self, agent: NodeAgent, logind: PlayedLogind, stop: anyio.Event) -> None:
        self.agent = agent
        self.logind = logind
        self.stop = stop
        self.has_ended = False

    async def run(self) -> None:
        await self.agent.run(self.stop)
        self.has_ended = True

    async def live(self) -> None:
        """Wait until it sees its node and pods and holds its lock."""
        await self.agent.agent.nodes.wait_live()
        await self.agent.agent.pods.wait_live()
        await anyio.sleep(0.5)
        assert self.logind.is_held


@asynccontextmanager
async def an_agent(
    stage: Stage,
    settings: Settings | None = None,
    *,
    node: str = "n1",
    own_uid: str = "",
    reread: Callable[[], Settings] | None = None,
    spans: SpanSink | None = None,
    seed: int = 0,
) -> AsyncIterator[Played]:
    """An agent of `node`; on leaving it is stopped, as by SIGTERM."""
    logind = PlayedLogind(stage.clock)
    machine = Machine(node, logind.for_, own_uid)
    line = stage.transport.line()
    first = settings or the_settings(**KEP)
    program = NodeAgent(reread or (lambda: first), line, stage.clock, machine, rng=random.Random(seed), spans=spans)
    played = Played(program, logind, anyio.Event())
    async with anyio.create_task_group() as group:
        group.start_soon(played.run)
        yield played
        played.stop.set()


async def a_pod_of(stage: Stage, name: str, priority: int, grace: int = 30, **more: Any) -> None:
    """A pod with this priority on n1."""
    if priority:
        metadata = {"name": f"class-of-{name}"}
        await stage.call("POST", PRIORITY_CLASSES, {"metadata": metadata, "value": priority})
        more["priorityClassName"] = metadata["name"]
    await stage.create(a_pod_manifest(name, "n1", terminationGracePeriodSeconds=grace, **more))


def deletions(stage: Stage, start: float) -> list[tuple[str, float, int]]:
    """(pod, seconds after `start`, grace) of each DELETE that the server agreed to."""
    return [
        (
            each.operation.name,
            round(each.instant - start, 1),
            orjson.loads(each.request.body or b"{}")["gracePeriodSeconds"],
        )
        for each in stage.transport.of("delete", "pods")
        if each.instant >= start and each.status == 200
    ]
