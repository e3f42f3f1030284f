"""Events on pods that are evicted or deleted: a listener to the evictor and the deleter."""

from __future__ import annotations

import logging
from typing import Final

from gracectl.controllers.termination import events
from gracectl.controllers.termination.events import Event
from gracectl.controllers.termination.report import record
from gracectl.eviction.deleter import Deletion
from gracectl.eviction.deletions import ScheduledDeletion
from gracectl.eviction.pdb_queue import EvictionCandidate
from gracectl.kube.errors import ApiError, BudgetExhausted, MultipleBudgets, Throttled, Unreachable
from gracectl.kube.events import EventRecorder, Subject
from gracectl.kube.resources import PODS

logger = logging.getLogger(__name__)

WARNED: Final = 10_000
"""Failures of pods that are remembered."""


class PodEventReporter:
    """Listener to the evictor and the deleter: Events on pods."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._warned: dict[tuple[str, str], None] = {}  # by UID and cause: what the log has said; the latest last

    def evicted(self, candidate: EvictionCandidate) -> None:
        """See EvictionListener."""
        record(self._recorder, pod_subject(candidate), events.evicted(candidate))
        logger.info("pod evicted", extra=_log_keys(candidate))

    def deleted(self, deletion: Deletion) -> None:
        """See DeletionListener."""
        pod = deletion.pod
        record(self._recorder, pod_subject(pod), events.deleted(deletion))
        figures = {"granted": deletion.granted, "requested": deletion.requested, "late": round(deletion.late, 3)}
        logger.info("pod deleted for the deadline", extra={**_log_keys(pod), **figures})

    def not_deleted(self, pod: ScheduledDeletion, refusal: ApiError) -> None:
        """See DeletionListener. A server that is busy or unreachable says nothing about this pod: no Event."""
        event = events.deletion_failed(pod, refusal)
        self._warn(pod, refusal, event)
        if not isinstance(refusal, Throttled | Unreachable):
            record(self._recorder, pod_subject(pod), event)

    def refused(self, candidate: EvictionCandidate, refusal: ApiError) -> None:
        """See EvictionListener. A spent budget is the normal case, and in the condition `Drained`: no Event."""
        if isinstance(refusal, BudgetExhausted):
            logger.debug("eviction refused by a budget: %s", refusal, extra=_log_keys(candidate))
            return
        is_ambiguous = isinstance(refusal, MultipleBudgets)
        event = events.multiple_budgets(candidate) if is_ambiguous else events.eviction_failed(candidate, refusal)
        record(self._recorder, pod_subject(candidate), event)
        self._warn(candidate, refusal, event)

    def _warn(self, pod: EvictionCandidate | ScheduledDeletion, refusal: ApiError, event: Event) -> None:
        """Log a failure once for each pod and cause; the Event counts the repeats."""
        key = (pod.uid, type(refusal).__name__)
        if key not in self._warned:
            logger.warning("pod: %s", event.message, extra=_log_keys(pod))
        self._warned.pop(key, None)
        self._warned[key] = None
        if len(self._warned) > WARNED:
            del self._warned[next(iter(self._warned))]


def pod_subject(pod: EvictionCandidate | ScheduledDeletion) -> Subject:
    """Subject of Events on a pod that is evicted or deleted."""
    return Subject(PODS.api_version, PODS.kind, pod.namespace, pod.name, pod.uid)


def _log_keys(pod: EvictionCandidate | ScheduledDeletion) -> dict[str, str]:
    return {"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid, "node": pod.node}
