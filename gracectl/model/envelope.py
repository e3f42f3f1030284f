"""Envelopes of the API server: pages of a list, events of a watch, and Status.

Objects inside stay undecoded (`msgspec.Raw`) unless a type is given: such a view keeps the whole body alive, so
decode it and let it go.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, Generic, TypeVar

import msgspec

from gracectl.model import wire
from gracectl.model.foreign import harmless
from gracectl.model.meta import NamespacedObject
from gracectl.model.untrusted import Decoder, Steps, finish

T = TypeVar("T")
W = TypeVar("W")

CHANGES: Final = frozenset({"ADDED", "MODIFIED", "DELETED"})
"""Events with an object of the watched kind."""

_ERROR_SHOWN = 200


class ListPage(msgspec.Struct, frozen=True):
    """One page of a list."""

    resource_version: str
    """Where a watch continues; all pages of a list have that of the first page."""
    continue_token: str
    """Asks for the next page; empty on the last."""
    remaining: int | None
    """Objects on later pages; None where the server does not say (it never does with a selector)."""
    items: list[Any]
    """Undecoded (`msgspec.Raw`), or all of the given type."""


class WatchEvent(msgspec.Struct, Generic[W], frozen=True):
    """One line of a watch: a change (see CHANGES), a BOOKMARK (see decode_meta) or an ERROR (see decode_status)."""

    type: str
    object: W
    """Undecoded (`msgspec.Raw`), or of the given type."""


class UndecodableObject(NamespacedObject, frozen=True, gc=False):
    """An object that cannot be decoded: what can be read of its envelope (empty: not even that), and why it cannot."""

    node_name: str = ""
    """spec.nodeName: the node of a pod."""
    error: str = ""


class StatusCause(msgspec.Struct, frozen=True):
    """One entry of details.causes."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True):
    """Object of the Status. `kind` is the plural in most responses and the Kind in some."""

    name: str = ""
    kind: str = ""
    uid: str = ""
    retry_after_seconds: int = 0
    causes: tuple[StatusCause, ...] = ()


