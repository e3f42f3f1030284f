"""History of terminated and drained nodes: intervals of steps, waves and pods.

Before the first frame, the objects give the time of the deletion request and of the last change of each condition. The
history is bounded by the pods of a node, and by the active nodes and the last terminated ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from gracectl.cli.report import Json, instant
from gracectl.cli.status.follow import MOST_TERMINATED
from gracectl.cli.status.messages import pod_state
from gracectl.inspect.draining import PodStatus
from gracectl.inspect.status import NodePhase, NodeStatus
from gracectl.kube.cache import Cache
from gracectl.model import names
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.model.times import format_micro_time
from gracectl.policy.settings import PolicySettings
from gracectl.runtime.clock import Clock
from gracectl.telemetry.settings import TracingSettings

MOST_SPANS: Final = 10
"""Maximum spans of each kind and of each pod: a pod that waits for days may change its state at every event."""


class Span(msgspec.Struct):
    """Something that lasts from `start` to `end` (Unix seconds); None: it still does."""

    name: str
    start: float
    end: float | None = None

    def json(self, key: str) -> Json:
        """JSON for the board."""
        return {key: self.name, "from": format_micro_time(self.start), "to": _micro(self.end)}


def _micro(at: float | None) -> str | None:
    return None if at is None else format_micro_time(at)


class NodeTimeline:
    """Past of one node; `json` is replaced, never changed in place."""

    def __init__(self, node: NodeStatus, at: float) -> None:
        self.status = node
        self.steps = _past_steps(node, at)
        self.waves: list[Span] = []
        self.pods: dict[str, list[Span]] = {}
        self._json: Json = {}
        self._without_pods: Json = {}
        self._pods_json: dict[str, list[Json]] = {}

    def json(self, *, with_pods: bool = True) -> Json:
        """JSON for the board."""
        return self._json if with_pods else self._without_pods

    def update(self, node: NodeStatus, policy: PolicySettings, at: float) -> None:
        """Take note of a status."""
        is_new = not self._json
        has_changed = is_new
        if node.step and (not self.steps or self.steps[-1].name != node.step):
            _go_on(self.steps, node.step, at)
            has_changed = True
        if node.pods is not None and (node.pods is not self.status.pods or is_new):
            has_changed |= self._update_waves(node, policy, at)
            has_changed |= self._update_pods(node.pods, at)
        self.status = node
        if has_changed:
            self._without_pods = {
                "steps": [span.json("step") for span in self.steps],
                "waves": [span.json("wave") for span in self.waves],
                "holds": [span.json("state") for span in holds(self.pods.values())],
                "pods": {},
            }
            self._json = self._without_pods | {"pods": dict(self._pods_json)}

    def _update_waves(self, node: NodeStatus, policy: PolicySettings, at: float) -> bool:
        current = min((pod.entry.wave for pod in node.pods or ()), default=None)
        name = "" if current is None else policy.order_of(node.node.labels).waves[current].name
        if name == (self.waves[-1].name if self.waves and self.waves[-1].end is None else ""):
            return False
        began = self.steps[-1].start if not self.waves and self.steps else at
        if name:
            _go_on(self.waves, name, began)
        else:
            _close(self.waves, at)
        return True

    def _update_pods(self, pods: Collection[PodStatus], at: float) -> bool:
        has_changed = False
        present = set()
        for pod in pods:
            uid, state = pod.entry.pod.uid, pod_state(pod)
            present.add(uid)
            spans = self.pods.setdefault(uid, [])
            if spans and spans[-1].end is None and spans[-1].name == state:
                continue
            _go_on(spans, state, at if spans else min(pod.since, at))
            self._pods_json[uid] = [span.json("state") for span in spans]
            has_changed = True
        for uid, spans in self.pods.items():
            if uid not in present and spans[-1].end is None:
                spans[-1].end = at
                self._pods_json[uid] = [span.json("state") for span in spans]
                has_changed = True
        return has_changed

    def ended(self, at: float, tracing: TracingSettings) -> Json:
        """The entry of the history."""
        _close(self.steps, at)
        node = self.status
        deadline = None if node.deadline is None else node.deadline.at
        return {
            "uid": node.uid,
            "name": node.name,
            "since": instant(node.since),
            "until": instant(at),
            "seconds": None if node.since is None else round(at - node.since, 3),
            "steps": [{"step": each.name, "seconds": round((each.end or at) - each.start, 3)} for each in self.steps],
            "deadline": instant(deadline),
            # An instant of the server is a whole second.
            "deadlineKept": None if deadline is None else at <= deadline + 1.0,
            "trace": None if node.trace_id is None else {"id": node.trace_id, "url": tracing.link(node.trace_id)},
        }


HOLDS: Final = ("deleted", "leaving", "terminating", "replacing", "blocked", "protected", "waiting")
"""States of pods; the first of them that a pod has is what holds its node."""


def holds(pods: Iterable[Sequence[Span]]) -> list[Span]:
    """Intervals of a drain by the state of its pods that held it, from the states of each pod over time."""
    edges = sorted(
        (at, HOLDS.index(span.name), by)
        for spans in pods
        for span in spans
        if span.name in HOLDS
        for at, by in ((span.start, 1), (span.end, -1))
        if at is not None
    )
    found: list[Span] = []
    open_ = [0] * len(HOLDS)
    for number, (at, place, by) in enumerate(edges):
        open_[place] += by
        if number + 1 < len(edges) and edges[number + 1][0] == at:
            continue
        state = next((name for name, count in zip(HOLDS, open_, strict=True) if count > 0), None)
        if found and found[-1].end is None:
            if found[-1].name == state:
                continue
            found[-1].end = at
        if state is not None:
            found.append(Span(state, at))
    return found


def _go_on(spans: list[Span], name: str, at: float) -> None:
    """The last one ends, and the next one begins; the oldest makes room for it."""
    _close(spans, at)
    spans.append(Span(name, at))
    if len(spans) > MOST_SPANS:
        del spans[0]


def _close(spans: list[Span], at: float) -> None:
    if spans and spans[-1].end is None:
        spans[-1].end = max(at, spans[-1].start)


def _past_steps(node: NodeStatus, at: float) -> list[Span]:
    """The steps before the current one, as the node's conditions tell them, and the current one."""
    if node.since is None or not node.step:
        return [Span(node.step, at)] if node.step else []
    conditions = (("drain", names.DRAINED), ("volumes", names.VOLUMES_DETACHED))
    found: list[Span] = []
    began = node.since
    for step, type_ in conditions:
        condition = condition_of(node.node.conditions, type_)
        if node.step == step or condition is None or condition.status != names.TRUE:
            break
        ended = max(condition.last_transition or began, began)
        found.append(Span(step, began, ended))
        began = ended
    return [*found, Span(node.step, min(began, at))]


