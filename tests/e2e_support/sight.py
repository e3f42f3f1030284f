"""What the stories see: the cluster's events, from plain watches, in the order in which they came.

Independent of the controller under test and of its client. Nothing is polled: a story waits for a condition, which is
asked again at every change. The journal keeps every event, so that a story can ask afterwards what came before what;
resource versions tell that across kinds, as all of these objects live in one store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import anyio
from anyio.abc import TaskStatus
from kubesim.controllers.client import ApiClient, follow
from kubesim.controllers.objects import Key, is_finished, is_ready, is_terminating, key_of
from kubesim.server.api import JsonObject
from kubesim_support.patience import PATIENCE

from gracectl.runtime.clock import Clock


class Scope(NamedTuple):
    """What one watch follows: a kind, under a path, with a query."""

    kind: str
    path: str
    query: Mapping[str, str]


class Seen(NamedTuple):
    """One event: ADDED, MODIFIED or DELETED; `at` is the clock's monotonic time."""

    at: float
    kind: str
    type: str
    object: JsonObject

    @property
    def version(self) -> int:
        """The resource version of the event; that of a deletion is the deletion's."""
        return int(self.object["metadata"]["resourceVersion"])

    @property
    def uid(self) -> str:
        """Of the object."""
        uid: str = self.object["metadata"]["uid"]
        return uid


class ClusterWatcher:
    """The objects of some scopes as they are now, and the journal of how they came to be so."""

    def __init__(self, api: ApiClient, clock: Clock, *scopes: Scope) -> None:
        self.journal: list[Seen] = []
        self._api = api
        self._clock = clock
        self._scopes = scopes
        self._objects: dict[str, dict[Key, JsonObject]] = {scope.kind: {} for scope in scopes}
        self._changed = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled; started once every scope has been listed."""
        async with anyio.create_task_group() as group:
            for scope in self._scopes:
                await group.start(self._follow, scope)
            task_status.started()

    async def _follow(self, scope: Scope, *, task_status: TaskStatus[None]) -> None:
        is_first = True
        async for event in follow(self._api, scope.path, scope.query, self._clock):
            if event.type == "SYNCED":
                if is_first:
                    task_status.started()
                is_first = False
                continue
            self._take(scope.kind, event.type, event.object)

    def _take(self, kind: str, type_: str, object_: JsonObject) -> None:
        if type_ == "DELETED":
            self._objects[kind].pop(key_of(object_), None)
        else:
            self._objects[kind][key_of(object_)] = object_
        self.journal.append(Seen(self._clock.monotonic(), kind, type_, object_))
        self._changed.set()
        self._changed = anyio.Event()

    def get(self, kind: str, name: str, namespace: str = "") -> JsonObject | None:
        """The object as it is now."""
        return self._objects[kind].get((namespace, name))

    def all(self, kind: str, **labels: str) -> list[JsonObject]:
        """The objects of a kind, as they are now, that carry these labels."""
        return [o for o in self._objects[kind].values() if _carries(o, labels)]

    async def until(self, what: str, condition: Callable[[], object], *, seconds: float = PATIENCE) -> None:
        """Wait for a condition on what is seen. Raises AssertionError after so many seconds, with all there is."""
        with anyio.move_on_after(seconds):
            while not condition():
                await self._changed.wait()
            return
        raise AssertionError(f"not seen within {seconds:g} s: {what}\n{self._picture()}")

    def events(self, kind: str, uid: str) -> Iterator[Seen]:
        """What has happened to an object."""
        return (seen for seen in self.journal if seen.kind == kind and seen.uid == uid)

    def asked(self, pod: JsonObject) -> Seen | None:
        """When a pod was told to end: the first event that shows it terminating."""
        return next((seen for seen in self.events("Pod", pod["metadata"]["uid"]) if is_terminating(seen.object)), None)

    def gone(self, kind: str, object_: JsonObject) -> Seen | None:
        """When an object went."""
        events = self.events(kind, object_["metadata"]["uid"])
        return next((seen for seen in events if seen.type == "DELETED"), None)

    def over(self, pod: JsonObject) -> Seen | None:
        """When a pod's containers had ended: it was seen finished, or its object went."""
        events = self.events("Pod", pod["metadata"]["uid"])
        return next((seen for seen in events if seen.type == "DELETED" or is_finished(seen.object)), None)

    def lowest_health(self, since: int, **labels: str) -> int:
        """The fewest pods with these labels that were healthy at once after the first `since` events of the journal.

        Healthy as a budget counts it: Ready, and not told to end.
        """
        healthy: set[str] = set()
        lowest: int | None = None
        for number, seen in enumerate(self.journal):
            if number >= since:
                lowest = len(healthy) if lowest is None else min(lowest, len(healthy))
            if seen.kind != "Pod" or not _carries(seen.object, labels):
                continue
            if seen.type != "DELETED" and is_ready(seen.object) and not is_terminating(seen.object):
                healthy.add(seen.uid)
            else:
                healthy.discard(seen.uid)
        return len(healthy) if lowest is None else min(lowest, len(healthy))

    def _picture(self) -> str:
        lines = []
        for kind, objects in self._objects.items():
            for (namespace, name), object_ in objects.items():
                lines.append(f"  {kind} {namespace}/{name}: {_described(kind, object_)}")
        return "\n".join(lines)


def _carries(object_: JsonObject, labels: Mapping[str, str]) -> bool:
    return labels.items() <= (object_["metadata"].get("labels") or {}).items()


def _described(kind: str, object_: JsonObject) -> str:
    if kind == "Event":
        return f"{object_.get('reason')}: {object_.get('message')}"
    if kind == "PodDisruptionBudget":
        return str(object_.get("status"))
    metadata = object_["metadata"]
    ending = f", terminating since {metadata['deletionTimestamp']}" if is_terminating(object_) else ""
    where = f", on {object_['spec'].get('nodeName')}" if kind == "Pod" else f", finalizers {metadata.get('finalizers')}"
    ready = "Ready" if is_ready(object_) else "not Ready"
    messages = [c.get("message") for c in (object_.get("status") or {}).get("conditions") or () if c.get("message")]
    return f"{ready}{where}{ending} {messages}"
