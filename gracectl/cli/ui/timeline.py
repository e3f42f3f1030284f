"""Past of the nodes that are terminated or drained: steps, waves and pods, each from when to when.

What happened before the first frame is told by the objects as far as they know it: when the deletion was requested, and
when each condition changed last. Bounded: of a node by its pods, of nodes by those that are active, and the last ones
that are gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

import msgspec

from gracectl.cli.report import instant
from gracectl.cli.status.follow import MOST_TERMINATED
from gracectl.cli.status.messages import pod_state
from gracectl.inspect.draining import PodStatus
from gracectl.inspect.status import NodePhase, NodeStatus
from gracectl.model import names
from gracectl.model.meta import condition_of
from gracectl.model.times import format_micro_time
from gracectl.policy.settings import PolicySettings
from gracectl.telemetry.settings import TracingSettings

Json = dict[str, Any]


class Span(msgspec.Struct):
    """Something that lasts from `start` to `end` (Unix seconds); None: it still does."""

    name: str
    start: float
    end: float | None = None

    def json(self, key: str) -> Json:
        """As the board has it."""
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
        self._pods_json: dict[str, list[Json]] = {}

    @property
    def json(self) -> Json:
        """As the board has it."""
        return self._json

    def update(self, node: NodeStatus, policy: PolicySettings, at: float) -> None:
        """Take note of a status."""
        is_new = not self._json
        has_changed = is_new
        if node.step and (not self.steps or self.steps[-1].name != node.step):
            _close(self.steps, at)
            self.steps.append(Span(node.step, at))
            has_changed = True
        if node.pods is not None and (node.pods is not self.status.pods or is_new):
            has_changed |= self._update_waves(node, policy, at)
            has_changed |= self._update_pods(node.pods, at)
        self.status = node
        if has_changed:
            self._json = {
                "steps": [span.json("step") for span in self.steps],
                "waves": [span.json("wave") for span in self.waves],
                "pods": dict(self._pods_json),
            }

    def _update_waves(self, node: NodeStatus, policy: PolicySettings, at: float) -> bool:
        current = min((pod.entry.wave for pod in node.pods or ()), default=None)
        name = "" if current is None else policy.order_of(node.node.labels).waves[current].name
        if name == (self.waves[-1].name if self.waves and self.waves[-1].end is None else ""):
            return False
        began = self.steps[-1].start if not self.waves and self.steps else at
        _close(self.waves, at)
        if name:
            self.waves.append(Span(name, began))
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
            start = min(pod.since, at) if not spans else at
            _close(spans, at)
            spans.append(Span(state, start))
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

    def __init__(self, policy: PolicySettings) -> None:
        self._policy = policy
        self._nodes: dict[str, NodeTimeline] = {}  # by uid
        self.history: deque[Json] = deque(maxlen=MOST_TERMINATED)

    def update(
        self, nodes: Collection[NodeStatus], existing: Collection[str], tracing: TracingSettings, at: float
    ) -> None:
        """Take note of a frame. `existing`: uids of all nodes that exist."""
        shown = set()
        for node in nodes:
            if node.state not in (NodePhase.TERMINATING, NodePhase.MAINTENANCE, NodePhase.UNCORDONING):
                continue
            shown.add(node.uid)
            if node.uid not in self._nodes:
                self._nodes[node.uid] = NodeTimeline(node, at)
            self._nodes[node.uid].update(node, self._policy, at)
        for uid in [uid for uid in self._nodes if uid not in shown]:
            timeline = self._nodes.pop(uid)
            if uid not in existing:
                self.history.append(timeline.ended(at, tracing))

    @property
    def json(self) -> Json:
        """The timelines as the board has them, by uid."""
        return {uid: each.json for uid, each in self._nodes.items()}
