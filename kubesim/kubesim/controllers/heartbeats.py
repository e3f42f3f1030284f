"""The heartbeats of hollow nodes: a Lease renewed often, the status written when it says something else or is old."""

from __future__ import annotations

from kubesim.controllers.client import MERGE, STRATEGIC, ApiClient, ask
from kubesim.controllers.informers import Informer
from kubesim.controllers.nodestatus import LEASE_NAMESPACE, LEASE_SECONDS, conditions, is_reported, lease, stretch
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import LEASES, NODES, path_of
from kubesim.server.api import JsonObject


class Heartbeats:
    """Speaks for the nodes of one kubelet. `period`: simulated seconds between two beats of a node, as long as there
    are few (see `stretch`); `status_period`: until an unchanged status is written again.
    """

    def __init__(self, api: ApiClient, nodes: Informer, pace: Pace, *, period: float, status_period: float) -> None:
        self._api = api
        self._nodes = nodes
        self._pace = pace
        self._period = period
        self._status_period = status_period
        self._reported: dict[str, float] = {}
        self._leased: dict[str, tuple[str, int]] = {}

    async def beat(self, node: JsonObject, known: int, *, leases: bool) -> float:
        """Send a heartbeat of a node; return the simulated seconds until the next. Raises Refused, Disconnected."""
        name, factor = node["metadata"]["name"], stretch(known)
        now = self._pace.clock.monotonic()
        reported = self._reported.get(name)
        # Nodes that were created together would otherwise send all heartbeats together.
        share = self._pace.chance("heartbeat", name).random() if reported is None and factor > 1.0 else 1.0
        pause = self._period * factor * share
        if reported is None and share < 1.0 and is_reported(node):  # by a kubelet that ran before
            self._reported[name] = now
            return pause
        period = self._status_period * factor if leases else 0.0
        if reported is None or now - reported >= self._pace.real(period) - 1e-6 or not is_reported(node):
            await self._report(node)
        if leases:
            await self._renew(node, round(LEASE_SECONDS * factor))
        return pause

    async def _report(self, node: JsonObject) -> None:
        name = node["metadata"]["name"]
        patch = {"status": {"conditions": conditions(node, self._pace.clock.now())}}
        path = path_of(NODES, name=name, subresource="status")
        status, answer = await ask(self._api, "PATCH", path, patch, content_type=STRATEGIC, allow=(404,))
        if status == 200:
            self._reported[name] = self._pace.clock.monotonic()
            self._nodes.remember(answer)

    async def _renew(self, node: JsonObject, seconds: int) -> None:
        name, uid = node["metadata"]["name"], node["metadata"]["uid"]
        body = lease(node, self._pace.clock.now(), seconds)
        path = path_of(LEASES, LEASE_NAMESPACE, name)
        if self._leased.get(name) == (uid, seconds):
            patch: JsonObject = {"spec": {"renewTime": body["spec"]["renewTime"]}}
        else:
            patch = {"metadata": {"ownerReferences": body["metadata"]["ownerReferences"]}, "spec": body["spec"]}
        status, _ = await ask(self._api, "PATCH", path, patch, content_type=MERGE, allow=(404,))
        if status == 404:
            # 404 again where there is no namespace; 409 if another heartbeat was faster.
            await ask(self._api, "POST", path_of(LEASES, LEASE_NAMESPACE), body, allow=(404, 409))
        self._leased[name] = uid, seconds
