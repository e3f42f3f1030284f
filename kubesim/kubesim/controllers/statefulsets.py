"""StatefulSets: stable names, one after another, and never two pods of one name.

A pod is made again only when the old one is gone from the server, whatever became of its node: at most one.
"""

from __future__ import annotations

from kubesim.controllers.controller import Controller, enqueue_own, enqueue_owner
from kubesim.controllers.events import Recorder
from kubesim.controllers.informers import Informers
from kubesim.controllers.objects import (
    Key,
    controller_uid,
    is_finished,
    is_ready,
    is_terminating,
    key_of,
    labels_of,
    owner_reference,
)
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import CLAIMS, PODS, REVISIONS, STATEFUL_SETS, path_of
from kubesim.controllers.replicasets import create_pod, pod_from, report
from kubesim.controllers.revisions import LABEL, Revisions
from kubesim.server.api import JsonObject

POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"


class StatefulSets(Controller[Key]):
    """Keeps pods `<name>-0` to `<name>-<replicas - 1>`, and a claim per volumeClaimTemplate for each; a new template
    goes from the highest pod to the lowest (down to the partition), one at a time. Keys: StatefulSets.
    """

    def __init__(self, informers: Informers, pace: Pace, *, events: bool = True) -> None:
        super().__init__(informers, pace, STATEFUL_SETS, PODS, REVISIONS)
        self._events = Recorder(informers.api, pace, "statefulset-controller", enabled=events)
        self._sets = informers.of(STATEFUL_SETS)
        self._pods = informers.of(PODS)
        self._pods.index("controller", lambda pod: (controller_uid(pod),))
        self._revisions = Revisions(self, "StatefulSet")
        enqueue_own(self._sets, self.queue.add)
        enqueue_owner(self._pods, "StatefulSet", self.queue.add)

    async def reconcile(self, key: Key) -> None:
        """See Controller.reconcile."""
        stateful_set = self._sets.get(*key)
        if stateful_set is None:
            return
        update = current = ""
        if not is_terminating(stateful_set):
            update = await self._revisions.present(stateful_set, frozenset(map(_revision, self._own(stateful_set))))
            current = self._current(stateful_set) or update
            if await self._raise(stateful_set, update, current) and not await self._lower(stateful_set):
                await self._roll(stateful_set, update)
        await self._report(self._sets.get(*key) or stateful_set, update, current)

    def _own(self, stateful_set: JsonObject) -> list[JsonObject]:
        return self._pods.by("controller", stateful_set["metadata"]["uid"])

    @staticmethod
    def _current(stateful_set: JsonObject) -> str:
        """The hash of the revision that the pods below the partition keep."""
        name = f"{stateful_set['metadata']['name']}-"
        current: str = (stateful_set.get("status") or {}).get("currentRevision", "")
        return current.removeprefix(name)

    async def _raise(self, stateful_set: JsonObject, update: str, current: str) -> bool:
        """Create missing pods in order; return False if one must wait for another (OrderedReady)."""
        namespace, name = key_of(stateful_set)
        is_parallel = stateful_set["spec"].get("podManagementPolicy") == "Parallel"
        is_steady = True
        for ordinal in range(stateful_set["spec"].get("replicas", 1)):
            pod = self._pods.get(namespace, f"{name}-{ordinal}")
            if pod is None:
                revision = update if ordinal >= _partition(stateful_set) else current
                await self._create(stateful_set, ordinal, revision)
            elif is_finished(pod) and not is_terminating(pod):
                await self._delete(stateful_set, pod)
            elif is_ready(pod) and not is_terminating(pod):
                continue
            is_steady = False
            if not is_parallel:
                return False
        return is_steady

    async def _lower(self, stateful_set: JsonObject) -> bool:
        """Delete the highest pod that is too many, one at a time. Was there any?"""
        name, replicas = stateful_set["metadata"]["name"], stateful_set["spec"].get("replicas", 1)
        surplus = [(ordinal, pod) for pod in self._own(stateful_set) if (ordinal := _ordinal(pod, name)) >= replicas]
        if surplus and not any(is_terminating(pod) for _, pod in surplus):
            await self._delete(stateful_set, max(surplus, key=lambda found: found[0])[1])
        return bool(surplus)

    async def _roll(self, stateful_set: JsonObject, update: str) -> None:
        """All pods are Ready: let the highest one go that is of an older template."""
        if (stateful_set["spec"].get("updateStrategy") or {}).get("type") == "OnDelete":
            return
        namespace, name = key_of(stateful_set)
        for ordinal in reversed(range(_partition(stateful_set), stateful_set["spec"].get("replicas", 1))):
            pod = self._pods.get(namespace, f"{name}-{ordinal}")
            # A pod without a revision was made without one: it is left as it is.
            if pod is not None and _revision(pod) not in ("", update):
                await self._delete(stateful_set, pod)
                return

    async def _delete(self, stateful_set: JsonObject, pod: JsonObject) -> None:
        options = {"preconditions": {"uid": pod["metadata"]["uid"]}}
        status, _ = await self.ask("DELETE", path_of(PODS, *key_of(pod)), options, allow=(404, 409))
        if status == 200:
            message = f"delete Pod {key_of(pod)[1]} in StatefulSet {key_of(stateful_set)[1]} successful"
            await self._events.normal(stateful_set, "SuccessfulDelete", message)

    async def _create(self, stateful_set: JsonObject, ordinal: int, revision: str) -> None:
        namespace, set_name = key_of(stateful_set)
        name = f"{set_name}-{ordinal}"
        spec, made_of = stateful_set["spec"], self._revisions.template(stateful_set, revision)
        volumes = list(made_of["spec"].get("volumes") or [])
        for template in spec.get("volumeClaimTemplates") or ():
            claim = f"{template['metadata']['name']}-{name}"
            volumes.append({"name": template["metadata"]["name"], "persistentVolumeClaim": {"claimName": claim}})
            await self._claim(namespace, claim, template)
        metadata = {
            "name": name,
            "labels": {
                LABEL: f"{set_name}-{revision}",
                POD_NAME_LABEL: name,
                "apps.kubernetes.io/pod-index": str(ordinal),
            },
            "ownerReferences": [owner_reference("apps/v1", "StatefulSet", stateful_set)],
        }
        more = {"hostname": name, "subdomain": spec.get("serviceName", ""), "volumes": volumes}
        pod = await create_pod(self, namespace, pod_from(made_of, metadata, more))
        if pod is not None:
            self._pods.remember(pod)
            message = f"create Pod {name} in StatefulSet {set_name} successful"
            await self._events.normal(stateful_set, "SuccessfulCreate", message)

    async def _report(self, stateful_set: JsonObject, update: str, current: str) -> None:
        name, own = stateful_set["metadata"]["name"], self._own(stateful_set)
        ready = sum(1 for pod in own if is_ready(pod))
        updated = sum(1 for pod in own if _revision(pod) == update and not is_terminating(pod))
        if update and updated == ready == len(own) == stateful_set["spec"].get("replicas", 1):
            current = update
        status = {
            "observedGeneration": stateful_set["metadata"].get("generation", 1),
            "replicas": len(own),
            "currentReplicas": sum(1 for pod in own if _revision(pod) == current),
            "updatedReplicas": updated,
            "readyReplicas": ready,
            "availableReplicas": ready,
            **({"currentRevision": f"{name}-{current}", "updateRevision": f"{name}-{update}"} if update else {}),
        }
        await report(self, STATEFUL_SETS, stateful_set, status)

    async def _claim(self, namespace: str, name: str, template: JsonObject) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "labels": dict(template["metadata"].get("labels") or {})},
            "spec": template["spec"],
        }
        # 409: the claim of an earlier pod of this name, which is the point of it.
        await self.ask("POST", path_of(CLAIMS, namespace), body, allow=(403, 404, 409))


def _ordinal(pod: JsonObject, set_name: str) -> int:
    text: str = pod["metadata"]["name"].removeprefix(f"{set_name}-")
    return int(text) if text.isdigit() else -1


def _partition(stateful_set: JsonObject) -> int:
    """The ordinal from which on a new template is rolled out."""
    rolling = (stateful_set["spec"].get("updateStrategy") or {}).get("rollingUpdate") or {}
    partition: int = rolling.get("partition") or 0
    return partition


def _revision(pod: JsonObject) -> str:
    """The hash of the revision that a pod is made of, or ""."""
    return labels_of(pod).get(LABEL, "").rpartition("-")[2]
