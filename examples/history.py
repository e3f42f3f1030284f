"""What the API server stored while nodes ended: who was asked to go, how, with which grace, and when all was over.

Read from the server's own changes, with the request that caused each, and from the cloud's journal. Nothing here
comes from what the controller says of itself.
"""

from __future__ import annotations

from typing import Any

import msgspec
from kubesim.controllers.objects import annotations_of, is_ready, is_terminating, node_of
from kubesim.server.api import JsonObject
from support.clients import Deed, follow
from support.stage import Stage

from gracectl.model import names
from gracectl.model.times import parse_time

WAYS = {"evicted": ("create", "pods/eviction"), "deleted": ("delete", "pods")}
"""How a controller can ask a pod to go, in the words of people and in those of the API."""

BEFORE = -1.0
"""The instant under which everything is told that was so when the nodes were deleted."""


class Asked(msgspec.Struct, frozen=True):
    """A pod was `evicted` or `deleted`, and granted so many seconds of grace."""

    at: float
    how: str
    grace: int


class Leaver(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that had to go. Instants are seconds since the nodes were deleted.

    `ended`: its containers have, by themselves, killed, or with their machine. `was_cut`: they would have gone on.
    """

    name: str
    node: str
    asked: tuple[Asked, ...]
    ended: float
    was_cut: bool

    @property
    def had(self) -> float:
        """Seconds from the first word to its end."""
        return self.ended - self.asked[0].at


class Newcomer(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that came for one that had to go; instants as in Leaver."""

    name: str
    node: str
    created: float
    ready: float


class NodeLife(msgspec.Struct, frozen=True, kw_only=True):
    """One node that was deleted, instants as in Leaver. `deadline`: as it is written on the node."""

    name: str
    deadline: float | None
    instance_ended: float
    gone: float


class History(msgspec.Struct, frozen=True, kw_only=True):
    """All of it: `leavers` in the order in which they were asked to go, `newcomers` in that of their creation.

    `healthy`: from each instant on, how many pods were Ready and not on their way out; `required`: of the budget.
    """

    leavers: tuple[Leaver, ...]
    newcomers: tuple[Newcomer, ...]
    nodes: tuple[NodeLife, ...]
    healthy: tuple[tuple[float, int], ...]
    required: int

    @property
    def deadline(self) -> float | None:
        """That of the nodes, which were deleted together."""
        (deadline,) = {node.deadline for node in self.nodes}
        return deadline

    @property
    def over(self) -> float:
        """When the last node was gone."""
        return max(node.gone for node in self.nodes)

    def healthy_at(self, instant: float) -> int:
        """How many pods were healthy then, after all that happened in that instant."""
        return [count for at, count in self.healthy if at <= instant][-1]

    def lacking(self) -> tuple[tuple[float, float], ...]:
        """From when until when fewer pods were healthy than the budget requires."""
        found: list[tuple[float, float]] = []
        since: float | None = None
        for at, count in self.healthy:
            if count < self.required and since is None:
                since = at
            elif count >= self.required and since is not None:
                found.append((since, at))
                since = None
        return tuple(found)


class _Pod:
    """What is known of a pod so far. Instants are the server's Unix seconds."""

    def __init__(self, created: float) -> None:
        self.created = created
        self.shown: JsonObject = {}
        self.ready: float | None = None
        self.asked: list[tuple[float, str, int]] = []
        self.ended: float | None = None
        self.exit_code: int | None = None
        self.is_healthy = False

    def read(self, deed: Deed) -> None:
        """Take in one change."""
        self.shown = deed.object
        self.is_healthy = deed.new is not None and is_ready(deed.new) and not is_terminating(deed.new)
        if self.is_healthy and self.ready is None:
            self.ready = deed.at
        if deed.new is None:
            return
        grace = deed.new["metadata"].get("deletionGracePeriodSeconds")
        how = next((word for word, asked in WAYS.items() if deed.is_by(*asked)), None)
        # An eviction first marks the pod, then deletes it: the second change has the grace.
        if how is not None and grace is not None:
            self.asked.append((deed.at, how, grace))
        code = _exit_code(deed.new)
        if code is not None and self.ended is None:
            self.ended, self.exit_code = deed.at, code


class Historian:
    """Takes down all that happens to the pods and nodes of a stage from now on, and reads it afterwards."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._begun = stage.clock.now()
        self._pods: list[Deed] = []
        self._nodes: list[Deed] = []
        follow(stage, "pods", self._pods.append)
        follow(stage, "nodes", self._nodes.append)

    def begin(self) -> None:
        """The nodes are deleted now: instants count from here."""
        self._begun = self._stage.clock.now()

    def history(self, required: int) -> History:
        """What has happened since `begin`. `required`: how many healthy pods the budget asks for."""
        pods: dict[str, _Pod] = {}
        healthy: list[tuple[float, int]] = []
        for deed in self._pods:
            pods.setdefault(deed.object["metadata"]["uid"], _Pod(deed.at)).read(deed)
            healthy.append((deed.at, sum(pod.is_healthy for pod in pods.values())))
        leavers = [self._leaver(pod) for pod in pods.values() if pod.asked]
        newcomers = [self._newcomer(pod) for pod in pods.values() if pod.created >= self._begun]
        nodes = [self._node_life(deed) for deed in self._nodes if deed.new is None]
        return History(
            leavers=tuple(sorted(leavers, key=lambda pod: (pod.asked[0].at, pod.node))),
            newcomers=tuple(sorted(newcomers, key=lambda pod: pod.created)),
            nodes=tuple(sorted(nodes, key=lambda node: node.name)),
            healthy=self._changes(healthy),
            required=required,
        )

    def _since(self, instant: float) -> float:
        return round(instant - self._begun, 3)

    def _node_life(self, last: Deed) -> NodeLife:
        name = last.object["metadata"]["name"]
        written = annotations_of(last.object).get(names.TERMINATION_TIMESTAMP)
        return NodeLife(
            name=name,
            deadline=None if written is None else self._since(parse_time(written)),
            instance_ended=self._since(self._instance_ended(name)),
            gone=self._since(last.at),
        )

    def _leaver(self, pod: _Pod) -> Leaver:
        node = node_of(pod.shown)
        return Leaver(
            name=pod.shown["metadata"]["name"],
            node=node,
            asked=tuple(Asked(self._since(at), how, grace) for at, how, grace in pod.asked),
            ended=self._since(self._instance_ended(node) if pod.ended is None else pod.ended),
            was_cut=pod.exit_code != 0,
        )

    def _newcomer(self, pod: _Pod) -> Newcomer:
        assert pod.ready is not None, "the play is over when all pods are Ready"
        return Newcomer(
            name=pod.shown["metadata"]["name"],
            node=node_of(pod.shown),
            created=self._since(pod.created),
            ready=self._since(pod.ready),
        )

    def _instance_ended(self, node: str) -> float:
        """When the machine under a node was off."""
        entries, id_ = self._stage.cluster.cloud.journal, self._stage.instances[node]
        return next(entry.instant for entry in entries if (entry.id, entry.what) == (id_, "terminated"))

    def _changes(self, counted: list[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
        """The instants at which the number became another one, after that before the start."""
        last_at = {max(self._since(instant), BEFORE): count for instant, count in counted}
        found: list[tuple[float, int]] = []
        for at, count in last_at.items():
            if not found or found[-1][1] != count:
                found.append((at, count))
        return tuple(found)


def _exit_code(pod: JsonObject) -> int | None:
    """That of a pod whose containers have ended for good."""
    statuses: list[dict[str, Any]] = pod.get("status", {}).get("containerStatuses") or []
    codes = [status["state"]["terminated"]["exitCode"] for status in statuses if "terminated" in status["state"]]
    return max(codes) if codes and len(codes) == len(statuses) else None
