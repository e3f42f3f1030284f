"""Deployments and ReplicaSets: a pod is replaced the moment it begins to terminate, as the real controllers do it.

(`StatefulSet` is the opposite and lives next door.) Recording node-drain-end-to-end: the replacement is ADDED at the
deletionTimestamp of the old pod, not when that is gone.
"""

from __future__ import annotations

import hashlib

import orjson

from gracectl.model.times import format_time
from gracectl.sim.server.api import JsonObject
from gracectl.sim.world.client import MERGE
from gracectl.sim.world.controller import Controller, enqueue_own, enqueue_owner
from gracectl.sim.world.objects import (
    Key,
    condition_of,
    controller_uid,
    is_active,
    is_ready,
    is_terminating,
    key_of,
    node_of,
    owner_reference,
    phase_of,
)
from gracectl.sim.world.pace import Pace
from gracectl.sim.world.paths import DEPLOYMENTS, PODS, REPLICA_SETS, path_of
from gracectl.sim.world.view import Views

HASH_LABEL = "pod-template-hash"
SAFE = "bcdfghjklmnpqrstvwxz2456789"
"""The alphabet of generated names: no vowels, no look-alikes."""


def template_hash(template: JsonObject) -> str:
    """The pod-template-hash of a template: stable, ten safe characters (not the real server's value: that hashes Go
    structs).
    """
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
    """Keeps as many active pods as `spec.replicas` says. Keys: ReplicaSets. Does not adopt orphans."""

    def __init__(self, views: Views, pace: Pace) -> None:
        super().__init__(views, pace, REPLICA_SETS, PODS)
        self._sets = views.of(REPLICA_SETS)
        self._pods = views.of(PODS)
        self._pods.index("active", lambda pod: (controller_uid(pod),) if is_active(pod) else ())
        self._pods.index(
            "active and ready", lambda pod: (controller_uid(pod),) if is_active(pod) and is_ready(pod) else ()
        )
        enqueue_own(self._sets, self.queue.add)
        enqueue_owner(self._pods, "ReplicaSet", self.queue.add)

    async def reconcile(self, key: Key) -> None:
        """See Controller.reconcile."""
        replica_set = self._sets.get(*key)
        if replica_set is None:
            return
        uid = replica_set["metadata"]["uid"]
        missing = replica_set["spec"].get("replicas", 1) - self._pods.count("active", uid)
        if not is_terminating(replica_set):
            for _ in range(missing):
                await self._create(replica_set)
            if missing < 0:
                for pod in sorted(self._pods.by("active", uid), key=_worth)[:-missing]:
                    await self._delete(pod)
        await self._report(replica_set)

    async def _create(self, replica_set: JsonObject) -> None:
        namespace, name = key_of(replica_set)
        owner = owner_reference("apps/v1", "ReplicaSet", replica_set)
        metadata = {"generateName": f"{name}-", "ownerReferences": [owner]}
        _, pod = await self.ask("POST", path_of(PODS, namespace), pod_from(replica_set["spec"]["template"], metadata))
        self._pods.remember(pod)

    async def _delete(self, pod: JsonObject) -> None:
        options = {"preconditions": {"uid": pod["metadata"]["uid"]}}
        status, answer = await self.ask("DELETE", path_of(PODS, *key_of(pod)), options, allow=(404, 409))
        if status == 200 and answer.get("kind") == "Pod":
            self._pods.remember(answer)

    async def _report(self, replica_set: JsonObject) -> None:
        uid = replica_set["metadata"]["uid"]
        active, ready = self._pods.count("active", uid), self._pods.count("active and ready", uid)
        status = {
            "replicas": active,
            "fullyLabeledReplicas": active,
            "readyReplicas": ready,
            "availableReplicas": ready,
            "observedGeneration": replica_set["metadata"].get("generation", 1),
        }
        await report(self, REPLICA_SETS, replica_set, status)


