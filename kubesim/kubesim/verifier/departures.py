"""Departures: pods that left, and their replacements, from the order of events in one pod stream.

A departure is a living pod that is deleted or vanishes. The next pod that its workload creates replaces it, one for
one; in a StatefulSet the pod of the same name. Pods are identified by uid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import msgspec

from kubesim.controllers.objects import (
    controller_of,
    controller_uid,
    is_finished,
    is_mirror,
    is_ready,
    is_terminating,
    labels_of,
    node_of,
)
from kubesim.server.api import JsonObject

NOT_REPLACED = ("DaemonSet", "Node")
"""Controllers of pods that belong to their node and return nowhere else."""


class PodState(msgspec.Struct, frozen=True):
    """A pod as one event showed it. `workload`: uid of its controller, or "". `grace` in seconds, once it ends."""

    uid: str
    namespace: str
    name: str
    node: str
    labels: Mapping[str, str]
    workload: str
    is_replaceable: bool
    is_mirror: bool
    is_ready: bool
    is_terminating: bool
    is_finished: bool
    grace: int | None

    @classmethod
    def of(cls, pod: JsonObject) -> Self:
        """What counts of a pod."""
        metadata, controller = pod["metadata"], controller_of(pod)
        return cls(
            uid=metadata["uid"],
            namespace=metadata["namespace"],
            name=metadata["name"],
            node=node_of(pod),
            labels=labels_of(pod),
            workload=controller_uid(pod),
            is_replaceable=controller is not None and controller["kind"] not in NOT_REPLACED,
            is_mirror=is_mirror(pod),
            is_ready=is_ready(pod),
            is_terminating=is_terminating(pod),
            is_finished=is_finished(pod),
            grace=metadata.get("deletionGracePeriodSeconds"),
        )

    @property
    def is_healthy(self) -> bool:
        """Ready and not on its way out: what a budget counts."""
        return self.is_ready and not self.is_terminating

    @property
    def is_alive(self) -> bool:
        """Neither finished nor on its way out: what a workload counts."""
        return not self.is_finished and not self.is_terminating

    @property
    def called(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class Replacement(msgspec.Struct, frozen=True):
    """The pod that replaced another; `ready_at` (epoch): first Ready; `is_running`: running now."""

    uid: str
    pod: str
    node: str
    created_at: float
    ready_at: float | None
    is_running: bool


class Departure(msgspec.Struct, frozen=True):
    """A pod that left `node` at `at` (epoch) with `grace` seconds (None: it vanished). `replacement`: the last pod that
    replaced it."""

    uid: str
    pod: str
    node: str
    workload: str
    at: float
    grace: int | None
    is_replaceable: bool
    replacement: Replacement | None


class Moves:
    """Keeps the departures since `begin`; what left before is not its business."""

    def __init__(self) -> None:
        self.touched_twice: list[str] = []
        """Pods with a grace period that changed after their deletion began, once per change."""
        self._left: dict[str, tuple[PodState, float]] = {}
        self._heirs: dict[str, str] = {}  # uid of the one that left to the uid of the one that came
        self._born: dict[str, tuple[PodState, float]] = {}  # heirs, as they are or were last seen
        self._ready_at: dict[str, float] = {}
        self._without_heir: dict[str, list[str]] = {}  # by workload, in the order in which they left

    def see(self, at: float, before: PodState | None, after: PodState | None) -> None:
        """An event has turned `before` into `after`; None where there was or is no such pod."""
        if after is not None:
            if before is None:
                self._arrived(at, after)
            self._noted(at, after)
        if before is None or before.is_mirror:
            return
        if before.is_alive and (after is None or after.is_terminating):
            self._departed(at, before, after)
        elif after is not None and before.is_terminating and after.grace not in (before.grace, 0):
            # Grace 0 is the kubelet's own last word about every pod.
            self.touched_twice.append(after.called)

    def departures(self) -> tuple[Departure, ...]:
        """All of them, oldest first."""
        return tuple(self._told(pod, at) for pod, at in self._left.values())

    def _arrived(self, at: float, pod: PodState) -> None:
        waiting = self._without_heir.get(pod.workload) if pod.workload else None
        if not waiting:
            return
        same = (uid for uid in waiting if self._left[uid][0].called == pod.called)
        predecessor = next(same, waiting[0])
        waiting.remove(predecessor)
        self._heirs[predecessor] = pod.uid
        self._born[pod.uid] = pod, at

    def _noted(self, at: float, pod: PodState) -> None:
        if pod.uid in self._born:
            self._born[pod.uid] = pod, self._born[pod.uid][1]
            if pod.is_healthy:
                self._ready_at.setdefault(pod.uid, at)

    def _departed(self, at: float, before: PodState, after: PodState | None) -> None:
        # `before` knows that it was alive, `after` how much time it was given.
        self._left[before.uid] = after or before, at
        if before.is_replaceable:
            self._without_heir.setdefault(before.workload, []).append(before.uid)
        if after is None and before.uid in self._born:
            gone = msgspec.structs.replace(before, is_ready=False)
            self._born[before.uid] = gone, self._born[before.uid][1]

    def _told(self, pod: PodState, at: float) -> Departure:
        return Departure(
            uid=pod.uid,
            pod=pod.called,
            node=pod.node,
            workload=pod.workload,
            at=at,
            grace=pod.grace,
            is_replaceable=pod.is_replaceable,
            replacement=self._replacement(pod.uid),
        )

    def _replacement(self, uid: str) -> Replacement | None:
        heir = self._heirs.get(uid)
        if heir is None:
            return None
        while (next_heir := self._heirs.get(heir)) is not None:
            heir = next_heir
        pod, at = self._born[heir]
        return Replacement(heir, pod.called, pod.node, at, self._ready_at.get(heir), pod.is_healthy)
