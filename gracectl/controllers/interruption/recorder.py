"""Recorder: writes notices to their nodes, and counts them.

Invariant: a notice is recorded when the node's annotation shows it (see `interruption.recording`).
"""

from __future__ import annotations

import anyio

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.interruption.recording import Counts, annotated, record
from gracectl.interruption.source import NodeRef, Notice, Outcome, Receipt
from gracectl.kube.client import KubeClient
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import NODES
from gracectl.model.node import Node
from gracectl.policy.interruption import Interruption, Kind, interruption, interruption_of, is_drained
from gracectl.policy.owners import ManagedNodes
from gracectl.runtime.clock import Clock

ISSUED_BEFORE_SECONDS = 60.0
"""A notice that names a node is about an earlier machine if it was issued this long before the node was created: clocks
differ, and a node object may be younger than its machine."""


class Recorder:
    """Recorder of one process; `counts` outlives it. `managed`: which nodes are managed."""

    def __init__(
        self, client: KubeClient, cluster: ClusterCache, managed: ManagedNodes, clock: Clock, counts: Counts
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._managed = managed
        self._clock = clock
        self._counts = counts
        self._by_instance: dict[str, tuple[str, ...]] | None = None  # until a notice names an instance
        self._news: dict[str, anyio.Event] = {}  # by node, while awaited
        cluster.nodes.subscribe(self._node_changed)

    def handler(self, source: str) -> SourceHandler:
        """Handler for this source."""
        return SourceHandler(self, source, self._clock)

    def count(self, source: str, kind: Kind | None, outcome: Outcome) -> None:
        """Count a notice."""
        self._counts[source, kind or "", outcome] += 1

    async def receive(self, source: str, notice: Notice) -> Receipt:
        """See Handler."""
        await self._cluster.wait_live()
        receipt = await self._record(source, notice)
        self.count(source, notice.kind, receipt.outcome)
        return receipt

    async def record(self, node: Node, heard: Interruption) -> Outcome:
        """Write what was heard about this node, unless its annotation shows it. Raises ApiError."""
        return await record(self._client, node, heard)

    async def withdraw(self, node: Node, shown: Interruption) -> None:
        """Remove the annotation, if it still says this. Raises ApiError."""

        def withdrawn(thing: Node) -> MergePatch | None:
            return annotated(None) if interruption_of(thing) == shown and thing.deletion_timestamp is None else None

        await patch_with_retry(self._client, NODES, node, withdrawn)

    async def until_drained(self, receipt: Receipt) -> None:
        """See Handler."""
        for ref in receipt.nodes:
            while (node := self._cluster.node(ref.name)) is not None and node.uid == ref.uid and not is_drained(node):
                await self._news.setdefault(ref.name, anyio.Event()).wait()

    async def _record(self, source: str, notice: Notice) -> Receipt:
        nodes = self._nodes_of(notice)
        if not nodes:
            return Receipt(Outcome.UNKNOWN)
        managed = [node for node in nodes if self._cluster.manages(self._managed, node)]
        if not managed:
            return Receipt(Outcome.UNMANAGED)
        heard = interruption(notice.kind, notice.at, source, notice.text)
        refs, outcomes = [], {Outcome.GONE}
        for node in managed:
            if notice.node and notice.issued is not None and notice.issued + ISSUED_BEFORE_SECONDS < node.created:
                continue
            outcome = await self.record(node, heard)
            outcomes.add(outcome)
            if outcome is not Outcome.GONE:
                refs.append(NodeRef(node.name, node.uid))
        first = next(each for each in (Outcome.RECORDED, Outcome.REPEATED, Outcome.GONE) if each in outcomes)
        return Receipt(first, tuple(refs))

    def _nodes_of(self, notice: Notice) -> tuple[Node, ...]:
        if notice.provider_id:
            return self._cluster.nodes_on(notice.provider_id)
        found = (notice.node,) if notice.node else self._on_instance(notice.instance)
        return tuple(node for name in found if (node := self._cluster.node(name)) is not None)

    def _on_instance(self, instance: str) -> tuple[str, ...]:
        if self._by_instance is None:
            self._by_instance = {}
            for node in self._cluster.nodes.values():
                self._index(self._by_instance, None, node)
        return self._by_instance.get(instance, ())

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if old is not None and (news := self._news.pop(old.name, None)) is not None:
            news.set()
        if self._by_instance is not None:
            self._index(self._by_instance, old, new)

    @staticmethod
    def _index(by_instance: dict[str, tuple[str, ...]], old: Node | None, new: Node | None) -> None:
        before, after = _instance_of(old), _instance_of(new)
        if before == after:
            return
        for key, node, is_there in ((before, old, False), (after, new, True)):
            if key and node is not None:
                others = tuple(name for name in by_instance.pop(key, ()) if name != node.name)
                if found := (*others, node.name) if is_there else others:
                    by_instance[key] = found


class SourceHandler:
    """See source.Handler."""

    def __init__(self, recorder: Recorder, source: str, clock: Clock) -> None:
        self._recorder = recorder
        self._source = source
        self.now, self.sleep = clock.now, clock.sleep

    async def receive(self, notice: Notice) -> Receipt:
        """See Handler."""
        return await self._recorder.receive(self._source, notice)

    async def until_drained(self, receipt: Receipt) -> None:
        """See Handler."""
        await self._recorder.until_drained(receipt)

    def count(self, outcome: Outcome, kind: Kind | None = None) -> None:
        """See Handler."""
        self._recorder.count(self._source, kind, outcome)


def _instance_of(node: Node | None) -> str:
    """Last part of the providerID; the name of the instance, for the clouds that notices name it by."""
    return "" if node is None else node.provider_id.rpartition("/")[2]
