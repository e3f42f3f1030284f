"""A client that lists and watches as informers do, and holds what it is shown against the lists."""

from __future__ import annotations

import random
from typing import Any

import anyio
from kubesim.server.api import EventStream, Response

from kubesim_support.caller import Caller

Key = tuple[str, str]


class Watcher:
    """Follows one collection. `faults`: in which ways it was deceived."""

    def __init__(self, caller: Caller, rng: random.Random, path: str, query: dict[str, str]) -> None:
        self._caller = caller
        self._rng = rng
        self._path = path
        self._query = query
        self._state: dict[Key, Any] = {}
        self._version = 0
        self.faults: list[str] = []
        self.events = 0
        self.expired = 0

    async def run(self) -> None:
        """List and watch for ever."""
        while True:
            follows = await self._list()
            while follows:
                follows = await self._watch()

    async def _page(self, **query: str) -> Response:
        return await self._caller.call("GET", self._path, headers={}, **self._query, **query)

    async def _list(self) -> bool:
        """Read everything in pages; False if the past was forgotten meanwhile."""
        page = await self._page(limit=str(self._rng.randrange(3)))
        items = list(page.body["items"])
        self._version = int(page.body["metadata"]["resourceVersion"])
        while token := page.body["metadata"].get("continue"):
            await anyio.sleep(self._rng.random() / 5)
            page = await self._page(limit="2", **{"continue": token})
            if page.status == 410:
                return False
            items += page.body["items"]
            self._expect(int(page.body["metadata"]["resourceVersion"]) == self._version, "a page of another version")
        self._state = by_key(items)
        self._expect(len(self._state) == len(items), "an object is listed twice")
        return True

    async def _watch(self) -> bool:
        """Follow changes until the server ends it; False if it has forgotten the version."""
        query = {"resourceVersion": str(self._version), "timeoutSeconds": str(self._rng.choice((1, 3, 90)))}
        await anyio.sleep(self._rng.random())
        stream = await self._caller.watch(self._path, allowWatchBookmarks="true", **self._query, **query)
        try:
            return await self._follow(stream)
        finally:
            await stream.aclose()

    async def _follow(self, stream: EventStream) -> bool:
        async for event in stream:
            if event.type == "ERROR":
                self._expect(event.object["code"] == 410, str(event.object))
                self.expired += 1
                return False
            version = int(event.object["metadata"]["resourceVersion"])
            if event.type == "BOOKMARK":
                self._expect(version >= self._version, "a bookmark from the past")
            else:
                self._expect(version > self._version, f"{event} is no news")
                self._change(event.type, event.object)
            self._version = version
            if self._rng.random() < 0.1:
                await self.compare(resourceVersion=str(version), resourceVersionMatch="Exact")
        return True

    def _change(self, type_: str, object_: Any) -> None:
        self.events += 1
        [(key, value)] = by_key([object_]).items()
        self._expect((key in self._state) is (type_ != "ADDED"), f"{type_} {key}, which was otherwise")
        if type_ == "DELETED":
            self._state.pop(key, None)
        else:
            self._state[key] = value

    async def compare(self, **query: str) -> None:
        """Hold what has been seen against a list."""
        listed = await self._page(**query)
        if listed.status == 200:
            self._expect(by_key(listed.body["items"]) == self._state, f"the list shows something else {query}")

    def _expect(self, holds: bool, fault: str) -> None:
        if not holds:
            self.faults.append(f"{self._path} {self._query} at {self._version}: {fault}")


def by_key(objects: list[Any]) -> dict[Key, Any]:
    """Objects by namespace and name, without what only some lists tell."""
    return {
        (each["metadata"].get("namespace", ""), each["metadata"]["name"]): {
            name: value for name, value in each.items() if name not in ("kind", "apiVersion")
        }
        for each in objects
    }
