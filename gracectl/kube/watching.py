"""One open watch: lines decoded to events, and the server's last word raised as the error it means."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from gracectl.kube.errors import ApiError, error_for_event
from gracectl.kube.lines import OversizeLine, read_head
from gracectl.kube.transport import Request, Stream
from gracectl.model.decode import WatchEvent, decode_event


class WatchFailed(Exception):
    """The server ended a watch with an ERROR event; `error` is what it means (Gone: history lost)."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(str(error))
        self.error = error


class Undecodable(Exception):
    """A line of a watch, or the object in it, cannot be read or decoded; the cause is chained."""


class Watch:
    """The events of one stream."""

    def __init__(self, request: Request, stream: Stream) -> None:
        self._request = request
        self._stream = stream

    async def events(self) -> AsyncGenerator[WatchEvent, None]:
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
                    event = read_head(line) if isinstance(line, OversizeLine) else decode_event(line)
                    failure = error_for_event(self._request, event.object) if event.type == "ERROR" else None
                except StopAsyncIteration:
                    return
                except (msgspec.DecodeError, ValueError) as error:
                    raise Undecodable(str(error)) from error
                if failure is not None:
                    raise WatchFailed(failure)
                yield event
