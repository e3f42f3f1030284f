"""POST pods/NAME/binding: how a scheduler gives a pod its node, once (recording nodes-delete)."""

from __future__ import annotations

from kubesim.server.api import Json, JsonObject
from kubesim.server.bodies import Bodies
from kubesim.server.calls import Call, Write
from kubesim.server.hooks import Admission
from kubesim.server.options import is_dry_run
from kubesim.server.routing import Route
from kubesim.server.stamps import Stamps
from kubesim.server.status import Kind, bad_request, conflict, not_found, success
from kubesim.server.store import Store
from kubesim.types.transient import BINDING, transient

BINDINGS = Kind("", "pods/binding", "Binding")


class Bindings:
    """Binds pods to nodes. Neither the node's existence nor its state is looked at."""

    def __init__(self, store: Store, stamps: Stamps, bodies: Bodies, admission: Admission) -> None:
        self._store = store
        self._stamps = stamps
        self._bodies = bodies
        self._admission = admission

    async def answer(self, call: Call) -> tuple[int, JsonObject]:
        """POST of a binding. Raises Refusal."""
        body = self._bodies.object(call.request, "Binding")
        if self._admission.concerns(call, "CREATE"):
            write = Write(call, "CREATE", is_dry_run(call.query, "CreateOptions"), dict(call.query))
            body = {**transient(BINDING, body), "kind": "Binding", "apiVersion": "v1"}
            body = await self._admission.mutate(write, body, None)
            await self._admission.validate(write, body, None)
        return 201, self.bind(call.route, body)

    def bind(self, route: Route, body: Json) -> JsonObject:
        """Bind one pod; returns a Status. Raises Refusal: 400, 404, 409 (bound already, or being deleted)."""
        node = transient(BINDING, body)["target"].get("name")
        if not node:
            raise bad_request("target.name: Required value")
        table = self._store.table("pods")
        pod = table.get(*route.key)
        if pod is None:
            raise not_found(Kind("", "pods", "Pod"), route.name)
        if "deletionTimestamp" in pod["metadata"]:
            raise conflict(BINDINGS, route.name, f"pod {route.name} is being deleted, cannot be assigned to a host")
        if pod["spec"].get("nodeName"):
            bound = pod["spec"]["nodeName"]
            raise conflict(BINDINGS, route.name, f'pod {route.name} is already assigned to node "{bound}"')
        condition = {
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": self._stamps.now,
        }
        others = [c for c in pod["status"].get("conditions") or [] if c["type"] != "PodScheduled"]
        status = {**pod["status"], "conditions": [*others, condition]}
        self._store.put(table, {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": status}, pod)
        return success(201)
