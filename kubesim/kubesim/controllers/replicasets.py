"""ReplicaSets and ReplicationControllers: a pod is replaced as soon as it begins to terminate.

Recording node-drain-end-to-end: the replacement is ADDED at the old pod's deletionTimestamp. (StatefulSets wait until
the old pod is gone.) Also here: what all workload controllers share.
"""

from __future__ import annotations

import hashlib
from collections import Counter

import orjson

from kubesim.controllers.claims import Claims
from kubesim.controllers.client import MERGE, Refused
from kubesim.controllers.controller import Controller, enqueue_own, enqueue_owner
from kubesim.controllers.events import Recorder
from kubesim.controllers.informers import Informers
from kubesim.controllers.objects import (
    Key,
    condition_of,
    controller_uid,
    is_active,
    is_ready,
    is_terminating,
    key_of,
    node_of,
    owner_reference,
)
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import PODS, REPLICA_SETS, REPLICATION_CONTROLLERS, path_of
from kubesim.controllers.victims import victims
from kubesim.server.api import JsonObject
from kubesim.values import parse_time

HASH_LABEL = "pod-template-hash"
SAFE = "bcdfghjklmnpqrstvwxz2456789"
"""The alphabet of generated names: no vowels, no look-alikes."""


def template_hash(template: JsonObject) -> str:
    """The pod-template-hash of a template: stable, ten safe characters (a real server hashes Go structs)."""
    number = int.from_bytes(hashlib.sha256(orjson.dumps(template, option=orjson.OPT_SORT_KEYS)).digest()[:8], "big")
    text = ""
    for _ in range(10):
        number, rest = divmod(number, len(SAFE))
        text += SAFE[rest]
    return text


def pod_from(template: JsonObject, metadata: JsonObject, spec: JsonObject | None = None) -> JsonObject:
    """A pod of a template, with more metadata (labels added to the template's) and more spec."""
    own = template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **({"annotations": own["annotations"]} if own.get("annotations") else {}),
            **metadata,
            "labels": {**(own.get("labels") or {}), **metadata.get("labels", {})},
        },
        "spec": {**template["spec"], **(spec or {})},
    }


