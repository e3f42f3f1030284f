"""Trace of a shutdown: a span for the whole, one for each range of pods, one for each pod.

On a node that is being terminated they belong to the trace of that termination, beside the controller's spans. A
shutdown is never resumed: the agent dies with the machine. Invariant: nothing here awaits or fails.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gracectl.eviction.deleter import Deletion
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.policy.deadlines import grace_of
from gracectl.telemetry.spans import Span, SpanEvent, SpanSink, Trace, Value, span_attributes


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
        names = [f"{pod.namespace}/{pod.name}" for pod in left]
        attributes: dict[str, Value] = {"gracectl.range": name, "gracectl.pods": count}
        if names:
            attributes["gracectl.pods.left"] = names
        error = f"{len(names)} of {count} pods left at the end of the period" if names else ""
        self._emit(
            Span(
                trace=self._trace,
                id=self._range_id(number),
                parent=self._id,
                name=f"range {name}",
                start=since,
                end=now,
                attributes=attributes,
                error=error,
            )
        )

    def close(self, now: float, outcome: str, error: str = "") -> None:
        """End the trace of the shutdown."""
        for span in self._pods.values():
            self._emit_pod(span, now, "left at the end of its period")
        self._pods.clear()
        self._emit(
            Span(
                trace=self._trace,
                id=self._id,
                parent=self._parent,
                name="shut down node",
                start=self._began,
                end=now,
                attributes={**self._subject, "gracectl.outcome": outcome},
                error=error,
            )
        )

    def _emit_pod(self, span: _PodSpan, now: float, error: str) -> None:
        pod = span.pod
        outcome = "left behind" if error else "deleted" if span.granted is not None else "terminated by another client"
        self._emit(
            Span(
                trace=self._trace,
                parent=span.parent,
                name=f"pod {outcome}",
                start=span.since,
                end=now,
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
            self._sink.emit(span)
