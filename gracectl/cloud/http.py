"""HTTP client of providers: one session, limits on time and size, and readable errors."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

import aiohttp
import msgspec

from gracectl.cloud.provider import ProviderUnavailable
from gracectl.cloud.responses import display_text
from gracectl.kube.http import HEADERS, in_words

LONGEST_RESPONSE: Final = 64 * 1024
"""Bytes of a response about one instance."""


class HttpResponse(msgspec.Struct, frozen=True):
    """Response, read whole; header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """Client of one server, called `name` in messages; a request takes at most `timeout` seconds.

    No proxy of the environment, no redirects, no cookies: requests go to this server only.
    """

    def __init__(self, name: str, timeout: float) -> None:
        self._name = name
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> HttpResponse:
        """Send a request; returns the response with any status. Raises ProviderUnavailable."""
        # Created on first use: a session belongs to the event loop that runs it.
        session = self._session = self._session or self._new_session()
        try:
            async with session.request(
                method, url, data=body, headers=headers, allow_redirects=False, ssl=True if tls is None else tls
            ) as response:
                response_headers = {key.lower(): value for key, value in response.headers.items()}
                return HttpResponse(response.status, response_headers, await self._body(response))
        except TimeoutError as error:
            raise ProviderUnavailable(f"{self._name}: no response within {self._timeout:g} s") from error
        except aiohttp.ClientResponseError as error:
            # aiohttp's own message ends with the whole URL, and its query may contain a password.
            raise ProviderUnavailable(f"{self._name}: invalid HTTP response: {display_text(error.message)}") from None
        except aiohttp.ClientError as error:
            raise ProviderUnavailable(f"{self._name}: {in_words(error)}") from error

    async def aclose(self) -> None:
        """Close the session. The next request opens a new one."""
        session, self._session = self._session, None  # first, so that no request gets a session that closes
        if session:
            await session.close()

    def _new_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=HEADERS,
            auto_decompress=False,
            trust_env=False,
        )

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > LONGEST_RESPONSE:
                response.close()
                raise ProviderUnavailable(f"{self._name}: response exceeds {LONGEST_RESPONSE // 1024} KiB")
        return bytes(body)
