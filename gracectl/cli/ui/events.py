"""Events of gracectl as the board shows them: the last ones, by a watch of their own."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from gracectl.cli.report import Json, instant
from gracectl.kube.cache import Key
from gracectl.kube.cache.reflector import Reflector, ReflectorSettings
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import Forbidden
from gracectl.kube.requests import Selection
from gracectl.kube.resources import EVENTS, Raw
from gracectl.model import names, wire
from gracectl.model.bounds import LONGEST_TEXT
from gracectl.model.envelope import UndecodableObject
from gracectl.model.foreign import harmless
from gracectl.model.meta import NamespacedObject
from gracectl.model.parts import LONGEST_NAME
from gracectl.model.untrusted import Decoder
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

MOST_EVENTS: Final = 200
MOST_PAGES: Final = 20
"""Pages of a list, of at most 500 Events and 32 MiB each. They are sorted by name: the newest may be missing."""
OURS: Final = Selection(fields=f"reportingComponent={names.EVENT_COMPONENT}")
ABOUT: Final = ("Node", "Pod", "NodeClaim")


class Event(NamespacedObject, frozen=True, kw_only=True):
    """An Event as the board has it. `at`: when it was last seen (Unix seconds)."""

    kind: str
    at: float
    json: Json


_DECODER: Final = Decoder(wire.Event)


def decode_event(raw: Raw) -> Event:
    """The Event in this JSON object, with its texts cut and visible: anyone who may create Events writes them."""
    read = _DECODER.decode(raw)
    meta, about = read.metadata, read.involved_object or wire.Reference()
    at = read.at
    json = {
        "uid": _text(meta.uid) or "",
        "at": instant(at),
        "type": _text(read.type),
        "reason": _text(read.reason),
        "object": {
            "kind": _text(about.kind),
            "namespace": _text(about.namespace),
            "name": _text(about.name),
            "uid": _text(about.uid),
        },
        "message": _text(read.message, LONGEST_TEXT),
        "count": read.count or 1,
    }
    return Event(
        namespace=meta.namespace or "",
        name=meta.name,
        uid=meta.uid or "",
        resource_version=meta.resource_version or "",
        kind=_text(about.kind) or "",
        at=at,
        json=json,
    )


def _text(text: str | None, most: int = LONGEST_NAME) -> str | None:
    """Cut to this number of characters, before and after escaping, which turns one into up to ten."""
    return None if text is None else harmless(harmless(text, most), most)


OUR_EVENTS: Final = EVENTS.read_by(decode_event)


class EventLog:
    """Target of a reflector: the last Events, in the order in which they were seen. Events that expire stay."""

    def __init__(self) -> None:
        self._events: dict[Key, Event] = {}
        self._is_refused = False
        self._reflector: Reflector[Event] | None = None

    @property
    def is_cut(self) -> bool:
        """Whether there are more Events than are read; the newest of the list may be missing."""
        return self._reflector is not None and self._reflector.is_cut

    @property
    def json(self) -> list[Json] | None:
        """Events in the JSON of the board; None: no permission to read Events."""
        return None if self._is_refused else [each.json for each in self._events.values()]

    async def follow(self, client: KubeClient, clock: Clock) -> None:
        """Follow the Events of gracectl until cancelled; without the right to do so there are none."""
        settings = ReflectorSettings(selection=OURS, maximum_pause=5.0, most_pages=MOST_PAGES)
        self._reflector = Reflector(client, OUR_EVENTS, self, clock, settings=settings)
        try:
            await self._reflector.run()
        except Forbidden as refusal:
            self._is_refused = True
            logger.warning("events: not shown: %s", refusal)

    def put(self, new: Event) -> None:
        """See Writable."""
        if new.kind in ABOUT:
            self._events.pop(new.key, None)
            self._events[new.key] = new
            self._trim()

    def remove(self, key: Key) -> None:
        """See Writable; ignored: an Event that the server deletes has still happened."""

    def set_aside(self, found: UndecodableObject, stand_in: Event | None = None) -> None:
        """See Writable; it is not shown."""

    def replace(self, objects: Iterable[Event], undecodable: Iterable[UndecodableObject] = ()) -> None:
        """See Writable."""
        known = {each.key: each for each in (*self._events.values(), *objects) if each.kind in ABOUT}
        self._events = {each.key: each for each in sorted(known.values(), key=lambda each: each.at)}
        self._trim()

    def held(self, new: Event) -> Event:
        """See Writable."""
        return new

    def __len__(self) -> int:
        return len(self._events)

    def _trim(self) -> None:
        while len(self._events) > MOST_EVENTS:
            del self._events[next(iter(self._events))]
