"""Where the pods of a settled world run: dealt out over the nodes that take them, in turn.

Invariant: no node gets more pods than it takes. Taints, selectors and room count, as the scheduler sees them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import orjson

from gracectl.sim.scenarios.reading import ScenarioError
from gracectl.sim.server.api import JsonObject
from gracectl.sim.world.daemons import placement
from gracectl.sim.world.scheduler import fits, room_of

CONDITIONS = "node.kubernetes.io/"


def when_well(node: JsonObject) -> JsonObject:
    """The node as it is when its conditions keep nobody away: a new one is tainted until it has been seen Ready."""
    taints = [taint for taint in node["spec"].get("taints") or () if not taint["key"].startswith(CONDITIONS)]
    return {**node, "spec": {**node["spec"], "taints": taints}}


class _Circle:
    """Nodes that take the same pods, and whose turn it is."""

    def __init__(self, nodes: list[tuple[str, int]]) -> None:
        self.nodes = nodes
        self.turn = 0


class Places:
    """The room on the nodes of a world."""

    def __init__(self, nodes: Sequence[JsonObject]) -> None:
        self._nodes = nodes
        self._load: Counter[str] = Counter()
        self._circles: dict[bytes, _Circle] = {}

    def take(self, node: str) -> None:
        """A pod runs on this node, whatever its room."""
        self._load[node] += 1

    def for_daemons(self, daemon_set: JsonObject) -> list[str]:
        """The nodes on which a DaemonSet wants its pods."""
        names = [node["metadata"]["name"] for node in self._nodes if placement(daemon_set, node)[0]]
        self._load.update(names)
        return names

    def for_pods(self, name: str, spec: JsonObject, count: int) -> list[str]:
        """Nodes for so many pods of a spec; `name` is what a complaint calls them. Raises ScenarioError."""
        circle = self._circle(spec)
        return [self._next(circle, name) for _ in range(count)]

    def _circle(self, spec: JsonObject) -> _Circle:
        """Worked out once for all pods that ask for the same."""
        wish = orjson.dumps((spec.get("nodeSelector"), spec.get("tolerations")), option=orjson.OPT_SORT_KEYS)
        if wish not in self._circles:
            pod = {"metadata": {}, "spec": spec}
            found = [(node["metadata"]["name"], room_of(node)) for node in self._nodes if fits(pod, node)]
            self._circles[wish] = _Circle(found)
        return self._circles[wish]

    def _next(self, circle: _Circle, name: str) -> str:
        for _ in circle.nodes:
            node, room = circle.nodes[circle.turn % len(circle.nodes)]
            circle.turn += 1
            if self._load[node] < room:
                self._load[node] += 1
                return node
        full = f"the {len(circle.nodes)} nodes that take them are full" if circle.nodes else "no node takes them"
        raise ScenarioError(f"there is no place for the pods of {name}: {full}; add nodes, or `pods` to a node group")
