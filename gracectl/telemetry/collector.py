"""Connection of the OTLP exporters to a collector: limits on its answers, and threads that no exit waits for.

`requests` reads a body whole, unpacked, and for as long as bytes arrive. A collector answers with a few bytes, so a
response above LONGEST_RESPONSE bytes, packed or unpacked, or longer than RESPONSE_SECONDS, fails the export.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import anyio
import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

T = TypeVar("T")

LONGEST_RESPONSE: Final = 64 * 1024
"""Bytes of a body, unpacked."""

RESPONSE_SECONDS: Final = 10.0
"""From the first byte of the headers to the last one of the body."""

_CHUNK: Final = 8 * 1024


class OversizeResponse(requests.RequestException):
    """A response exceeds its limits; the message says which."""


def bounded_session(monotonic: Callable[[], float]) -> requests.Session:
    """Session for an exporter. `monotonic` is in seconds."""
    session = requests.Session()
    adapter = BoundedAdapter(monotonic)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


class BoundedAdapter(HTTPAdapter):
    """Reads each body itself, so that Session finds it read."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        super().__init__()
        self._monotonic = monotonic

    def send(self, request: requests.PreparedRequest, *arguments: Any, **options: Any) -> requests.Response:
        """See HTTPAdapter. Raises OversizeResponse."""
        response = super().send(request, *arguments, **options)
        try:
            body = self.read(response)
        except HTTPError as error:
            raise requests.ConnectionError(error, request=request) from error
        finally:
            response.raw.close()
        response._content = body  # what Response.content returns once it is read
        response._content_consumed = True
        return response

    def read(self, response: requests.Response) -> bytes:
        """The unpacked body. Raises OversizeResponse."""
        deadline = self._monotonic() + RESPONSE_SECONDS
        body = bytearray()
        # read1 returns what one read of the socket brings: read would wait for a dripping body to fill a chunk.
        while chunk := response.raw.read1(_CHUNK, decode_content=True):
            body += chunk
            if len(body) > LONGEST_RESPONSE:
                raise OversizeResponse(f"response exceeds {LONGEST_RESPONSE // 1024} KiB", response=response)
            if self._monotonic() > deadline:
                raise OversizeResponse(f"response takes more than {RESPONSE_SECONDS:g} s", response=response)
        return bytes(body)


async def in_daemon_thread(name: str, work: Callable[[], T]) -> T:
    """Result of `work` in a thread that does not delay a cancellation or the exit of the process."""
    loop, is_done = asyncio.get_running_loop(), anyio.Event()
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            errors.append(error)
        with suppress(RuntimeError):  # cancelled, and the loop is closed
            loop.call_soon_threadsafe(is_done.set)

    threading.Thread(target=run, name=name, daemon=True).start()
    await is_done.wait()
    if errors:
        raise errors[0]
    return results[0]
