"""Cordon of a node while its machine shuts down, with a record on the node of what the shutdown added.

A machine that shuts down usually returns, and a shutdown may be cancelled. So the additions are recorded in the same
write, and removed when the machine is up. Invariants: what was there before, and what others still need, is left on the
node; a removal happens only if the machine is up at the moment of the write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

import anyio

from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, Forbidden
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import JsonPatch, MergePatch
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.node import Node
from gracectl.policy.cordon import (
    EVERY_MARK,
    OPEN_TO_DAEMON_SETS,
    Mark,
    annotation,
    marks_in,
    missing_marks,
    recorded,
    removals,
    without,
)
from gracectl.policy.maintenance import is_in_maintenance, recorded_marks
from gracectl.runtime.backoff import Backoff, retried
from gracectl.runtime.notifier import Wakeup


def is_marked(node: Node) -> bool:
    """Whether a shutdown has left its record on the node."""
    return names.SHUTDOWN_CORDONED in node.annotations


def record_patch(node: Node) -> MergePatch | None:
    """Patch that opens the record; None if there is one. It comes first, as a JSON patch cannot add an annotation to a
    node that has none."""
    return None if is_marked(node) else MergePatch({"metadata": {"annotations": {names.SHUTDOWN_CORDONED: ""}}})


def cordon_patch(node: Node, marks: Collection[Mark] = EVERY_MARK) -> JsonPatch | None:
    """Patch that cordons a node with an open record; None if nothing is missing."""
    added = missing_marks(node, marks)
    if not added:
        return None
    record = recorded({*_added(node), *added})
    return JsonPatch([*added.values(), annotation(names.SHUTDOWN_CORDONED, record)])


def uncordon_patch(node: Node) -> JsonPatch | None:
    """Patch that removes the additions of a shutdown from a node; None if there are none.

    A node that is being deleted keeps its cordon. So does one in maintenance: the additions are entered in that record,
    to be removed with it.
    """
    if not is_marked(node) or node.deletion_timestamp is not None:
        return None
    closed = without(names.SHUTDOWN_CORDONED)
    if is_in_maintenance(node):
        record = recorded({*recorded_marks(node), *_added(node), Mark.UNSCHEDULABLE})
        return JsonPatch([annotation(names.CORDONED, record), closed])
    return JsonPatch([*removals(node, _added(node)), closed])


def kubelet_cordon_patch(node: Node) -> JsonPatch | None:
    """Patch that cordons a node with a kubelet's credentials: NodeRestriction lets no kubelet change taints."""
    return cordon_patch(node, OPEN_TO_DAEMON_SETS)


def _added(node: Node) -> frozenset[Mark]:
    return marks_in(node.annotations.get(names.SHUTDOWN_CORDONED, ""))


logger = logging.getLogger(__name__)


class ShutdownCordon:
    """Puts the cordon of a shutdown on the node, and removes it when the machine is up.

    One write at a time: a shutdown may begin while the one before is still being undone. Nothing waits for a removal;
    the next shutdown cancels it. `node`: the node's object once known; `is_up`: whether the machine stays up, as far as
    known.
    """

    def __init__(
        self,
        client: KubeClient,
        node: Callable[[], Node | None],
        is_up: Callable[[], bool],
        backoff: Callable[[], Backoff],
    ) -> None:
        self._client = client
        self._node = node
        self._is_up = is_up
        self._backoff = backoff
        self._lock = anyio.Lock()
        self._removal_scope = anyio.CancelScope()
        self._changed = Wakeup()

    @property
    def is_left(self) -> bool:
        """Whether there is something to remove."""
        node = self._node()
        return node is not None and self._removal(node) is not None

    def wake(self) -> None:
        """Look again: the node has changed, or whether the machine is up."""
        self._changed.set()

    def interrupt(self) -> None:
        """Cancel a removal in progress: a shutdown begins."""
        self._removal_scope.cancel()

    async def apply(self, node: Node) -> bool:
        """Cordon the node. False: it is gone, or its name has passed to a node not known yet. Raises ApiError."""
        async with self._lock:
            # The cache may still show what was just removed.
            seen = await self._client.get(NODES, node.key) if is_marked(node) else node
            opened = await patch_with_retry(self._client, NODES, seen, record_patch)
            if opened is None:
                return False
            try:
                return await patch_with_retry(self._client, NODES, opened, cordon_patch) is not None
            except Forbidden:
                return await patch_with_retry(self._client, NODES, opened, kubelet_cordon_patch) is not None

    async def run(self) -> None:
        """Component: remove recorded additions, until cancelled."""
        while True:
            await retried(
                self._remove,
                may_repeat=lambda error: isinstance(error, ApiError),
                wait=self._backoff,
                sleep=self._changed.wait,
            )
            await self._changed.wait()

    async def _remove(self) -> None:
        node = self._node()
        if node is None or self._removal(node) is None:
            return
        removals: list[JsonPatch | None] = []

        def removal(node: Node) -> JsonPatch | None:
            removals.append(self._removal(node))
            return removals[-1]

        async with self._lock:
            with anyio.CancelScope() as self._removal_scope:
                try:
                    await patch_with_retry(self._client, NODES, node, removal)
                except ApiError as error:
                    logger.warning("cordon of a shutdown not removed: %s; retrying", error)
                    raise
                if removals[-1] is not None:  # else the cache is behind, and it was removed before
                    logger.info("uncordoned: the machine is up", extra={"node": node.name})

    def _removal(self, node: Node) -> JsonPatch | None:
        return uncordon_patch(node) if self._is_up() else None
