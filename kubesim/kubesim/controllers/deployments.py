"""Deployments: one ReplicaSet per template, and a rolling update from the old ones to the newest.

Supports `kubectl rollout status`, `history`, `undo`, `pause` and `restart`. Invariant: each step is decided by the
status of the ReplicaSets, so an interrupted rollout continues.
"""

from __future__ import annotations

from kubesim.controllers import rollout
from kubesim.controllers.client import MERGE
from kubesim.controllers.controller import Controller, enqueue_own, enqueue_owner
from kubesim.controllers.events import Recorder
from kubesim.controllers.informers import Informers
from kubesim.controllers.objects import (
    Key,
    annotations_of,
    condition_of,
    controller_of,
    controller_uid,
    is_finished,
    is_terminating,
    key_of,
    labels_of,
    owner_reference,
)
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import DEPLOYMENTS, PODS, REPLICA_SETS, path_of
from kubesim.controllers.replicasets import HASH_LABEL, report, template_hash
from kubesim.controllers.rollout import Bounds, Plan, SetState, bounds_of
from kubesim.server.api import JsonObject
from kubesim.values import format_time, parse_time

PREFIX = "deployment.kubernetes.io/"
REVISION, DESIRED, MAXIMUM = f"{PREFIX}revision", f"{PREFIX}desired-replicas", f"{PREFIX}max-replicas"
NOT_COPIED = (
    REVISION,
    DESIRED,
    MAXIMUM,
    f"{PREFIX}revision-history",
    "kubectl.kubernetes.io/last-applied-configuration",
)
NEVER = 2**31 - 1
"""A progressDeadlineSeconds that is never over."""


