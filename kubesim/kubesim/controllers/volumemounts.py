"""What of volumes a kubelet waits for: a pod starts when its claims are bound and attached to its node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from kubesim.controllers.attachments import claims_of, place_of
from kubesim.controllers.informers import Informers
from kubesim.controllers.objects import Key, key_of, node_of
from kubesim.controllers.paths import ATTACHMENTS, CLAIMS, VOLUMES
from kubesim.server.api import JsonObject


class Mounts:
    """Knows whether the volumes of a pod are present; wakes pods that wait for a volume."""

    def __init__(self, informers: Informers, wake: Callable[[Key], None]) -> None:
        """`wake` is called with the key of a pod when its volumes may be present."""
        self._wake = wake
        self._claims = informers.of(CLAIMS)
        self._volumes = informers.of(VOLUMES)
        self._attachments = informers.of(ATTACHMENTS)
        self._attachments.index("place", lambda attachment: (place_of(attachment),))
        self._waiting: defaultdict[str, dict[Key, None]] = defaultdict(dict)
        for informer in (self._claims, self._volumes, self._attachments):
            informer.subscribe(self._changed)

    def _changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if new is not None:
            for key in self._waiting.pop(_mark(new), ()):
                self._wake(key)

    def are_there(self, pod: JsonObject) -> bool:
        """Are all volumes of this bound pod attached? If not, it is woken when what it waits for first has changed."""
        names = claims_of(pod)
        missing = self._missing(pod, names) if names else ""
        if missing:
            self._waiting[missing][key_of(pod)] = None
        return not missing

    def _missing(self, pod: JsonObject, names: tuple[str, ...]) -> str:
        """The mark of what is not there yet, or ""."""
        namespace = key_of(pod)[0]
        for name in names:
            claim = self._claims.get(namespace, name)
            if claim is None or (claim.get("status") or {}).get("phase") != "Bound":
                return f"PersistentVolumeClaim/{namespace}/{name}"
            volume_name = claim["spec"]["volumeName"]
            volume = self._volumes.get("", volume_name)
            if volume is None:
                return f"PersistentVolume//{volume_name}"
            if "csi" not in volume["spec"]:
                continue  # Nothing that needs to be attached.
            place = f"{node_of(pod)}/{volume_name}"
            attached = any((each.get("status") or {}).get("attached") for each in self._attachments.by("place", place))
            if not attached:
                return f"VolumeAttachment/{place}"
        return ""


def _mark(object_: JsonObject) -> str:
    if object_["kind"] == "VolumeAttachment":
        return f"VolumeAttachment/{place_of(object_)}"
    return "/".join((object_["kind"], *key_of(object_)))
