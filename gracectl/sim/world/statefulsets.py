"""StatefulSets: stable names, one after another, and never two pods of one name.

A pod is made again only when the old one is gone from the server, whatever became of its node: at most one.
"""

from __future__ import annotations

from gracectl.sim.server.api import JsonObject
from gracectl.sim.world.controller import Controller, enqueue_own, enqueue_owner
from gracectl.sim.world.objects import (
    Key,
    controller_uid,
    is_finished,
    is_ready,
    is_terminating,
    key_of,
    owner_reference,
)
from gracectl.sim.world.pace import Pace
from gracectl.sim.world.paths import CLAIMS, PODS, STATEFUL_SETS, path_of
from gracectl.sim.world.view import Views
from gracectl.sim.world.workloads import pod_from, report

POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"


class StatefulSets(Controller[Key]):
    """Keeps pods `<name>-0` to `<name>-<replicas - 1>`, and a claim per volumeClaimTemplate for each. Keys:
    StatefulSets.
    """

    def __init__(self, views: Views, pace: Pace) -> None:
        super().__init__(views, pace, STATEFUL_SETS, PODS)
        self._sets = views.of(STATEFUL_SETS)
        self._pods = views.of(PODS)
        self._pods.index("controller", lambda pod: (controller_uid(pod),))
        enqueue_own(self._sets, self.queue.add)
        enqueue_owner(self._pods, "StatefulSet", self.queue.add)

    async def reconcile(self, key: Key) -> None:
        """See Controller.reconcile."""
        stateful_set = self._sets.get(*key)
        if stateful_set is None:
            return
        namespace, name = key
        if not is_terminating(stateful_set):
            replicas = stateful_set["spec"].get("replicas", 1)
            is_steady = await self._raise(stateful_set, replicas)
            if is_steady:
                await self._lower(stateful_set, replicas)
        own = self._pods.by("controller", stateful_set["metadata"]["uid"])
        ready = sum(1 for pod in own if is_ready(pod))
        status = {
            "observedGeneration": stateful_set["metadata"].get("generation", 1),
            "replicas": len(own),
            "currentReplicas": len(own),
            "updatedReplicas": len(own),
            "readyReplicas": ready,
            "availableReplicas": ready,
        }
        await report(self, STATEFUL_SETS, self._sets.get(namespace, name) or stateful_set, status)

    async def _raise(self, stateful_set: JsonObject, replicas: int) -> bool:
        """Make what is missing, in order; False as soon as one has to wait for another (podManagementPolicy
        OrderedReady).
        """
        namespace, name = key_of(stateful_set)
        is_parallel = stateful_set["spec"].get("podManagementPolicy") == "Parallel"
        is_steady = True
        for ordinal in range(replicas):
            pod = self._pods.get(namespace, f"{name}-{ordinal}")
            if pod is None:
                await self._create(stateful_set, ordinal)
            elif is_finished(pod) and not is_terminating(pod):
                options = {"preconditions": {"uid": pod["metadata"]["uid"]}}
                await self.ask("DELETE", path_of(PODS, *key_of(pod)), options, allow=(404, 409))
            elif is_ready(pod) and not is_terminating(pod):
                continue
            is_steady = False
            if not is_parallel:
                return False
        return is_steady

    async def _lower(self, stateful_set: JsonObject, replicas: int) -> None:
        """Delete the highest pod that is too many, one at a time."""
        name = stateful_set["metadata"]["name"]
        surplus = [
            (ordinal, pod)
            for pod in self._pods.by("controller", stateful_set["metadata"]["uid"])
            if (ordinal := _ordinal(pod, name)) >= replicas
        ]
        if surplus and not any(is_terminating(pod) for _, pod in surplus):
            _, pod = max(surplus, key=lambda found: found[0])
            options = {"preconditions": {"uid": pod["metadata"]["uid"]}}
            await self.ask("DELETE", path_of(PODS, *key_of(pod)), options, allow=(404, 409))

    async def _create(self, stateful_set: JsonObject, ordinal: int) -> None:
        namespace, set_name = key_of(stateful_set)
        name = f"{set_name}-{ordinal}"
        spec = stateful_set["spec"]
        volumes = list(spec["template"]["spec"].get("volumes") or [])
        for template in spec.get("volumeClaimTemplates") or ():
            claim = f"{template['metadata']['name']}-{name}"
            volumes.append({"name": template["metadata"]["name"], "persistentVolumeClaim": {"claimName": claim}})
            await self._claim(namespace, claim, template)
        metadata = {
            "name": name,
            "labels": {POD_NAME_LABEL: name, "apps.kubernetes.io/pod-index": str(ordinal)},
            "ownerReferences": [owner_reference("apps/v1", "StatefulSet", stateful_set)],
        }
        more = {"hostname": name, "subdomain": spec.get("serviceName", ""), "volumes": volumes}
        pod = pod_from(spec["template"], metadata, more)
        status, answer = await self.ask("POST", path_of(PODS, namespace), pod, allow=(409,))
        if status == 201:
            self._pods.remember(answer)

    async def _claim(self, namespace: str, name: str, template: JsonObject) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "labels": dict(template["metadata"].get("labels") or {})},
            "spec": template["spec"],
        }
        # 409: the claim of an earlier pod of this name, which is the point of it.
        await self.ask("POST", path_of(CLAIMS, namespace), body, allow=(409,))


def _ordinal(pod: JsonObject, set_name: str) -> int:
    text: str = pod["metadata"]["name"].removeprefix(f"{set_name}-")
    return int(text) if text.isdigit() else -1