class Deployments(Controller[Key]):
    """Keys: Deployments."""

    def __init__(self, informers: Informers, pace: Pace, *, events: bool = True) -> None:
        super().__init__(informers, pace, DEPLOYMENTS, REPLICA_SETS, PODS)
        self._events = Recorder(informers.api, pace, "deployment-controller", enabled=events)
        self._deployments = informers.of(DEPLOYMENTS)
        self._sets = informers.of(REPLICA_SETS)
        self._pods = informers.of(PODS)
        self._sets.index("controller", lambda found: (controller_uid(found),))
        self._pods.index("controller", lambda pod: (controller_uid(pod),))
        enqueue_own(self._deployments, self.queue.add)
        enqueue_owner(self._sets, "Deployment", self.queue.add)
        self._pods.subscribe(self._pod_changed)

    def _pod_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        """Recreate waits for pods to be gone; the ReplicaSet has ceased to count them by then."""
        owner = controller_of(old) if old is not None and new is None else None
        if old is None or owner is None or owner["kind"] != "ReplicaSet":
            return
        replica_set = self._sets.get(key_of(old)[0], owner["name"])
        above = controller_of(replica_set) if replica_set is not None else None
        if above is not None and above["kind"] == "Deployment":
            key = (key_of(old)[0], above["name"])
            deployment = self._deployments.get(*key)
            if deployment is not None and _is_recreated(deployment):
                self.queue.add(key)

    async def reconcile(self, key: Key) -> None:
        """See Controller.reconcile."""
        deployment = self._deployments.get(*key)
        if deployment is None:
            return
        if not is_terminating(deployment):
            if not await self._is_scaled(deployment) and not deployment["spec"].get("paused"):
                await self._roll(deployment)
            await self._clean_up(deployment)
        # Its revision may have been written meanwhile.
        await self._report(self._deployments.get(*key) or deployment)

    # -- which sets there are ------------------------------------------------------------------------------------------

    def _own(self, deployment: JsonObject) -> tuple[JsonObject | None, list[JsonObject]]:
        """The set of the present template, and the others, oldest first."""
        digest = template_hash(deployment["spec"]["template"])
        own = sorted(self._sets.by("controller", deployment["metadata"]["uid"]), key=_age)
        current = next((found for found in own if labels_of(found).get(HASH_LABEL) == digest), None)
        return current, [found for found in own if found is not current]

    async def _is_scaled(self, deployment: JsonObject) -> bool:
        """Has `spec.replicas` changed since the sets were last scaled? Then scale them, without rolling on."""
        current, old = self._own(deployment)
        sets = [found for found in ([current] if current else []) + old[::-1] if _replicas(found)]
        bounds = bounds_of(deployment["spec"])
        wanted = str(bounds.replicas)
        if all(annotations_of(found).get(DESIRED, wanted) == wanted for found in sets):
            return False
        newest = sets[0]
        if len(sets) == 1:
            plan: Plan = {newest["metadata"]["name"]: bounds.replicas}
        elif _is_recreated(deployment):
            return False
        else:
            before = int(annotations_of(newest).get(MAXIMUM) or bounds.replicas + bounds.surge)
            plan = rollout.scale_in_proportion(bounds, [_state(found) for found in sets], before)
        for found in sets:
            await self._scale(deployment, found, plan.get(found["metadata"]["name"], _replicas(found)), bounds)
        return True

    # -- rolling -------------------------------------------------------------------------------------------------------

    async def _roll(self, deployment: JsonObject) -> None:
        bounds = bounds_of(deployment["spec"])
        current, old = self._own(deployment)
        recreate = _is_recreated(deployment)
        if recreate and old:
            for found in old:
                await self._scale(deployment, found, 0, bounds)
            if any(self._has_pods(found) for found in old):
                return
        elsewhere = sum(map(_replicas, old))
        if current is None:
            replicas = bounds.replicas if recreate else rollout.next_of_new(bounds, 0, elsewhere)
            current = await self._create(deployment, old, replicas, bounds)
            if current is None:
                return
        else:
            here = _replicas(current)
            wanted = bounds.replicas if recreate else rollout.next_of_new(bounds, here, here + elsewhere)
            await self._scale(deployment, current, wanted, bounds)
        await self._number(deployment, current, old)
        current, old = self._own(deployment)
        if current is not None and not recreate:
            plan = rollout.shrink_old(bounds, _state(current), [_state(found) for found in old])
            for found in old:
                name = found["metadata"]["name"]
                if name in plan:
                    await self._scale(deployment, found, plan[name], bounds)

    def _has_pods(self, replica_set: JsonObject) -> bool:
        return any(not is_finished(pod) for pod in self._pods.by("controller", replica_set["metadata"]["uid"]))

    async def _create(
        self, deployment: JsonObject, old: list[JsonObject], replicas: int, bounds: Bounds
    ) -> JsonObject | None:
        namespace, name = key_of(deployment)
        spec = deployment["spec"]
        digest = template_hash(spec["template"])
        metadata = spec["template"].get("metadata") or {}
        labels = {**(metadata.get("labels") or {}), HASH_LABEL: digest}
        body = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{name}-{digest}",
                "labels": labels,
                "annotations": {
                    **_copied(deployment),
                    **_sizes(bounds),
                    REVISION: str(max(map(_revision, old), default=0) + 1),
                },
                "ownerReferences": [owner_reference("apps/v1", "Deployment", deployment)],
            },
            "spec": {
                "replicas": replicas,
                **({"minReadySeconds": spec["minReadySeconds"]} if spec.get("minReadySeconds") else {}),
                "selector": {
                    **spec["selector"],
                    "matchLabels": {**(spec["selector"].get("matchLabels") or {}), HASH_LABEL: digest},
                },
                "template": {**spec["template"], "metadata": {**metadata, "labels": labels}},
            },
        }
        # 403: the namespace has begun to go. 409: the view is behind, or the name is taken.
        status, created = await self.ask("POST", path_of(REPLICA_SETS, namespace), body, allow=(403, 404, 409))
        if status != 201:
            return None
        self._sets.remember(created)
        if replicas:
            message = f"Scaled up replica set {name}-{digest} from 0 to {replicas}"
            await self._events.normal(deployment, "ScalingReplicaSet", message)
        found: JsonObject = created
        return found

    async def _scale(self, deployment: JsonObject, replica_set: JsonObject, replicas: int, bounds: Bounds) -> None:
        before, sizes = _replicas(replica_set), _sizes(bounds)
        annotations = annotations_of(replica_set)
        if before == replicas and all(annotations.get(key) == value for key, value in sizes.items()):
            return
        patch: JsonObject = {"metadata": {"annotations": sizes}}
        if before != replicas:
            patch["spec"] = {"replicas": replicas}
        path = path_of(REPLICA_SETS, *key_of(replica_set))
        status, answer = await self.ask("PATCH", path, patch, content_type=MERGE, allow=(404,))
        if status != 200:
            return
        self._sets.remember(answer)
        if before != replicas:
            way = "up" if replicas > before else "down"
            name = replica_set["metadata"]["name"]
            message = f"Scaled {way} replica set {name} from {before} to {replicas}"
            await self._events.normal(deployment, "ScalingReplicaSet", message)

    async def _number(self, deployment: JsonObject, current: JsonObject, old: list[JsonObject]) -> None:
        """The newest set has the highest revision, and the Deployment says which that is."""
        revision = max(_revision(current), max(map(_revision, old), default=0) + 1)
        wanted = {**_copied(deployment), REVISION: str(revision)}
        for path, object_, notes in (
            (REPLICA_SETS, current, wanted),
            (DEPLOYMENTS, deployment, {REVISION: str(revision)}),
        ):
            have = annotations_of(object_)
            if any(have.get(key) != value for key, value in notes.items()):
                patch = {"metadata": {"annotations": notes}}
                where = path_of(path, *key_of(object_))
                status, answer = await self.ask("PATCH", where, patch, content_type=MERGE, allow=(404,))
                if status == 200:
                    self.informers.of(path).remember(answer)

    async def _clean_up(self, deployment: JsonObject) -> None:
        """Forget the oldest revisions beyond the limit, once the present one is complete."""
        current, old = self._own(deployment)
        if current is None or not _is_complete(deployment, self._numbers(deployment)):
            return
        idle = [found for found in old if not _replicas(found) and not (found.get("status") or {}).get("replicas")]
        surplus = len(old) - deployment["spec"].get("revisionHistoryLimit", 10)
        for found in sorted(idle, key=_revision)[: max(0, surplus)]:
            if not is_terminating(found):
                options = {"preconditions": {"uid": found["metadata"]["uid"]}}
                await self.ask("DELETE", path_of(REPLICA_SETS, *key_of(found)), options, allow=(404, 409))

    # -- status --------------------------------------------------------------------------------------------------------

    def _numbers(self, deployment: JsonObject) -> dict[str, int]:
        current, old = self._own(deployment)
        own = [*old, *([current] if current else [])]

        def total(field: str, sets: list[JsonObject]) -> int:
            return sum((found.get("status") or {}).get(field, 0) for found in sets)

        available = total("availableReplicas", own)
        return {
            "observedGeneration": deployment["metadata"].get("generation", 1),
            "replicas": total("replicas", own),
            "updatedReplicas": total("replicas", [current] if current else []),
            "readyReplicas": total("readyReplicas", own),
            "availableReplicas": available,
            "unavailableReplicas": max(0, sum(map(_replicas, own)) - available),
        }

    async def _report(self, deployment: JsonObject) -> None:
        numbers = self._numbers(deployment)
        bounds = bounds_of(deployment["spec"])
        if numbers["availableReplicas"] >= bounds.replicas - bounds.unavailable:
            words = ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        else:
            words = ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        conditions = [self._condition(deployment, "Available", *words)]
        progress = self._progress(deployment, numbers)
        if progress is not None:
            conditions.append(progress)
        await report(self, DEPLOYMENTS, deployment, {**numbers, "conditions": conditions})

    def _progress(self, deployment: JsonObject, numbers: dict[str, int]) -> JsonObject | None:
        """The condition Progressing; None where no deadline is set."""
        deadline = deployment["spec"].get("progressDeadlineSeconds", 600)
        current, _ = self._own(deployment)
        before = condition_of(deployment, "Progressing")
        if deadline >= NEVER:
            return None
        if deployment["spec"].get("paused"):
            return self._condition(deployment, "Progressing", "Unknown", "DeploymentPaused", "Deployment is paused")
        subject = f'ReplicaSet "{current["metadata"]["name"]}"' if current else f'Deployment "{key_of(deployment)[1]}"'
        if _is_complete(deployment, numbers):
            words = ("True", "NewReplicaSetAvailable", f"{subject} has successfully progressed.")
            return self._condition(deployment, "Progressing", *words)
        if before is not None and before["reason"] == "NewReplicaSetAvailable":
            if numbers["replicas"] == numbers["updatedReplicas"]:
                return before  # Only its size changes.
            before = None
        if before is None or before["reason"] == "DeploymentPaused":
            return self._condition(
                deployment, "Progressing", "True", "NewReplicaSetCreated", f"{subject} is progressing.", moved=True
            )
        if _has_moved(deployment, numbers):
            words = ("True", "ReplicaSetUpdated", f"{subject} is progressing.")
            return self._condition(deployment, "Progressing", *words, moved=True)
        left = parse_time(before["lastUpdateTime"]) + self.pace.real(deadline) - self.pace.clock.now()
        if left > 0:
            # A little later than exactly then: at the very instant it is not over.
            self.queue.add_after(key_of(deployment), left + 0.001)
            return before
        words = ("False", "ProgressDeadlineExceeded", f"{subject} has timed out progressing.")
        return self._condition(deployment, "Progressing", *words)

    def _condition(
        self, deployment: JsonObject, type_: str, status: str, reason: str, message: str, *, moved: bool = False
    ) -> JsonObject:
        """A condition; unless something has moved, one that says the same is the same."""
        before, now = condition_of(deployment, type_), format_time(self.pace.clock.now())
        if before is not None and not moved and (before["status"], before["reason"]) == (status, reason):
            return before
        since = before["lastTransitionTime"] if before is not None and before["status"] == status else now
        return {
            "type": type_,
            "status": status,
            "lastUpdateTime": now,
            "lastTransitionTime": since,
            "reason": reason,
            "message": message,
        }


