"""Reporting of a shutdown: Events on the node and its pods, log lines, the condition ShuttingDown, and a trace.

A trace has a span for the whole, one for each range of pods, one for each pod. On a node that is being terminated they
belong to the trace of that termination, next to the controller's spans; a shutdown is never resumed, as the agent dies
with the machine. Invariant: reporting neither delays nor fails the shutdown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import anyio
import msgspec
from tenacity import AsyncRetrying, retry_if_result

from gracectl.eviction.deleter import Deletion
from gracectl.eviction.deletions import ScheduledDeletion
from gracectl.kube.client import KubeClient
from gracectl.kube.conditions import ConditionUpdate, condition_patch, condition_removal_patch
from gracectl.kube.errors import ApiError, NotFound, Throttled, Unreachable
from gracectl.kube.events import EventRecorder, EventType, Subject
from gracectl.kube.resources import NODES, PODS
from gracectl.model import names
from gracectl.model.names import EventReason
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
from gracectl.policy.deadlines import grace_of
from gracectl.policy.explain import counted, listed
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock
from gracectl.runtime.notifier import Wakeup
from gracectl.telemetry.spans import Span, SpanEvent, SpanSink, Trace, Value, interval, span_attributes

logger = logging.getLogger(__name__)


class _Pending(msgspec.Struct, frozen=True):
    reason: EventReason
    message: str
    type: EventType
    dedup_key: str


class ShutdownReporter:
    """Emits Events about the node `name` (object: `node`); listener of the deleter.

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


def disruption_target(pod: ScheduledDeletion) -> ConditionUpdate:
    """The condition DisruptionTarget of a pod that is about to be deleted, as the kubelet sets it at a shutdown."""
    message = (
        f"deleted by gracectl: the machine of node {pod.node} shuts down; waiting until {format_time(pod.deadline)}"
    )
    return ConditionUpdate(names.DISRUPTION_TARGET, names.TRUE, names.TERMINATION_BY_GRACECTL, message)


def describe(pods: Sequence[Pod]) -> str:
    """`3 pods: shop/a, shop/b, shop/c`; a long list is cut, with a count of the rest."""
    return f"{counted(len(pods), 'pod')}: {listed([f'{pod.namespace}/{pod.name}' for pod in pods])}"


def _subject(pod: ScheduledDeletion) -> Subject:
    return Subject(PODS.api_version, PODS.kind, pod.namespace, pod.name, pod.uid)


