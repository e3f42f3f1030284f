"""Volumes: a claim gets a volume; the volume is attached to the node of the pods that use it, and detached after them.

Plays the provisioner, the attach/detach controller (VolumeAttachments), and the CSI attacher, which blocks the deletion
of a VolumeAttachment with a finalizer until the volume is detached.
"""

from __future__ import annotations

import hashlib

from kubesim.controllers.client import MERGE
from kubesim.controllers.controller import Controller, enqueue_own
from kubesim.controllers.informers import Informers
from kubesim.controllers.objects import Key, is_finished, is_terminating, key_of, labels_of, node_of, phase_of
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import ATTACHMENTS, CLAIMS, PODS, VOLUMES, path_of
from kubesim.server.api import JsonObject
from kubesim.server.selectors import label_query

DRIVER = "csi.kubesim"
FINALIZER = "external-attacher/csi-kubesim"


def claims_of(pod: JsonObject) -> tuple[str, ...]:
    """The names of the claims that a pod uses; a generic ephemeral volume's claim is `<pod>-<volume>`."""
    names = []
    for volume in pod["spec"].get("volumes") or ():
        if "persistentVolumeClaim" in volume:
            names.append(volume["persistentVolumeClaim"]["claimName"])
        elif "ephemeral" in volume:
            names.append(f"{pod['metadata']['name']}-{volume['name']}")
    return tuple(names)


def attachment_name(volume: str, node: str) -> str:
    """The name of the attachment of a volume to a node, as the real controller makes it."""
    return f"csi-{hashlib.sha256(f'{volume}{DRIVER}{node}'.encode()).hexdigest()}"


def place_of(attachment: JsonObject) -> str:
    """`<node>/<volume>`: what is attached where."""
    spec = attachment["spec"]
    return f"{spec['nodeName']}/{spec['source'].get('persistentVolumeName', '')}"


class Provisioner(Controller[Key]):
    """Binds Pending claims: to the volume they name, to one reserved for them, or to a new one. Keys: claims."""

    def __init__(self, informers: Informers, pace: Pace) -> None:
        super().__init__(informers, pace, CLAIMS, VOLUMES)
        self._claims = informers.of(CLAIMS)
        self._volumes = informers.of(VOLUMES)
        self._volumes.index("claim", _reserved_for)
        enqueue_own(self._claims, self.queue.add)

    async def reconcile(self, key: Key) -> None:
        """See Controller.reconcile."""
        claim = self._claims.get(*key)
        if claim is None or is_terminating(claim) or (claim.get("status") or {}).get("phase") == "Bound":
            return
        volume = await self._volume(claim)
        bound: JsonObject = {"phase": "Bound"}
        room = {field: volume["spec"][field] for field in ("capacity", "accessModes") if field in volume["spec"]}
        for path, status in (
            (path_of(CLAIMS, *key, "status"), {**bound, **room}),
            (path_of(VOLUMES, "", volume["metadata"]["name"], "status"), bound),
        ):
            await self.ask("PATCH", path, {"status": status}, content_type=MERGE, allow=(404,))

    async def _volume(self, claim: JsonObject) -> JsonObject:
        """The volume for a claim, which names it from now on."""
        metadata, spec = claim["metadata"], claim["spec"]
        wanted = _volume_for(claim)
        if named := spec.get("volumeName"):
            return self._volumes.get("", named) or {**wanted, "metadata": {"name": named}}
        reserved = self._volumes.by("claim", f"{metadata['namespace']}/{metadata['name']}")
        ours = next((each for each in reserved if each["spec"]["claimRef"].get("uid") in (None, metadata["uid"])), None)
        if ours is None:
            await self.ask("POST", VOLUMES, wanted, allow=(409,))
        else:
            patch = {"spec": {"claimRef": wanted["spec"]["claimRef"]}}
            path = path_of(VOLUMES, "", ours["metadata"]["name"])
            await self.ask("PATCH", path, patch, content_type=MERGE, allow=(404,))
            wanted = ours
        patch = {"spec": {"volumeName": wanted["metadata"]["name"]}}
        path = path_of(CLAIMS, *key_of(claim))
        await self.ask("PATCH", path, patch, content_type=MERGE, allow=(404,))
        return wanted