def _is_recreated(deployment: JsonObject) -> bool:
    """Do its old pods end before the new ones begin?"""
    strategy: dict[str, object] = deployment["spec"].get("strategy") or {}
    return strategy.get("type") == "Recreate"


def _age(replica_set: JsonObject) -> tuple[str, int]:
    return replica_set["metadata"].get("creationTimestamp", ""), _revision(replica_set)


def _replicas(replica_set: JsonObject) -> int:
    replicas: int = replica_set["spec"].get("replicas", 1)
    return replicas


def _state(replica_set: JsonObject) -> SetState:
    available = (replica_set.get("status") or {}).get("availableReplicas", 0)
    return SetState(replica_set["metadata"]["name"], _replicas(replica_set), available)


def _revision(object_: JsonObject) -> int:
    text = annotations_of(object_).get(REVISION, "")
    return int(text) if text.isdigit() else 0


def _sizes(bounds: Bounds) -> dict[str, str]:
    return {DESIRED: str(bounds.replicas), MAXIMUM: str(bounds.replicas + bounds.surge)}


def _copied(deployment: JsonObject) -> dict[str, str]:
    """The annotations of a Deployment that its ReplicaSets bear, too (kubernetes.io/change-cause, for the history)."""
    return {key: value for key, value in annotations_of(deployment).items() if key not in NOT_COPIED}


def _is_complete(deployment: JsonObject, numbers: dict[str, int]) -> bool:
    wanted: int = deployment["spec"].get("replicas", 1)
    return numbers["updatedReplicas"] == numbers["replicas"] == numbers["availableReplicas"] == wanted


def _has_moved(deployment: JsonObject, numbers: dict[str, int]) -> bool:
    """Has the rolling update come further since the last report?"""
    before = deployment.get("status") or {}

    def old(numbers_: JsonObject) -> int:
        return int(numbers_.get("replicas", 0)) - int(numbers_.get("updatedReplicas", 0))

    return (
        numbers["updatedReplicas"] > before.get("updatedReplicas", 0)
        or old(numbers) < old(before)
        or numbers["readyReplicas"] > before.get("readyReplicas", 0)
        or numbers["availableReplicas"] > before.get("availableReplicas", 0)
    )
