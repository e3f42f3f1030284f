"""The trace of a shutdown: a span for the whole, one for each range of pods, one for each pod.

If the node is being terminated, they belong to the trace of that, beside the controller's own. Nobody continues a
shutdown: when its agent dies, the machine goes down. Invariant: nothing here awaits or fails.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gracectl.eviction.deleter import Deletion
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.policy.deadlines import grace_of
from gracectl.telemetry.spans import Moment, Span, SpanSink, Trace, Value, known


class _Open(msgspec.Struct):
    """A pod that is asked to leave, or was leaving already, and has not left."""

    pod: Pod
    since: float
    parent: int
    granted: int | None = None
    moments: list[Moment] = []


class ShutdownJournal:
    """Of one shutdown of `node` that began at `began` (Unix seconds). `sink` None: nobody wants traces."""

    def __init__(self, sink: SpanSink | None, node: Node | None, name: str, began: float) -> None:
        is_ending = node is not None and node.deletion_timestamp is not None
        uid = name if node is None else node.uid
        since = node.deletion_timestamp if node is not None and node.deletion_timestamp is not None else began
        self._trace = trace = Trace.of(uid, since)
        self._sink = sink if sink is not None and sink.samples(trace) else None
        self._id = trace.span("shutdown", f"{began:.3f}") if is_ending else trace.root
        self._parent = trace.root if is_ending else None
        self._subject = known(k8s__node__name=name, k8s__node__uid=uid if node is not None else None)
        self._began = began
        self._range: tuple[int, str, float, int] | None = None
        self._pods: dict[str, _Open] = {}

    @property
    def trace_id(self) -> str | None:
        """For the log; None if nobody wants a trace."""
        return None if self._sink is None else self._trace.hex

    def range_began(self, number: int, words: str, pods: Iterable[Pod], now: float) -> None:
        """These pods are asked to leave now, or are leaving already."""
        listed = list(pods)
        self._range = (number, words, now, len(listed))
        for pod in listed:
            self.awaited(pod, now)

    def awaited(self, pod: Pod, now: float) -> None:
        """This one is waited for from now on."""
        if self._range is not None and pod.uid not in self._pods:
            self._pods[pod.uid] = _Open(pod, now, self._range_id(self._range[0]), moments=[])

    def deleted(self, deletion: Deletion, now: float) -> None:
        """The server has agreed."""
        if found := self._pods.get(deletion.pod.uid):
            found.granted = deletion.granted
            found.moments.append(Moment("deleted", now, {"gracectl.grace.granted_seconds": deletion.granted}))

    def refused(self, uid: str, refusal: Exception, now: float) -> None:
        """The server did not agree this time."""
        if found := self._pods.get(uid):
            words = {"gracectl.refusal": type(refusal).__name__, "message": str(refusal)}
            found.moments.append(Moment("refused", now, words))

    def gone(self, uid: str, now: float) -> None:
        """This pod is no longer there."""
        if found := self._pods.pop(uid, None):
            self._tell_pod(found, now, "")

    def range_over(self, left: Iterable[Pod], now: float) -> None:
        """Its pods are gone, or its period is over and these are `left`."""
        if self._range is None:
            return
        number, words, since, count = self._range
        self._range = None
        names = [f"{pod.namespace}/{pod.name}" for pod in left]
        attributes: dict[str, Value] = {"gracectl.range": words, "gracectl.pods": count}
        if names:
            attributes["gracectl.pods.left"] = names
        error = f"{len(names)} of {count} pods were still there at the end of the period" if names else ""
        self._emit(
            Span(
                trace=self._trace,
                id=self._range_id(number),
                parent=self._id,
                name=f"range {words}",
                start=since,
                end=now,
                attributes=attributes,
                error=error,
            )
        )

    def close(self, now: float, outcome: str, error: str = "") -> None:
        """The shutdown has gone as far as it concerns us."""
        for found in self._pods.values():
            self._tell_pod(found, now, "still there when its time was over")
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

    def _tell_pod(self, found: _Open, now: float, error: str) -> None:
        pod = found.pod
        left = "left behind" if error else "deleted" if found.granted is not None else "terminated by another client"
        self._emit(
            Span(
                trace=self._trace,
                parent=found.parent,
                name=f"pod {left}",
                start=found.since,
                end=now,
                attributes=known(
                    k8s__namespace__name=pod.namespace,
                    k8s__pod__name=pod.name,
                    k8s__pod__uid=pod.uid,
                    gracectl__grace__requested_seconds=grace_of(pod),
                    gracectl__grace__granted_seconds=found.granted,
                ),
                moments=tuple(found.moments),
                error=error,
            )
        )

    def _range_id(self, number: int) -> int:
        return self._trace.span("shutdown", f"{self._began:.3f}", str(number))

    def _emit(self, span: Span) -> None:
        if self._sink is not None:
            self._sink.emit(span)
