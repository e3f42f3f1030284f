"""The revisions of StatefulSets and DaemonSets: one ControllerRevision per template, which `kubectl rollout` reads."""

from __future__ import annotations

from kubesim.controllers.client import MERGE
from kubesim.controllers.controller import Controller
from kubesim.controllers.objects import Key, controller_uid, key_of, labels_of, owner_reference
from kubesim.controllers.paths import REVISIONS, path_of
from kubesim.controllers.replicasets import template_hash
from kubesim.server.api import JsonObject

LABEL = "controller-revision-hash"


class Revisions:
    """Keeps the revisions of the workloads of one controller (of a `kind` of apps/v1)."""

    def __init__(self, controller: Controller[Key], kind: str) -> None:
        self._controller = controller
        self._kind = kind
        self._revisions = controller.informers.of(REVISIONS)
        self._revisions.index("controller", lambda found: (controller_uid(found),))

    async def present(self, workload: JsonObject, in_use: frozenset[str]) -> str:
        """The hash of the present template, recorded as the newest revision; forgets the oldest that no pod is made of
        (`in_use`: hashes) beyond revisionHistoryLimit. Raises Refused, Disconnected.
        """
        digest = template_hash(workload["spec"]["template"])
        own = sorted(self._revisions.by("controller", workload["metadata"]["uid"]), key=_number)
        present = next((found for found in own if labels_of(found).get(LABEL) == digest), None)
        number = max(map(_number, own), default=0)
        if present is None:
            await self._create(workload, digest, number + 1)
        elif _number(present) < number:
            path = path_of(REVISIONS, *key_of(present))
            patch = {"revision": number + 1}
            status, answer = await self._controller.ask("PATCH", path, patch, content_type=MERGE, allow=(404, 409))
            if status == 200:
                self._revisions.remember(answer)
        idle = [found for found in own if labels_of(found).get(LABEL) not in in_use | {digest}]
        for found in idle[: max(0, len(idle) - workload["spec"].get("revisionHistoryLimit", 10))]:
            await self._controller.ask("DELETE", path_of(REVISIONS, *key_of(found)), allow=(404, 409))
        return digest

    def template(self, workload: JsonObject, digest: str) -> JsonObject:
        """The template of a revision; the present one if it is not known (any more)."""
        for found in self._revisions.by("controller", workload["metadata"]["uid"]):
            if labels_of(found).get(LABEL) == digest:
                kept = found["data"]["spec"]["template"]
                return {key: value for key, value in kept.items() if key != "$patch"}
        template: JsonObject = workload["spec"]["template"]
        return template

    async def _create(self, workload: JsonObject, digest: str, number: int) -> None:
        namespace, name = key_of(workload)
        template = workload["spec"]["template"]
        body = {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {
                "name": f"{name}-{digest}",
                "labels": {**((template.get("metadata") or {}).get("labels") or {}), LABEL: digest},
                "ownerReferences": [owner_reference("apps/v1", self._kind, workload)],
            },
            # A strategic merge patch that leads back to this revision.
            "data": {"spec": {"template": {**template, "$patch": "replace"}}},
            "revision": number,
        }
        # 403: the namespace has begun to go.
        path = path_of(REVISIONS, namespace)
        status, created = await self._controller.ask("POST", path, body, allow=(403, 404, 409))
        if status == 201:
            self._revisions.remember(created)


def _number(revision: JsonObject) -> int:
    number: int = revision.get("revision", 0)
    return number
