"""Recorder of Kubernetes Events, which never blocks the work.

core/v1 and not events.k8s.io: aggregation is a plain patch of `count` and `lastTimestamp`, which `kubectl describe`
shows.

Invariants: `record` never blocks and never fails; the backlog is bounded, and so is what is remembered of a window
(what does not fit is dropped, counted and logged); at most one write per object, reason and `dedup_key` in `window`
seconds, never a LIST to deduplicate: the first is written immediately, repeats are counted and written with the total
when the window ends, or at shutdown. An Event that cannot be written is dropped. While many other requests are in
flight, Events let them go first, but not indefinitely.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import anyio
import msgspec

from gracectl.kube.cache import Cached
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import AlreadyExists, ApiError, NotFound
from gracectl.kube.requests import StrategicPatch
from gracectl.kube.resources import EVENTS, Resource
from gracectl.model.foreign import visible
from gracectl.model.times import format_time
from gracectl.runtime.clock import Clock
from gracectl.runtime.notifier import Wakeup
from gracectl.runtime.queue import WorkQueue
from gracectl.runtime.shares import Shares
from gracectl.runtime.workers import run_workers

logger = logging.getLogger(__name__)

COMPONENT = "gracectl"
EventType = Literal["Normal", "Warning"]
_Identity = tuple[str, str, str]
# The API server refuses longer ones: https://github.com/kubernetes/kubernetes/blob/v1.30.0/pkg/apis/core/validation/events.go
_MESSAGE_LENGTH = 1024
# A name has at most 253 characters, and our suffix up to 18.
_NAME_LENGTH = 230
_SECONDS_BETWEEN_COMPLAINTS = 60.0
# Writes at a time, half of them in one namespace: one alone wakes the process for each response, which costs as much
# as the request.
_AT_ONCE = 16
# With this many requests in flight, as in a storm of evictions, an Event waits, but no longer than these seconds.
_STORM = 32
_LONGEST_YIELD = 0.5
_YIELD_POLL = 0.05


class Subject(msgspec.Struct, frozen=True):
    """The object an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, resource: Resource[Any], thing: Cached) -> Subject:
        """The subject that `thing`, one object of `resource`, is."""
        namespace, name = thing.key
        return cls(resource.api_version, resource.kind, namespace, name, thing.uid)


class EventSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`window` and `flush` (the time for last writes at shutdown) in seconds; `backlog`: Events that may wait to
    be written; `remembered`: Events whose repeats are awaited, half a KiB each.
    """

    window: float = 300.0
    backlog: int = 10_000
    remembered: int = 50_000
    flush: float = 5.0


class EventStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Events recorded, and their results: written (POST or PATCH), merged into another, dropped, failed."""

    recorded: int
    written: int
    merged: int
    dropped: int
    failed: int
    backlog: int


class _Series(msgspec.Struct, eq=False):
    """One object, reason and dedup_key: its Event, and the repeats that are counted but not yet written."""

    identity: _Identity
    subject: Subject
    reason: str
    name: str
    first: float
    last: float
    message: str = ""
    type: EventType = "Normal"
    count: int = 0
    written: int = 0
    created: bool = False
    window_ends: float = 0.0

    @property
    def namespace(self) -> str:
        # An Event about a cluster-scoped object lives in `default`, anywhere else it is invalid (recording
        # `events`).
        return self.subject.namespace or "default"


