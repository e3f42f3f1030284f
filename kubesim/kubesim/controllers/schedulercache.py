"""Cache of the scheduler: pods by node, what they requested, and what each node has left."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from kubesim.controllers.nodefit import room_of
from kubesim.controllers.objects import controller_uid
from kubesim.controllers.quantities import NAMES, NOTHING, Amounts, allocatable_of, requests_of
from kubesim.server.api import JsonObject

SLACK = 1e-6
"""What floating point may have added to a sum of requests."""


class SchedulerCache:
    """The places that pods have taken, by the uid of the pod. Counts never depend on the order of what happened."""

    def __init__(self) -> None:
        self._offers: dict[str, tuple[int, Amounts]] = {}
        self._load: Counter[str] = Counter()
        self._used: dict[str, Amounts] = {}
        self._siblings: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._taken: dict[str, tuple[str, str, Amounts]] = {}

    def offer(self, name: str, node: JsonObject | None) -> None:
        """A node offers its room (None: it is gone)."""
        if node is None:
            self._offers.pop(name, None)
        else:
            self._offers[name] = (room_of(node), allocatable_of(node))

    def of(self, uid: str) -> str:
        """The node of a pod, or ""."""
        return self._taken[uid][0] if uid in self._taken else ""

    def load(self, node: str) -> int:
        """How many pods a node has."""
        return self._load[node]

    def siblings(self, owner: str) -> Mapping[str, int]:
        """How many pods of one controller are on which node."""
        return self._siblings.get(owner, {})

    def take(self, pod: JsonObject, node: str) -> bool:
        """A pod takes its place; False if it has it already."""
        uid = pod["metadata"]["uid"]
        before = self._taken.get(uid)
        if before is not None and before[0] == node:
            return False
        self.release(uid)
        owner, requests = controller_uid(pod), requests_of(pod)
        self._taken[uid] = (node, owner, requests)
        self._load[node] += 1
        self._siblings[owner][node] += 1
        self._use(node, requests, 1)
        return True

    def release(self, uid: str) -> bool:
        """A pod leaves its place; False if it had none."""
        place = self._taken.pop(uid, None)
        if place is None:
            return False
        node, owner, requests = place
        self._load[node] -= 1
        siblings = self._siblings[owner]
        siblings[node] -= 1
        if not siblings[node]:
            del siblings[node]
        if not siblings:
            del self._siblings[owner]
        self._use(node, requests, -1)
        return True

    def _use(self, node: str, requests: Amounts, sign: int) -> None:
        if requests != NOTHING:
            cpu, memory, storage = self._used.get(node, NOTHING)
            used = (cpu + sign * requests[0], memory + sign * requests[1], storage + sign * requests[2])
            self._used[node] = used

    def has_room(self, node: str, requests: Amounts) -> bool:
        """Is there room for one pod more that asks for this?"""
        room, offered = self._offers[node]
        if self._load[node] >= room:
            return False
        if requests == NOTHING:
            return True
        used = self._used.get(node, NOTHING)
        return (
            used[0] + requests[0] <= offered[0] + SLACK
            and used[1] + requests[1] <= offered[1] + SLACK
            and used[2] + requests[2] <= offered[2] + SLACK
        )

    def lacking(self, node: str, requests: Amounts) -> list[str]:
        """What there is too little of, in the scheduler's words."""
        room, offered = self._offers[node]
        used = self._used.get(node, NOTHING)
        found = ["Too many pods"] if self._load[node] >= room else []
        return found + [
            f"Insufficient {name}"
            for name, have, taken, asked in zip(NAMES, offered, used, requests, strict=True)
            if asked and taken + asked > have + SLACK
        ]
