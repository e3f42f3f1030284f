"""Marker: sets the condition DisruptionTarget on pods that are about to be deleted without an eviction.

By this condition the Job controller, for one, tells a drain from a failure of the program (podFailurePolicy; KEP-3329).
The eviction API sets it itself. Here it costs a request of its own, sent AHEAD_SECONDS before the DELETE, or together
with the DELETE where less time is left: the condition counts when the containers have stopped. Invariants: no DELETE
waits for a patch; a pod is patched once at most, and never under the UID of another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import anyio

from gracectl.eviction.deletions import ScheduledDeletion
from gracectl.eviction.settings import PLACES_PER_NAMESPACE, EvictionSettings
from gracectl.kube import errors
from gracectl.kube.client import KubeClient
from gracectl.kube.conditions import ConditionUpdate
from gracectl.kube.requests import StrategicPatch
from gracectl.kube.resources import PODS
from gracectl.runtime.clock import Clock
from gracectl.runtime.queue import WorkQueue
from gracectl.runtime.shares import Shares
from gracectl.runtime.timer_wheel import TimerWheel
from gracectl.runtime.workers import run_workers

logger = logging.getLogger(__name__)

AHEAD_SECONDS: Final = 2.0
"""A server with slow webhooks needs a second or two. Nothing else happens to the pod in this time."""


class DisruptionMarker:
    """Sends the patches, with its own workers. `condition` makes the condition of a pod that is due for deletion."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        settings: EvictionSettings,
        condition: Callable[[ScheduledDeletion], ConditionUpdate],
    ) -> None:
        self._client = client
        self._clock = clock
        self._condition = condition
        self._deletions: dict[str, ScheduledDeletion] = {}  # by uid
        self._requested: set[str] = set()  # UIDs of pods that were patched, or are next
        self._queue: WorkQueue[str] = WorkQueue(clock)
        self._wheel: TimerWheel[str] = TimerWheel(clock, self._request)
        self._shares = Shares(clock, PLACES_PER_NAMESPACE * settings.max_in_flight, self._namespace_of)
        self._failures: set[type[errors.ApiError]] = set()  # reported since the last success

    def configure(self, settings: EvictionSettings) -> None:
        """Apply new settings."""
        self._shares.resize(PLACES_PER_NAMESPACE * settings.max_in_flight)

    def schedule(self, deletion: ScheduledDeletion, due: float) -> None:
        """Mark a running pod ahead of its deletion at `due` (monotonic). Idempotent."""
        self._deletions[deletion.uid] = deletion
        if deletion.uid in self._requested:
            return
        at = due - AHEAD_SECONDS
        if at <= self._clock.monotonic():
            self._wheel.cancel(deletion.uid)
            self._request(deletion.uid)
        elif self._wheel.due_at(deletion.uid) != (instant := round(at, 6)):
            self._wheel.arm(deletion.uid, instant)

    def skip(self, uid: str) -> None:
        """Do not mark this pod, unless that was requested already."""
        self._wheel.cancel(uid)

    def forget(self, uid: str) -> None:
        """The deletion of this pod is done or cancelled."""
        self._wheel.cancel(uid)
        self._deletions.pop(uid, None)
        self._requested.discard(uid)

    async def run(self) -> None:
        """Send patches until cancelled; one in flight is finished first."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._wheel.run)
            group.start_soon(partial(run_workers, self._queue, self._mark, self._shares, in_bursts=True))

    def _request(self, uid: str) -> None:
        self._requested.add(uid)
        self._queue.add(uid)

    def _namespace_of(self, uid: str) -> str:
        deletion = self._deletions.get(uid)
        return "" if deletion is None else deletion.namespace

    async def _mark(self, uid: str) -> None:
        deletion = self._deletions.get(uid)
        if deletion is None:
            return
        patch = StrategicPatch({"status": {"conditions": [self._condition(deletion).entry(self._clock.now())]}})
        try:
            await self._client.patch(PODS, deletion.key, patch, subresource="status", uid=uid)
        except errors.ApiError as error:
            if not error.is_gone and not isinstance(error, errors.NotLeading) and type(error) not in self._failures:
                self._failures.add(type(error))
                logger.warning(
                    "pod %s/%s: condition DisruptionTarget not set: %s; its Job may count it as failed",
                    *deletion.key,
                    error,
                    extra={"pod": "/".join(deletion.key), "uid": uid, "node": deletion.node},
                )
        else:
            self._failures.clear()
