"""Kubelets: the Node authorizer, and what NodeRestriction refuses them (worded as Kubernetes 1.37.2 words it).

A kubelet is the user `system:node:NAME` in the group `system:nodes`. It reads its own node and the pods bound to it,
writes these, and writes Events. Left out: Secrets, claims, Leases and whatever else a real kubelet needs to run pods.
"""

from __future__ import annotations

from typing import Final

from kubesim.auth.attributes import Attempt
from kubesim.auth.rbac import Decision
from kubesim.server.api import JsonObject, Request
from kubesim.server.calls import Call, User
from kubesim.server.status import Kind, forbidden
from kubesim.server.store import Store

NODES_GROUP: Final = "system:nodes"
NODE_PREFIX: Final = "system:node:"

_READS: Final = ("get", "list", "watch")
_WRITES: Final = {
    ("nodes", ""): ("create", "update", "patch"),
    ("nodes", "status"): ("update", "patch"),
    ("pods", ""): ("create", "delete"),
    ("pods", "status"): ("update", "patch"),
    ("pods", "eviction"): ("create",),
    ("events", ""): ("create", "update", "patch"),
}
"""What the authorizer allows a kubelet on every object; NodeRestriction looks at which one it is."""


def node_of(user: User) -> str:
    """The node of a kubelet; "" for other users."""
    is_kubelet = NODES_GROUP in user.groups and user.name.startswith(NODE_PREFIX)
    return user.name.removeprefix(NODE_PREFIX) if is_kubelet else ""


class Kubelets:
    """Decides for kubelets; of other users it has no opinion (implements hooks.Permission)."""

    def __init__(self, store: Store) -> None:
        self._pods = store.table("pods")

    def decide(self, user: User, attempt: Attempt, request: Request) -> Decision:
        """Whether a kubelet may do what is attempted. Raises Refusal (403) for a write to what is another node's."""
        node = node_of(user)
        if not node or attempt.group or attempt.path:
            return Decision(False)
        if attempt.verb in _WRITES.get((attempt.resource, attempt.subresource), ()):
            self._restrict(node, attempt)
            return Decision(True)
        if attempt.subresource or attempt.verb not in _READS:
            return Decision(False)
        if attempt.resource == "nodes":
            return _own(node, attempt.name)
        return self._pod(node, attempt, request) if attempt.resource == "pods" else Decision(False)

    def check(self, call: Call, new: JsonObject, old: JsonObject | None) -> None:
        """Refuse a kubelet a change of taints. Raises Refusal (403)."""
        node, resource = node_of(call.user), call.route.resource
        is_node = resource.plural == "nodes" and not resource.group
        if node and is_node and old is not None and _taints(new) != _taints(old):
            raise forbidden(resource.words, call.route.name, f'node "{node}" is not allowed to modify taints')

    def _restrict(self, node: str, attempt: Attempt) -> None:
        words = Kind("", attempt.resource, "")
        if attempt.resource == "nodes" and attempt.name not in ("", node):
            raise forbidden(words, attempt.name, f'node "{node}" is not allowed to modify node "{attempt.name}"')
        if attempt.resource != "pods" or attempt.verb == "create":
            return
        pod = self._pods.get(attempt.namespace, attempt.name)
        if pod is not None and _home(pod) != node:
            what = "delete pods" if attempt.verb == "delete" else "update pod status for pods"
            raise forbidden(words, attempt.name, f'node "{node}" can only {what} with spec.nodeName set to itself')

    def _pod(self, node: str, attempt: Attempt, request: Request) -> Decision:
        if attempt.verb != "get":
            terms = request.query.get("fieldSelector", "").split(",")
            if any(term.replace("==", "=") == f"spec.nodeName={node}" for term in terms):
                return Decision(True)
            return Decision(False, "node: can only list/watch pods with spec.nodeName field selector")
        if _home(self._pods.get(attempt.namespace, attempt.name) or {}) == node:
            return Decision(True)
        return Decision(False, f"node: no relationship found between node '{node}' and this object")


def _own(node: str, name: str) -> Decision:
    if name == node:
        return Decision(True)
    which = f"'{name}'" if name else "all nodes"
    return Decision(False, f"node: node '{node}' cannot read {which}, only its own Node object")


def _home(pod: JsonObject) -> str:
    """The node of a pod; "" where it has none."""
    found: str = (pod.get("spec") or {}).get("nodeName") or ""
    return found


def _taints(node: JsonObject) -> list[JsonObject]:
    return (node.get("spec") or {}).get("taints") or []
