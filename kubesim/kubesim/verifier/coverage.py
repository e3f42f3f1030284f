"""Coverage of the verifier: for how long it saw nothing.

A resumed watch has missed nothing; a new list has, and only the outcome is known. This sits between a verifier and its
API server and separates the two.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import msgspec

from kubesim.clock import Clock
from kubesim.controllers.client import JSON, ApiClient, Event
from kubesim.server.api import Json


class Blindness(msgspec.Struct, frozen=True):
    """Nothing is known of what happened between these instants (epoch seconds) but how it ended."""

    since: float
    until: float

    @property
    def seconds(self) -> float:
        """How long it was, at most: it is counted from the last event that was seen."""
        return self.until - self.since


class ObservedApi:
    """A ApiClient for one `follow`; `is_listing` while what it yields comes from a list rather than from a watch."""

    def __init__(self, api: ApiClient, clock: Clock) -> None:
        self.is_listing = True
        self.blind: list[Blindness] = []
        self._api = api
        self._clock = clock
        self._last_seen: float | None = None

    async def call(
        self,
        method: str,
        path: str,
        body: Json = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
    ) -> tuple[int, Json]:
        """See ApiClient.call. Following calls for lists only."""
        self.is_listing = True
        return await self._api.call(method, path, body, query=query, content_type=content_type)

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[Event, None]:
        """See ApiClient.watch."""
        async with aclosing(self._api.watch(path, query)) as events:
            async for event in events:
                if event.type == "ERROR":
                    yield event
                    return
                self._last_seen = self._clock.now()
                yield event
        # The server's own end of a watch comes after everything that it had to say.
        self._last_seen = self._clock.now()

    def synced(self) -> None:
        """The list is complete: what was missed, if anything was, is over."""
        now = self._clock.now()
        if self._last_seen is not None:
            self.blind.append(Blindness(self._last_seen, now))
        self._last_seen = now
        self.is_listing = False
