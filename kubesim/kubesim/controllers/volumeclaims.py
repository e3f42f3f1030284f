"""Controllers of volume claims: claims of generic ephemeral volumes, and the protection of claims in use.

Invariant: no claim loses its protection while a pod that may still run uses it, no volume while it is bound.
"""

from __future__ import annotations

from kubesim.controllers.attachments import claim_keys
from kubesim.controllers.client import MERGE
from kubesim.controllers.controller import Controller, enqueue_own
from kubesim.controllers.informers import Informers
from kubesim.controllers.objects import Key, is_finished, is_terminating, key_of, owner_reference
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import CLAIMS, PODS, VOLUMES, path_of
from kubesim.server.api import JsonObject

CLAIM_PROTECTION, VOLUME_PROTECTION = "kubernetes.io/pvc-protection", "kubernetes.io/pv-protection"


class EphemeralClaims(Controller[Key]):
    """Makes the claims of generic ephemeral volumes, each owned by its pod. Keys: pods."""

    def __init__(self, informers: Informers, pace: Pace) -> None:
        super().__init__(informers, pace, PODS, CLAIMS)
        self._pods = informers.of(PODS)
        self._claims = informers.of(CLAIMS)
        self._pods.subscribe(self._pod_changed)
        self._claims.subscribe(self._claim_changed)

    def _pod_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if old is None and new is not None and _templates(new):
            self.queue.add(key_of(new))

    def _claim_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if new is None and old is not None:
            for owner in old["metadata"].get("ownerReferences") or ():
                if owner["kind"] == "Pod":
                    self.queue.add((key_of(old)[0], owner["name"]))

    async def reconcile(self, key: Key) -> None:
        """See Controller.reconcile."""
        pod = self._pods.get(*key)
        if pod is None or is_terminating(pod) or is_finished(pod):
            return
        for volume, template in _templates(pod).items():
            name = f"{key[1]}-{volume}"
            if self._claims.get(key[0], name) is None:
                metadata = template.get("metadata") or {}
                body = {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {
                        "name": name,
                        "labels": dict(metadata.get("labels") or {}),
                        "annotations": dict(metadata.get("annotations") or {}),
                        "ownerReferences": [owner_reference("v1", "Pod", pod)],
                    },
                    "spec": template["spec"],
                }
                # 403: the namespace has begun to go.
                await self.ask("POST", path_of(CLAIMS, key[0]), body, allow=(403, 404, 409))


class VolumeProtection(Controller[tuple[str, str, str]]):
    """Lets claims go that are not in use, and volumes that are not bound; a volume goes with its claim if
    its reclaim policy says so. Keys: (collection, namespace, name).
    """

    def __init__(self, informers: Informers, pace: Pace) -> None:
        super().__init__(informers, pace, PODS, CLAIMS, VOLUMES)
        self._pods = informers.of(PODS)
        self._claims = informers.of(CLAIMS)
        self._volumes = informers.of(VOLUMES)
        self._pods.index("claims", claim_keys)
        enqueue_own(self._claims, lambda key: self.queue.add((CLAIMS, *key)))
        enqueue_own(self._volumes, lambda key: self.queue.add((VOLUMES, *key)))
        self._pods.subscribe(self._pod_changed)

    def _pod_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if old is not None and (new is None or is_finished(new)):
            for key in claim_keys(old):
                namespace, _, name = key.partition("/")
                self.queue.add((CLAIMS, namespace, name))

    async def reconcile(self, key: tuple[str, str, str]) -> None:
        """See Controller.reconcile."""
        path, namespace, name = key
        object_ = self.informers.of(path).get(namespace, name)
        if path == CLAIMS:
            await self._look_at_claim(object_, namespace, name)
        elif object_ is not None:
            await self._look_at_volume(object_)

    async def _look_at_claim(self, claim: JsonObject | None, namespace: str, name: str) -> None:
        if claim is None:
            # Its volume notices that it is not bound.
            for volume in self._volumes.values():
                reference = volume["spec"].get("claimRef") or {}
                if (reference.get("namespace"), reference.get("name")) == (namespace, name):
                    self.queue.add((VOLUMES, *key_of(volume)))
        elif is_terminating(claim):
            users = self._pods.by("claims", f"{namespace}/{name}")
            if not any(not is_finished(pod) for pod in users):
                await self._drop(CLAIMS, claim, CLAIM_PROTECTION)

    async def _look_at_volume(self, volume: JsonObject) -> None:
        reference = volume["spec"].get("claimRef")
        claim = self._claims.get(reference["namespace"], reference["name"]) if reference else None
        is_bound = claim is not None and reference is not None and claim["metadata"]["uid"] == reference.get("uid")
        name = volume["metadata"]["name"]
        phase = (volume.get("status") or {}).get("phase")
        if is_terminating(volume):
            if not is_bound:
                await self._drop(VOLUMES, volume, VOLUME_PROTECTION)
        elif phase == "Bound" and not is_bound:
            patch = {"status": {"phase": "Released"}}
            path = path_of(VOLUMES, name=name, subresource="status")
            await self.ask("PATCH", path, patch, content_type=MERGE, allow=(404,))
        elif phase == "Released" and volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete":
            options = {"preconditions": {"uid": volume["metadata"]["uid"]}}
            await self.ask("DELETE", path_of(VOLUMES, name=name), options, allow=(404, 409))

    async def _drop(self, path: str, object_: JsonObject, finalizer: str) -> None:
        finalizers = object_["metadata"].get("finalizers") or []
        if finalizer in finalizers:
            left = [each for each in finalizers if each != finalizer]
            version = object_["metadata"]["resourceVersion"]
            patch = {"metadata": {"finalizers": left or None, "resourceVersion": version}}
            await self.ask("PATCH", path_of(path, *key_of(object_)), patch, content_type=MERGE, allow=(404, 409, 422))


def _templates(pod: JsonObject) -> dict[str, JsonObject]:
    """The claim templates of its generic ephemeral volumes, by volume."""
    return {
        volume["name"]: volume["ephemeral"]["volumeClaimTemplate"]
        for volume in pod["spec"].get("volumes") or ()
        if "ephemeral" in volume
    }
