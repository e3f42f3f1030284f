"""Boards without a cluster behind them: frames of caches that a test fills."""

from __future__ import annotations

from typing import Any

from gracectl.cli.status.follow import StatusFollower, StatusFrame, StatusScope
from gracectl.cli.ui.board import Board
from gracectl.config import Settings
from gracectl.inspect.status import NodeStatuses, is_active
from gracectl.kube.client import KubeClient
from gracectl.kube.connection import Connection
from gracectl.runtime.clock import LoopClock
from support.builders import NOW
from support.scripted import ScriptedTransport


class FrameClock(LoopClock):
    """The time of the next frame, which is always long after the one before, so that none is left out."""

    at = NOW
    elapsed_seconds = 0.0
    step = 60.0

    def now(self) -> float:
        """See Clock."""
        return self.at

    def monotonic(self) -> float:
        """See Clock."""
        return self.elapsed_seconds


class BoardStage:
    """A board, and the caches that its frames are made of."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.clock = clock = FrameClock()
        transport = ScriptedTransport(clock)
        connection = Connection(transport, clock, KubeClient(transport, clock))
        self.settings = settings = settings or Settings()
        self.follower = StatusFollower(connection, settings, StatusScope(is_active), is_endless=True)
        self.cluster = self.follower.watcher.cluster
        # It watches nothing, so that it would wait for the pods of each node.
        self.follower.statuses = NodeStatuses(self.cluster, settings.termination, follows=True)
        self.board = Board(self.follower, settings, "defaults", clock)
        self.last = StatusFrame(at=NOW, nodes=())

    @property
    def at(self) -> float:
        """When the next frame is (Unix seconds)."""
        return self.clock.at

    @at.setter
    def at(self, at: float) -> None:
        self.clock.at = at

    def frame(self, **fields: Any) -> None:
        """The caches as they are now, as the next frame."""
        asked = {node.name for node in self.cluster.nodes.values() if is_active(node)}
        found = self.follower.statuses.at(asked, self.at)
        self.last = StatusFrame(at=self.at, **({"nodes": found} | fields))
        self.clock.elapsed_seconds += self.clock.step
        self.board.update(self.last)
