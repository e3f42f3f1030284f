"""Notifications: short texts about what the controllers report in Events, for people, by apprise (extra `notify`).

Nothing is decided here: a notification is an Event of the controllers, under a name of its own. Invariants: recording
never blocks and never fails; what waits is bounded, and what is dropped is counted; each kind is sent at most once per
interval, and for one node at most once an hour; the URLs, which are secrets, are in no setting, log line or message.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from string import Template
from typing import Final, NamedTuple

import anyio

from gracectl.app.apprise_sender import SEND_SECONDS
from gracectl.kube.events import Subject
from gracectl.kube.resources import NODE_DRAINS, NODES
from gracectl.model.foreign import harmless
from gracectl.model.names import EventReason
from gracectl.runtime.clock import Clock
from gracectl.runtime.notifier import Wakeup
from gracectl.telemetry import metrics
from gracectl.telemetry.metrics import Sample
from gracectl.telemetry.settings import NOTIFICATION_EVENTS, NotificationEvent, NotificationSettings

logger = logging.getLogger(__name__)

REASONS: Final[dict[str, NotificationEvent]] = {
    EventReason.NODE_INTERRUPTED: "interruption",
    EventReason.DRAIN_BLOCKED: "drain-stuck",
    EventReason.TERMINATION_GRACE_PERIOD_EXPIRED: "deadline-missed",
    EventReason.UNHEALTHY_NODES_HELD: "breaker-open",
    EventReason.NODE_DRAIN_COMPLETED: "rotation-finished",
    EventReason.NODE_DRAIN_FAILED: "rotation-finished",
    EventReason.NODE_DRAIN_CANCELED: "rotation-finished",
}
SUBJECTS: Final = {NODES.kind: "node", NODE_DRAINS.kind: NODE_DRAINS.kind}
"""Kinds of objects, as texts call them."""
REPEAT_SECONDS: Final = 3600.0
MOST_WAITING: Final = 100
"""Nodes of one kind that wait to be named."""
MOST_NAMED: Final = 5
REMEMBERED: Final = 10_000
LONGEST_MESSAGE: Final = 300

RESULTS: Final = ("sent", "failed", "dropped")
Send = Callable[[str, str], Awaitable[None]]
"""Send a title and a text. Raises an exception whose message has no secret."""

_MARKS: Final = str.maketrans({"<": "(", ">": ")", "[": "(", "]": ")", "@": "(at)", "`": "'", "*": "'", "|": "/"})
"""Characters that mention people, link or format in chats."""


class About(NamedTuple):
    """What a notification is about: kind and name of the object, and the message of its Event."""

    kind: str
    name: str
    message: str


class Notifier:
    """Sends what it hears of; `run` sends."""

    def __init__(self, settings: NotificationSettings, cluster: str, clock: Clock, send: Send) -> None:
        self._settings = settings
        self._cluster = cluster
        self._clock = clock
        self._send = send
        self._waiting: dict[NotificationEvent, dict[str, About]] = {}
        """By kind, each object by UID."""
        self._due: dict[NotificationEvent, float] = {}
        self._notified: dict[tuple[str, str], float] = {}
        self._wake = Wakeup()
        self._counts: Counter[tuple[str, str]] = Counter()

    def record(self, subject: Subject, reason: str, message: str) -> None:
        """Notify of this Event if it is of a kind that is wanted."""
        event = REASONS.get(reason)
        if event is None or event not in self._settings.events or subject.kind not in SUBJECTS:
            return
        key, now = (event, subject.uid), self._clock.monotonic()
        if now - self._notified.get(key, -math.inf) < REPEAT_SECONDS:
            return
        waiting = self._waiting.setdefault(event, {})
        if len(waiting) >= MOST_WAITING:
            self._counts[event, "dropped"] += 1
            return
        self._notified.pop(key, None)
        self._notified[key] = now
        if len(self._notified) > REMEMBERED:
            del self._notified[next(iter(self._notified))]
        waiting[subject.uid] = About(SUBJECTS[subject.kind], subject.name, message)
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            now = self._clock.monotonic()
            for event in [each for each in self._waiting if self._due.get(each, -math.inf) <= now]:
                self._due[event] = now + self._settings.interval_seconds
                await self._notify(event, self._waiting.pop(event))
            next_due = min((self._due.get(each, now) for each in self._waiting), default=math.inf)
            await self._wake.wait(max(next_due - self._clock.monotonic(), 0.0))

    def samples(self) -> Iterator[Sample]:
        """Samples for every value of every label."""
        for event in NOTIFICATION_EVENTS:
            for result in RESULTS:
                yield Sample(metrics.NOTIFICATIONS, (event, result), self._counts[event, result])

    async def _notify(self, event: NotificationEvent, nodes: dict[str, About]) -> None:
        try:
            with anyio.fail_after(SEND_SECONDS):
                await self._send(f"gracectl: {event}", self._text(event, *nodes.values()))
        except TimeoutError:
            logger.warning("notification %s: not sent in %g s", event, SEND_SECONDS)
        except Exception as error:
            logger.warning("notification %s: not sent: %s", event, error)
        else:
            self._counts[event, "sent"] += 1
            return
        self._counts[event, "failed"] += 1
        for uid in nodes:
            self._notified.pop((event, uid), None)

    def _text(self, event: NotificationEvent, about: About, *others: About) -> str:
        fields = {"cluster": self._cluster or "gracectl", "event": event, "node": about.name, "message": about.message}
        fields["object"] = f"{about.kind} {about.name}"
        plain = {name: harmless(text, LONGEST_MESSAGE).translate(_MARKS) for name, text in fields.items()}
        text = Template(self._settings.text).substitute(plain)
        if not others:
            return text
        named = ", ".join(harmless(each.name).translate(_MARKS) for each in others[:MOST_NAMED])
        more = ", …" if len(others) > MOST_NAMED else ""
        return f"{text}\nand {len(others)} more: {named}{more}"
