"""What people are told of a shutdown: Events on the node and its pods, and lines of the log."""

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


class _Owed(msgspec.Struct, frozen=True):
    reason: EventReason
    message: str
    type: EventType
    news: str


class AgentAnnouncer:
    """Tells of the node `name`; `node` is what is known of it. Listens to the deleter.

    What happens before the API server has shown the node is told when it has: an Event is about an object.
    """

    def __init__(self, recorder: EventRecorder, name: str, node: Callable[[], Node | None]) -> None:
        self._recorder = recorder
        self._name = name
        self._node = node
        self._owed: list[_Owed] = []
        self._complained: set[tuple[str, str]] = set()

    def begin(self) -> None:
        """Of a new shutdown everything is told anew."""
        self._complained.clear()

    def say(self, reason: EventReason, message: str, type_: EventType = "Normal", *, news: str = "") -> None:
        """An Event on the node, and a line of the log; `news`: see EventRecorder.record."""
        level = logging.WARNING if type_ == "Warning" else logging.INFO
        logger.log(level, "%s: %s", reason, message, extra={"node": self._name})
        self.tell(reason, message, type_, news=news)

    def tell(self, reason: EventReason, message: str, type_: EventType, *, news: str = "") -> None:
        """The Event alone."""
        owed = _Owed(reason, message, type_, news)
        if owed not in self._owed:  # a node may stay unknown for weeks
            self._owed.append(owed)
        self.catch_up()

    def catch_up(self) -> None:
        """Record what waits for the node to be known, if it is."""
        node = self._node()
        if node is None:
            return
        subject = Subject.of(NODES, node)
        for owed in self._owed:
            self._recorder.record(subject, owed.reason, owed.message, owed.type, news=owed.news)
        self._owed.clear()

    def deleted(self, deletion: Deletion) -> None:
        """The owner of the pod sees who ended it, why, and how much of its grace it gets."""
        pod, granted, requested = deletion.pod, deletion.granted, deletion.requested
        amount = f"{granted} s instead of the {requested} s of grace that it asks for"
        whole = f"its whole grace ({granted} s)"
        if deletion.before is not None:
            amount = f"{granted} s left of the {deletion.before.grace} s that it had been given"
            whole = amount
        is_cut = granted < requested or deletion.before is not None
        message = (
            f"deleted by gracectl with {amount if is_cut else whole}: {pod.cause}; node {pod.node} waits for it until "
            f"{format_time(pod.deadline)}"
        )
        type_: EventType = "Warning" if is_cut else "Normal"
        self._recorder.record(_subject(pod), EventReason.DELETED_FOR_SHUTDOWN, message, type_, news=str(granted))
        figures = {"granted": granted, "requested": requested}
        logger.info("pod deleted for the shutdown", extra={**_keys(pod), **figures})

    def not_deleted(self, pod: ScheduledDeletion, refusal: ApiError) -> None:
        """It is asked again while there is time; but somebody may have to act. Each kind of refusal is told once."""
        kind = (pod.uid, type(refusal).__name__)
        if kind in self._complained:
            return
        self._complained.add(kind)
        message = f"could not be deleted for the shutdown of node {pod.node}: {refusal}"
        logger.warning("pod %s", message, extra=_keys(pod))
        if not isinstance(refusal, Throttled | Unreachable):
            self._recorder.record(_subject(pod), EventReason.DELETION_FAILED, message, "Warning")


def called(pods: Sequence[Pod]) -> str:
    """`3 pods: shop/a, shop/b, shop/c`; of many the first ones and how many more."""
    return f"{counted(len(pods))}: {listed([f'{pod.namespace}/{pod.name}' for pod in pods])}"


def counted(pods: int) -> str:
    """`1 pod`, `2 pods`."""
    return f"{pods} pod" if pods == 1 else f"{pods} pods"


def _subject(pod: ScheduledDeletion) -> Subject:
    return Subject(PODS.api_version, PODS.kind, pod.namespace, pod.name, pod.uid)


def _keys(pod: ScheduledDeletion) -> dict[str, str]:
    return {"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid, "node": pod.node}
