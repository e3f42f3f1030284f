"""`gracectl drain` without a controller, on virtual time: the command's drain on a stage, with a line of its own."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from gracectl.cli.drain.here import LocalDrain
from gracectl.cli.drain.progress import DrainProgress
from gracectl.cli.settings import EffectiveSettings
from gracectl.cli.status.follow import StatusFrame
from gracectl.controllers.termination.maintenance import request_patch
from gracectl.kube.client import INTERACTIVE, KubeClient
from gracectl.kube.connection import Connection
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.resources import NODES
from support.inprocess import Line
from support.maintenance import seen
from support.stage import Stage


class Laptop:
    """One run of the command. `lines`: what it printed; `done_at`: monotonic, when each node was done."""

    def __init__(self, stage: Stage, *nodes: str) -> None:
        self.stage, self.nodes = stage, nodes
        self.lines: list[str] = []
        self.line: Line = stage.transport.line()
        self.drain: LocalDrain | None = None

    async def run(self) -> None:
        """Request the drain, and drain until all nodes are done."""
        stage, clock = self.stage, self.stage.clock
        client = KubeClient(self.line, clock, settings=INTERACTIVE, rng=random.Random(1))
        connection = Connection(self.line, clock, client)
        nodes = [seen(stage, name) for name in self.nodes]
        for node in nodes:
            await patch_with_retry(client, NODES, node, lambda found: request_patch(found, clock.now()))
        progress = DrainProgress(nodes, clock.now(), for_maintenance=True)
        self.drain = drain = LocalDrain(connection, stage.settings, nodes, self.nodes, self.lines.append)

        def show(frame: StatusFrame) -> bool:
            progress.here = drain.drainer.names
            self.lines.extend(progress.update(frame))
            return not progress.left

        async def settings() -> EffectiveSettings:
            return EffectiveSettings(stage.settings, "defaults")

        await drain.run(show, settings)


@asynccontextmanager
async def mortal(laptop: Laptop) -> AsyncIterator[None]:
    """A run that is killed at the end of the block: what it has not sent is never sent."""
    async with anyio.create_task_group() as group:
        group.start_soon(laptop.run)
        yield
        laptop.line.cut()
        group.cancel_scope.cancel()
