"""Notices that the machine will go, heard by the agent on its own node (see `interruption.metadata`).

The agent writes the annotation of its own node and nothing else; the controller does the rest. Invariant: nothing here
delays a shutdown: the source has a task and connections of its own, and no failure of it ends the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from gracectl.agent.settings import InterruptionSource
from gracectl.interruption.metadata import AzureSource, Ec2Source, GceSource, Service
from gracectl.interruption.recording import Counts, record
from gracectl.interruption.source import NodeRef, Notice, Outcome, Polls, Receipt
from gracectl.kube.cache import Cache
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError
from gracectl.model.node import Node
from gracectl.policy.interruption import Kind, interruption, is_drained
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock
from gracectl.runtime.notifier import Wakeup

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = (0.5, 5.0)
"""First and longest wait after a failed write: a spot instance has two minutes."""


def source_of(kind: InterruptionSource, service: Service, *, approves: bool) -> Polls:
    """Source of a kind, which is not `none`."""
    if kind == "azure":
        return AzureSource(service, approves=approves)
    return Ec2Source(service) if kind == "ec2" else GceSource(service)


class NodeNotices:
    """Handler of the notices about one node (see source.Handler)."""

    def __init__(self, name: str, nodes: Cache[Node], client: KubeClient, clock: Clock) -> None:
        self._name = name
        self._nodes = nodes
        self._client = client
        self._clock = clock
        self._source = ""
        self.now, self.sleep = clock.now, clock.sleep
        self.counts: Counts = Counts()

    async def run(self, source: Polls) -> None:
        """Hear notices until cancelled."""
        self._source = source.name
        retry = Backoff(*RETRY_SECONDS)
        while True:
            try:
                await source.poll(self)
            except* ApiError as errors:
                logger.warning("source %s: %s; retrying", source.name, errors.exceptions[0])
            except* Exception:
                logger.exception("source %s: unexpected failure; retrying", source.name)
            await self._clock.sleep(retry.next())

    async def receive(self, notice: Notice) -> Receipt:
        """See Handler; waits until the node is known."""
        await self._until(lambda node: node is not None)
        node = self._nodes.get("", self._name)
        outcome = Outcome.GONE
        if node is not None:
            heard = interruption(notice.kind, notice.at, self._source, notice.text)
            outcome = await record(self._client, node, heard)
        self.count(outcome, notice.kind)
        return Receipt(outcome, () if node is None or outcome is Outcome.GONE else (NodeRef(node.name, node.uid),))

    async def until_drained(self, receipt: Receipt) -> None:
        """See Handler."""
        for ref in receipt.nodes:
            await self._until(lambda node, ref=ref: node is None or node.uid != ref.uid or is_drained(node))  # type: ignore[misc]

    def count(self, outcome: Outcome, kind: Kind | None = None) -> None:
        """See Handler."""
        self.counts[self._source, kind or "", outcome] += 1

    async def _until(self, is_so: Callable[[Node | None], bool]) -> None:
        news = Wakeup()
        unsubscribe = self._nodes.subscribe(lambda old, new: news.set())
        try:
            while not is_so(self._nodes.get("", self._name)):
                await news.wait()
        finally:
            unsubscribe()
