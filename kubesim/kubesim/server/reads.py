"""GET and LIST: which revision a reader sees, and in what pages (recordings list-pages, list-versions).

All pages of a list show the state at the first page. A list may request an exact past version, a minimum version, or
(resourceVersion=0) the cache, which ignores `limit`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence

import msgspec
import orjson

from kubesim.clock import Clock
from kubesim.server.api import JsonObject
from kubesim.server.calls import Call
from kubesim.server.options import check_match, integer, version_number
from kubesim.server.resource import Resource
from kubesim.server.routing import Route
from kubesim.server.selectors import Match, object_match
from kubesim.server.status import bad_request, expired, internal, not_found, too_large_version
from kubesim.server.store import Snapshot, Store, TooOldError, sort_key

FUTURE_WAIT = 3.0
"""Seconds a read waits for a version that has not happened yet before it gives up with 504."""

PAGE_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)
NEWEST = -1


class Token(msgspec.Struct, frozen=True):
    """What a `continue` token says: the version of the first page (-1: whatever is newest) and the last key shown."""

    revision: int
    after: str

    def text(self) -> str:
        """The token as clients see it."""
        raw = orjson.dumps({"v": "meta.k8s.io/v1", "rv": self.revision, "start": self.after})
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def read_token(text: str) -> Token:
    """Read a token. Raises Refusal (400)."""
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise bad_request("invalid continue token: continue key is not valid: illegal base64 data") from None
    try:
        parsed = orjson.loads(raw)
        return Token(revision=int(parsed["rv"]), after=str(parsed["start"]))
    except (ValueError, KeyError, TypeError):
        first = raw[:1].decode("latin-1")
        why = f"invalid character '{first}' looking for beginning of value"
        raise bad_request(f"invalid continue token: continue key is not valid: {why}") from None


class Page(msgspec.Struct, frozen=True):
    """Some objects of a list, its version, and what follows."""

    objects: Sequence[JsonObject]
    revision: int
    token: str = ""
    remaining: int | None = None


class Reader:
    """Answers GET and LIST from the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def get(self, call: Call) -> JsonObject:
        """One object in the version asked for. Raises Refusal (404, 504)."""
        route = call.route
        await self._await_version(call.query.get("resourceVersion", ""))
        table = self._store.table(route.resource.table)
        past = self._past(call)
        found = table.at(past).get(sort_key(*route.key)) if past else table.get(*route.key)
        if found is None:
            raise not_found(route.resource.words, route.name)
        return route.resource.shown(found)

    async def list(self, call: Call) -> JsonObject:
        """A list object. Raises Refusal (400, 410, 422, 500, 504)."""
        query = call.query
        past = self._past(call)
        if past and not query.get("continue"):  # further pages show what the first one did
            query = {**query, "resourceVersion": str(past), "resourceVersionMatch": "Exact"}
        return list_object(call.route.resource, await self.page(call.route, query))

    def _past(self, call: Call) -> int:
        """The version that a read sees which lags behind, as far back as anything is known (0: the newest)."""
        if not call.past:
            return 0
        return max(call.past, self._store.table(call.route.resource.table).oldest, self._store.compacted)

    async def page(self, route: Route, query: Mapping[str, str]) -> Page:
        """The objects of a list. Raises Refusal."""
        match = object_match(query, route.resource)
        wanted = check_match(query, watch=False)
        limit = max(integer(query.get("limit") or "0"), 0)  # a negative limit is none
        token = query.get("continue", "")
        version = query.get("resourceVersion", "")
        if token:
            if version not in ("", "0"):
                raise bad_request("specifying resource version is not allowed when using continue")
            return self._next_page(route, match, limit, read_token(token))
        if version in ("", "0"):
            return self._newest(route, match, limit if version == "" else 0)
        number = version_number(version)
        if wanted == "Exact" or (limit and not wanted):
            return self._exact(route, match, limit, number)
        await self._await_version(version)
        return self._newest(route, match, limit)

    async def _await_version(self, version: str) -> None:
        if version and version_number(version) > self._store.revision:
            await self._clock.sleep(FUTURE_WAIT)
            if version_number(version) > self._store.revision:
                raise too_large_version(int(version), self._store.revision)

    def _newest(self, route: Route, match: Match | None, limit: int) -> Page:
        table, revision = self._store.table(route.resource.table), self._store.revision
        if match is not None:
            found = table.matching(route.namespace, match)
            if not limit or len(found) < limit:
                return Page(found, revision)
        if limit:
            return self._cut(self._snapshot(route, revision), route, match, limit)
        return Page(table.listed(route.namespace), revision)

    def _exact(self, route: Route, match: Match | None, limit: int, revision: int) -> Page:
        if revision > self._store.revision:
            raise internal("etcdserver: mvcc: required revision is a future revision")
        try:
            snapshot = self._snapshot(route, revision)
        except TooOldError:
            raise expired("The resourceVersion for the provided list is too old.") from None
        return self._cut(snapshot, route, match, limit)

    def _next_page(self, route: Route, match: Match | None, limit: int, token: Token) -> Page:
        revision = self._store.revision if token.revision == NEWEST else token.revision
        try:
            snapshot = self._snapshot(route, revision)
        except TooOldError:
            refusal = expired(PAGE_TOO_OLD)
            refusal.metadata = {"continue": Token(NEWEST, token.after).text()}
            raise refusal from None
        return self._cut(snapshot, route, match, limit, token.after)

    def _snapshot(self, route: Route, revision: int) -> Snapshot:
        return self._store.snapshot(self._store.table(route.resource.table), revision)

    def _cut(self, snapshot: Snapshot, route: Route, match: Match | None, limit: int, after: str = "") -> Page:
        start, end = snapshot.bounds(route.namespace)
        if after:
            start = max(start, snapshot.after(after))
        if match is None:
            stop = min(end, start + limit) if limit else end
            found = snapshot.objects[start:stop]
        else:
            found, stop = [], start
            while stop < end and (not limit or len(found) < limit):
                if match(snapshot.objects[stop]):
                    found.append(snapshot.objects[stop])
                stop += 1
        if stop >= end:
            return Page(found, snapshot.revision)
        token = Token(snapshot.revision, snapshot.keys[stop - 1]).text()
        return Page(found, snapshot.revision, token, end - stop if match is None else None)


def list_object(resource: Resource, page: Page) -> JsonObject:
    """A page as the list object that clients read; items of built-in kinds carry neither kind nor apiVersion."""
    metadata: JsonObject = {"resourceVersion": str(page.revision)}
    if resource.strategy.untyped:
        metadata["continue"] = ""
    if page.token:
        metadata["continue"] = page.token
        if page.remaining is not None:
            metadata["remainingItemCount"] = page.remaining
    return {
        "kind": resource.list_name,
        "apiVersion": resource.api_version,
        "metadata": metadata,
        "items": [item(resource, object_) for object_ in page.objects],
    }


def item(resource: Resource, object_: JsonObject) -> JsonObject:
    """A stored object as an item of a list."""
    if resource.strategy.untyped:
        return resource.shown(object_)
    return {key: value for key, value in resource.shown(object_).items() if key != "kind" and key != "apiVersion"}
