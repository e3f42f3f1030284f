"""The base of all controllers: keys in, `reconcile`, and again later when the server refused."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from kubesim.controllers.client import JSON, Disconnected, Refused, ask
from kubesim.controllers.informers import Informer, Informers
from kubesim.controllers.objects import Key, key_of
from kubesim.controllers.pace import Pace
from kubesim.controllers.workqueue import WorkQueue
from kubesim.server.api import Json, JsonObject

K = TypeVar("K", bound=Hashable)


class Controller(Generic[K]):
    """Level-based: a key says that something may have changed; `reconcile` reads the views and acts. Subclasses set
    `needs` (collections that must be complete first)."""

    workers = 4

    def __init__(self, informers: Informers, pace: Pace, *needs: str) -> None:
        self.informers = informers
        self.api = informers.api
        self.pace = pace
        chance = pace.chance("backoff", type(self).__name__)
        self.queue: WorkQueue[K] = WorkQueue(pace.clock, pace.real(0.05), pace.real(5.0), chance)
        self._needs = [informers.of(path) for path in needs]

    async def run(self) -> None:
        """Process keys until cancelled."""
        for informer in self._needs:
            await informer.synced.wait()
        await self.queue.run(self.reconcile, self.workers, (Refused, Disconnected))

    async def reconcile(self, key: K) -> None:
        """Bring what the key names closer to what it should be. May raise Refused, Disconnected: it is tried again."""
        raise NotImplementedError

    def after(self, key: K, seconds: float) -> None:
        """Reconcile a key again in so many simulated seconds."""
        self.queue.add_after(key, self.pace.real(seconds))

    async def ask(
        self,
        method: str,
        path: str,
        body: Json = None,
        *,
        content_type: str = JSON,
        allow: tuple[int, ...] = (),
    ) -> tuple[int, Json]:
        """See client.ask."""
        return await ask(self.api, method, path, body, content_type=content_type, allow=allow)


def enqueue_own(informer: Informer, add: Callable[[Key], None]) -> None:
    """Queue the key of every object of a view that changes."""

    def changed(old: JsonObject | None, new: JsonObject | None) -> None:
        object_ = new if new is not None else old
        if object_ is not None:
            add(key_of(object_))

    informer.subscribe(changed)


def enqueue_owner(informer: Informer, kind: str, add: Callable[[Key], None]) -> None:
    """Queue the controller, if it is of that kind, of every object of a view that changes."""

    def changed(old: JsonObject | None, new: JsonObject | None) -> None:
        for object_ in (old, new):
            if object_ is None:
                continue
            for owner in object_["metadata"].get("ownerReferences") or ():
                if owner["kind"] == kind:
                    add((object_["metadata"].get("namespace", ""), owner["name"]))

    informer.subscribe(changed)
