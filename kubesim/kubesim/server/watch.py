"""A watch: a position in a table's log, a filter, and a timeout (recordings watch-changes, watch-versions).

With a selector, an object that starts to match is ADDED; one that stops to match is DELETED, as it last matched; other
changes are silent. A watcher behind the window gets one ERROR event and the end of the stream.
"""

from __future__ import annotations

import base64
import math
import random
from collections import deque
from collections.abc import Mapping, Sequence

import orjson

from kubesim.server.api import Interrupted, JsonObject, StreamEvent
from kubesim.server.options import check_match, integer, is_true, version_number
from kubesim.server.resource import Resource
from kubesim.server.routing import Route
from kubesim.server.selectors import Match, object_match
from kubesim.server.status import expired
from kubesim.server.store import Change, Store, Table, TooOldError
from kubesim.server.timers import Timers

BOOKMARK_SECONDS = 60.0
BOOKMARK_BEFORE_END = 2.0
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
INITIAL_LIST = "kubernetes.io/initial-events-list-blueprint"
"""Of which a client that asked for a list by watching it (client-go) makes its list."""
WATCH_SECONDS = 1800.0
"""A watch that names no timeoutSeconds is ended by the server after this and up to twice as long."""


class Watched:
    """What one watch looks at: a view of a table, a namespace (None: all) and a filter (None: everything)."""

    def __init__(self, resource: Resource, namespace: str | None, match: Match | None) -> None:
        self.resource = resource
        self.namespace = namespace
        self._match = match

    def matches(self, object_: JsonObject | None) -> bool:
        """Whether the watch shows the object (None, an object that was not there: no)."""
        if object_ is None:
            return False
        if self.namespace is not None and object_["metadata"].get("namespace", "") != self.namespace:
            return False
        return self._match is None or self._match(object_)

    def event(self, change: Change) -> StreamEvent | None:
        """What a change means to this watch, or None if it is none of its business."""
        before = self.matches(change.previous)
        after = change.type != "DELETED" and self.matches(change.object)
        if after:
            type_ = "MODIFIED" if before else "ADDED"
        elif before:
            type_ = "DELETED"
        else:
            return None
        view = self.resource.view
        return change.event(type_, self.resource.view_name, view.from_stored if view else None)