class Status(msgspec.Struct, frozen=True):
    """metav1.Status. Many answers have no details: those read as empty ones."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails = StatusDetails()


def decode_page(body: bytes | msgspec.Raw) -> ListPage:
    """Read a list of any kind; msgspec.DecodeError if the body is none."""
    return finish(decode_page_in_slices(body))


def decode_page_in_slices(body: bytes | msgspec.Raw, of: type | None = None) -> Steps[ListPage]:
    """The same in slices: see Decoder.decode_in_slices.

    `of`: a type of wire.py, type to which all objects are decoded in one pass, which saves a look at each; all stay
    undecoded if one is invalid.
    """
    read: _WirePage[Any] | None = _decoder(_WirePage, of).decode_as_it_is(body) if of else None
    if read is None:
        read = yield from _PAGE.decode_in_slices(body)
    return ListPage(
        read.metadata.resource_version or "",
        read.metadata.continue_ or "",
        read.metadata.remaining_item_count,
        read.items or [],
    )


def token_ahead(body: bytes) -> str:
    """The continue token of a page, read before the page is decoded; empty if there is none, or if the body does not
    begin as Go writes a list, with its metadata."""
    head = _HEAD.match(body)
    meta = None if head is None else _LIST_META.decode_as_it_is(head[1])
    return "" if meta is None else meta.continue_ or ""


def decode_event(line: bytes | msgspec.Raw, of: type | None = None) -> WatchEvent[Any]:
    """Read one line of a watch; msgspec.DecodeError if it is no event.

    `of`: a type of wire.py, type to which the object of a change is decoded in the same pass; an invalid object stays
    undecoded.
    """
    read: WatchEvent[Any] | None = _decoder(WatchEvent, of).decode_as_it_is(line) if of else None
    return _EVENT.decode(line) if read is None or read.type not in CHANGES else read


def decode_status(body: bytes | msgspec.Raw) -> Status | None:
    """The Status in the body of an answer, or None: proxies and unserved groups answer in plain text."""
    try:
        read = _STATUS.decode(body)
    except msgspec.DecodeError:
        return None
    if read.kind != "Status":
        return None
    details = read.details or _WireDetails()
    return Status(
        read.code or 0,
        read.reason or "",
        read.message or "",
        StatusDetails(
            details.name or "",
            details.kind or "",
            details.uid or "",
            details.retry_after_seconds or 0,
            tuple(
                StatusCause(cause.reason or "", cause.message or "", cause.field or "")
                for cause in details.causes or ()
            ),
        ),
    )


def decode_meta(raw: bytes | msgspec.Raw) -> str:
    """The resourceVersion of an object of any kind, all that a bookmark has; msgspec.DecodeError without metadata."""
    return _BOOKMARK.decode(raw).metadata.resource_version or ""


def decode_birth(raw: bytes | msgspec.Raw) -> str:
    """The UID of an object of any kind and its creation (Unix seconds), which tells simulated clusters of one seed
    apart; msgspec.DecodeError without metadata."""
    meta = _PLAIN.decode(raw).metadata
    return f"{meta.uid}/{meta.creation_timestamp}"


def decode_envelope(found: bytes | msgspec.Raw | wire.Pod, error: msgspec.DecodeError) -> UndecodableObject:
    """The readable parts of an object whose decoder has raised `error`; never raises."""
    shown = harmless(str(error), _ERROR_SHOWN)
    if isinstance(found, wire.Pod):
        of, node_name = found.metadata, (found.spec and found.spec.node_name) or ""
        return UndecodableObject(
            of.namespace or "", of.name, of.uid or "", of.resource_version or "", node_name=node_name, error=shown
        )
    envelope = _read_or(_ENVELOPE, found, _Envelope())
    meta = _read_or(_ENVELOPE, envelope.metadata, _Envelope())
    spec = _read_or(_ENVELOPE, envelope.spec, _Envelope())
    return UndecodableObject(
        namespace=_read_or(_TEXT, meta.namespace, None) or "",
        name=_read_or(_TEXT, meta.name, None) or "",
        uid=_read_or(_TEXT, meta.uid, None) or "",
        resource_version=_read_or(_TEXT, meta.resource_version, None) or "",
        node_name=_read_or(_TEXT, spec.node_name, None) or "",
        error=shown,
    )


def _read_or(decoder: Decoder[T], raw: bytes | msgspec.Raw, otherwise: T) -> T:
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError:
        return otherwise


class _Envelope(wire.Object):
    """An object, its metadata or its spec with undecoded fields, so that a field of the wrong type does not affect
    others."""

    metadata: msgspec.Raw = wire.ABSENT
    spec: msgspec.Raw = wire.ABSENT

    name: msgspec.Raw = wire.ABSENT
    namespace: msgspec.Raw = wire.ABSENT
    uid: msgspec.Raw = wire.ABSENT
    resource_version: msgspec.Raw = wire.ABSENT
    node_name: msgspec.Raw = wire.ABSENT


class _WireListMeta(wire.Object):
    resource_version: str | None = None
    continue_: str | None = msgspec.field(default=None, name="continue")
    remaining_item_count: int | None = None


class _WirePage(wire.Object, Generic[W]):
    metadata: _WireListMeta
    # Null when empty, but never absent: an object without items is not a list.
    items: list[W] | None


class _WireCause(wire.Object):
    reason: str | None = None
    message: str | None = None
    field: str | None = None


class _WireDetails(wire.Object):
    name: str | None = None
    kind: str | None = None
    uid: str | None = None
    retry_after_seconds: int | None = None
    causes: list[_WireCause] | None = None


class _WireStatus(wire.Object):
    kind: str | None = None
    code: int | None = None
    reason: str | None = None
    message: str | None = None
    details: _WireDetails | None = None


@cache
def _decoder(wrapper: Any, of: type) -> Decoder[Any]:
    """Decoder of a page or an event, with its objects."""
    return Decoder(wrapper[of])


_PAGE = Decoder(_WirePage[msgspec.Raw])
_HEAD = re.compile(rb'\{(?:"(?:kind|apiVersion)":"[^"\\]{0,253}",){0,2}"metadata":(\{[^{}]{0,8192}\})')
_LIST_META = Decoder(_WireListMeta)
_EVENT = Decoder(WatchEvent[msgspec.Raw])
_STATUS = Decoder(_WireStatus)
_BOOKMARK = Decoder(wire.Bookmark)
_PLAIN = Decoder(wire.Plain)
_ENVELOPE = Decoder(_Envelope)
_TEXT: Decoder[str | None] = Decoder(str | None)
