"""The board: everything that the page shows as one JSON object, and its deltas.

Invariants: `state` is never changed in place; the newest state is the oldest one with all deltas of the ring applied; a
delta is made once for all clients; the clock alone makes no delta. Unchanged parts are reused, so a delta costs as much
as the objects that it changes, plus a little for each active node.

A page that applies a delta to the old state has the state that `merged(old, new)` returns with it. That shares all that
is equal with the new state, so that the next comparison finds it identical, and differs from it only in what the clock
alone changes: that is as of the last change of its object, so that a quiet cluster causes no change. docs/ui.md
describes the format of deltas.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from gracectl.cli.budgets.report import node_budget_report, pod_budget_report
from gracectl.cli.report import Json, instant
from gracectl.cli.status.follow import StatusFollower, StatusFrame
from gracectl.cli.status.report import node_report, pod_report, status_report
from gracectl.cli.ui.drains import DrainRows
from gracectl.cli.ui.events import EventLog
from gracectl.cli.ui.stream import ChangeRing, encoded, message
from gracectl.cli.ui.timeline import Timelines
from gracectl.config import Settings
from gracectl.controllers.disruption.pace import CircuitBreaker, terminations_in_progress
from gracectl.inspect.budget_status import PodBudgetUsage, PodBudgetUsages, node_budget_usages
from gracectl.inspect.status import NodeStatus
from gracectl.policy.eviction_queues import QueuedPod
from gracectl.policy.health import UnhealthyNodes
from gracectl.policy.pace import maximum_of
from gracectl.runtime.clock import Clock

VERSION: Final = 1
"""Version of the JSON; changes if a field is removed or changes its meaning."""

BYTES_PER_SECOND: Final = 2**20
"""Maximum rate of changes: each eviction moves every pod in its queue, which may have thousands."""
MOST_PODS: Final = 20_000
"""With more pods on its nodes the board has none of them: `node_pods` has those of one node."""
FEWER: Final = 0.8
"""Share of MOST_PODS below which the board has them again."""
MOST_NAMED: Final = 20
"""Pods of a budget that are named then."""
MOST_CAUSES: Final = 100
BUDGETS_SECONDS: Final = 0.5
"""Between two counts of the budgets, at least."""
BUDGETS_SHARE: Final = 0.1
"""Share of one processor that counting them takes, at most."""

STARTING: Final[Json] = {
    "version": VERSION,
    "status": None,
    "withPods": True,
    "podBudgets": [],
    "nodeBudgets": None,
    "nodeDrains": [],
    "timelines": {},
    "history": [],
    "events": [],
    "eventsCut": False,
    "links": {"grafana": None},
    "pace": None,
    "breaker": None,
    "connection": {"state": "starting", "since": None, "error": None},
}
"""The board before the first frame."""


class Board:
    """The board of a cluster, as frame after frame of its follower shows it."""

    def __init__(
        self, follower: StatusFollower, settings: Settings, source: str, clock: Clock, *, grafana: str | None = None
    ) -> None:
        self.ring = ChangeRing()
        self.events = EventLog()
        self.drains = DrainRows()
        self.state: Mapping[str, Any] = STARTING | {"links": {"grafana": grafana}}
        self._boot = secrets.token_hex(4)
        self._clock = clock
        self._not_before = -math.inf
        self._source = source
        self._nodes: dict[str, tuple[NodeStatus, Json]] = {}  # by uid
        self._at = 0.0
        self._with_pods = True
        self._timelines = Timelines(follower.watcher.cluster.nodes, settings.termination.policy, clock)
        self._cluster = _ClusterPart(follower, settings, clock)

    @property
    def id(self) -> str:
        """ID of the newest state."""
        return f"{self._boot}-{self.ring.latest}"

    def place_of(self, id_: str) -> int | None:
        """The place among the changes that an id names; None: none of this process."""
        boot, _, number = id_.partition("-")
        if boot != self._boot or not number.isascii() or not number.isdigit() or len(number) > 18:
            return None
        return int(number)

    @staticmethod
    def encode(state: Mapping[str, Any], id_: str) -> bytes:
        """A snapshot."""
        return encoded({"version": VERSION, "id": id_} | dict(state))

    def update(self, frame: StatusFrame) -> None:
        """Take note of a frame; not while clients have enough to read of the last change."""
        began = self._clock.monotonic()
        if began < self._not_before:
            return
        new = dict(self.state)
        self._choose_pods(frame)
        new["status"], new["withPods"] = self._status(frame), self._with_pods
        new["connection"] = _connection(frame)
        new["events"], new["eventsCut"] = self.events.json, self.events.is_cut
        new["nodeDrains"] = self.drains.json
        if frame.is_complete:
            self._timelines.update(frame.nodes, frame.tracing, frame.at)
            new["timelines"] = self._timelines.json(with_pods=self._with_pods)
            new["history"] = list(self._timelines.history)
            new |= self._cluster.at(frame.at, with_pods=self._with_pods)
        self.state, delta = merged(self.state, new)
        # Parts that the next frame does not change are identical objects then.
        nodes = zip(frame.nodes, self.state["status"]["nodes"], strict=True)
        self._nodes = {node.uid: (node, json) for node, json in nodes}
        if delta:
            id_ = f"{self._boot}-{self.ring.latest + 1}"
            change = message("change", id_, encoded(delta))
            self.ring.append(change)
            self._not_before = began + len(change) / BYTES_PER_SECOND

    def node_pods(self, uid: str) -> Json | None:
        """The pods of a node and their past, as the board has them of all nodes if they are few; None: no such node."""
        found = self._nodes.get(uid)
        if found is None:
            return None
        pods, at = found[0].pods, self._at
        reports = None if pods is None else [pod_report(pod, at) for pod in pods]
        return {"uid": uid, "pods": reports, "timeline": self._timelines.pods_of(uid)}

    def _choose_pods(self, frame: StatusFrame) -> None:
        """Decide whether the board has the pods of its nodes."""
        self._at = frame.at
        pods = sum(len(node.pods or ()) for node in frame.nodes)
        with_pods = pods <= MOST_PODS * (1.0 if self._with_pods else FEWER)
        if with_pods != self._with_pods:
            self._with_pods = with_pods
            self._nodes.clear()

    def _status(self, frame: StatusFrame) -> Json:
        found = status_report(frame, self._source, partial(self._node, frame))
        if found["progress"] is not None:
            found["progress"]["causes"] = found["progress"]["causes"][:MOST_CAUSES]
        return found

    def _node(self, frame: StatusFrame, node: NodeStatus) -> Json:
        """The report of a node; the same object as before if the node has not changed."""
        known = self._nodes.get(node.uid)
        if known is not None and known[0] is node:
            return known[1]
        json = node_report(node, frame)
        if node.pods is not None and self._with_pods:
            is_known = known is not None and known[0].pods is node.pods
            json["pods"] = known[1]["pods"] if known and is_known else [pod_report(pod, frame.at) for pod in node.pods]
        return json


class _ClusterPart:
    """Budgets with their queues, pace and circuit breaker; unchanged parts are the same objects as before."""

    def __init__(self, follower: StatusFollower, settings: Settings, clock: Clock) -> None:
        self._follower = follower
        self._cluster = follower.watcher.cluster
        self._settings = settings.termination
        self._clock = clock
        self._usages = PodBudgetUsages(self._cluster, settings.termination)
        self._budgets: dict[str, tuple[PodBudgetUsage, tuple[QueuedPod, ...], Json]] = {}  # by uid
        manages = partial(self._cluster.manages, self._settings.managed)
        self._breaker = CircuitBreaker(manages, self._settings.policy.health)
        self._cluster.nodes.subscribe(self._breaker.note, replay=True)
        self._next_count = -math.inf
        self._with_pods = True
        self._found: tuple[PodBudgetUsage, ...] = ()

    def at(self, at: float, *, with_pods: bool) -> Json:
        """These fields of the board at `at`. `with_pods` False: each budget names MOST_NAMED of its pods."""
        if with_pods != self._with_pods:
            self._with_pods = with_pods
            self._budgets.clear()
        began = self._clock.monotonic()
        if began >= self._next_count:
            self._found = self._usages.at(at)
            cost = self._clock.monotonic() - began
            self._next_count = began + max(BUDGETS_SECONDS, cost / BUDGETS_SHARE)
        unhealthy = self._breaker.counts(at)
        nodes = node_budget_usages(self._cluster, self._follower.node_budgets, self._settings, at)
        return {
            "podBudgets": self._pod_budgets(),
            "nodeBudgets": [node_budget_report(each) for each in nodes],
            "pace": self._pace(unhealthy.managed),
            "breaker": _breaker(unhealthy),
        }

    def _pod_budgets(self) -> list[Json]:
        known, self._budgets = self._budgets, {}
        most = None if self._with_pods else MOST_NAMED
        queues = self._follower.statuses.draining.queues
        for usage in self._found:
            uid, queue = usage.budget.uid, queues.get((usage.budget.key,), ())
            before = known.get(uid)
            if before is not None and before[0] is usage and before[1] is queue:
                self._budgets[uid] = before
                continue
            if before is not None and before[0] is usage:
                json = before[2]
            else:
                json = pod_budget_report(usage)
                json |= {name: json[name][:most] for name in ("unavailable", "blocks")}
            is_same = before is not None and before[1] is queue
            waiting = before[2]["queue"] if before and is_same else list(map(_queued, queue[:most]))
            self._budgets[uid] = usage, queue, json | {"queue": waiting, "queued": len(queue)}
        return [json for _, _, json in self._budgets.values()]

    def _pace(self, managed: int) -> Json:
        """Slots of voluntary terminations: how many are taken, as the objects show it, and the maximum."""
        return {
            "inProgress": terminations_in_progress(self._cluster, self._settings.managed),
            "maximum": maximum_of(self._settings.policy.voluntary, managed),
            "managedNodes": managed,
        }


def _breaker(counts: UnhealthyNodes) -> Json:
    """The circuit breaker of terminations for health, counted as the controller counts it."""
    return {
        "open": counts.excess > 0,
        "unhealthy": counts.unhealthy,
        "recovering": counts.recovering,
        "allowed": counts.allowed,
        "managedNodes": counts.managed,
    }


def _queued(queued: QueuedPod) -> Json:
    pod = queued.entry.pod
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "node": queued.node,
        "since": instant(queued.since),
    }


def _connection(frame: StatusFrame) -> Json:
    """`starting` until the cluster has been read, `lost` while a watch of it fails, else `live`."""
    loss = frame.connection_loss
    if loss is None:
        state = "live" if frame.is_complete else "starting"
        return {"state": state, "since": None, "error": None}
    return {"state": "lost", "since": instant(loss.since), "error": loss.error}


Object = Mapping[str, Any]

NESTED: Final = frozenset({"status"})
"""Fields with objects that are merged; all other values are replaced."""
KEYED: Final = frozenset(
    {"nodes", "pods", "podBudgets", "nodeBudgets", "nodeDrains", "queue", "history", "events", "timelines"}
)
"""Fields that hold many objects: a list of objects with a `uid`, or an object by uid."""

LISTS: Final = (list, tuple)
_ABSENT: Final = object()


def merged(old: Object, new: Object) -> tuple[Object, dict[str, Any]]:
    """New state of an object, and the delta to it; empty if only the clock has changed values."""
    state, delta, clock = dict(old), {}, {}
    for name, value in new.items():
        before = old.get(name, _ABSENT)
        if before is value or before == value:
            state[name] = value
            continue
        if name in KEYED and isinstance(value, LISTS) and isinstance(before, LISTS):
            state[name], change = _merged_list(before, value)
        elif name in KEYED and isinstance(value, dict) and isinstance(before, dict):
            state[name], change = _merged_map(before, value)
        elif name in NESTED and isinstance(value, dict) and isinstance(before, dict):
            state[name], change = merged(before, value)
        elif _is_of_clock(name, new):
            clock[name] = value
            continue
        elif before is not _ABSENT and _is_equal(before, value):
            continue
        else:
            state[name] = change = value
            delta[name] = change
            continue
        if change:
            delta[name] = change
    if delta:
        return state | clock, delta | clock
    return state, delta


def _merged_list(old: Sequence[Any], new: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    before = {each["uid"]: each for each in old}
    state, changed, added = [], [], []
    for each in new:
        uid = each["uid"]
        known = before.get(uid)
        if known is None:
            added.append(uid)
            changed.append(each)
        elif known is not each and known != each:
            each, change = merged(known, each)
            if change:
                changed.append({"uid": uid} | change)
        state.append(each)
    uids = [each["uid"] for each in state]
    existing = set(uids)
    removed = [uid for uid in before if uid not in existing]
    delta: dict[str, Any] = {}
    if changed:
        delta["set"] = changed
    if removed:
        delta["remove"] = removed
    if uids != [*(uid for uid in before if uid in existing), *added]:
        delta["order"] = uids
    return state, delta


def _merged_map(old: Object, new: Object) -> tuple[Object, dict[str, Any]]:
    state, changed = dict(old), {}
    for uid, each in new.items():
        before = old.get(uid, _ABSENT)
        if before is each:
            continue
        if before == each:
            state[uid] = each
        elif isinstance(before, dict) and isinstance(each, dict):
            state[uid], change = merged(before, each)
            if change:
                changed[uid] = change
        else:
            state[uid] = changed[uid] = each
    removed = [uid for uid in old if uid not in new]
    for uid in removed:
        del state[uid]
    delta: dict[str, Any] = {}
    if changed:
        delta["set"] = changed
    if removed:
        delta["remove"] = removed
    return state, delta


def _is_of_clock(name: str, whole: Object) -> bool:
    """Whether the clock alone may have changed it: durations until now, and texts that hold one."""
    if name == "at":
        return "cluster" in whole
    return name.endswith("Seconds") or (name == "message" and ("until" in whole or "ageSeconds" in whole))


def _is_equal(before: Any, value: Any) -> bool:
    """Whether two values differ by the clock alone."""
    if isinstance(before, dict) and isinstance(value, dict):
        return before.keys() == value.keys() and all(
            _is_of_clock(name, value) or _is_equal(before[name], each) for name, each in value.items()
        )
    if isinstance(before, LISTS) and isinstance(value, LISTS):
        return len(before) == len(value) and all(map(_is_equal, before, value))
    return bool(before == value)
