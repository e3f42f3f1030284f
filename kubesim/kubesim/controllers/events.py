"""Events of the controllers and kubelets (core/v1), written as client-go's recorder writes them.

Invariant: a refused Event (terminating namespace, missing right) is dropped. A repeated Event raises the count.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Literal

from kubesim.controllers.client import MERGE, ApiClient, ask
from kubesim.controllers.objects import key_of
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import EVENTS, path_of
from kubesim.server.api import JsonObject
from kubesim.values import format_time

REMEMBERED = 4096
"""How many different things a recorder knows to have said (client-go: maxLruCacheEntries)."""

REFUSALS = (400, 403, 404, 409, 422, 429, 500, 503)
Said = tuple[str, str, str, str]


class Recorder:
    """Writes the Events of one component. `enabled` False: says nothing."""

    def __init__(self, api: ApiClient, pace: Pace, component: str, *, enabled: bool = True) -> None:
        self._api = api
        self._pace = pace
        self._component = component
        self._enabled = enabled
        self._said: OrderedDict[Said, tuple[str, int]] = OrderedDict()

    async def normal(self, about: JsonObject, reason: str, message: str) -> None:
        """Say something ordinary about an object. Raises Disconnected."""
        await self._say(about, "Normal", reason, message)

    async def warn(self, about: JsonObject, reason: str, message: str) -> None:
        """Say something worrying about an object. Raises Disconnected."""
        await self._say(about, "Warning", reason, message)

    async def _say(self, about: JsonObject, type_: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        if not self._enabled:
            return
        namespace = key_of(about)[0] or "default"
        said = (about["metadata"]["uid"], type_, reason, message)
        now = self._pace.clock.now()
        name, count = self._said.get(said, ("", 0))
        if name:
            more = {"count": count + 1, "lastTimestamp": format_time(now)}
            path = path_of(EVENTS, namespace, name)
            status, _ = await ask(self._api, "PATCH", path, more, content_type=MERGE, allow=REFUSALS)
            if status == 200:
                self._remember(said, name, count + 1)
                return
        event = self._event(about, type_, reason, message)
        status, _ = await ask(self._api, "POST", path_of(EVENTS, namespace), event, allow=REFUSALS)
        if status == 201:
            self._remember(said, event["metadata"]["name"], 1)

    def _event(self, about: JsonObject, type_: str, reason: str, message: str) -> JsonObject:
        namespace, name = key_of(about)
        now = self._pace.clock.now()
        uid = about["metadata"]["uid"]
        # client-go takes the nanoseconds of the clock; on virtual time many things happen in one of them.
        unique = hashlib.sha256(f"{uid}/{reason}/{message}/{now}".encode()).hexdigest()[:16]
        involved = {
            "kind": about["kind"],
            "apiVersion": about["apiVersion"],
            **({"namespace": namespace} if namespace else {}),
            "name": name,
            "uid": uid,
            "resourceVersion": about["metadata"].get("resourceVersion", ""),
        }
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name[:230]}.{unique}", "namespace": namespace or "default"},
            "involvedObject": involved,
            "type": type_,
            "reason": reason,
            "message": message,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "firstTimestamp": format_time(now),
            "lastTimestamp": format_time(now),
            "count": 1,
        }

    def _remember(self, said: Said, name: str, count: int) -> None:
        self._said[said] = (name, count)
        self._said.move_to_end(said)
        if len(self._said) > REMEMBERED:
            self._said.popitem(last=False)