class EventRecorder:
    """Records Events; `run` writes them."""

    def __init__(
        self, client: KubeClient, clock: Clock, *, instance: str = "", settings: EventSettings | None = None
    ) -> None:
        self._client = client
        self._clock = clock
        self._instance = instance
        self._settings = settings or EventSettings()
        self._series: dict[_Identity, _Series] = {}
        self._due: WorkQueue[_Identity] = WorkQueue(clock)
        # All windows are equally long: the order in which they were opened is the order in which they end.
        self._windows: deque[_Series] = deque()
        self._wake_closer = Wakeup()
        self._serial = 0
        self._complained: float | None = None
        self._listeners: list[Callable[[Subject, str, str], None]] = []
        self._recorded = self._written = self._merged = self._dropped = self._failed = 0

    def record(
        self, subject: Subject, reason: str, message: str, type: EventType = "Normal", *, dedup_key: str = ""
    ) -> None:
        """Record that `reason` happened to `subject`; returns immediately, regardless of the API server.

        An Event with another `dedup_key` than before is not a repeat and is written immediately; such Events must be
        rare.
        """
        self._recorded += 1
        for listener in self._listeners:
            listener(subject, reason, message)
        identity = (subject.uid or f"{subject.kind}/{subject.namespace}/{subject.name}", reason, dedup_key)
        series = self._series.get(identity)
        if series is None:
            if self._due.waiting >= self._settings.backlog or len(self._series) >= self._settings.remembered:
                self._dropped += 1
                self._complain(f"too many wait to be written, {self._dropped} found no room so far")
                return
            series = self._series[identity] = self._open(identity, subject, reason)
        else:
            self._merged += 1
        series.count += 1
        series.last = self._clock.now()
        series.message = visible(message)[:_MESSAGE_LENGTH]
        series.type = type

    def listen(self, listener: Callable[[Subject, str, str], None]) -> None:
        """Call the listener with subject, reason and message of each Event, also repeats; it must not block or fail."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Write Events until cancelled; then write the remaining ones for at most `flush` seconds."""
        shares = Shares[_Identity](self._clock, _AT_ONCE, self._namespace_of)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(run_workers, self._due, self._write_in_turn, shares, in_bursts=True))
                tasks.start_soon(self._close_windows)
        finally:
            left = iter([series for series in self._series.values() if series.count > series.written])
            with anyio.move_on_after(self._settings.flush, shield=True):
                async with anyio.create_task_group() as tasks:
                    for _ in range(_AT_ONCE):
                        tasks.start_soon(self._write_all, left)

    @property
    def is_busy(self) -> bool:
        """Whether an Event is due or being written."""
        return self._due.is_busy

    def statistics(self) -> EventStatistics:
        """Results of everything recorded so far."""
        return EventStatistics(
            recorded=self._recorded,
            written=self._written,
            merged=self._merged,
            dropped=self._dropped,
            failed=self._failed,
            backlog=self._due.waiting,
        )

    def _open(self, identity: _Identity, subject: Subject, reason: str) -> _Series:
        self._serial += 1
        now = self._clock.now()
        stem = subject.name[:_NAME_LENGTH].rstrip("-.")
        series = _Series(identity, subject, reason, f"{stem}.{int(now * 1e6) + self._serial:x}", now, now)
        self._open_window(series)
        self._wake_closer.set()
        self._due.add(identity)
        return series

    def _open_window(self, series: _Series) -> None:
        series.window_ends = self._clock.monotonic() + self._settings.window
        self._windows.append(series)

    def _namespace_of(self, identity: _Identity) -> str:
        # Its last window may have ended while it waited for another check.
        series = self._series.get(identity)
        return "" if series is None else series.namespace

    async def _write_in_turn(self, identity: _Identity) -> None:
        with anyio.move_on_after(_LONGEST_YIELD):
            while self._client.in_flight >= _STORM:
                await self._clock.sleep(_YIELD_POLL)
        # A window that ends while its series waits here, or is being written, queues it once more.
        series = self._series.get(identity)
        if series is not None and series.count > series.written:
            await self._write(series)

    async def _write_all(self, those: Iterator[_Series]) -> None:
        for series in those:
            await self._write(series)

    async def _close_windows(self) -> None:
        while True:
            while self._windows:
                await self._clock.sleep(self._windows[0].window_ends - self._clock.monotonic())
                self._close(self._windows.popleft())
            await self._wake_closer.wait()

    def _close(self, series: _Series) -> None:
        if series.count == series.written:
            del self._series[series.identity]
            return
        self._open_window(series)
        self._due.add(series.identity)

    async def _write(self, series: _Series) -> None:
        count = series.count
        try:
            if series.created:
                await self._update(series)
            else:
                await self._create(series)
            self._written += 1
        except ApiError as error:
            self._failed += 1
            self._complain(f"{self._failed} could not be written so far, the last one: {error}")
        # Also after a failure: an Event is not worth a second attempt, the next repeat brings the total
        # along.
        series.written = count
        if series.count == count:
            series.message = ""  # a repeat brings its own, and there are many series

    async def _update(self, series: _Series) -> None:
        body = {
            "count": series.count,
            "lastTimestamp": format_time(series.last),
            "message": series.message,
            "type": series.type,
        }
        try:
            await self._client.patch(EVENTS, (series.namespace, series.name), StrategicPatch(body))
        except NotFound:
            # The server forgets Events after an hour.
            await self._create(series)

    async def _create(self, series: _Series) -> None:
        subject = series.subject
        body: dict[str, Any] = {
            "metadata": {"name": series.name, "namespace": series.namespace},
            "involvedObject": {
                "apiVersion": subject.api_version,
                "kind": subject.kind,
                "namespace": subject.namespace,
                "name": subject.name,
                "uid": subject.uid,
            },
            "reason": series.reason,
            "message": series.message,
            "type": series.type,
            "count": series.count,
            "firstTimestamp": format_time(series.first),
            "lastTimestamp": format_time(series.last),
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
        }
        # An attempt without an answer may have created it; the next one then finds it there.
        with suppress(AlreadyExists):
            await self._client.create(EVENTS, series.namespace, body)
        series.created = True

    def _complain(self, why: str) -> None:
        now = self._clock.monotonic()
        if self._complained is None or now - self._complained >= _SECONDS_BETWEEN_COMPLAINTS:
            self._complained = now
            logger.warning("events are lost: %s", why)
