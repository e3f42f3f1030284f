"""Static pods: run by a kubelet from its own files, shown to the server as mirror pods.

Deleting a mirror pod only makes the kubelet create a new one while the node exists; the process continues.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import orjson

from kubesim.controllers.client import ask
from kubesim.controllers.informers import Informers
from kubesim.controllers.objects import controller_uid, is_terminating, key_of
from kubesim.controllers.paths import NODES, PODS, path_of
from kubesim.server.api import JsonObject

NAMESPACE = "kube-system"


class StaticPods:
    """Static pods of one kubelet's nodes. `is_up`: whether a node's kubelet runs; `look_at`: requeue a static pod."""

    def __init__(self, informers: Informers, is_up: Callable[[str], bool], look_at: Callable[[str, str], None]) -> None:
        self._api = informers.api
        self._pods = informers.of(PODS)
        self._nodes = informers.of(NODES)
        self._is_up = is_up
        self._look_at = look_at
        self._manifests: dict[str, dict[str, JsonObject]] = {}

    def add(self, node: str, manifest: JsonObject) -> None:
        """Put a pod manifest (metadata.name without the node's name) into the kubelet's folder."""
        self._manifests.setdefault(node, {})[manifest["metadata"]["name"]] = manifest
        self.wake(node)

    def wake(self, node: str) -> None:
        """Look after the static pods of a node again."""
        for name in self._manifests.get(node, ()):
            self._look_at(node, name)

    async def reconcile(self, node_name: str, name: str) -> None:
        """Make the mirror pod what it should be: there, and of the node that there is now."""
        if not self._is_up(node_name):
            return
        manifest = self._manifests[node_name][name]
        existing = self._pods.get(manifest["metadata"].get("namespace", NAMESPACE), f"{name}-{node_name}")
        node = self._nodes.get("", node_name)
        if existing is not None and (is_terminating(existing) or _is_of_another(existing, node)):
            await self._finish_off(existing)
        elif existing is None and node is not None:
            wanted = mirror_pod(manifest, node)
            path = path_of(PODS, wanted["metadata"]["namespace"])
            status, answer = await ask(self._api, "POST", path, wanted, allow=(409,))
            if status == 201:
                self._pods.remember(answer)

    async def _finish_off(self, pod: JsonObject) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        await ask(self._api, "DELETE", path_of(PODS, *key_of(pod)), options, allow=(404, 409))


def mirror_pod(manifest: JsonObject, node: JsonObject) -> JsonObject:
    """The mirror pod of a static pod on a node."""
    metadata, node_metadata = manifest["metadata"], node["metadata"]
    digest = hashlib.md5(orjson.dumps(manifest), usedforsecurity=False).hexdigest()
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{metadata['name']}-{node_metadata['name']}",
            "namespace": metadata.get("namespace", NAMESPACE),
            "labels": dict(metadata.get("labels") or {}),
            "annotations": {
                **(metadata.get("annotations") or {}),
                "kubernetes.io/config.hash": digest,
                "kubernetes.io/config.mirror": digest,
                "kubernetes.io/config.source": "file",
            },
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "name": node_metadata["name"],
                    "uid": node_metadata["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": {
            "tolerations": [{"operator": "Exists", "effect": "NoExecute"}],
            **manifest["spec"],
            "nodeName": node_metadata["name"],
        },
    }


def _is_of_another(pod: JsonObject, node: JsonObject | None) -> bool:
    """Does it belong to an earlier node of that name?"""
    return node is not None and controller_uid(pod) != node["metadata"]["uid"]
