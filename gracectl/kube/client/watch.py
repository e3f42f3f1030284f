"""One open watch: lines decoded to events, and the server's last word raised as the error it means."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import msgspec

from gracectl.kube.errors import ApiError, error_for_event
from gracectl.kube.transport import Request, Stream
from gracectl.model.envelope import WatchEvent, decode_event


class WatchFailed(Exception):
    """The server ended a watch with an ERROR event; `error` is what it means (Gone: history lost)."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(str(error))
        self.error = error


class Undecodable(Exception):
    """A line of a watch, or the object in it, cannot be read or decoded; the cause is chained."""


class Watch:
    """The events of one stream."""

    def __init__(self, request: Request, stream: Stream, of: type | None = None) -> None:
        """`of`: as for decode_event."""
        self._request = request
        self._stream = stream
        self._of = of

    async def events(self) -> AsyncGenerator[WatchEvent[Any], None]:
        """ADDED, MODIFIED, DELETED, BOOKMARK and lines.OVERSIZE events until the server ends the stream.

        Raises WatchFailed for an ERROR event, `errors.Unreachable` when the connection breaks, and
        Undecodable.
        """
        async with aclosing(self._stream.lines()) as lines:
            while True:
                try:
                    line = await anext(lines)
                    if not line.strip():
                        continue
                    event = read_head(line) if isinstance(line, OversizeLine) else decode_event(line, self._of)
                    failure = error_for_event(self._request, event.object) if event.type == "ERROR" else None
                except StopAsyncIteration:
                    return
                except (msgspec.DecodeError, ValueError) as error:
                    raise Undecodable(str(error)) from error
                if failure is not None:
                    raise WatchFailed(failure)
                yield event


LONGEST_LINE: Final = 32 * 1024 * 1024
HEAD: Final = 16 * 1024
"""Bytes of a line that is longer."""

OVERSIZE: Final = "OVERSIZE"

_BEGIN = re.compile(
    rb'\{"type":"(ADDED|MODIFIED|DELETED)","object":\{(?:"(?:kind|apiVersion)":"[^"\\]*",)*"metadata":\{'
)
# The first members of an object's metadata as a server writes them, before any that can be long.
_MEMBER = re.compile(rb'"(\w+)":"([^"\\]*)",?')


class OversizeLine(bytes):
    """The head of a line that was longer than LONGEST_LINE."""


class OversizeEvent(WatchEvent[msgspec.Raw], frozen=True, kw_only=True):
    """An event of type OVERSIZE, for a line that was too long to be read.

    `happened`: ADDED, MODIFIED or DELETED, empty if not even that can be read; then there is no name either.
    """

    happened: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class LineSplitter:
    """Lines from pieces of any size, without their line feeds."""

    def __init__(self, longest: int = LONGEST_LINE, head: int = HEAD) -> None:
        self._longest = longest
        self._head = head
        self._parts: list[bytes] = []
        self._size = 0  # of the line that has begun

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that end in this piece."""
        *ended, begun = piece.split(b"\n")
        if ended:
            self._add(ended[0])
            ended[0] = self.rest()
            if len(piece) > self._longest:
                ended[1:] = [
                    OversizeLine(line[: self._head]) if len(line) > self._longest else line for line in ended[1:]
                ]
        self._add(begun)
        return ended

    def rest(self) -> bytes:
        """The incomplete line so far."""
        line = b"".join(self._parts)
        if self._size > self._longest:
            line = OversizeLine(line)
        self._parts, self._size = [], 0
        return line

    def _add(self, part: bytes) -> None:
        is_over = self._size > self._longest
        self._size += len(part)
        if is_over:
            return
        self._parts.append(part)
        if self._size > self._longest:
            self._parts = [b"".join(self._parts)[: self._head]]


def read_head(line: OversizeLine) -> OversizeEvent:
    """The event, as far as the head has it; raises nothing."""
    begin = _BEGIN.match(line)
    if begin is None:
        return OversizeEvent(type=OVERSIZE, object=msgspec.Raw())
    members: dict[bytes, str] = {}
    at = begin.end()
    while member := _MEMBER.match(line, at):
        members[member[1]] = member[2].decode("utf-8", "replace")
        at = member.end()
    return OversizeEvent(
        type=OVERSIZE,
        object=msgspec.Raw(),
        happened=begin[1].decode(),
        namespace=members.get(b"namespace", ""),
        name=members.get(b"name", ""),
        uid=members.get(b"uid", ""),
        resource_version=members.get(b"resourceVersion", ""),
    )