class WatchStream:
    """The events of one watch. Ends by itself after `seconds`; may be closed at any moment."""

    def __init__(
        self,
        store: Store,
        table: Table,
        watched: Watched,
        timers: Timers,
        *,
        seconds: float,
        bookmarks: bool,
    ) -> None:
        self._store = store
        self._table = table
        self._watched = watched
        self._clock = timers.clock
        self._timers = timers
        self._end = self._clock.monotonic() + seconds
        self._takes_bookmarks = bookmarks
        self._bookmark = self._next_bookmark() if bookmarks else math.inf
        self._ready: deque[StreamEvent] = deque()
        self._position = table.position
        self._after = 0
        self._ended = False
        self._sleeps = False
        self._interrupted = False

    def start_with(self, objects: Sequence[JsonObject]) -> None:
        """Show these objects as ADDED before anything else."""
        self._ready.extend(StreamEvent("ADDED", self._watched.resource.shown(object_)) for object_ in objects)

    def end_initial_events(self) -> None:
        """Say by a bookmark, if the watcher takes any, that everything there is has been shown (sendInitialEvents)."""
        if self._takes_bookmarks:
            resource = self._watched.resource
            said = {INITIAL_EVENTS_END: "true", INITIAL_LIST: empty_list(resource.list_name, resource.api_version)}
            self._ready.append(self._bookmark_event(said))

    def start_after(self, revision: int) -> None:
        """Show every change newer than `revision`, which may lie in the future. Raises TooOldError."""
        self._position = self._table.position_after(revision)
        self._after = revision

    def fail(self, body: JsonObject) -> None:
        """End the stream with one ERROR event."""
        self._ready.append(StreamEvent("ERROR", body))
        self._ended = True

    def __aiter__(self) -> WatchStream:
        return self

    async def __anext__(self) -> StreamEvent:
        while True:
            if self._ready:
                return self._ready.popleft()
            if self._ended:
                raise StopAsyncIteration
            self._read()
            if not self._ready and not self._ended:
                await self._sleep()
                if self._interrupted:
                    self._interrupted = False
                    raise Interrupted

    def _read(self) -> None:
        try:
            changes = self._table.changes(self._position)
        except TooOldError as error:
            self.fail(too_old(self._after, error))
            return
        self._position += len(changes)
        for change in changes:
            if change.revision > self._after:
                self._after = change.revision
                event = self._watched.event(change)
                if event is not None:
                    self._ready.append(event)

    async def _sleep(self) -> None:
        now = self._clock.monotonic()
        if now >= self._end:
            self._ended = True
        elif now >= self._bookmark:
            self._ready.append(self._bookmark_event())
            self._bookmark = self._next_bookmark()
        else:
            self._sleeps = True
            try:
                await self._table.wait(min(self._end, self._bookmark, self._timers.next) - now)
            finally:
                self._sleeps = False
            self._timers.catch_up()

    def _next_bookmark(self) -> float:
        now = self._clock.monotonic()
        regular, last = now + BOOKMARK_SECONDS, self._end - BOOKMARK_BEFORE_END
        if regular < last:
            return regular
        return last if last > now else math.inf

    def _bookmark_event(self, annotations: JsonObject | None = None) -> StreamEvent:
        resource = self._watched.resource
        metadata: JsonObject = {
            "resourceVersion": str(max(self._after, self._store.revision)),
            "creationTimestamp": None,
            **({"annotations": annotations} if annotations else {}),
        }
        body: JsonObject = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        return StreamEvent("BOOKMARK", {**body, **resource.strategy.empty})

    def interrupt(self) -> None:
        """See EventStream."""
        self._interrupted = self._sleeps
        self._table.wake()

    async def aclose(self) -> None:
        """Stop. The next read ends the stream."""
        self._ready.clear()
        self._ended = True


class Watches:
    """Opens watches."""

    def __init__(self, store: Store, timers: Timers, rng: random.Random) -> None:
        self._store = store
        self._timers = timers
        self._random = rng

    def open(self, route: Route, query: Mapping[str, str]) -> WatchStream:
        """A watch of an object or a collection, as its query wants it. Raises Refusal (400, 422, 500)."""
        check_match(query, watch=True)
        seconds = float(integer(query.get("timeoutSeconds") or "0"))
        revision = version_number(query.get("resourceVersion") or "0", watch=True)
        table = self._store.table(route.resource.table)
        if route.name:
            query = {**query, "fieldSelector": f"metadata.name={route.name}"}
        watched = Watched(route.resource, route.namespace, object_match(query, route.resource))
        stream = WatchStream(
            self._store,
            table,
            watched,
            self._timers,
            seconds=seconds or WATCH_SECONDS * (1 + self._random.random()),
            bookmarks=is_true(query, "allowWatchBookmarks"),
        )
        wants_initial = is_true(query, "sendInitialEvents")
        if wants_initial or not (revision or "sendInitialEvents" in query):
            stream.start_with([object_ for object_ in table.listed(route.namespace) if watched.matches(object_)])
            if wants_initial:
                stream.end_initial_events()
        elif revision:
            if not route.resource.watch_cached and revision < self._store.compacted:
                stream.fail(expired("The resourceVersion for the provided watch is too old.").body())
            try:
                stream.start_after(revision)
            except TooOldError as error:
                stream.fail(too_old(revision, error))
        return stream


def empty_list(kind: str, api_version: str) -> str:
    """A list of that kind with nothing in it, as base64 of its JSON."""
    empty = {"kind": kind, "apiVersion": api_version, "metadata": {}, "items": []}
    return base64.b64encode(orjson.dumps(empty)).decode()


def too_old(revision: int, error: TooOldError) -> JsonObject:
    """The Status that ends a watch that begins at a version older than the log."""
    return expired(f"too old resource version: {revision} ({error})").body()