class ReplicaSets(Controller[Key]):
    """Keeps `spec.replicas` active pods. Keys: ReplicaSets or ReplicationControllers."""

    def __init__(
        self, informers: Informers, pace: Pace, collection: str = REPLICA_SETS, *, events: bool = True
    ) -> None:
        """`collection`: where the objects are that it looks after."""
        super().__init__(informers, pace, collection, PODS)
        self._collection = collection
        self._kind, self._api_version, component = KINDS_OF[collection]
        self._events = Recorder(informers.api, pace, component, enabled=events)
        self._sets = informers.of(collection)
        self._pods = informers.of(PODS)
        self._pods.index("active", lambda pod: (controller_uid(pod),) if is_active(pod) else ())
        self._pods.index(
            "active and ready", lambda pod: (controller_uid(pod),) if is_active(pod) and is_ready(pod) else ()
        )
        self._sets.index("controller", lambda found: (controller_uid(found),))
        self._claims = Claims(self, informers, collection, (self._api_version, self._kind))
        enqueue_own(self._sets, self.queue.add)
        enqueue_owner(self._pods, self._kind, self.queue.add)

    async def reconcile(self, key: Key) -> None:
        """See Controller.reconcile."""
        replica_set = self._sets.get(*key)
        if replica_set is None:
            return
        await self._claims.settle(replica_set)
        uid = replica_set["metadata"]["uid"]
        missing = replica_set["spec"].get("replicas", 1) - self._pods.count("active", uid)
        if not is_terminating(replica_set):
            for _ in range(missing):
                if not await self._create(replica_set):
                    break
            if missing < 0:
                pods = self._pods.by("active", uid)
                for pod in victims(pods, self.pace.clock.now(), self._together(replica_set))[:-missing]:
                    await self._delete(replica_set, pod)
        await self._report(replica_set)

    def _together(self, replica_set: JsonObject) -> Counter[str]:
        """How many pods of all sets of its Deployment are on each node; a set without one has no such count."""
        above = controller_uid(replica_set)
        related = self._sets.by("controller", above) if above else ()
        return Counter(node_of(pod) for found in related for pod in self._pods.by("active", found["metadata"]["uid"]))

    async def _create(self, replica_set: JsonObject) -> bool:
        namespace, name = key_of(replica_set)
        owner = owner_reference(self._api_version, self._kind, replica_set)
        metadata = {"generateName": f"{name}-", "ownerReferences": [owner]}
        body = pod_from(replica_set["spec"]["template"], metadata)
        pod = await create_pod(self, namespace, body)
        if pod is None:
            return False
        self._pods.remember(pod)
        await self._events.normal(replica_set, "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")
        return True

    async def _delete(self, replica_set: JsonObject, pod: JsonObject) -> None:
        options = {"preconditions": {"uid": pod["metadata"]["uid"]}}
        status, answer = await self.ask("DELETE", path_of(PODS, *key_of(pod)), options, allow=(404, 409))
        if status == 200 and answer.get("kind") == "Pod":
            self._pods.remember(answer)
            await self._events.normal(replica_set, "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}")

    async def _report(self, replica_set: JsonObject) -> None:
        uid = replica_set["metadata"]["uid"]
        active, ready = self._pods.count("active", uid), self._pods.count("active and ready", uid)
        status = {
            "replicas": active,
            "fullyLabeledReplicas": active,
            "readyReplicas": ready,
            "availableReplicas": self._available(replica_set, ready),
            "observedGeneration": replica_set["metadata"].get("generation", 1),
        }
        await report(self, self._collection, replica_set, status)

    def _available(self, replica_set: JsonObject, ready: int) -> int:
        """How many have been Ready for minReadySeconds; looks again when the next one will have been."""
        patience = replica_set["spec"].get("minReadySeconds") or 0
        if not patience:
            return ready
        pods = self._pods.by("active and ready", replica_set["metadata"]["uid"])
        waits = [self.pace.real(patience) - ready_for(pod, self.pace.clock.now()) for pod in pods]
        later = [wait for wait in waits if wait > 0]
        if later:
            self.queue.add_after(key_of(replica_set), min(later))
        return len(waits) - len(later)


KINDS_OF = {
    REPLICA_SETS: ("ReplicaSet", "apps/v1", "replicaset-controller"),
    REPLICATION_CONTROLLERS: ("ReplicationController", "v1", "replication-controller"),
}
"""Kind, apiVersion and the name of the controller, by collection."""


async def create_pod(controller: Controller[Key], namespace: str, body: JsonObject) -> JsonObject | None:
    """Make a pod; None if its namespace has begun to go. Raises Refused, Disconnected."""
    status, answer = await controller.ask("POST", path_of(PODS, namespace), body, allow=(403, 404, 409))
    if status == 201:
        pod: JsonObject = answer
        return pod
    causes = (answer.get("details") or {}).get("causes") or () if isinstance(answer, dict) else ()
    if status == 403 and not any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
        raise Refused(f"POST {path_of(PODS, namespace)}", status, answer)
    return None


def ready_for(object_: JsonObject, now: float) -> float:
    """Seconds for which it has been Ready; 0 if it is not."""
    ready = condition_of(object_, "Ready")
    if ready is None or ready["status"] != "True" or not ready.get("lastTransitionTime"):
        return 0.0
    return now - parse_time(ready["lastTransitionTime"])


async def report(controller: Controller[Key], collection: str, object_: JsonObject, status: JsonObject) -> None:
    """Write a workload's status if it differs from what is there (a count of 0 may be left out)."""
    before = object_.get("status") or {}
    if all(before.get(field) == value or (not value and field not in before) for field, value in status.items()):
        return
    path = path_of(collection, *key_of(object_), "status")
    code, answer = await controller.ask("PATCH", path, {"status": status}, content_type=MERGE, allow=(404,))
    if code == 200:
        controller.informers.of(collection).remember(answer)