def _reserved_for(volume: JsonObject) -> tuple[str, ...]:
    """`<namespace>/<name>` of the claim that a volume is kept for."""
    claim = volume["spec"].get("claimRef")
    return (f"{claim.get('namespace', '')}/{claim.get('name', '')}",) if claim else ()


def _volume_for(claim: JsonObject) -> JsonObject:
    """A new volume, made for a claim."""
    metadata, spec = claim["metadata"], claim["spec"]
    name = f"pvc-{metadata['uid']}"
    reference = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": (spec.get("resources") or {}).get("requests", {}).get("storage", "1Gi")},
            "accessModes": spec.get("accessModes") or ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            **({"storageClassName": spec["storageClassName"]} if spec.get("storageClassName") else {}),
            "csi": {"driver": DRIVER, "volumeHandle": name},
            "claimRef": reference,
        },
    }


class Attachments(Controller[Key]):
    """Keys: (node, volume). One attachment for each pair that a pod needs, none for the others."""

    def __init__(
        self,
        informers: Informers,
        pace: Pace,
        *,
        attach_delay: float = 0.0,
        detach_delay: float = 0.0,
        unstage_delay: float = 0.0,
        node_plugin: str = "",
    ) -> None:
        """Simulated seconds until a volume is attached, unstaged after its last pod, and detached. `node_plugin`: see
        PartOptions. Raises Refusal for an invalid selector."""
        super().__init__(informers, pace, PODS, CLAIMS, VOLUMES, ATTACHMENTS)
        self._attach_delay = attach_delay
        self._detach_delay = detach_delay
        self._unstage_delay = unstage_delay
        self._node_plugin = label_query(node_plugin) if node_plugin else None
        self._pods = informers.of(PODS)
        self._claims = informers.of(CLAIMS)
        self._volumes = informers.of(VOLUMES)
        self._attachments = informers.of(ATTACHMENTS)
        self._due: dict[tuple[str, str], float] = {}
        self._pods.index("claims", claim_keys)
        self._pods.index("node", lambda pod: (node_of(pod),))
        self._attachments.index("node", lambda attachment: (attachment["spec"]["nodeName"],))
        self._claims.index("volume", lambda claim: (claim["spec"].get("volumeName") or "",))
        self._pods.subscribe(self._pod_changed)
        self._claims.subscribe(self._claim_changed)
        self._attachments.subscribe(self._attachment_changed)

    def _pod_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        for pod in (old, new):
            if pod is not None and node_of(pod):
                for volume in self._volumes_of(pod):
                    self.queue.add((node_of(pod), volume))
                if self._is_plugin(pod):
                    for attachment in self._attachments.by("node", node_of(pod)):
                        self._attachment_changed(None, attachment)

    def _claim_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        volume = new["spec"].get("volumeName") if new is not None else None
        if new is not None and volume and (old is None or not old["spec"].get("volumeName")):
            for pod in self._pods.by("claims", "/".join(key_of(new))):
                if node_of(pod):
                    self.queue.add((node_of(pod), volume))

    def _attachment_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        attachment = new if new is not None else old
        if attachment is not None and attachment["spec"]["attacher"] == DRIVER:
            spec = attachment["spec"]
            self.queue.add((spec["nodeName"], spec["source"].get("persistentVolumeName", "")))

    def _volumes_of(self, pod: JsonObject) -> list[str]:
        namespace = pod["metadata"].get("namespace", "")
        claims = (self._claims.get(namespace, name) for name in claims_of(pod))
        return [claim["spec"]["volumeName"] for claim in claims if claim and claim["spec"].get("volumeName")]

    def _is_needed(self, node: str, volume: str) -> bool:
        return any(
            node_of(pod) == node and not is_finished(pod)
            for claim in self._claims.by("volume", volume)
            for pod in self._pods.by("claims", "/".join(key_of(claim)))
        )

    def _is_plugin(self, pod: JsonObject) -> bool:
        return self._node_plugin is not None and self._node_plugin.matches(labels_of(pod))

    def _can_be_unstaged(self, node: str) -> bool:
        """Does the node have the plugin that this takes? A pod that is stopping still does it."""
        on_node = self._pods.by("node", node)
        return self._node_plugin is None or any(self._is_plugin(pod) and phase_of(pod) == "Running" for pod in on_node)

    def _can_be_attached(self, volume: str) -> bool:
        """Unless it is known to be of a kind that is only mounted (hostPath, NFS)."""
        found = self._volumes.get("", volume)
        return found is None or "csi" in found["spec"]

    async def reconcile(self, key: Key) -> None:
        """See Controller.reconcile."""
        node, volume = key
        name = attachment_name(volume, node)
        attachment = self._attachments.get("", name)
        is_needed = self._is_needed(node, volume)
        if is_needed or attachment is None:
            self._due.pop((name, "unstage"), None)
        if attachment is None:
            self._due.pop((name, "attach"), None)
            self._due.pop((name, "detach"), None)
            if is_needed and self._can_be_attached(volume):
                await self._create(name, node, volume)
        elif is_terminating(attachment):
            if self._has_come((name, "detach"), self._detach_delay, key):
                await self._let_go(attachment)
        elif not is_needed:
            if self._has_come((name, "unstage"), self._unstage_delay, key) and self._can_be_unstaged(node):
                await self._delete(attachment)
        elif not (attachment.get("status") or {}).get("attached") and self._has_come(
            (name, "attach"), self._attach_delay, key
        ):
            path = path_of(ATTACHMENTS, "", name, "status")
            patch = {"status": {"attached": True}}
            status, answer = await self.ask("PATCH", path, patch, content_type=MERGE, allow=(404,))
            if status == 200:
                self._attachments.remember(answer)

    def _has_come(self, what: tuple[str, str], delay: float, key: Key) -> bool:
        """Is the delay over that began when this was first asked?"""
        now = self.pace.clock.monotonic()
        left = self._due.setdefault(what, now + self.pace.real(delay)) - now
        if left > 1e-6:
            self.queue.add_after(key, left)
            return False
        return True

    async def _create(self, name: str, node: str, volume: str) -> None:
        body = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "VolumeAttachment",
            "metadata": {"name": name, "finalizers": [FINALIZER]},
            "spec": {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": volume}},
        }
        status, answer = await self.ask("POST", ATTACHMENTS, body, allow=(409,))
        if status == 201:
            self._attachments.remember(answer)

    async def _delete(self, attachment: JsonObject) -> None:
        options = {"preconditions": {"uid": attachment["metadata"]["uid"]}}
        path = path_of(ATTACHMENTS, name=attachment["metadata"]["name"])
        await self.ask("DELETE", path, options, allow=(404, 409))

    async def _let_go(self, attachment: JsonObject) -> None:
        left = [each for each in attachment["metadata"].get("finalizers") or () if each != FINALIZER]
        patch = {"metadata": {"uid": attachment["metadata"]["uid"], "finalizers": left or None}}
        path = path_of(ATTACHMENTS, name=attachment["metadata"]["name"])
        await self.ask("PATCH", path, patch, content_type=MERGE, allow=(404, 409, 422))


def claim_keys(pod: JsonObject) -> tuple[str, ...]:
    """The claims that a pod uses, as `<namespace>/<name>`."""
    return tuple(f"{pod['metadata'].get('namespace', '')}/{name}" for name in claims_of(pod))