class Timelines:
    """Timelines of the nodes that are active, and the last terminated nodes."""

    def __init__(self, nodes: Cache[Node], policy: PolicySettings, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self._nodes: dict[str, NodeTimeline] = {}  # by uid
        self._gone: dict[str, tuple[Node, float]] = {}  # by uid, since the last frame, and when
        self.history: deque[Json] = deque(maxlen=MOST_TERMINATED)
        nodes.subscribe(self._node_changed)

    def update(self, nodes: Collection[NodeStatus], tracing: TracingSettings, at: float) -> None:
        """Take note of a frame."""
        shown = set()
        for node in nodes:
            if node.state not in (NodePhase.TERMINATING, NodePhase.MAINTENANCE, NodePhase.UNCORDONING):
                continue
            shown.add(node.uid)
            if node.uid not in self._nodes:
                self._nodes[node.uid] = NodeTimeline(node, at)
            elif self._nodes[node.uid].status is node:
                continue
            self._nodes[node.uid].update(node, self._policy, at)
        for uid, (gone, gone_at) in self._gone.items():
            timeline = self._nodes.pop(uid, None)
            if timeline is not None or gone.deletion_timestamp is not None:
                # A node that was never in a frame was terminated between two frames.
                found = timeline or NodeTimeline(_briefly(gone), gone_at)
                self.history.append(found.ended(gone_at, tracing))
        self._gone.clear()
        for uid in self._nodes.keys() - shown:  # it was uncordoned
            del self._nodes[uid]

    def json(self, *, with_pods: bool = True) -> Json:
        """The timelines as the board has them, by uid."""
        return {uid: each.json(with_pods=with_pods) for uid, each in self._nodes.items()}

    def pods_of(self, uid: str) -> Json:
        """The past of a node's pods, by UID; empty for other nodes."""
        found = self._nodes.get(uid)
        return {} if found is None else dict(found.json(with_pods=True)["pods"])

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if old is not None and new is None:
            self._gone[old.uid] = old, self._clock.now()


def _briefly(node: Node) -> NodeStatus:
    return NodeStatus(node=node, state=NodePhase.TERMINATING, since=node.deletion_timestamp)
