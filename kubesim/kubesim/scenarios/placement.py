"""The nodes of the pods of a prebuilt cluster: dealt out over the nodes that take them, in turn.

Invariant: no node gets more pods than it takes. Taints, selectors and room count, as the scheduler sees them.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from kubesim.controllers.daemonsets import placement
from kubesim.controllers.nodefit import fits
from kubesim.controllers.quantities import Amounts, requests_of
from kubesim.controllers.schedulercache import SchedulerCache
from kubesim.scenarios.parser import ScenarioError
from kubesim.server.api import JsonObject

CONDITIONS = "node.kubernetes.io/"
WISHES = ("nodeSelector", "tolerations", "affinity")
"""What of a pod's spec decides which nodes take it."""


def when_well(node: JsonObject) -> JsonObject:
    """The node without the taints of its conditions: a new one is tainted until it has been seen Ready."""
    taints = [taint for taint in node["spec"].get("taints") or () if not taint["key"].startswith(CONDITIONS)]
    return {**node, "spec": {**node["spec"], "taints": taints}}


class _Circle:
    """Names of nodes that take the same pods, and the node for the next pod."""

    def __init__(self, nodes: list[str]) -> None:
        self.nodes = nodes
        self.turn = 0


class Placement:
    """The room on the nodes of a cluster, as the scheduler counts it: pods, and what they request."""

    def __init__(self, nodes: Sequence[JsonObject]) -> None:
        self._nodes = nodes
        self._counted = SchedulerCache()
        self._circles: dict[bytes, _Circle] = {}
        self._pods = 0
        for node in nodes:
            self._counted.offer(node["metadata"]["name"], node)

    def take(self, pod: JsonObject, node: str) -> None:
        """A pod (of which only the spec is looked at) runs on this node, whatever its room."""
        self._pods += 1
        self._counted.take({"metadata": {"uid": str(self._pods)}, "spec": pod["spec"]}, node)

    def for_daemons(self, daemon_set: JsonObject) -> list[str]:
        """The nodes on which a DaemonSet wants its pods."""
        names = [node["metadata"]["name"] for node in self._nodes if placement(daemon_set, node)[0]]
        for name in names:
            self.take(template_of(daemon_set), name)
        return names

    def check(self, workload: JsonObject) -> None:
        """Raises ScenarioError for pods that no node takes (except pods of DaemonSets, which then want none)."""
        if workload["kind"] != "DaemonSet" and not self._circle(template_of(workload)["spec"]).nodes:
            raise _homeless(workload, "no node takes them")

    def for_pods(self, workload: JsonObject, count: int) -> list[str]:
        """Nodes for so many pods of a workload (which may be a pod itself). Raises ScenarioError."""
        template = template_of(workload)
        circle, requests = self._circle(template["spec"]), requests_of(template)
        names = []
        for _ in range(count):
            name = self._next(circle, requests)
            if not name:
                raise _homeless(workload, f"the {len(circle.nodes)} nodes that take them are full")
            self.take(template, name)
            names.append(name)
        return names

    def _circle(self, spec: JsonObject) -> _Circle:
        """Worked out once for all pods that ask for the same."""
        wish = orjson.dumps([spec.get(key) for key in WISHES], option=orjson.OPT_SORT_KEYS)
        if wish not in self._circles:
            pod = {"metadata": {}, "spec": spec}
            self._circles[wish] = _Circle([node["metadata"]["name"] for node in self._nodes if fits(pod, node)])
        return self._circles[wish]

    def _next(self, circle: _Circle, requests: Amounts) -> str:
        """The next node with room, "" if there is none."""
        for _ in circle.nodes:
            name = circle.nodes[circle.turn % len(circle.nodes)]
            circle.turn += 1
            if self._counted.has_room(name, requests):
                return name
        return ""


def template_of(workload: JsonObject) -> JsonObject:
    """What the pods of a workload are like; a pod is its own template."""
    template: JsonObject = workload if workload["kind"] == "Pod" else workload["spec"]["template"]
    return template


def _homeless(workload: JsonObject, why: str) -> ScenarioError:
    metadata = workload["metadata"]
    name = f"{metadata.get('namespace') or 'default'}/{metadata['name']}"
    return ScenarioError(f"there is no place for the pods of {name}: {why}; add nodes, or `pods` to a node group")