def _keys(pod: ScheduledDeletion) -> dict[str, str]:
    return {"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid, "node": pod.node}


class ShutdownCondition:
    """Writer of the node condition ShuttingDown, which `kubectl describe node` shows while the machine shuts down.

    Only the latest state counts, and its write is retried. Invariant: a condition that is no longer true is removed,
    however often that has to be tried. `node`: the node's object once known; `backoff` makes the waits after failures.
    """

    def __init__(
        self, client: KubeClient, clock: Clock, node: Callable[[], Node | None], backoff: Callable[[], Backoff]
    ) -> None:
        self._client = client
        self._clock = clock
        self._node = node
        self._backoff = backoff
        self._latest: ConditionUpdate | None = None
        self._since = 0.0
        self._is_pending = False
        self._write_scope = anyio.CancelScope()
        self._changed = Wakeup()

    @property
    def is_pending(self) -> bool:
        """Whether the latest state is not on the node yet."""
        return self._is_pending

    def set(self, reason: str, message: str) -> None:
        """Set the condition to True with this reason and message."""
        if self._latest is None:
            self._since = self._clock.now()
        self._update(ConditionUpdate(names.SHUTTING_DOWN, names.TRUE, reason, message))

    def clear(self) -> None:
        """Remove the condition."""
        self._update(None)

    def _update(self, update: ConditionUpdate | None) -> None:
        self._latest, self._is_pending = update, True
        self._write_scope.cancel()  # a request in progress completes, but is not repeated
        self._changed.set()

    async def run(self) -> None:
        """Component: write the latest state, until cancelled."""
        while True:
            await AsyncRetrying(
                sleep=self._changed.wait, wait=self._backoff(), retry=retry_if_result(lambda done: not done)
            )(self._write_pending)
            await self._changed.wait()

    async def _write_pending(self) -> bool:
        """Return whether the latest state is on the node."""
        while self._is_pending:
            update, is_written = self._latest, False
            try:
                with anyio.CancelScope() as self._write_scope:
                    is_written = await self._write(update)
            except ApiError as error:
                logger.debug("condition %s: not written: %s; retrying", names.SHUTTING_DOWN, error)
            if not is_written:
                return False
            self._is_pending = update != self._latest
        return True

    async def _write(self, update: ConditionUpdate | None) -> bool:
        """Raises ApiError; False while the node is not known yet."""
        node = self._node()
        if node is None:
            return False
        patch = (
            condition_removal_patch([names.SHUTTING_DOWN])
            if update is None
            else condition_patch(update, self._since, self._clock.now())
        )
        try:
            await self._client.patch(NODES, node.key, patch, subresource="status", uid=node.uid)
        except NotFound:
            return True
        return True


class _PodSpan(msgspec.Struct):
    """Pod that is being deleted or terminating, and not gone yet."""

    pod: Pod
    since: float
    parent: int
    granted: int | None = None
    events: list[SpanEvent] = []


class ShutdownTrace:
    """Trace of one shutdown of `node` that began at `began` (Unix seconds). `sink` None: no traces."""

    def __init__(self, sink: SpanSink | None, node: Node | None, name: str, began: float) -> None:
        is_terminating = node is not None and node.deletion_timestamp is not None
        uid = name if node is None else node.uid
        since = node.deletion_timestamp if node is not None and node.deletion_timestamp is not None else began
        self._trace = trace = Trace.of(uid, since)
        self._sink = sink if sink is not None and sink.is_sampled(trace) else None
        self._id = trace.span("shutdown", f"{began:.3f}") if is_terminating else trace.root
        self._parent = trace.root if is_terminating else None
        self._subject = span_attributes(k8s__node__name=name, k8s__node__uid=uid if node is not None else None)
        self._began = began
        self._range: tuple[int, str, float, int] | None = None
        self._pods: dict[str, _PodSpan] = {}

    @property
    def trace_id(self) -> str | None:
        """Trace id for the log; None without a trace."""
        return None if self._sink is None else self._trace.hex

    def range_began(self, number: int, name: str, pods: Iterable[Pod], now: float) -> None:
        """Start the span of a range; these pods are deleted now, or terminating already."""
        listed = list(pods)
        self._range = (number, name, now, len(listed))
        for pod in listed:
            self.pod_started(pod, now)

    def pod_started(self, pod: Pod, now: float) -> None:
        """Start the span of a pod."""
        if self._range is not None and pod.uid not in self._pods:
            self._pods[pod.uid] = _PodSpan(pod, now, self._range_id(self._range[0]), events=[])

    def deleted(self, deletion: Deletion, now: float) -> None:
        """Record a deletion that the server accepted."""
        if span := self._pods.get(deletion.pod.uid):
            span.granted = deletion.granted
            span.events.append(SpanEvent("deleted", now, {"gracectl.grace.granted_seconds": deletion.granted}))

    def refused(self, uid: str, refusal: Exception, now: float) -> None:
        """Record a deletion that the server refused."""
        if span := self._pods.get(uid):
            attributes = {"gracectl.refusal": type(refusal).__name__, "message": str(refusal)}
            span.events.append(SpanEvent("refused", now, attributes))

    def gone(self, uid: str, now: float) -> None:
        """End the span of a pod that is gone."""
        if span := self._pods.pop(uid, None):
            self._emit_pod(span, now, "")

    def range_over(self, left: Iterable[Pod], now: float) -> None:
        """End the span of a range; `left`: pods that are still there."""
        if self._range is None:
            return
        number, name, since, count = self._range
        self._range = None
        left = list(left)
        names = [f"{pod.namespace}/{pod.name}" for pod in left]
        for pod in left:
            if (pod_span := self._pods.pop(pod.uid, None)) is not None:
                self._emit_pod(pod_span, now, "left at the end of its period")
        attributes: dict[str, Value] = {"gracectl.range": name, "gracectl.pods": count}
        if names:
            attributes["gracectl.pods.left"] = names
        error = f"{len(names)} of {count} pods left at the end of the period" if names else ""
        start, end = interval(since, now)
        self._emit(
            Span(
                trace=self._trace,
                id=self._range_id(number),
                parent=self._id,
                name=f"range {name}",
                start=start,
                end=end,
                attributes=attributes,
                error=error,
            )
        )

    def close(self, now: float, outcome: str, error: str = "") -> None:
        """End the trace of the shutdown."""
        self.range_over([span.pod for span in self._pods.values()], now)
        self._emit(
            Span(
                trace=self._trace,
                id=self._id,
                parent=self._parent,
                name="shut down node",
                start=self._began,
                end=now,
                attributes={"gracectl.outcome": outcome},
                error=error,
            )
        )

    def _emit_pod(self, span: _PodSpan, now: float, error: str) -> None:
        pod = span.pod
        outcome = "left behind" if error else "deleted" if span.granted is not None else "terminated by another client"
        start, end = interval(span.since, now)
        self._emit(
            Span(
                trace=self._trace,
                parent=span.parent,
                name=f"pod {outcome}",
                start=start,
                end=end,
                attributes=span_attributes(
                    k8s__namespace__name=pod.namespace,
                    k8s__pod__name=pod.name,
                    k8s__pod__uid=pod.uid,
                    gracectl__grace__requested_seconds=grace_of(pod),
                    gracectl__grace__granted_seconds=span.granted,
                ),
                events=tuple(span.events),
                error=error,
            )
        )

    def _range_id(self, number: int) -> int:
        return self._trace.span("shutdown", f"{self._began:.3f}", str(number))

    def _emit(self, span: Span) -> None:
        if self._sink is not None:
            self._sink.emit(msgspec.structs.replace(span, attributes={**self._subject, **span.attributes}))
