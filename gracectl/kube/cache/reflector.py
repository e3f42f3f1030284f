"""List, then watch: keeps a cache equal to the server's collection, through every way in which a stream can end.

The list is read in pages without a version, which is the consistent read. A list at version 0 would come from
the server's cache, but a real server then ignores the limit and sends 150,000 pods in one body (recording
`list-pages`). Where many follow a few objects each, that is what they want (`cached`).

Invariants: the old view stays until a new list is complete; a stream is resumed from the last version seen,
of an event or a bookmark; history lost in either form (HTTP 410, or an ERROR event inside an HTTP 200) means
a new list; silence is not health: bookmarks come about once a minute, so a stream without a line for
`stall_seconds` is given up.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from enum import Enum
from typing import Any, Generic

import anyio
import anyio.lowlevel
import msgspec

from gracectl.kube.cache import Cache, Key, T, Writable
from gracectl.kube.cache.identity import ClusterIdentity
from gracectl.kube.cache.reading import is_absent
from gracectl.kube.client import KubeClient, Page
from gracectl.kube.client.watch import LONGEST_LINE, OversizeEvent, Undecodable, WatchFailed
from gracectl.kube.errors import ApiError, Forbidden, Gone, Invalid, NotFound, NotServed, Unauthorized, Unreachable
from gracectl.kube.requests import ALL, Selection, named
from gracectl.kube.resources import Resource
from gracectl.model.envelope import CHANGES, UndecodableObject, WatchEvent, decode_envelope, decode_meta
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

# Moving a timer costs more than decoding a small event: once a second is exact enough for a stall of a minute
# and a half.
_REARM_SECONDS = 1.0
# A burst that is already in the read buffer would otherwise be taken in one go.
_EVENTS_BETWEEN_YIELDS = 100
_CONFIGURATION = (Forbidden, Unauthorized, NotServed, Invalid)


class ReflectorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Scope and timeouts (seconds) of a reflector.

    `namespace`: where, over all of them unless one is named. `selection`: which of its objects; the cache holds
    those. `optional`: the server need not serve the resource at all; the cache is then live and empty, and the
    question is asked again every `absent`. `proven`: others have shown already that we may list and watch this, so
    that a refusal is waited out from the beginning. `cached`: lists may come from the server's cache, whose lag the
    watch then makes up for, but never lead back behind what was seen; for small selections of what is large.
    `most_pages` of a list are read, and its other objects left out (`is_cut`); 0: all. `name`: only the object of this
    name, of a kind without namespaces, is read with GET instead of a list, and watched: that needs no right to list.

    A watch is asked for between `watch_minimum` and `watch_maximum`, so that many do not end at the same time. A
    stream that lasted `healthy` resets the pauses between attempts, which double from `initial_pause` to
    `maximum_pause`.
    """

    watch_minimum: int = 300
    watch_maximum: int = 600
    stall: float = 90.0
    healthy: float = 10.0
    initial_pause: float = 0.2
    maximum_pause: float = 30.0
    optional: bool = False
    absent: float = 30.0
    namespace: str = ""
    selection: Selection = ALL
    proven: bool = False
    cached: bool = False
    most_pages: int = 0
    name: str = ""


class ReflectorStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the start; `last_line` is the monotonic instant of the last sign of life, None before the first:
    of a line, or of the end of a stream that had not stalled. Until then the cache was current.

    `failing`: the last attempt to list or watch has failed, and none has succeeded since; `last_error` says how.
    """

    resource: str
    lists: int
    streams: int
    events: int
    bookmarks: int
    stalls: int
    undecodable: int
    failures: int
    failing: bool
    last_line: float | None
    last_error: str


class _Next(Enum):
    RESUME = "resume"
    RELIST = "relist"


class Reflector(Generic[T]):
    """Keeps `cache`, or a part of one, equal to the server's `resource`.

    Of several versions of a resource, given in the order of preference, the first one that the server serves is taken.
    `identity`: after a lost connection a watch is resumed only on the cluster that was listed.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource[T] | tuple[Resource[T], ...],
        cache: Writable[T],
        clock: Clock,
        *,
        settings: ReflectorSettings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._client = client
        self.identity: ClusterIdentity | None = None
        self.is_cut = False
        """Whether objects of the last list were left out."""
        self._listed_cluster = ""  # the identity that the list had; "" if unknown
        self._has_lost_connection = False
        self._versions = resource if isinstance(resource, tuple) else (resource,)
        self._resource = self._versions[0]
        self._cache = cache
        self._clock = clock
        self._settings = settings or ReflectorSettings()
        self._rng = rng or random.Random()
        self._backoff = Backoff(self._settings.initial_pause, self._settings.maximum_pause, jitter=0.5, rng=self._rng)
        self._version = ""
        self._listed_at = -math.inf  # monotonic
        self._has_refused = False  # to list what its cache should have
        self._proven = self._settings.proven
        self._live = anyio.Event()
        self._absences = 0
        self._lists = self._streams = self._events = self._bookmarks = 0
        self._stalls = self._undecodable = self._failures = 0
        self._failing = False
        self._last_line: float | None = None
        self._last_error = ""

    @property
    def resource(self) -> Resource[T]:
        """The version that is watched, or looked for; writes to such objects use it, too."""
        return self._resource

    @property
    def live(self) -> bool:
        """True once a complete list has been taken over; stays true while a later list is fetched."""
        return self._live.is_set()

    async def wait_live(self) -> None:
        """Return as soon as the reflector is live."""
        await self._live.wait()

    async def run(self) -> None:
        """List and watch until cancelled.

        Raises Forbidden, Unauthorized, NotServed or Invalid only while the first list or the first watch has
        not succeeded: that is a matter of configuration. The same later is logged, and tried again.
        """
        while True:
            if not await self._list():
                continue
            while await self._watch() is _Next.RESUME:
                pass

    def statistics(self) -> ReflectorStatistics:
        """Snapshot of its progress."""
        return ReflectorStatistics(
            resource=self._resource.qualified,
            lists=self._lists,
            streams=self._streams,
            events=self._events,
            bookmarks=self._bookmarks,
            stalls=self._stalls,
            undecodable=self._undecodable,
            failures=self._failures,
            failing=self._failing,
            last_line=self._last_line,
            last_error=self._last_error,
        )

    @property
    def _followed(self) -> str:
        selection, namespace = self._settings.selection, self._settings.namespace
        if self._settings.name:
            return f"{self._resource.qualified} {self._settings.name}"
        place = f"{self._resource.qualified} in {namespace}" if namespace else self._resource.qualified
        return f"{place} ({selection})" if selection != ALL else place

    async def _list(self) -> bool:
        """Take over a complete list; False if the caller must retry (the pause has already passed)."""
        objects: list[T] = []
        undecodable: list[UndecodableObject] = []
        version, count = "", 0
        try:
            # Before the list: at worst a list of the new cluster is taken for one of the old, and read twice.
            cluster = "" if self.identity is None else await self.identity.read_if_reachable()
            settings = self._settings
            async with aclosing(self._pages()) as pages:
                async for page in pages:
                    # Not two views of all that has not changed: a second one would be half of all that we hold.
                    objects.extend(map(self._cache.held, page.items) if len(self._cache) else page.items)
                    undecodable.extend(page.undecodable)
                    version = page.resource_version
                    self._last_line = self._clock.monotonic()
                    count += 1
                    self.is_cut = count == settings.most_pages and page.continue_token != ""
                    if self.is_cut:
                        break
        except ApiError as error:
            self._has_refused = True  # etcd knows more than a cache that is not there yet, or too old
            await self._cannot_list(error)
            return False
        self._has_refused = False
        self._absences = 0
        self._undecodable += len(undecodable)
        if not self.live and isinstance(self._cache, Cache) and not len(self._cache):
            await self._fill(self._cache, objects, {found.key: found for found in undecodable})
        else:
            self._cache.replace(objects, undecodable)
        self._live.set()
        self._failing = False
        self._version = version
        self._listed_at = self._clock.monotonic()
        self._listed_cluster = cluster
        self._has_lost_connection = False
        self._lists += 1
        return True

    async def _fill(self, cache: Cache[T], objects: list[T], aside: dict[Key, UndecodableObject]) -> None:
        """Put the objects of the first list, from which no controller decides yet: a million in one step would stop the
        process for seconds, and cost it the Lease."""
        stand_ins: dict[Key, T] = {}
        for number, each in enumerate(objects, start=1):
            if aside and each.key in aside:
                stand_ins[each.key] = each
            else:
                cache.put(each)
            if number % _EVENTS_BETWEEN_YIELDS == 0:
                await anyio.lowlevel.checkpoint()
        for key, found in aside.items():
            cache.set_aside(found, stand_ins.get(key))
        cache.filled()

    def _pages(self) -> AsyncGenerator[Page[T], None]:
        settings = self._settings
        if settings.name:
            return self._page_of_one()
        not_older = (self._version or "0") if settings.cached and not self._has_refused else ""
        return self._client.list(
            self._resource, namespace=settings.namespace, selection=settings.selection, not_older=not_older
        )

    async def _page_of_one(self) -> AsyncGenerator[Page[T], None]:
        """The one object, or none. Without a version: the watch then begins with the newest state, where the version
        of an object that has not changed for long would be too old."""
        try:
            yield Page((await self._client.get(self._resource, ("", self._settings.name)),), "")
        except NotFound:
            yield Page((), "")

    async def _cannot_list(self, error: ApiError) -> None:
        if isinstance(error, NotServed) and self._try_another_version():
            return
        if self._settings.optional and await is_absent(self._client, self._versions, error):
            await self._be_absent()
        else:
            await self._fail(error)

    def _try_another_version(self) -> bool:
        """Go on to the next version; False when all have been tried, and it is the first one's turn again."""
        following = (self._versions.index(self._resource) + 1) % len(self._versions)
        self._resource = self._versions[following]
        return following > 0

    async def _be_absent(self) -> None:
        self._absences += 1
        self._last_line = self._clock.monotonic()
        # The kind was absent at the start: a failure after it appears must not stop everything that runs without it.
        self._proven = True
        # A starting API server may answer 404 before it has read its custom resource definitions: objects
        # that we knew are only given up when it says so twice.
        if self._absences > 1 or not len(self._cache):
            self._cache.replace(())
            self._live.set()
            self._failing = False
        if self._absences == 1:
            # Discovery, not the response: without permission to list, even a missing resource is refused.
            message = "the server has no %s; looking again every %g s"
            resource = self._resource.qualified
            logger.info(message, resource, self._settings.absent, extra={"resource": resource})
        await self._clock.sleep(self._settings.absent)

    async def _watch(self) -> _Next:
        """Follow one stream to its end, then wait with backoff."""
        started = self._clock.monotonic()
        problem: Exception | str | None = None
        then = _Next.RESUME
        try:
            if self._has_lost_connection and await self._is_another_cluster():
                return _Next.RELIST
            if await self._follow():
                self._stalls += 1
                problem = f"no line for {self._settings.stall:g} s"
        except WatchFailed as failed:
            # With any ERROR event the server did not continue from this version.
            problem, then = failed.error, _Next.RELIST
        except Undecodable as error:
            self._undecodable += 1
            problem, then = f"undecodable: {error}", _Next.RELIST
        except ApiError as error:
            problem = error
            self._has_lost_connection |= isinstance(error, Unreachable)
            if isinstance(error, Gone | Invalid | NotServed):
                then = _Next.RELIST
        now = self._clock.monotonic()
        healthy = now - started >= self._settings.healthy
        # Pauses have grown while the server did not answer; lost history is an answer. If each new list were lost
        # again, they would grow on.
        is_back = isinstance(problem, Gone) and now - self._listed_at >= self._settings.healthy
        if healthy or is_back:
            self._backoff.reset()
        if problem is not None:
            await self._fail(problem)
        elif not healthy:
            # A server that ends every stream immediately would otherwise get requests in a tight loop.
            await self._clock.sleep(self._backoff.next())
        return then

    async def _is_another_cluster(self) -> bool:
        """Whether the server is another cluster than the one that was listed. Raises Unreachable."""
        if self.identity is None or not self._listed_cluster:
            self._has_lost_connection = False
            return False
        cluster = await self.identity.read()
        self._has_lost_connection = False
        if cluster in ("", self._listed_cluster):
            return False
        message = "%s: the server is another cluster now (its namespace kube-system is a new one); listing again"
        logger.warning(message, self._followed, extra={"resource": self._resource.qualified})
        self._version = ""
        return True

    async def _follow(self) -> bool:
        """Read one stream until it ends; True when it was given up because it had stalled."""
        settings = self._settings
        seconds = self._rng.randint(settings.watch_minimum, settings.watch_maximum)
        with anyio.CancelScope(deadline=anyio.current_time() + settings.stall) as scope:
            async with (
                self._client.watch(
                    self._resource,
                    self._version,
                    namespace=settings.namespace,
                    selection=named(settings.name) if settings.name else settings.selection,
                    timeout_seconds=seconds,
                ) as watch,
                aclosing(watch.events()) as events,
            ):
                self._proven = True
                self._failing = False
                self._streams += 1
                rearmed = self._last_line = self._clock.monotonic()
                scope.deadline = anyio.current_time() + settings.stall
                try:
                    async for event in events:
                        now = self._last_line = self._clock.monotonic()
                        if now - rearmed >= _REARM_SECONDS:
                            rearmed = now
                            scope.deadline = anyio.current_time() + settings.stall
                        self._take(event)
                        if self._events % _EVENTS_BETWEEN_YIELDS == 0:
                            await anyio.lowlevel.checkpoint()
                finally:
                    if not scope.cancel_called:
                        self._last_line = self._clock.monotonic()
        return scope.cancelled_caught

    def _take(self, event: WatchEvent[Any]) -> None:
        self._events += 1
        if event.type == "BOOKMARK":
            self._bookmarks += 1
            self._version = self._bookmarked(event)
            return
        if event.type not in CHANGES:
            if isinstance(event, OversizeEvent):
                return self._pass_over(event)
            raise Undecodable(f"event of unknown type {event.type!r}")
        try:
            thing = self._resource.decode(event.object)
        except msgspec.DecodeError as error:
            self._set_aside(event, decode_envelope(event.object, error))
            return
        if event.type == "DELETED":
            self._cache.remove(thing.key)
        else:
            self._cache.put(thing)
        # Also of a deletion: the object of a DELETED event carries the version of the deletion (recording
        # `watch-changes`).
        self._version = thing.resource_version

    def _pass_over(self, event: OversizeEvent) -> None:
        """Skip an event that was not read: its object is undecodable, unless it was deleted; the cached state of it, if
        there is one, stays, as the head does not say on which node it is."""
        self._version = event.resource_version or self._version
        key = (event.namespace, event.name)
        if event.happened == "DELETED" and event.name:
            self._cache.remove(key)
            return
        self._undecodable += 1
        if event.name:
            error = f"its line of the watch has more than {LONGEST_LINE:,} bytes; make it smaller"
            uid, version = event.uid, event.resource_version
            self._cache.set_aside(UndecodableObject(*key, uid, version, node_name="", error=error))
            return
        logger.warning(
            "watch of %s: a line has more than %s bytes, and its head names no object: skipped; make it smaller",
            self._followed,
            f"{LONGEST_LINE:,}",
            extra={"resource": self._resource.qualified},
        )

    def _set_aside(self, event: WatchEvent[Any], found: UndecodableObject) -> None:
        """One object that cannot be decoded is no reason to hear nothing of the others."""
        if not found.name:
            raise Undecodable(f"{event.type} of {self._followed}: {found.error}")
        self._undecodable += 1
        if event.type == "DELETED":
            self._cache.remove(found.key)
        else:
            make = self._resource.stand_in
            self._cache.set_aside(found, None if make is None else make(found))
        self._version = found.resource_version or self._version

    def _bookmarked(self, event: WatchEvent[Any]) -> str:
        try:
            return decode_meta(event.object)
        except msgspec.DecodeError as error:
            raise Undecodable(f"{event.type} of {self._followed}: {error}") from error

    async def _fail(self, problem: Exception | str) -> None:
        """Raise what only a change of configuration can fix; log anything else and pause."""
        if isinstance(problem, _CONFIGURATION) and not self._proven:
            raise problem
        self._failures += 1
        self._failing = True
        self._last_error = str(problem)
        pause = self._backoff.next()
        logger.log(
            logging.INFO if isinstance(problem, Gone) else logging.WARNING,
            "list or watch of %s interrupted, going on in %.1f s: %s",
            self._followed,
            pause,
            problem,
            extra={"resource": self._resource.qualified},
        )
        await self._clock.sleep(pause)