class Deployments(Controller[Key]):
    """One ReplicaSet per template; the newest gets all replicas, the others none (no gradual roll-out). Keys:
    Deployments.
    """

    def __init__(self, views: Views, pace: Pace) -> None:
        super().__init__(views, pace, DEPLOYMENTS, REPLICA_SETS)
        self._deployments = views.of(DEPLOYMENTS)
        self._sets = views.of(REPLICA_SETS)
        self._sets.index("controller", lambda found: (controller_uid(found),))
        enqueue_own(self._deployments, self.queue.add)
        enqueue_owner(self._sets, "Deployment", self.queue.add)

    async def reconcile(self, key: Key) -> None:
        """See Controller.reconcile."""
        deployment = self._deployments.get(*key)
        if deployment is None:
            return
        digest = template_hash(deployment["spec"]["template"])
        own = self._sets.by("controller", deployment["metadata"]["uid"])
        current = next((found for found in own if found["metadata"]["labels"][HASH_LABEL] == digest), None)
        if not is_terminating(deployment):
            replicas = deployment["spec"].get("replicas", 1)
            if current is None:
                current = await self._create(deployment, digest, replicas)
                own.append(current)
            for found in own:
                await self._scale(found, replicas if found is current else 0)
        await self._report(deployment, current, own)

    async def _create(self, deployment: JsonObject, digest: str, replicas: int) -> JsonObject:
        namespace, name = key_of(deployment)
        spec = deployment["spec"]
        own = {HASH_LABEL: digest}
        template = spec["template"]
        metadata = template.get("metadata") or {}
        labels = {**(metadata.get("labels") or {}), **own}
        selector = spec["selector"]
        _, created = await self.ask(
            "POST",
            path_of(REPLICA_SETS, namespace),
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "metadata": {
                    "name": f"{name}-{digest}",
                    "labels": labels,
                    "ownerReferences": [owner_reference("apps/v1", "Deployment", deployment)],
                },
                "spec": {
                    "replicas": replicas,
                    "selector": {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), **own}},
                    "template": {**template, "metadata": {**metadata, "labels": labels}},
                },
            },
        )
        self._sets.remember(created)
        answer: JsonObject = created
        return answer

    async def _scale(self, replica_set: JsonObject, replicas: int) -> None:
        if replica_set["spec"].get("replicas", 1) != replicas:
            path = path_of(REPLICA_SETS, *key_of(replica_set))
            patch = {"spec": {"replicas": replicas}}
            status, answer = await self.ask("PATCH", path, patch, content_type=MERGE, allow=(404,))
            if status == 200:
                self._sets.remember(answer)

    async def _report(self, deployment: JsonObject, current: JsonObject | None, own: list[JsonObject]) -> None:
        def total(field: str, sets: list[JsonObject]) -> int:
            return sum((found.get("status") or {}).get(field, 0) for found in sets)

        wanted, ready = deployment["spec"].get("replicas", 1), total("readyReplicas", own)
        state = "True" if ready >= wanted else "False"
        before = condition_of(deployment, "Available")
        stamp = format_time(self.pace.clock.now())
        since = before["lastTransitionTime"] if before is not None and before["status"] == state else stamp
        status = {
            "observedGeneration": deployment["metadata"].get("generation", 1),
            "replicas": total("replicas", own),
            "updatedReplicas": total("replicas", [current] if current else []),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "unavailableReplicas": max(0, wanted - ready),
            "conditions": [
                {
                    "type": "Available",
                    "status": state,
                    "reason": "MinimumReplicasAvailable" if state == "True" else "MinimumReplicasUnavailable",
                    "message": "",
                    "lastUpdateTime": since,
                    "lastTransitionTime": since,
                }
            ],
        }
        await report(self, DEPLOYMENTS, deployment, status)


async def report(controller: Controller[Key], collection: str, object_: JsonObject, status: JsonObject) -> None:
    """Write a workload's status if it differs from what is there (a count of 0 may be left out)."""
    before = object_.get("status") or {}
    if all(before.get(field) == value or (not value and field not in before) for field, value in status.items()):
        return
    path = path_of(collection, *key_of(object_), "status")
    code, answer = await controller.ask("PATCH", path, {"status": status}, content_type=MERGE, allow=(404,))
    if code == 200:
        controller.views.of(collection).remember(answer)


def _worth(pod: JsonObject) -> tuple[int, ...]:
    """Which pods go first when there are too many: unbound, Pending, not Ready, then the youngest."""
    version = int(pod["metadata"]["resourceVersion"])
    return (bool(node_of(pod)), phase_of(pod) == "Running", is_ready(pod), -version)
