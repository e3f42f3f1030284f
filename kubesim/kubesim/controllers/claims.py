"""Which pods a ReplicaSet owns: it releases pods that its selector does not match, and adopts orphans that it matches.

Rules of kube-controller-manager's `controller_ref_manager.go` (recording replica-set-release). Only active pods change
hands, only while their owner is not terminating, and an adoption first reads the owner anew. Invariant: a pod is
examined when its labels or its controller change, not at every reconcile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from kubesim.controllers.client import STRATEGIC, Disconnected, Refused
from kubesim.controllers.controller import Controller
from kubesim.controllers.informers import Informers
from kubesim.controllers.objects import (
    Key,
    controller_of,
    controller_uid,
    is_active,
    is_terminating,
    key_of,
    label_keys,
    labels_of,
    owner_reference,
)
from kubesim.controllers.paths import PODS, REPLICATION_CONTROLLERS, path_of
from kubesim.server.api import JsonObject
from kubesim.server.selectors import LabelSelector, read_selector


class Claims:
    """The pods of all ReplicaSets, or of all ReplicationControllers."""

    def __init__(
        self, controller: Controller[Key], informers: Informers, collection: str, owner: tuple[str, str]
    ) -> None:
        """`owner`: apiVersion and kind of the objects in `collection`."""
        self._controller = controller
        self._collection = collection
        self._api_version, self._kind = owner
        self._pods = informers.of(PODS)
        self._sets = informers.of(collection)
        self._unexamined: dict[str, dict[Key, None]] = defaultdict(dict)
        self._pods.index("orphans", lambda pod: label_keys(pod) if is_active(pod) and not controller_uid(pod) else ())
        self._sets.index("selected label", lambda found: (self._selected_label(found),))
        self._pods.subscribe(self._pod_changed)
        self._sets.subscribe(self._set_changed)

    def _selector(self, owner: JsonObject) -> LabelSelector | None:
        raw = owner["spec"].get("selector")
        return read_selector({"matchLabels": raw} if self._collection == REPLICATION_CONTROLLERS and raw else raw)

    def _selected_label(self, owner: JsonObject) -> str:
        """The key of `label_keys` under which every pod that the owner selects is found."""
        selector = self._selector(owner)
        labels = selector.match_labels.items() if selector is not None else ()
        return f"{key_of(owner)[0]}/{next((f'{key}={value}' for key, value in labels), '')}"

    def _pod_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if new is None:
            return
        if old is not None and labels_of(old) == labels_of(new) and controller_uid(old) == controller_uid(new):
            return
        owner = controller_of(new)
        if owner is not None:
            if owner["kind"] == self._kind:
                self._unexamined[owner["uid"]][key_of(new)] = None
            return
        for found in self._that_select(new):
            self._unexamined[found["metadata"]["uid"]][key_of(new)] = None
            self._controller.queue.add(key_of(found))

    def _that_select(self, pod: JsonObject) -> Iterator[JsonObject]:
        for label in label_keys(pod):
            for found in self._sets.by("selected label", label):
                selector = self._selector(found)
                if selector is not None and selector.matches(labels_of(pod)):
                    yield found

    def _set_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        """A new owner may find orphans that were there before it; a selector that changes may lose pods."""
        if new is None:
            if old is not None:
                self._unexamined.pop(old["metadata"]["uid"], None)
            return
        if old is not None and old["spec"].get("selector") == new["spec"].get("selector"):
            return
        uid = new["metadata"]["uid"]
        for pod in (*self._pods.by("active", uid), *self._pods.by("orphans", self._selected_label(new))):
            self._unexamined[uid][key_of(pod)] = None

    async def settle(self, owner: JsonObject) -> None:
        """Release and adopt what has changed. Raises Refused, Disconnected: call it again."""
        uid = owner["metadata"]["uid"]
        if is_terminating(owner) or uid not in self._unexamined:
            return
        unexamined = self._unexamined.pop(uid)
        selector = self._selector(owner)
        try:
            for key in tuple(unexamined):
                pod = self._pods.get(*key)
                if pod is not None and is_active(pod) and selector is not None:
                    await self._claim(owner, pod, is_selected=selector.matches(labels_of(pod)))
                del unexamined[key]
        except (Refused, Disconnected):
            self._unexamined[uid].update(unexamined)
            raise

    async def _claim(self, owner: JsonObject, pod: JsonObject, *, is_selected: bool) -> None:
        holder, uid = controller_uid(pod), owner["metadata"]["uid"]
        if holder == uid and not is_selected:
            # 422: another pod has the name, or the reference is gone.
            await self._patch(pod, {"$patch": "delete", "uid": uid}, allow=(404, 422))
        elif not holder and is_selected and await self._may_adopt(owner):
            await self._patch(pod, owner_reference(self._api_version, self._kind, owner), allow=(404,))

    async def _may_adopt(self, owner: JsonObject) -> bool:
        status, fresh = await self._controller.ask("GET", path_of(self._collection, *key_of(owner)), allow=(404,))
        return status == 200 and fresh["metadata"]["uid"] == owner["metadata"]["uid"] and not is_terminating(fresh)

    async def _patch(self, pod: JsonObject, reference: JsonObject, *, allow: tuple[int, ...]) -> None:
        patch = {"metadata": {"uid": pod["metadata"]["uid"], "ownerReferences": [reference]}}
        path = path_of(PODS, *key_of(pod))
        status, answer = await self._controller.ask("PATCH", path, patch, content_type=STRATEGIC, allow=allow)
        if status == 200:
            self._pods.remember(answer)
