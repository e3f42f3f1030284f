"""Reporting of a shutdown: Events on the node and its pods, and log lines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from gracectl.eviction.deleter import Deletion, ScheduledDeletion
from gracectl.kube.errors import ApiError, Throttled, Unreachable
from gracectl.kube.events import EventRecorder, EventType, Subject
from gracectl.kube.resources import NODES, PODS
from gracectl.model.names import EventReason
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
from gracectl.policy.explain import listed

logger = logging.getLogger(__name__)


class _Pending(msgspec.Struct, frozen=True):
    reason: EventReason
    message: str
    type: EventType
    dedup_key: str


class ShutdownReporter:
    """Emits Events about the node `name`, whose object is `node`; listener of the deleter.

    Events before the API server has shown the node are kept until then: an Event is about an object.
    """

    def __init__(self, recorder: EventRecorder, name: str, node: Callable[[], Node | None]) -> None:
        self._recorder = recorder
        self._name = name
        self._node = node
        self._pending: list[_Pending] = []
        self._reported: set[tuple[str, str]] = set()

    def reset(self) -> None:
        """Report everything again, for a new shutdown."""
        self._reported.clear()

    def emit(self, reason: EventReason, message: str, type_: EventType = "Normal", *, dedup_key: str = "") -> None:
        """Emit an Event on the node, and log it; `dedup_key`: see EventRecorder.record."""
        level = logging.WARNING if type_ == "Warning" else logging.INFO
        logger.log(level, "%s: %s", reason, message, extra={"node": self._name})
        self.record(reason, message, type_, dedup_key=dedup_key)

    def record(self, reason: EventReason, message: str, type_: EventType, *, dedup_key: str = "") -> None:
        """Emit the Event without a log line."""
        pending = _Pending(reason, message, type_, dedup_key)
        if pending not in self._pending:  # the node may stay unknown for weeks
            self._pending.append(pending)
        self.flush()

    def flush(self) -> None:
        """Emit the pending Events, if the node is known."""
        node = self._node()
        if node is None:
            return
        subject = Subject.of(NODES, node)
        for pending in self._pending:
            self._recorder.record(subject, pending.reason, pending.message, pending.type, dedup_key=pending.dedup_key)
        self._pending.clear()

    def deleted(self, deletion: Deletion) -> None:
        """Emit an Event with cause, granted and requested grace on the deleted pod."""
        pod, granted, requested = deletion.pod, deletion.granted, deletion.requested
        amount = f"grace {granted} s (requested: {requested} s)"
        whole = f"its full grace ({granted} s)"
        if deletion.before is not None:
            amount = f"grace {granted} s (left of {deletion.before.grace} s)"
            whole = amount
        is_cut = granted < requested or deletion.before is not None
        message = (
            f"deleted by gracectl with {amount if is_cut else whole}: {pod.cause}; waiting until "
            f"{format_time(pod.deadline)}"
        )
        type_: EventType = "Warning" if is_cut else "Normal"
        self._recorder.record(_subject(pod), EventReason.DELETED_FOR_SHUTDOWN, message, type_, dedup_key=str(granted))
        figures = {"granted": granted, "requested": requested}
        logger.info("pod deleted: node shutdown", extra={**_keys(pod), **figures})

    def not_deleted(self, pod: ScheduledDeletion, refusal: ApiError) -> None:
        """Emit one Event per kind of refusal; the deletion is retried while there is time."""
        kind = (pod.uid, type(refusal).__name__)
        if kind in self._reported:
            return
        self._reported.add(kind)
        message = f"not deleted at shutdown of node {pod.node}: {refusal}; retrying"
        logger.warning("pod %s", message, extra=_keys(pod))
        if not isinstance(refusal, Throttled | Unreachable):
            self._recorder.record(_subject(pod), EventReason.DELETION_FAILED, message, "Warning")


def describe(pods: Sequence[Pod]) -> str:
    """`3 pods: shop/a, shop/b, shop/c`; a long list is cut, with a count of the rest."""
    return f"{counted(len(pods))}: {listed([f'{pod.namespace}/{pod.name}' for pod in pods])}"


def counted(pods: int) -> str:
    """`1 pod`, `2 pods`."""
    return f"{pods} pod" if pods == 1 else f"{pods} pods"


def _subject(pod: ScheduledDeletion) -> Subject:
    return Subject(PODS.api_version, PODS.kind, pod.namespace, pod.name, pod.uid)


def _keys(pod: ScheduledDeletion) -> dict[str, str]:
    return {"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid, "node": pod.node}
